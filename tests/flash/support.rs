//! Real disks for the real binary: loop devices over files on a disk, dirty, with images made by the real tools.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

pub use crate::kit::disk::{Loop, fill, folder};
pub use crate::kit::needs::{can_run, is_root, not_run};
use crate::kit::process::assert_words;
pub use crate::kit::process::tool;

pub const MIB: u64 = 1 << 20;

pub fn copal() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_copal"));
    c.stdin(Stdio::null()).env_remove("COPAL_LOG");
    c
}

/// Runs `copal flash` to its end.
pub fn flash(image: &Path, target: &Path, more: &[&str]) -> Output {
    let out = copal()
        .arg("flash")
        .arg("--image")
        .arg(image)
        .arg("--target")
        .arg(target)
        .args(more)
        .output()
        .unwrap();
    assert_words(&String::from_utf8_lossy(&out.stderr));
    out
}

/// [`flash`] that must succeed, with its receipt.
pub fn flashed(image: &Path, target: &Path, more: &[&str]) -> serde_json::Value {
    let receipt = target_receipt();
    let mut args = vec!["--receipt", receipt.to_str().unwrap()];
    args.extend(more);
    let out = flash(image, target, &args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&std::fs::read(&receipt).unwrap()).unwrap()
}

fn target_receipt() -> PathBuf {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    DIR.get_or_init(folder).path().join(format!("receipt-{n}.json"))
}

/// A partitioned OS image of 96 MiB, made once for all tests of this program.
pub fn os_image() -> &'static Path {
    static IMAGE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &IMAGE
        .get_or_init(|| {
            let dir = folder();
            let path = dir.path().join("os.img");
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/make-image.sh");
            tool(&[script, path.to_str().unwrap(), "--size", "96", "--fill", "30"]);
            (dir, path)
        })
        .1
}

/// A disk full of 0xA5; `None`, and a line that says so, where there are no loop devices.
pub fn dirty(test: &str, size: u64) -> Option<Loop> {
    can_run(test).then(|| Loop::dirty(size))
}

/// One over a file that is there.
pub fn over(test: &str, file: &Path, options: &[&str]) -> Option<Loop> {
    can_run(test).then(|| Loop::over(file, options))
}

pub fn read(path: &Path, at: u64, len: u64) -> Vec<u8> {
    let mut f = File::open(path).unwrap();
    f.seek(SeekFrom::Start(at)).unwrap();
    let mut out = vec![0; len as usize];
    f.read_exact(&mut out).unwrap();
    out
}

pub fn poke(path: &Path, at: u64, bytes: &[u8]) {
    let mut f = OpenOptions::new().write(true).open(path).unwrap();
    f.seek(SeekFrom::Start(at)).unwrap();
    f.write_all(bytes).unwrap();
    f.sync_all().unwrap();
}

/// `cmp` over the whole image length, past whatever the page cache of the device holds.
pub fn assert_equal(image: &Path, target: &Path) {
    let len = std::fs::metadata(image).unwrap().len().to_string();
    let out = Command::new("cmp").args(["-n", &len]).arg(image).arg(target).output().unwrap();
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// The JSON of the last line of stdout.
pub fn last_line(out: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line =
        text.lines().last().unwrap_or_else(|| panic!("no output; {}", String::from_utf8_lossy(&out.stderr)));
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))
}
