//! Loop devices, mounts and swap areas that are gone when a test ends.
#![allow(dead_code)] // no test program uses all of it

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

pub use super::needs::{can_run, has};

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

/// Undoes something when the test ends, also by a failure.
pub struct Undo(pub &'static str, pub Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let args: Vec<&str> = self.1.iter().map(String::as_str).collect();
        if let Err(e) = run(self.0, &args) {
            eprintln!("cannot clean up: {e}");
        }
    }
}

/// A loop device over a file of a temporary folder.
pub struct Loop {
    pub node: PathBuf,
    pub file: PathBuf,
    _detach: Undo,
    _dir: Option<tempfile::TempDir>,
}

impl Loop {
    pub fn new(size: u64) -> Loop {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        File::create(&file).unwrap().set_len(size).unwrap();
        Loop { _dir: Some(dir), ..Loop::over(&file, &[]) }
    }

    pub fn over(file: &Path, options: &[&str]) -> Loop {
        let mut args = vec!["-f", "--show"];
        args.extend(options);
        args.push(file.to_str().unwrap());
        let out = run("losetup", &args).unwrap();
        let node = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim());
        let detach = Undo("losetup", vec!["-d".into(), node.display().to_string()]);
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
        (node, Undo("python3", vec![BLKPG.into(), "del".into(), self.name().into(), number_text]))
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
    let unmount = Undo("umount", vec![at.into()]);
    Mounted { point, _unmount: unmount, _dir: dir }
}

pub fn ext4(node: &Path) {
    run("mke2fs", &["-q", "-F", "-t", "ext4", node.to_str().unwrap()]).unwrap();
}
