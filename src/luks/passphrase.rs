//! The passphrase of an encrypted disk: the file that a plug-in has made, which copal reads once, to check it, or copal's own, from the TPM. cryptsetup
//! gets the open file.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, fstatfs};

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::block::major_minor;
use crate::sys::limits::InMemory;
use crate::tpm::store::Secret;

/// In bytes: shorter ones can be guessed, and cryptsetup reads no more of a key file.
const LENGTH: RangeInclusive<u64> = 16..=8192;

/// From this length on a passphrase has 256 bits of entropy, and a slow derivation protects nothing.
const STRONG: u64 = 32;

/// `linux/magic.h`; nix does not have it.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// What is read of it at a time, on the stack.
const PIECE: usize = 64;

/// The open file; wiped when it is dropped.
#[derive(Debug)]
pub(crate) struct Passphrase {
    file: File,
    /// None: the file has no name.
    path: Option<PathBuf>,
    length: u64,
    /// Dropped after the wipe: a mapping keeps a file system busy that a plug-in may unmount.
    in_memory: Option<InMemory>,
}

impl Passphrase {
    /// Refuses what protects nothing, and a file that would outlive the installation.
    pub(crate) fn open(paths: &Paths, path: &Path) -> Result<Passphrase> {
        let name = path.display();
        let error = |what: &str| {
            let message = format!("cannot use {name}, the passphrase of the secure-boot plug-in: {what}");
            Error::new(Code::PassphraseUnusable, message).object(&name)
        };
        let failed = |e: io::Error| error("it cannot be read").because(e);
        // A FIFO would block the open.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(error("it is not a file"));
        }
        // From here on the file is wiped, whatever is wrong with it.
        let mut passphrase =
            Passphrase { file, path: Some(path.to_owned()), length: meta.len(), in_memory: None };
        if !is_in_memory(paths, &passphrase.file, meta.dev()).map_err(failed)? {
            return Err(error("it is on a disk, which keeps it"));
        }
        if !LENGTH.contains(&meta.len()) {
            let (least, most) = LENGTH.into_inner();
            return Err(error(&format!("it has {} bytes, and not {least} to {most}", meta.len())));
        }
        passphrase.keep_in_memory();
        if passphrase.is_constant().map_err(failed)? {
            return Err(error("all of its bytes are the same"));
        }
        Ok(passphrase)
    }

    pub(crate) fn of(secret: &Secret) -> Result<Passphrase> {
        Passphrase::of_bytes(secret.bytes())
    }

    /// In a file in memory that no other program can open by a name, and that ends with copal.
    pub(super) fn of_bytes(secret: &[u8]) -> Result<Passphrase> {
        let keep = || {
            let file = File::from(memfd_create(c"passphrase", MFdFlags::MFD_CLOEXEC)?);
            let length = secret.len() as u64;
            file.set_len(length)?;
            let mut passphrase = Passphrase { file, path: None, length, in_memory: None };
            passphrase.keep_in_memory();
            passphrase.file.write_all_at(secret, 0)?;
            Ok(passphrase)
        };
        keep().map_err(|e: io::Error| {
            Error::new(Code::PassphraseUnusable, "cannot keep the passphrase in memory").because(e)
        })
    }

    /// For the standard input of a program that reads it from the beginning.
    pub(crate) fn input(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether it is long enough that cryptsetup need not derive the key slowly.
    pub(crate) fn is_strong(&self) -> bool {
        self.length >= STRONG
    }

    fn keep_in_memory(&mut self) {
        self.in_memory = InMemory::keep(&self.file, usize::try_from(self.length).unwrap_or(0));
    }

    fn is_constant(&self) -> io::Result<bool> {
        let (mut first, mut constant) = (None, true);
        let mut input = self.input()?;
        let mut piece = [0u8; PIECE];
        let done = loop {
            match input.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(n) => {
                    for byte in piece.split_at(n).0 {
                        constant &= *first.get_or_insert(*byte) == *byte;
                    }
                }
                Err(e) => break Err(e),
            }
        };
        // The compiler must not leave it out because no line reads it.
        black_box(&mut piece).fill(0);
        black_box(&mut first).take();
        done.map(|()| constant)
    }

    fn wipe(&self) -> io::Result<()> {
        let zeroes = vec![0; usize::try_from(self.length.min(*LENGTH.end())).unwrap_or(0)];
        let Some(path) = &self.path else { return self.file.write_all_at(&zeroes, 0) };
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let (now, open) = (file.metadata()?, self.file.metadata()?);
        if (now.dev(), now.ino()) != (open.dev(), open.ino()) {
            return Err(io::Error::other("another file has its name now"));
        }
        file.write_all(&zeroes)?;
        file.sync_all()?;
        std::fs::remove_file(path)
    }
}

