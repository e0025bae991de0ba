//! Loop devices, mounts and swap areas that are gone when a test ends.
#![allow(dead_code)] // no test program uses all of it

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// Tells the kernel of a partition that is in no table.
const BLKPG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kit/blkpg.py");

pub const MIB: u64 = 1 << 20;

/// Runs a program with bounded patience for devices that another process looks at.
pub fn run(program: &str, args: &[&str]) -> Result<Output, String> {
    for _ in 0..20 {
        let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        if out.status.success() {
            return Ok(out);
        }
        if !text.contains("busy") {
            return Err(format!("{program} {args:?}: {text}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("{program} {args:?}: still busy"))
}

/// Undoes something with a tool when the test ends, even by a failure.
pub struct Undo(Vec<String>);

impl Undo {
    pub fn by(argv: &[&str]) -> Undo {
        Undo(argv.iter().map(|&word| word.to_owned()).collect())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let args: Vec<&str> = self.0[1..].iter().map(String::as_str).collect();
        if let Err(e) = run(&self.0[0], &args) {
            eprintln!("cannot clean up: {e}");
        }
    }
}

/// A folder on a disk: `/tmp` may be a tmpfs, on which direct I/O and holes are another thing.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Writes a file of 0xA5.
pub fn fill(path: &Path, size: u64) {
    let mut file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    let block = vec![0xA5; 1 << 20];
    let mut left = usize::try_from(size).unwrap();
    while left > 0 {
        let n = left.min(block.len());
        file.write_all(&block[..n]).unwrap();
        left -= n;
    }
    file.sync_all().unwrap();
}

/// A loop device over a file of a temporary folder.
pub struct Loop {
    pub node: PathBuf,
    pub file: PathBuf,
    _detach: Undo,
    _dir: Option<tempfile::TempDir>,
}

impl Loop {
    /// Of zeroes.
    pub fn new(size: u64) -> Loop {
        Loop::made(|file| File::create(file).unwrap().set_len(size).unwrap())
    }

    /// Full of 0xA5.
    pub fn dirty(size: u64) -> Loop {
        Loop::made(|file| fill(file, size))
    }

    fn made(make: impl FnOnce(&Path)) -> Loop {
        let dir = folder();
        let file = dir.path().join("disk");
        make(&file);
        Loop { _dir: Some(dir), ..Loop::over(&file, &[]) }
    }

    pub fn over(file: &Path, options: &[&str]) -> Loop {
        let mut args = vec!["-f", "--show"];
        args.extend(options);
        args.push(file.to_str().unwrap());
        let out = run("losetup", &args).unwrap();
        let node = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim());
        let detach = Undo::by(&["losetup", "-d", node.to_str().unwrap()]);
        Loop { node, file: file.to_owned(), _detach: detach, _dir: None }
    }

    pub fn name(&self) -> &str {
        self.node.to_str().unwrap()
    }

    /// A partition from 1 MiB on, told to the kernel by hand.
    pub fn partition(&self, number: u32, size: u64) -> (PathBuf, Undo) {
        let start = (u64::from(number) * 32 * MIB / 512).to_string();
        let number_text = number.to_string();
        let args = [BLKPG, "add", self.name(), &number_text, &start, &(size / 512).to_string()];
        run("python3", &args).unwrap();
        let node = PathBuf::from(format!("{}p{number}", self.name()));
        (node, Undo::by(&["python3", BLKPG, "del", self.name(), &number_text]))
    }
}

pub struct Mounted {
    pub point: PathBuf,
    _unmount: Undo,
    _dir: tempfile::TempDir,
}

pub fn mount(what: &Path, options: &[&str]) -> Mounted {
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().canonicalize().unwrap();
    let (what, at) = (what.to_str().unwrap(), point.to_str().unwrap());
    let mut args = options.to_vec();
    args.extend([what, at]);
    run("mount", &args).unwrap();
    let unmount = Undo::by(&["umount", at]);
    Mounted { point, _unmount: unmount, _dir: dir }
}

pub fn ext4(node: &Path) {
    run("mke2fs", &["-q", "-F", "-t", "ext4", node.to_str().unwrap()]).unwrap();
}

/// A file system of a few kilobytes, on a folder that is made if it is not there.
pub fn tmpfs(at: &Path, kib: u64) -> Undo {
    std::fs::create_dir_all(at).unwrap();
    let at = at.to_str().unwrap();
    run("mount", &["-t", "tmpfs", "-o", &format!("size={kib}k"), "small", at]).unwrap();
    Undo::by(&["umount", at])
}
