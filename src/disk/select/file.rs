use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statfs::{EXT4_SUPER_MAGIC, FsType, MSDOS_SUPER_MAGIC, TMPFS_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use super::{Target, TargetKind, checks};
use crate::disk::io::FREE_SPACE;
use crate::disk::{Dev, Facts};
use crate::error::{Code, Error, Result};
use crate::sys::block::major_minor;

/// File systems of the kernel. A file there is a switch or a mistyped device, never an image.
const NOT_FOR_FILES: &[&str] = &[
    "devtmpfs",
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "efivarfs",
    "pstore",
    "bpf",
    "mqueue",
];

pub(super) fn check(path: &Path, absolute: &Path, facts: &Facts, image: Option<&Path>) -> Result<Target> {
    let place = resolved(path, absolute, facts)?;
    let real = facts.paths().at(&place);
    let meta = fs::metadata(&real).ok();
    match &meta {
        Some(m) if m.is_dir() => return Err(missing(path, "it is a folder")),
        Some(m) if !m.is_file() => return Err(missing(path, "it is neither a disk nor a plain file")),
        None if absolute.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            return Err(missing(path, "there is no such folder"));
        }
        _ => {}
    }
    let mount = facts.mount_of(&place).map(|(m, _)| m.fstype.as_str());
    let in_dev = place.starts_with("/dev") && !place.starts_with("/dev/shm");
    if in_dev || mount.is_some_and(|fstype| NOT_FOR_FILES.contains(&fstype)) {
        return Err(missing(path, "there is no such block device"));
    }
    let refused = |code, why: String| {
        Error::new(code, format!("cannot write {}: {why}", path.display())).object(path.display())
    };
    if image.is_some_and(|image| is_same(image, &real, None)) {
        return Err(refused(Code::TargetIsImage, "it is the image".into()));
    }
    if let Some((code, why)) = in_use(&real, facts) {
        return Err(refused(code, why));
    }
    let node = if path.is_symlink() { real.clone() } else { path.to_owned() };
    let touched = if meta.is_some() { real } else { real.parent().map_or_else(PathBuf::new, Path::to_owned) };
    access(&touched, AccessFlags::W_OK).map_err(|e| {
        let code = match e {
            Errno::EROFS => Code::TargetReadOnly,
            Errno::EACCES | Errno::EPERM => Code::NotRoot,
            _ => Code::Io,
        };
        refused(code, "it cannot be written".into()).because(e)
    })?;
    Ok(Target {
        name: path.to_owned(),
        node,
        kind: TargetKind::File,
        dev: None,
        size: meta.map_or(0, |m| m.len()),
        block_size: 512,
        by_id: None,
        model: None,
        serial: None,
    })
}

/// Refuses a new file where not even the image's `data` bytes would fit, without its zeroes. Only on file systems that store data as it is; others
/// may compress it.
pub(crate) fn refuse_without_space(target: &Target, data: u64) -> Result<()> {
    // linux/magic.h; nix has no name for it with musl.
    const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);
    const PLAIN: [FsType; 4] = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, TMPFS_MAGIC, MSDOS_SUPER_MAGIC];
    let dir = target.node.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(stat) = statfs(dir) else { return Ok(()) };
    // A tmpfs without a limit has no blocks.
    if stat.blocks() == 0 || !PLAIN.contains(&stat.filesystem_type()) {
        return Ok(());
    }
    // Root may use the blocks that are reserved.
    let free = stat.blocks_free().saturating_mul(u64::try_from(stat.block_size()).unwrap_or(0));
    if data <= free {
        return Ok(());
    }
    let name = target.name.display();
    let message = format!(
        "cannot write {name}: its file system has {free} bytes free, and the image has {data} bytes of data"
    );
    Err(Error::new(Code::TargetTooSmall, message).object(name).with_hint(FREE_SPACE))
}

fn in_use(real: &Path, facts: &Facts) -> Option<(Code, String)> {
    let id = inode(real)?;
    let swap = facts.swaps().iter().find(|s| !s.is_device && inode(&facts.paths().at(&s.path)) == Some(id));
    if swap.is_some() {
        return Some((Code::TargetSwap, "the system uses it for swap".into()));
    }
    let mut loops = facts.devices().filter(|d| {
        let backing = d.backing.as_ref();
        backing.is_some_and(|b| is_same(real, &facts.paths().at(&b.path), b.file))
    });
    loops.find_map(|device| {
        let used = checks::in_use(device, facts);
        if used.is_none() {
            tracing::warn!("the idle loop device {1} also uses {0}", real.display(), device.name);
        }
        used.map(|(code, why)| (code, format!("it backs {}, and {why}", device.name)))
    })
}

/// Whether two paths lead to the same file; `known` is what the loop driver reports of the other one.
pub(super) fn is_same(file: &Path, other: &Path, known: Option<(Dev, u64)>) -> bool {
    let Some((dev, ino)) = inode(file) else { return false };
    match known {
        // btrfs gives a file another device number than the driver reports, so there the path also counts.
        Some(known) if (major_minor(dev), ino) == known => true,
        _ => inode(other) == Some((dev, ino)),
    }
}

pub(super) fn missing(path: &Path, why: &str) -> Error {
    let name = path.display();
    Error::new(Code::TargetMissing, format!("cannot use {name} as target: {why}")).object(name)
}

/// Follows all links of the path's folder, which must exist.
fn resolved(path: &Path, absolute: &Path, facts: &Facts) -> Result<PathBuf> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => missing(path, "its folder does not exist"),
        _ => missing(path, "it cannot be reached").because(e),
    };
    crate::disk::resolve(facts.paths(), absolute).map_err(failed)
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}
