//! Archives in the format the kernel unpacks into its first root file system: `newc`, Documentation/driver-api/early-userspace.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(crate) struct Archive<W: Write> {
    out: W,
    written: u64,
    number: u32,
    folders: BTreeSet<PathBuf>,
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

impl<W: Write> Archive<W> {
    /// An archive with the one device node a first program needs to say anything.
    pub(crate) fn new(out: W) -> Self {
        let mut archive = Self { out, written: 0, number: 1, folders: BTreeSet::new() };
        archive.parents(Path::new("dev/console"));
        archive.entry(Path::new("dev/console"), CHARACTER | 0o600, b"", (5, 1));
        archive
    }

    /// A folder with everything in it, as the root.
    pub(crate) fn tree(&mut self, top: &Path) {
        self.branch(top, Path::new(""));
    }

    fn branch(&mut self, top: &Path, below: &Path) {
        let mut names: Vec<_> = std::fs::read_dir(top.join(below)).unwrap().map(|e| e.unwrap()).collect();
        names.sort_by_key(std::fs::DirEntry::file_name);
        for entry in names {
            let path = below.join(entry.file_name());
            let meta = entry.metadata().unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            if meta.is_dir() {
                self.folder(&path, mode);
                self.branch(top, &path);
            } else if meta.is_symlink() {
                let to = std::fs::read_link(entry.path()).unwrap();
                self.entry(&path, LINK | 0o777, to.as_os_str().as_bytes(), (0, 0));
            } else if meta.is_file() {
                self.entry(&path, FILE | mode, &std::fs::read(entry.path()).unwrap(), (0, 0));
            }
        }
    }

    fn folder(&mut self, path: &Path, mode: u32) {
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER | mode, b"", (0, 0));
        }
    }

    fn parents(&mut self, path: &Path) {
        let mut above: Vec<_> = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
        above.reverse();
        for folder in above {
            self.folder(folder, 0o755);
        }
    }

    /// A file and the folders above it. It replaces an earlier one of that name.
    pub(crate) fn file(&mut self, path: &Path, mode: u32, data: &[u8]) {
        let path = path.strip_prefix("/").unwrap_or(path);
        self.parents(path);
        self.entry(path, FILE | mode, data, (0, 0));
    }

    fn entry(&mut self, path: &Path, mode: u32, data: &[u8], device: (u32, u32)) {
        let name = path.as_os_str().as_bytes();
        let size = u32::try_from(data.len()).expect("files in an archive are small");
        self.number += 1;
        let head = [
            self.number,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            u32::try_from(name.len() + 1).unwrap(),
            0,
        ];
        let mut text = b"070701".to_vec();
        for field in head {
            write!(text, "{field:08x}").unwrap();
        }
        text.extend(name);
        text.push(0);
        self.put(&text);
        self.put(data);
    }

    fn put(&mut self, data: &[u8]) {
        self.out.write_all(data).unwrap();
        self.written += data.len() as u64;
        while !self.written.is_multiple_of(4) {
            self.out.write_all(&[0]).unwrap();
            self.written += 1;
        }
    }

    pub(crate) fn finish(mut self) {
        self.entry(Path::new("TRAILER!!!"), 0, b"", (0, 0));
        self.out.flush().unwrap();
    }
}
