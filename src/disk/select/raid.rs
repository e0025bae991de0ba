use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::disk::{Device, Facts, Role};
use crate::sys::command::{Command, End, Said, Stream};

/// `MD_SB_MAGIC` of `linux/raid/md_p.h`.
const MAGIC: u32 = 0xa92b_4efc;

/// `mdadm` needs a few reads for one disk.
const MDADM_TIME: Duration = Duration::from_secs(10);

/// Says why a disk counts as a member of an array: itself or one of its partitions.
pub(super) fn member(facts: &Facts, disk: &Device) -> Option<String> {
    let above = disk.above.iter().filter_map(|d| facts.device(*d));
    let parts = above.filter(|d| d.role == Role::Partition);
    std::iter::once(disk).chain(parts).find_map(|d| {
        let node = facts.node_of(d);
        let content = d.content.as_deref().filter(|c| c.ends_with("_raid_member"));
        let holder = d.above.iter().filter_map(|h| facts.device(*h)).find(|h| h.role == Role::Array);
        let what = if let Some(array) = holder {
            format!("part of the array {}", array.name)
        } else if let Some(content) = content {
            format!("udev finds {content} on it")
        } else if let Some(version) = superblock(&node, d.size) {
            format!("it has an MD superblock of version {version}")
        } else if facts.paths().root() == Path::new("/") && mdadm_finds(&node) {
            "mdadm finds a superblock on it".into()
        } else {
            return None;
        };
        Some(if d.dev == disk.dev { what } else { format!("{}: {what}", d.name) })
    })
}

/// Looks for an MD superblock where each version has it. Unreadable places count as empty: a disk that cannot be read fails
/// later, before any data is lost.
fn superblock(node: &Path, size: u64) -> Option<&'static str> {
    let file = match File::open(node) {
        Ok(file) => file,
        Err(e) => {
            tracing::debug!("cannot look for a RAID superblock on {}: {e}", node.display());
            return None;
        }
    };
    // linux/raid/md_p.h: 0.90 lies in the last whole 64 KiB; 1.0 at least 8 KiB before the end on a 4 KiB boundary;
    // 1.1 at the start; 1.2 at 4 KiB.
    let old = (size & !0xffff).checked_sub(0x1_0000);
    let end = size.checked_sub(0x2000).map(|n| n & !0xfff);
    let places = [(Some(0), 1, "1.1"), (Some(0x1000), 1, "1.2"), (end, 1, "1.0"), (old, 0, "0.90")];
    places.into_iter().find_map(|(offset, major, version)| {
        let mut head = [0; 8];
        file.read_exact_at(&mut head, offset?).ok()?;
        is_superblock(u64::from_le_bytes(head), major).then_some(version)
    })
}

/// The first two words are magic and major version: little-endian in version 1, the machine's order in 0.90.
fn is_superblock(head: u64, major: u32) -> bool {
    let is = |words: u64| words == (u64::from(major) << 32 | u64::from(MAGIC));
    is(head) || (major == 0 && is(head.swap_bytes().rotate_left(32)))
}

/// `mdadm` also knows the formats of firmware RAIDs. `false` without `mdadm`, and after its timeout.
fn mdadm_finds(node: &Path) -> bool {
    match lists_an_array(
        Command::new("mdadm").args(["--examine", "--brief"]).arg(node).limit(Some(MDADM_TIME)),
    ) {
        Ok(answer) => answer,
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        // A folder of PATH is closed to this user, who has no RAID to flash.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !nix::unistd::geteuid().is_root() => false,
        Err(e) => {
            tracing::warn!("mdadm --examine {}: {e}", node.display());
            false
        }
    }
}

/// Its exit status does not help: it is 0 for a disk that has only a partition table.
fn lists_an_array(mdadm: Command) -> io::Result<bool> {
    let mut listed = false;
    let end = mdadm.apart().run(|said| {
        if let Said::Line(Stream::Out, line) = said {
            listed |= line.starts_with("ARRAY");
        }
    })?;
    match end {
        End::TooLong(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
        End::Status(_) | End::Signal(_) => Ok(listed),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Command {
        Command::new("sh").args(["-c", script])
    }

    #[test]
    fn superblocks_at_their_places_only() {
        let size = 1_000_000_u64;
        let cases = [
            (0, 1_u32, Some("1.1")),
            (4096, 1, Some("1.2")),
            (991_232, 1, Some("1.0")),  // (1000000 - 8192) rounded down to 4096
            (917_504, 0, Some("0.90")), // the fifteenth whole 64 KiB
            (512, 1, None),
            (0, 2, None),
        ];
        for (offset, major, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("disk");
            let file = File::create(&path).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(&MAGIC.to_le_bytes(), offset).unwrap();
            file.write_all_at(&major.to_le_bytes(), offset + 4).unwrap();
            assert_eq!(superblock(&path, size), expected, "{offset}");
        }
    }

    #[test]
    fn the_old_version_has_the_order_of_its_machine() {
        let mut big = [0; 8];
        big[..4].copy_from_slice(&MAGIC.to_be_bytes());
        assert!(is_superblock(u64::from_le_bytes(big), 0));
        assert!(!is_superblock(u64::from_le_bytes(big), 1));
        assert!(!is_superblock(0, 0));
    }

    #[test]
    fn small_and_missing_devices_have_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        assert_eq!(superblock(&path, 4096), None);
        std::fs::write(&path, [0; 10]).unwrap();
        assert_eq!(superblock(&path, 10), None);
    }

    #[test]
    fn a_program_without_end_is_ended() {
        let start = Instant::now();
        let e = lists_an_array(shell("exec sleep 60").limit(Some(Duration::from_millis(100)))).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn only_a_listed_array_counts() {
        assert!(lists_an_array(shell("echo ARRAY /dev/md/0 UUID=1")).unwrap());
        assert!(
            !lists_an_array(shell("echo /dev/sda:; echo '   MBR Magic : aa55'; echo ARRAY >&2")).unwrap()
        );
    }
}