impl Drop for Passphrase {
    fn drop(&mut self) {
        match self.wipe() {
            // The plug-in may have removed it.
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                let name = self.path.as_deref().unwrap_or(Path::new("memory"));
                tracing::warn!("cannot wipe the passphrase in {}: {e}", name.display());
            }
            _ => {}
        }
    }
}

/// On tmpfs or ramfs, or on a file system in compressed memory.
fn is_in_memory(paths: &Paths, file: &File, dev: u64) -> io::Result<bool> {
    let kind = fstatfs(file)?.filesystem_type();
    if kind == TMPFS_MAGIC || kind == RAMFS_MAGIC {
        return Ok(true);
    }
    let (major, minor) = major_minor(dev);
    let device = std::fs::read_link(paths.at(format!("/sys/dev/block/{major}:{minor}")));
    let name = device.ok().and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
    Ok(name.is_some_and(|name| name.starts_with("zram")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    fn opened(path: &Path) -> Result<Passphrase> {
        Passphrase::open(&Paths::default(), path)
    }

    #[test]
    fn a_good_one_is_handed_on_from_its_beginning_and_wiped_afterwards() {
        let dir = in_memory();
        for (length, strong) in [(16, false), (31, false), (32, true), (8192, true)] {
            let path = dir.path().join("passphrase");
            let bytes: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect();
            std::fs::write(&path, &bytes).unwrap();
            let other = File::open(&path).unwrap();
            let passphrase = opened(&path).unwrap();
            assert_eq!(passphrase.is_strong(), strong, "{length}");
            for _ in 0..2 {
                let mut read = Vec::new();
                passphrase.input().unwrap().read_to_end(&mut read).unwrap();
                assert_eq!(read, bytes);
            }
            drop(passphrase);
            assert!(!path.exists());
            let mut left = Vec::new();
            (&other).read_to_end(&mut left).unwrap();
            assert_eq!(left, vec![0; bytes.len()], "a program that has it open reads zeroes");
        }
    }

    #[test]
    fn copal_s_own_is_handed_on_and_wiped_too() {
        let passphrase = Passphrase::of(&(&[5; 32]).into()).unwrap();
        assert!(passphrase.is_strong());
        let mut other = passphrase.input().unwrap();
        for _ in 0..2 {
            let mut read = Vec::new();
            passphrase.input().unwrap().read_to_end(&mut read).unwrap();
            assert_eq!(read, [5; 32]);
        }
        drop(passphrase);
        let mut left = Vec::new();
        other.read_to_end(&mut left).unwrap();
        assert_eq!(left, [0; 32], "a program that has it open reads zeroes");
    }

    #[test]
    fn what_protects_nothing_is_refused() {
        let dir = in_memory();
        let path = dir.path().join("passphrase");
        let varied = |length: usize| -> Vec<u8> { (0..length).map(|i| u8::from(i % 2 == 0)).collect() };
        for bytes in [vec![], varied(15), varied(8193), vec![7; 32], vec![0; 64], vec![b'x'; 200]] {
            std::fs::write(&path, &bytes).unwrap();
            let e = opened(&path).unwrap_err();
            assert_eq!(e.code(), Code::PassphraseUnusable, "{}", bytes.len());
            assert_eq!(e.subject(), path.to_str());
            assert!(!path.exists(), "wiped");
        }
        // Constant but for a byte after the first piece.
        let mut almost = vec![7; 200];
        almost[150] = 8;
        std::fs::write(&path, almost).unwrap();
        opened(&path).unwrap();
    }

    #[test]
    fn what_is_no_file_in_memory_is_refused() {
        let dir = in_memory();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("real"), [1, 2].repeat(16)).unwrap();
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for name in ["link", "fifo", "folder", "missing"] {
            let e = opened(&at(name)).unwrap_err();
            assert_eq!(e.code(), Code::PassphraseUnusable, "{name}");
        }
        assert!(at("real").exists());
    }
}
