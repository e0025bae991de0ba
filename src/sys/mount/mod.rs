//! Mount table and swap areas of the kernel; mounting and unmounting.
//!
//! Formats: `proc_pid_mountinfo(5)` and `proc_swaps(5)`. Both print white space and backslashes in names as three octal digits
//! (`\040`). Names are bytes, not text.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};

mod namespace;

pub(crate) use namespace::{in_host_namespace, in_private_namespace, is_host_namespace};

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Unique while the mount exists.
    pub id: u64,
    /// The mount that it is on.
    pub parent: u64,
    /// Device number of the file system. Major 0 is anonymous: no block device, or (btrfs) not a single one.
    pub dev: (u32, u32),
    /// The folder of the file system that is visible here; not `/` for bind mounts and btrfs subvolumes.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fstype: String,
    /// A device path, `/dev/root`, or any text.
    pub source: OsString,
    /// Options of the mount, then of the file system, still escaped.
    pub options: Vec<OsString>,
}

impl Mount {
    pub fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = OsString> + 'a {
        self.options.iter().filter_map(move |o| {
            let value = o.as_bytes().strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
            Some(unescape(value))
        })
    }

    #[must_use]
    pub fn contains(&self, path: &Path) -> bool {
        path.starts_with(&self.point)
    }
}

/// For reading and writing, visible to all processes. Returns the first of `fstypes` that fits.
pub(crate) fn mount_any(
    node: &Path,
    point: &Path,
    fstypes: &'static [&'static str],
) -> io::Result<&'static str> {
    let mut last = io::Error::from(io::ErrorKind::InvalidInput);
    for fstype in fstypes {
        match nix::mount::mount(Some(node), point, Some(*fstype), MsFlags::empty(), None::<&str>) {
            Ok(()) => return Ok(fstype),
            // Another file system, or one that this kernel does not support.
            Err(e @ (Errno::EINVAL | Errno::ENODEV)) => last = e.into(),
            Err(e) => return Err(e.into()),
        }
    }
    Err(last)
}

pub(crate) fn mount_read_only(node: &Path, point: &Path, fstype: &'static str) -> io::Result<()> {
    Ok(nix::mount::mount(Some(node), point, Some(fstype), MsFlags::MS_RDONLY, None::<&str>)?)
}

pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(nix::mount::mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Mounts a virtual file system: no device, no options.
pub(crate) fn mount_virtual(fstype: &'static str, point: &Path) -> io::Result<()> {
    Ok(nix::mount::mount(Some(fstype), point, Some(fstype), MsFlags::empty(), None::<&str>)?)
}

/// From now on, mounts and unmounts below the topmost mount at `point` have no effect elsewhere.
pub(crate) fn make_private(point: &Path) -> io::Result<()> {
    Ok(nix::mount::mount(None::<&str>, point, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)?)
}

/// Removes the topmost mount at `point`, and all mounts below it, from view at once; it is unmounted after its last use.
pub fn detach(point: &Path) -> io::Result<()> {
    Ok(nix::mount::umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)?)
}

/// Unmounts the topmost mount at `point`; does not follow a link. Retries for `timeout` while it is busy.
pub fn unmount(point: &Path, timeout: Duration) -> io::Result<()> {
    let end = Instant::now() + timeout;
    loop {
        match nix::mount::umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::EBUSY | Errno::EINTR) if Instant::now() < end => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Processes with open files below `point`, as `name[pid]`; only what `/proc` shows without waiting.
#[must_use]
pub fn users(point: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for process in processes.flatten().filter(|p| p.file_name().as_bytes().iter().all(u8::is_ascii_digit)) {
        let folder = process.path();
        let open = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
        let mut links = open.chain(["cwd", "root", "exe"].map(|l| folder.join(l)));
        if links.any(|l| fs::read_link(l).is_ok_and(|to| leads_below(&to, point))) {
            let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            found.push(format!("{}[{}]", name.trim_end(), process.file_name().to_string_lossy()));
        }
    }
    found
}

/// Whether `path` is at or below `point`. In a chroot, paths of another mount namespace have a prefix from outside.
fn leads_below(path: &Path, point: &Path) -> bool {
    let point = point.strip_prefix("/").unwrap_or(point);
    path.ancestors().any(|above| above.ends_with(point))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    pub path: PathBuf,
    pub is_device: bool,
}

/// Skips invalid lines: a newer kernel may only add fields.
pub(crate) fn read_mounts(path: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse_mounts(&fs::read(path)?))
}

