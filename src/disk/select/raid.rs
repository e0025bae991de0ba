use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::disk::signature::{self, MD};
use crate::disk::{Device, Facts, Role};
use crate::sys::command::{Command, End, Said, Stream};

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
        } else if let Some(what) = metadata(&node, d.size) {
            format!("it has {what}")
        } else if facts.paths().root() == Path::new("/") && mdadm_finds(&node) {
            "mdadm finds a superblock on it".into()
        } else {
            return None;
        };
        Some(if d.dev == disk.dev { what } else { format!("{}: {what}", d.name) })
    })
}

/// Looks for the superblocks of MD and of firmware RAIDs, each at its places. Unreadable places count as empty: a disk that cannot be read fails
/// later, before any data is lost.
fn metadata(node: &Path, size: u64) -> Option<&'static str> {
    let file = match File::open(node) {
        Ok(file) => file,
        Err(e) => {
            tracing::debug!("cannot look for a RAID superblock on {}: {e}", node.display());
            return None;
        }
    };
    let mut read_at = |offset: u64, out: &mut [u8]| file.read_exact_at(out, offset);
    // linux/raid/md_p.h: 1.1 is at the start, 1.2 at 4 KiB.
    let at_start = [(0, "an MD superblock of version 1.1"), (0x1000, "an MD superblock of version 1.2")];
    let found = at_start.into_iter().find(|(offset, _)| {
        let mut head = [0; 8];
        read_at(*offset, &mut head).is_ok() && head == *[MD.to_le_bytes(), 1_u32.to_le_bytes()].as_flattened()
    });
    let found = found.map(|(_, what)| what);
    found.or_else(|| signature::at_end(&mut read_at, size).into_iter().find_map(|s| s.raid))
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
    use super::*;

    fn shell(script: &str) -> Command {
        Command::new("sh").args(["-c", script])
    }

    #[test]
    fn superblocks_at_their_places_only() {
        let size = 1_000_000_u64;
        let cases = [
            (0, 1_u32, Some("an MD superblock of version 1.1")),
            (4096, 1, Some("an MD superblock of version 1.2")),
            (991_232, 1, Some("an MD superblock of version 1.0")), // (1000000 - 8192) rounded down to 4096
            (917_504, 0, Some("an MD superblock of version 0.90")), // the fifteenth whole 64 KiB
            (512, 1, None),
            (0, 2, None),
        ];
        for (offset, major, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("disk");
            let file = File::create(&path).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(&MD.to_le_bytes(), offset).unwrap();
            file.write_all_at(&major.to_le_bytes(), offset + 4).unwrap();
            assert_eq!(metadata(&path, size), expected, "{offset}");
        }
    }

    #[test]
    fn small_and_missing_devices_have_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        assert_eq!(metadata(&path, 4096), None);
        std::fs::write(&path, [0; 10]).unwrap();
        assert_eq!(metadata(&path, 10), None);
    }

    #[test]
    fn a_program_without_end_is_ended() {
        let e = lists_an_array(shell("exec sleep 1000").limit(Some(Duration::from_millis(100)))).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn only_a_listed_array_counts() {
        assert!(lists_an_array(shell("echo ARRAY /dev/md/0 UUID=1")).unwrap());
        assert!(
            !lists_an_array(shell("echo /dev/sda:; echo '   MBR Magic : aa55'; echo ARRAY >&2")).unwrap()
        );
    }
}
