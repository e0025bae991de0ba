//! A folder that takes down every step, does not do some, and may fill up; and side files as `fatrw` writes them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use copal::sys::crash_point::{self, Armed};
use copal::sys::file::is_temporary;

use crate::kit::files::in_memory;

/// What the calls of this thread are, some of which are not made; until it is dropped.
pub struct Rig {
    _armed: Armed,
    seen: Rc<RefCell<Seen>>,
}

#[derive(Default)]
struct Seen {
    steps: Vec<String>,
    met: bool,
    /// No file grows beyond this.
    room: Option<u64>,
    /// The file that is written in place.
    opened: PathBuf,
}

impl Rig {
    /// `from`: the first step that is not done. `count`: how many are not done.
    pub fn new(from: usize, count: usize) -> Self {
        let seen: Rc<RefCell<Seen>> = Rc::default();
        let all = seen.clone();
        let armed = crash_point::arm(move |step, path| all.borrow_mut().step(step, path, from, count));
        Rig { _armed: armed, seen }
    }

    pub fn with_room(self, bytes: u64) -> Self {
        self.seen.borrow_mut().room = Some(bytes);
        self
    }

    pub fn list(&self) -> Vec<String> {
        self.seen.borrow().steps.clone()
    }

    /// Whether a step was not done.
    pub fn met(&self) -> bool {
        self.seen.borrow().met
    }
}

impl Seen {
    fn step(&mut self, step: &str, path: &Path, from: usize, count: usize) -> io::Result<()> {
        let (verb, object) = step.split_once(' ').unwrap_or((step, ""));
        let name = plain(path.file_name().unwrap());
        let what = match verb {
            "twin" | "owners" | "close" | "free" => return Ok(()),
            "names" | "write" => verb.to_owned(),
            "rename" => format!("rename {} {name}", plain(object.as_ref())),
            "sync" | "flush" | "put" | "cut" => step.to_owned(),
            _ => format!("{verb} {name}"),
        };
        let n = self.steps.len();
        self.steps.push(what);
        if n >= from && n - from < count {
            self.met = true;
            return Err(io::Error::other("as ordered"));
        }
        match verb {
            "open" => path.clone_into(&mut self.opened),
            "write" => self.full(object.parse().unwrap(), 0)?,
            "put" => {
                let end = object.split('+').map(|n| n.parse::<u64>().unwrap()).sum();
                self.full(end, std::fs::metadata(&self.opened)?.len())?;
            }
            _ => {}
        }
        Ok(())
    }

    fn full(&self, end: u64, held: u64) -> io::Result<()> {
        match self.room {
            Some(room) if end > room && end > held => Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)),
            _ => Ok(()),
        }
    }
}

fn plain(name: &OsStr) -> String {
    let name = name.to_str().unwrap();
    match () {
        () if is_temporary(OsStr::new(name)) => "T".into(),
        () if name.ends_with(".md5sum") => "S".into(),
        () => name.into(),
    }
}

/// A folder with these files.
pub fn folder(files: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf) {
    let dir = in_memory();
    let path = dir.path().join("boot");
    std::fs::create_dir(&path).unwrap();
    for (name, data) in files {
        std::fs::write(path.join(name), data).unwrap();
    }
    (dir, path)
}

/// What is in a folder.
pub fn see(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap_or_default()))
        .collect()
}

pub fn only(name: &str, data: &[u8]) -> BTreeMap<String, Vec<u8>> {
    BTreeMap::from([(name.to_owned(), data.to_vec())])
}

/// The name that `fatrw` gives a side file of `name` with this content: the digest is `md5sum`'s, not ours.
pub fn side_name(name: &str, random: &str, data: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), data).unwrap();
    let out = Command::new("md5sum").arg(file.path()).output().unwrap();
    let digest = String::from_utf8(out.stdout).unwrap()[..32].to_owned();
    format!(".{name}.{random}.{digest}.md5sum")
}

/// Sets when a file was written, in seconds from now.
pub fn age(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}
