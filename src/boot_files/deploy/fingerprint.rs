//! The fingerprint: digests of the files on a boot partition. `md5sum --quiet -c` checks it in the top folder
//! (`generate_bootpart_fingerprint` of meta-balena's `os-helpers-fs`).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use md5::{Digest as _, Md5};

use super::release::is_passing;
use crate::device_tree::pins;
use crate::sys::buffer::part;
use crate::sys::file::{FileKind, Folder};

/// The owner changes it, in any folder, and the [pins](crate::device_tree::pins).
const LEFT_OUT: &str = "config.json";

const READ_BYTES: usize = 64 << 10;
const MAX_DEPTH: usize = 32;

pub(super) fn of_file(file: &File) -> io::Result<String> {
    let mut digest = Md5::new();
    let mut buf = vec![0; READ_BYTES];
    let mut file = file;
    loop {
        match file.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => digest.update(part(&buf, ..n)?),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let mut text = String::with_capacity(32);
    for byte in digest.finalize() {
        if write!(text, "{byte:02x}").is_err() {
            break;
        }
    }
    Ok(text)
}

/// The fingerprint of every regular file below `root` on its file system, except the fingerprint `name`, `config.json`, the
/// pins, and temporary files.
pub(super) fn text(root: &Folder, name: &OsStr) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    walk(root, Path::new(""), name, 0, &mut found)?;
    found.sort();
    let mut text = Vec::new();
    for (path, digest) in found {
        line(&mut text, &path, &digest);
    }
    Ok(text)
}

fn walk(
    folder: &Folder,
    below: &Path,
    own: &OsStr,
    depth: usize,
    found: &mut Vec<(Vec<u8>, String)>,
) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("{} is too deep", folder.path().display())));
    }
    let listed = folder.list()?;
    let is_listed = |name: &OsStr| listed.binary_search_by(|(n, _)| n.as_os_str().cmp(name)).is_ok();
    for (name, kind) in &listed {
        let path = below.join(name);
        match kind {
            _ if is_passing(name, is_listed) => {}
            Some(FileKind::Folder) => {
                let inner = folder.enter(name)?;
                if inner.dev() == folder.dev() {
                    walk(&inner, &path, own, depth + 1, found)?;
                }
            }
            Some(FileKind::File)
                if !is_left_out(folder, name, own) && !path.as_os_str().eq_ignore_ascii_case(pins::FILE) =>
            {
                found.push((path.as_os_str().as_bytes().to_vec(), of_file(&folder.open_file(name)?)?));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_left_out(folder: &Folder, name: &OsStr, own: &OsStr) -> bool {
    folder.same_name(name, own) || folder.same_name(name, OsStr::new(LEFT_OUT))
}

/// As `md5sum` writes it: a leading backslash says that the name has escapes, for a backslash or newline.
fn line(text: &mut Vec<u8>, path: &[u8], digest: &str) {
    if path.iter().any(|b| matches!(b, b'\\' | b'\n' | b'\r')) {
        text.push(b'\\');
    }
    text.extend(digest.as_bytes());
    text.extend(b"  ");
    for &byte in path {
        match byte {
            b'\\' => text.extend(b"\\\\"),
            b'\n' => text.extend(b"\\n"),
            b'\r' => text.extend(b"\\r"),
            other => text.push(other),
        }
    }
    text.push(b'\n');
}

/// A hook after `1-bootfiles` changes, creates or removes them.
const SELECTION: [&str; 5] = ["EFI/BOOT/grubenv", "bootenv", "grub/grubenv", "grubenv", "resinOS_uEnv.txt"];

/// The fingerprint with the selection's present files; files that later hooks have removed lose their line. Every other line remains: it
/// may show that a file was changed. `None` where nothing changes.
pub(super) fn after_selection(root: &Folder, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    let mut old = Vec::new();
    root.open_file(name)?.read_to_end(&mut old)?;
    let top = root.path();
    let mut lines: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for text in old.split_inclusive(|&b| b == b'\n') {
        let path = text.get(34..).map(|p| p.strip_suffix(b"\n").unwrap_or(p)).unwrap_or_default();
        let path = path.strip_prefix(b"./").unwrap_or(path);
        let escaped = text.first() == Some(&b'\\');
        let is_there = || top.join(OsStr::from_bytes(path)).symlink_metadata().is_ok();
        // Nothing of ours has an escaped name.
        if escaped || path.is_empty() || is_there() && !SELECTION.iter().any(|s| s.as_bytes() == path) {
            lines.push((path.to_vec(), text.to_vec()));
        }
    }
    for path in SELECTION {
        match File::open(top.join(path)) {
            // Through the link of an encrypted device: the file is on the other partition.
            Ok(file) if file.metadata()?.dev() != root.dev() => {}
            Ok(file) => {
                let mut text = Vec::new();
                line(&mut text, path.as_bytes(), &of_file(&file)?);
                let at = lines.partition_point(|(other, _)| other.as_slice() < path.as_bytes());
                lines.insert(at, (path.as_bytes().to_vec(), text));
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(e) => return Err(e),
        }
    }
    let new: Vec<u8> = lines.into_iter().flat_map(|(_, text)| text).collect();
    Ok((new != old).then_some(new))
}

/// `None` where the path is not listed, or there is no fingerprint.
pub(super) fn recorded(root: &Folder, name: &OsStr, path: &str) -> Option<String> {
    const MAX_BYTES: u64 = 4 << 20;
    let mut text = Vec::new();
    root.open_file(name).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    String::from_utf8_lossy(&text).lines().find_map(|line| {
        let (digest, listed) = line.split_once(char::is_whitespace)?;
        // ` *` instead of two blanks means that `md5sum` read the file as binary, which makes no difference.
        let listed = listed.trim_start().trim_start_matches('*').trim_start_matches("./");
        (listed == path).then(|| digest.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STALE: &str = "00000000000000000000000000000000";

    #[test]
    fn the_selection_and_nothing_else_is_summed_up_again() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        };
        put("resinOS_uEnv.txt", "new\n");
        put("EFI/BOOT/grubenv", "new too\n");
        put("kernel", "changed by another program\n");
        let lines = ["./resinOS_uEnv.txt", "bootenv", "gone", "kernel"].map(|n| format!("{STALE}  {n}\n"));
        put("f", &lines.concat());
        let folder = Folder::open(dir.path()).unwrap();
        let text = after_selection(&folder, OsStr::new("f")).unwrap().unwrap();
        let text = String::from_utf8(text).unwrap();
        let sum = |name: &str| of_file(&File::open(dir.path().join(name)).unwrap()).unwrap();
        let expected = [
            format!("{}  EFI/BOOT/grubenv\n", sum("EFI/BOOT/grubenv")),
            format!("{STALE}  kernel\n"),
            format!("{}  resinOS_uEnv.txt\n", sum("resinOS_uEnv.txt")),
        ];
        assert_eq!(text, expected.concat());
        put("f", &text);
        assert_eq!(after_selection(&folder, OsStr::new("f")).unwrap(), None);
    }
}