/// Empty for a kernel without swap.
pub(crate) fn read_swaps(path: &Path) -> io::Result<Vec<Swap>> {
    match fs::read(path) {
        Ok(text) => Ok(parse_swaps(&text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

#[must_use]
pub fn parse_mounts(text: &[u8]) -> Vec<Mount> {
    text.split(|&b| b == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let dev = parse_dev(std::str::from_utf8(fields.next()?).ok()?)?;
    let root = unescape(fields.next()?).into();
    let point = unescape(fields.next()?).into();
    let mount_options = fields.next()?;
    // A lone dash ends the optional fields.
    fields.by_ref().find(|f| *f == b"-")?;
    let fstype = unescape(fields.next()?).to_string_lossy().into_owned();
    let source = unescape(fields.next()?);
    let super_options = fields.next().unwrap_or_default();
    let mut options = split_options(mount_options);
    options.extend(split_options(super_options));
    Some(Mount { id, parent, dev, root, point, fstype, source, options })
}

#[must_use]
fn parse_swaps(text: &[u8]) -> Vec<Swap> {
    let lines = text.split(|&b| b == b'\n').skip(1);
    lines
        .filter_map(|line| {
            let mut fields = line.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty());
            let path = unescape(fields.next()?).into();
            Some(Swap { path, is_device: fields.next()? == b"partition" })
        })
        .collect()
}

/// `major:minor` in decimal, with or without a line end.
#[must_use]
pub(crate) fn parse_dev(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Splits at unescaped commas: overlayfs prints a comma in a path as `\,`.
fn split_options(text: &[u8]) -> Vec<OsString> {
    split_escaped(text, b',').into_iter().map(OsString::from_vec).collect()
}

fn split_escaped(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut escaped = false;
    for &b in text {
        if b == separator && !escaped {
            parts.push(Vec::new());
            continue;
        }
        escaped = b == b'\\' && !escaped;
        if let Some(last) = parts.last_mut() {
            last.push(b);
        }
    }
    parts.retain(|p| !p.is_empty());
    parts
}

/// The folders of an overlay's `lowerdir`: separated by `:`, or `::` before data-only layers (Linux 6.5), with `:`, `,` and `\`
/// in a name escaped by a backslash.
#[must_use]
pub(crate) fn overlay_layers(value: &OsStr) -> Vec<PathBuf> {
    let layers = split_escaped(value.as_bytes(), b':').into_iter();
    layers.map(|layer| OsString::from_vec(drop_backslashes(&layer)).into()).collect()
}

fn drop_backslashes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&b) = bytes.next() {
        out.push(if b == b'\\' { bytes.next().copied().unwrap_or(b) } else { b });
    }
    out
}

fn unescape(text: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(octal_byte);
        out.push(octal.unwrap_or(first));
        rest = if octal.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    OsString::from_vec(out)
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    if !digits.iter().all(|d| (b'0'..=b'7').contains(d)) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_from_outside_of_a_chroot_leads_there_too() {
        let is = |path: &str| leads_below(Path::new(path), Path::new("/mnt/sysroot/inactive"));
        for path in
            ["/mnt/sysroot/inactive", "/mnt/sysroot/inactive/bin/sh", "/srv/chroot/mnt/sysroot/inactive/x"]
        {
            assert!(is(path), "{path}");
        }
        for path in ["/", "/mnt/sysroot", "/mnt/sysroot/inactive2/x", "/mnt/sysroot/x/inactive", "pipe:[12]"]
        {
            assert!(!is(path), "{path}");
        }
    }

    #[test]
    fn mountinfo_with_optional_fields_escapes_and_short_lines() {
        let text = b"36 35 98:0 /mnt1 /mnt\\040two rw,noatime master:1 shared:2 - ext3 /dev/ro\\134ot rw,errors=continue\n\
            garbage\n\
            27 1 0:21 / / rw - overlay overlay rw,lowerdir=/a\\054b\\134:c:/d,upperdir=/u\n\
            28 27 0:9 / /x rw - tmpfs none\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].dev, (98, 0));
        assert_eq!(mounts[0].root, Path::new("/mnt1"));
        assert_eq!(mounts[0].point, Path::new("/mnt two"));
        assert_eq!(mounts[0].fstype, "ext3");
        assert_eq!(mounts[0].source, OsStr::new("/dev/ro\\ot"));
        assert!(mounts[0].contains(Path::new("/mnt two/x")));
        assert!(!mounts[0].contains(Path::new("/mnt twofold")));
        assert_eq!((mounts[1].id, mounts[1].parent), (27, 1));
        let lower: Vec<_> = mounts[1].values("lowerdir").collect();
        assert_eq!(lower, ["/a,b\\:c:/d"]);
        assert_eq!(overlay_layers(&lower[0]), [Path::new("/a,b:c"), Path::new("/d")]);
        assert_eq!(mounts[1].values("upperdir").collect::<Vec<_>>(), ["/u"]);
        assert_eq!(mounts[1].values("upper").count(), 0);
        assert_eq!(mounts[2].fstype, "tmpfs");
    }

    #[test]
    fn data_only_layers_count_too() {
        assert_eq!(overlay_layers(OsStr::new("/l::/d")), [Path::new("/l"), Path::new("/d")]);
    }

    #[test]
    fn swaps() {
        let text = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/sda2                               partition\t1048572\t\t0\t\t-2\n\
            /swap\\040file                              file\t\t1\t0\t-3\n";
        assert_eq!(
            parse_swaps(text),
            [
                Swap { path: "/dev/sda2".into(), is_device: true },
                Swap { path: "/swap file".into(), is_device: false }
            ]
        );
        assert_eq!(parse_swaps(b"Filename Type\n"), []);
    }

    #[test]
    fn device_numbers() {
        assert_eq!(parse_dev("259:12\n"), Some((259, 12)));
        assert_eq!(parse_dev("8"), None);
        assert_eq!(parse_dev("8:x"), None);
    }
}
