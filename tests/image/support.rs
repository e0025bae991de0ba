//! Images made with the real tools.
#![allow(clippy::cast_possible_truncation)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use copal::error::{Code, Result};
use copal::image::chunks::Piece;
use copal::image::{Checks, Image, Inspection, inspect};
use copal::progress::{Progress, Silent, Stage};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// Runs a program with an optional text on its standard input; it must succeed. What it prints.
pub fn run(program: &str, args: &[&str], input: Option<&str>) -> String {
    let mut child = Command::new(program)
        .args(args)
        .env("MTOOLS_SKIP_CHECK", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    child.stdin.take().unwrap().write_all(input.unwrap_or("").as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub struct Bench {
    pub dir: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Bench { dir: tempfile::tempdir().unwrap() }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.at(name), bytes).unwrap();
        self.at(name)
    }

    pub fn sparse(&self, name: &str, size: u64) -> PathBuf {
        fs::File::create(self.at(name)).unwrap().set_len(size).unwrap();
        self.at(name)
    }

    /// A FAT file system of `size`, with more options for `mkfs.vfat`.
    pub fn fat(&self, name: &str, size: u64, args: &[&str]) -> PathBuf {
        let path = self.sparse(name, size);
        run("mkfs.vfat", &[args, &[text(&path)]].concat(), None);
        path
    }

    /// A GPT image of 24 MiB as balenaOS has it: boot (FAT), two roots (ext4), with noise in the last.
    pub fn disk(&self, name: &str) -> PathBuf {
        let path = self.sparse(name, 24 * MIB);
        let script = "label: gpt\n2048,8192,U,*\n10240,8192,L\n18432,16384,L\n";
        run("sfdisk", &["-q", text(&path)], Some(script));
        let boot = self.fat("part.fat", 4 * MIB, &["-n", "resin-boot"]);
        put(&path, MIB, &fs::read(boot).unwrap());
        let root = self.sparse("part.ext", 4 * MIB);
        run("mke2fs", &["-q", "-t", "ext4", "-L", "resin-rootA", text(&root)], None);
        put(&path, 5 * MIB, &fs::read(root).unwrap());
        put(&path, 12 * MIB, &noise(3 * MIB, 7));
        path
    }

    /// `path` packed by a shell command that reads it from standard input.
    pub fn pack(&self, path: &Path, name: &str, command: &str) -> PathBuf {
        let out = self.at(name);
        run("sh", &["-c", &format!("{command} < '{}' > '{}'", text(path), text(&out))], None);
        out
    }
}

pub fn put(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Bytes that compress about by half.
pub fn noise(len: u64, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..) & 0x1f).collect()
}

/// All bytes of an image, through its source, with zero pieces filled in.
pub fn content(image: &Image) -> Result<Vec<u8>> {
    let mut source = image.source()?;
    let mut buffer = vec![0xaa; MIB as usize];
    let mut all = Vec::new();
    loop {
        assert!(all.len() < 1 << 30, "endless");
        match source.next(&mut buffer)? {
            Piece::End => return Ok(all),
            Piece::Zero(len) => all.resize(all.len() + len as usize, 0),
            Piece::Data(n) => {
                assert!((all.len() as u64).is_multiple_of(MIB), "a short piece in the middle");
                all.extend_from_slice(&buffer[..n]);
            }
        }
    }
}

pub fn look(path: &Path) -> Result<Inspection> {
    look_with(path, &Checks::default())
}

pub fn look_with(path: &Path, checks: &Checks) -> Result<Inspection> {
    inspect(&Image::open(path)?, checks, &Silent)
}

/// The failure has this code and names the file and every word.
pub fn refused<T>(result: Result<T>, code: Code, path: &Path, words: &[&str]) {
    let Err(error) = result else { panic!("{} accepted, expected {code}", path.display()) };
    assert_eq!(error.code(), code, "{error}");
    for word in words.iter().chain(&[text(path)]) {
        assert!(error.message().contains(word), "`{word}` is not in: {error}");
    }
}

/// Counts what is reported.
#[derive(Default)]
pub struct Count {
    pub total: AtomicU64,
    pub done: AtomicU64,
    pub finished: AtomicU64,
}

impl Progress for Count {
    fn begin(&self, stage: Stage, total: Option<u64>) {
        assert_eq!(stage, Stage::Check);
        self.total.fetch_add(total.unwrap(), Ordering::Relaxed);
    }
    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
    fn finish(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}
