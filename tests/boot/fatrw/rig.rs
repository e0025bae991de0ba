//! A folder that takes down every step, does not do some, and may fill up; and side files as `fatrw` writes them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use copal::sys::file::{Content, Folder, Overwrite, Steps, is_temporary};

pub struct Rig<'a> {
    folder: &'a Folder,
    steps: RefCell<Vec<String>>,
    /// The first step that is not done, and how many are not.
    from: usize,
    count: usize,
    met: Cell<bool>,
    /// No file grows beyond this.
    room: Option<u64>,
}

impl<'a> Rig<'a> {
    pub fn new(folder: &'a Folder, from: usize, count: usize) -> Self {
        Rig { folder, steps: RefCell::default(), from, count, met: Cell::new(false), room: None }
    }

    pub fn with_room(self, bytes: u64) -> Self {
        Rig { room: Some(bytes), ..self }
    }

    pub fn list(&self) -> Vec<String> {
        self.steps.borrow().clone()
    }

    /// Whether a step was not done.
    pub fn met(&self) -> bool {
        self.met.get()
    }

    fn step<T>(&self, what: String, does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let n = self.steps.borrow().len();
        self.steps.borrow_mut().push(what);
        if n >= self.from && n - self.from < self.count {
            self.met.set(true);
            return Err(io::Error::other("as ordered"));
        }
        does()
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

impl Steps for Rig<'_> {
    fn names(&self) -> io::Result<Vec<OsString>> {
        self.step("names".into(), || self.folder.names())
    }
    fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
        a == b
    }
    fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
        self.step(format!("holds {}", plain(name)), || self.folder.holds(name, content))
    }
    fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.step(format!("hold {}", plain(name)), || self.folder.hold(name))
    }
    fn create(&self, name: &OsStr, content: &Content<'_>) -> io::Result<File> {
        self.step(format!("create {}", plain(name)), || self.folder.create(name, content))
    }
    fn write(&self, file: &File, content: &Content<'_>) -> io::Result<()> {
        self.step("write".into(), || {
            self.full(content.size()?, 0)?;
            self.folder.write(file, content)
        })
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.step("sync".into(), || self.folder.sync(file))
    }
    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.step(format!("rename {} {}", plain(from), plain(to)), || self.folder.rename(from, to))
    }
    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        self.step(format!("unlink {}", plain(name)), || self.folder.unlink(name))
    }
    fn make(&self, name: &OsStr) -> io::Result<File> {
        self.folder.make(name)
    }
    fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
        self.folder.hold_folder(name)
    }
    fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
        self.folder.unlink_folder(name)
    }
    fn sync_folder(&self) -> io::Result<()> {
        self.step("sync folder".into(), || self.folder.sync_folder())
    }
    fn flush(&self) -> io::Result<()> {
        self.step("flush".into(), || self.folder.flush())
    }
}

impl Overwrite for Rig<'_> {
    fn open_to_write(&self, name: &OsStr) -> io::Result<File> {
        self.step(format!("open {}", plain(name)), || self.folder.open_to_write(name))
    }
    fn put(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let len = bytes.len() as u64;
        self.step(format!("put {offset}+{len}"), || {
            self.full(offset + len, file.metadata()?.len())?;
            self.folder.put(file, bytes, offset)
        })
    }
    fn cut(&self, file: &File, size: u64) -> io::Result<()> {
        self.step(format!("cut {size}"), || self.folder.cut(file, size))
    }
}

/// A folder with these files.
pub fn folder(files: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
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
