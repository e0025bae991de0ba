//! System calls that change a file system.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// File systems and block devices whose changes count.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// `st_dev` of what is mounted, and `st_rdev` of the block devices.
    pub devices: BTreeSet<u64>,
}

impl Watched {
    fn has(&self, meta: &Metadata) -> bool {
        self.devices.contains(&meta.dev())
            || (meta.file_type().is_block_device() && self.devices.contains(&meta.rdev()))
    }
}

#[derive(Debug, Clone)]
pub struct Change {
    pub text: String,
    /// It is one only when something was written.
    pub amount: bool,
}

pub struct Registers {
    pub number: u64,
    pub arguments: [u64; 6],
    pub result: i64,
}

#[cfg(target_arch = "x86_64")]
pub fn registers(id: Pid) -> nix::Result<Registers> {
    let r = ptrace::getregs(id)?;
    Ok(Registers {
        number: r.orig_rax,
        arguments: [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9],
        result: r.rax.cast_signed(),
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub fn registers(_: Pid) -> nix::Result<Registers> {
    Err(nix::Error::ENOSYS)
}

/// What a system call is about: numbers of its arguments.
#[derive(Clone, Copy)]
enum About {
    /// An open file, when it writes something.
    Amount(usize),
    /// An open file.
    Open(usize),
    /// A path from the working folder.
    Path(usize),
    /// A path from an open folder.
    At(usize, usize),
    /// A file to be opened: a path from an open folder (or none), and flags.
    Opening(Option<usize>, usize, Flags),
    /// A place to mount at.
    Point(usize),
}

#[derive(Clone, Copy)]
enum Flags {
    Argument(usize),
    /// The first member of what it leads to.
    Behind(usize),
    Create,
}

#[cfg(target_arch = "x86_64")]
fn about(number: u64) -> Option<(&'static str, About)> {
    use About::{Amount, At, Open, Opening, Path, Point};
    let rows: &[(i64, &str, About)] = &[
        (libc::SYS_write, "write", Amount(0)),
        (libc::SYS_pwrite64, "pwrite", Amount(0)),
        (libc::SYS_writev, "writev", Amount(0)),
        (libc::SYS_pwritev, "pwritev", Amount(0)),
        (libc::SYS_pwritev2, "pwritev2", Amount(0)),
        (libc::SYS_sendfile, "sendfile", Amount(0)),
        (libc::SYS_copy_file_range, "copy_file_range", Amount(2)),
        (libc::SYS_splice, "splice", Amount(2)),
        (libc::SYS_ftruncate, "ftruncate", Open(0)),
        (libc::SYS_fallocate, "fallocate", Open(0)),
        (libc::SYS_fchmod, "fchmod", Open(0)),
        (libc::SYS_fchown, "fchown", Open(0)),
        (libc::SYS_fsetxattr, "fsetxattr", Open(0)),
        (libc::SYS_mkdir, "mkdir", Path(0)),
        (libc::SYS_rmdir, "rmdir", Path(0)),
        (libc::SYS_unlink, "unlink", Path(0)),
        (libc::SYS_symlink, "symlink", Path(1)),
        (libc::SYS_link, "link", Path(1)),
        (libc::SYS_rename, "rename", Path(1)),
        (libc::SYS_truncate, "truncate", Path(0)),
        (libc::SYS_chmod, "chmod", Path(0)),
        (libc::SYS_chown, "chown", Path(0)),
        (libc::SYS_lchown, "lchown", Path(0)),
        (libc::SYS_utime, "utime", Path(0)),
        (libc::SYS_utimes, "utimes", Path(0)),
        (libc::SYS_mknod, "mknod", Path(0)),
        (libc::SYS_setxattr, "setxattr", Path(0)),
        (libc::SYS_lsetxattr, "lsetxattr", Path(0)),
        (libc::SYS_mkdirat, "mkdirat", At(0, 1)),
        (libc::SYS_unlinkat, "unlinkat", At(0, 1)),
        (libc::SYS_symlinkat, "symlinkat", At(1, 2)),
        (libc::SYS_linkat, "linkat", At(2, 3)),
        (libc::SYS_renameat, "renameat", At(2, 3)),
        (libc::SYS_renameat2, "renameat2", At(2, 3)),
        (libc::SYS_fchmodat, "fchmodat", At(0, 1)),
        (libc::SYS_fchownat, "fchownat", At(0, 1)),
        (libc::SYS_utimensat, "utimensat", At(0, 1)),
        (libc::SYS_futimesat, "futimesat", At(0, 1)),
        (libc::SYS_mknodat, "mknodat", At(0, 1)),
        (libc::SYS_open, "open", Opening(None, 0, Flags::Argument(1))),
        (libc::SYS_openat, "openat", Opening(Some(0), 1, Flags::Argument(2))),
        (libc::SYS_openat2, "openat2", Opening(Some(0), 1, Flags::Behind(2))),
        (libc::SYS_creat, "creat", Opening(None, 0, Flags::Create)),
        (libc::SYS_mount, "mount", Point(1)),
        (libc::SYS_umount2, "umount", Point(0)),
    ];
    let row = rows.iter().find(|(n, ..)| u64::try_from(*n) == Ok(number))?;
    Some((row.1, row.2))
}

#[cfg(not(target_arch = "x86_64"))]
fn about(_: u64) -> Option<(&'static str, About)> {
    None
}

/// What this call, which begins, changes if it succeeds.
pub fn change_of(id: Pid, registers: &Registers, watched: &Watched) -> Option<Change> {
    let (name, about) = about(registers.number)?;
    let argument = |i: usize| registers.arguments[i];
    let change = |amount: bool, path: &Path| Change { text: format!("{name} {}", shown(path)), amount };
    match about {
        About::Amount(fd) | About::Open(fd) => {
            let place = open_file(id, argument(fd));
            let meta = fs::metadata(&place).ok()?;
            let kind = meta.file_type();
            let lasts = kind.is_file() || kind.is_block_device() || matches!(about, About::Open(_));
            let file = fs::read_link(&place).unwrap_or_default();
            (lasts && watched.has(&meta)).then(|| change(matches!(about, About::Amount(_)), &file))
        }
        About::Path(path) => {
            let path = place(id, None, argument(path))?;
            is_within(&path, watched).then(|| change(false, &path))
        }
        About::At(folder, path) => {
            let path = place(id, Some(argument(folder)), argument(path))?;
            is_within(&path, watched).then(|| change(false, &path))
        }
        About::Opening(folder, path, flags) => {
            let flags = match flags {
                Flags::Argument(i) => argument(i),
                Flags::Behind(i) => u64::from_ne_bytes(read(id, argument(i), 8)?.try_into().ok()?),
                Flags::Create => u64::MAX,
            };
            let has = |flag: i32| flags & u64::try_from(flag).unwrap() != 0;
            if !has(libc::O_CREAT) && !has(libc::O_TRUNC) {
                return None;
            }
            let path = place(id, folder.map(argument), argument(path))?;
            let changes = match fs::metadata(&path) {
                Ok(meta) => meta.is_file() && has(libc::O_TRUNC) && meta.len() > 0,
                Err(_) => has(libc::O_CREAT),
            };
            (changes && is_within(&path, watched)).then(|| change(false, &path))
        }
        About::Point(path) => {
            let path = place(id, None, argument(path))?;
            Some(change(false, &path))
        }
    }
}

/// Without what leads into the process that sees it so.
fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.find("/mnt/").or_else(|| text.find("/run/")) {
        Some(at) if text.starts_with("/proc/") || text.starts_with('/') => text[at..].to_owned(),
        _ => text.into_owned(),
    }
}

fn is_within(path: &Path, watched: &Watched) -> bool {
    let has = |p: &Path| fs::metadata(p).is_ok_and(|m| watched.has(&m));
    path.parent().is_some_and(has) || has(path)
}

fn open_file(id: Pid, fd: u64) -> PathBuf {
    PathBuf::from(format!("/proc/{id}/fd/{}", fd & 0xffff_ffff))
}

/// A path that a process means, as this one can use it.
fn place(id: Pid, folder: Option<u64>, path: u64) -> Option<PathBuf> {
    let cwd = u64::from(libc::AT_FDCWD.cast_unsigned());
    let base = match folder.map(|f| f & 0xffff_ffff) {
        Some(fd) if fd != cwd => open_file(id, fd),
        _ => PathBuf::from(format!("/proc/{id}/cwd")),
    };
    if path == 0 {
        return Some(base);
    }
    let text = text(id, path)?;
    let Some(absolute) = text.strip_prefix(b"/") else { return Some(base.join(OsStr::from_bytes(&text))) };
    for own in [&b"proc/self/"[..], b"proc/thread-self/"] {
        if let Some(rest) = absolute.strip_prefix(own) {
            return Some(PathBuf::from(format!("/proc/{id}")).join(OsStr::from_bytes(rest)));
        }
    }
    Some(PathBuf::from(format!("/proc/{id}/root")).join(OsStr::from_bytes(absolute)))
}

/// A text of a process that ends with a zero.
fn text(id: Pid, address: u64) -> Option<Vec<u8>> {
    let mut all = read(id, address, 4096)?;
    let end = all.iter().position(|b| *b == 0)?;
    all.truncate(end);
    Some(all)
}

/// At most `most` bytes: less where its memory ends.
fn read(id: Pid, address: u64, most: usize) -> Option<Vec<u8>> {
    let memory = File::open(format!("/proc/{id}/mem")).ok()?;
    let mut all = vec![0; most];
    let n = memory.read_at(&mut all, address).ok()?;
    all.truncate(n);
    Some(all)
}
