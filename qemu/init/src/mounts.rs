//! The mount table.

use std::path::PathBuf;

/// The mounts directly on the root's own file system, in the order in which they were made: those below them move along.
pub(crate) fn on_root(mountinfo: &str) -> Vec<PathBuf> {
    let fields = |line: &str| {
        let mut words = line.split(' ');
        let (id, parent) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some((id, parent, unescape(words.nth(2)?)))
    };
    let all: Vec<(String, String, PathBuf)> = mountinfo.lines().filter_map(fields).collect();
    // The last one is on top of the others.
    let root = all.iter().rev().find(|(_, _, point)| point.as_os_str() == "/").map(|(id, ..)| id);
    let below = all.iter().filter(|(_, parent, point)| Some(parent) == root && point.as_os_str() != "/");
    below.map(|(_, _, point)| point.clone()).collect()
}

/// Blanks and the like stand there as a backslash and three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if byte == b'\\' => {
                bytes.push(value);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_directly_on_the_root_moves() {
        let table = "\
1 1 0:2 / / rw - rootfs rootfs rw
25 1 254:2 / / rw,relatime - ext4 /dev/vda2 rw
20 25 0:5 / /dev rw,nosuid - devtmpfs devtmpfs rw
21 20 0:20 / /dev/pts rw,nosuid - devpts devpts rw
22 25 0:21 / /proc rw - proc proc rw
30 25 254:4 / /mnt/a\\040b\\134 rw shared:1 - ext4 /dev/vda4 rw
";
        let points: Vec<PathBuf> = ["/dev", "/proc", "/mnt/a b\\"].iter().map(PathBuf::from).collect();
        assert_eq!(on_root(table), points);
        assert_eq!(on_root(""), Vec::<PathBuf>::new());
    }
}
