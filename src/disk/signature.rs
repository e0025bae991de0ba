//! Signatures of volume managers at the end of a disk, where neither a new partition table nor an image overwrites them. udev and `blkid`
//! find them there, and systemd or `mdadm` of the new system may take the disk.

use std::ops::Range;

use serde::Serialize;

use super::partition::ReadAt;

/// Each of them lies within so many bytes of the end of the disk.
const AREA: u64 = 1 << 20;

/// A piece of that area that cannot be read does not hide the rest.
const PIECE: usize = 64 << 10;

const SECTOR: u64 = 512;

/// `MD_SB_MAGIC` of `linux/raid/md_p.h`.
pub(super) const MD: u32 = 0xa92b_4efc;

/// Start of the metadata of Intel's firmware RAID (mdadm, `super-intel.c`: `MPB_SIGNATURE`).
const IMSM: &[u8] = b"Intel Raid ISM Cfg Sig. ";

/// SNIA's Common RAID Disk Data Format 2.0, 5.2: the header's signature, big-endian.
const DDF: u32 = 0xde11_de11;

/// `UBERBLOCK_MAGIC` of OpenZFS, `sys/uberblock_impl.h`, in the order of the machine that wrote it.
const UBERBLOCK: u64 = 0x00ba_b10c;

/// OpenZFS, `sys/vdev_impl.h`: two of four labels are at the end; each has uberblocks of at least 1 KiB in its second half.
const LABEL: u64 = 256 << 10;
const UBERBLOCKS: Range<u64> = 128 << 10..LABEL;
const UBERBLOCK_STEP: usize = 1 << 10;

/// One that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// As `blkid` names it.
    pub name: &'static str,
    /// The sector of its magic number, in bytes.
    pub range: Range<u64>,
    /// As operators know it, if it makes the disk a member of a RAID.
    #[serde(skip)]
    pub(crate) raid: Option<&'static str>,
}

/// All of them on a disk or a partition of `size` bytes.
pub fn at_end(read_at: &mut ReadAt<'_>, size: u64) -> Vec<Signature> {
    let start = size.saturating_sub(AREA);
    let mut end = vec![0; usize::try_from(size - start).unwrap_or(0)];
    for (piece, at) in end.chunks_mut(PIECE).zip((start..).step_by(PIECE)) {
        // A disk that cannot be read fails elsewhere.
        if read_at(at, piece).is_err() {
            piece.fill(0);
        }
    }
    let mut found = Vec::new();
    let mut look = |name, raid, offset: Option<u64>, magic: &[u8]| {
        let at = offset.and_then(|offset| usize::try_from(offset.checked_sub(start)?).ok());
        if let (Some(offset), Some(at)) = (offset, at)
            && end.get(at..).is_some_and(|there| there.starts_with(magic))
        {
            found.push(Signature { name, range: offset..(offset + SECTOR).min(size), raid });
        }
    };
    // linux/raid/md_p.h: 0.90 lies in the last whole 64 KiB, in the order of its machine; 1.0 at least 8 KiB before the end on a 4 KiB boundary.
    let (old, new) = ((size & !0xffff).checked_sub(0x1_0000), size.checked_sub(0x2000).map(|n| n & !0xfff));
    let md = "linux_raid_member";
    for words in [[MD.to_le_bytes(), [0; 4]], [MD.to_be_bytes(), [0; 4]]] {
        look(md, Some("an MD superblock of version 0.90"), old, words.as_flattened());
    }
    let words = [MD.to_le_bytes(), 1_u32.to_le_bytes()];
    look(md, Some("an MD superblock of version 1.0"), new, words.as_flattened());
    let before_end = |sectors: u64| (size / SECTOR).checked_sub(sectors).map(|at| at * SECTOR);
    for place in [2, 16] {
        // The second sector from the end, of 512 or of 4096 bytes (mdadm, `super-intel.c`).
        look("isw_raid_member", Some("metadata of an Intel firmware RAID (IMSM)"), before_end(place), IMSM);
    }
    for place in [1, 257] {
        // The last sector; libblkid also looks here.
        look(
            "ddf_raid_member",
            Some("metadata of a firmware RAID (DDF)"),
            before_end(place),
            &DDF.to_be_bytes(),
        );
    }
    for label in [2, 1].into_iter().filter_map(|n| (size / LABEL).checked_sub(n).map(|at| at * LABEL)) {
        for at in UBERBLOCKS.step_by(UBERBLOCK_STEP) {
            for magic in [UBERBLOCK.to_le_bytes(), UBERBLOCK.to_be_bytes()] {
                look("zfs_member", None, Some(label + at), &magic);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::partition::of_bytes;

    fn names(disk: &[u8]) -> Vec<(&'static str, u64)> {
        let found = at_end(&mut of_bytes(disk), disk.len() as u64);
        found.into_iter().map(|s| (s.name, s.range.start)).collect()
    }

    #[test]
    fn each_is_found_at_its_place_only() {
        const SIZE: usize = (3 << 20) + 5 * 512;
        let imsm_of_4096 = SIZE - 8192;
        let cases: [(usize, &[u8], &str); 8] = [
            (((SIZE >> 16) - 1) << 16, &[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0], "linux_raid_member"),
            (((SIZE >> 16) - 1) << 16, &[0xa9, 0x2b, 0x4e, 0xfc, 0, 0, 0, 0], "linux_raid_member"),
            ((SIZE - 8192) & !4095, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0], "linux_raid_member"),
            (SIZE - 1024, IMSM, "isw_raid_member"),
            (imsm_of_4096, IMSM, "isw_raid_member"),
            (SIZE - 512, &[0xde, 0x11, 0xde, 0x11], "ddf_raid_member"),
            ((12 - 2) * (256 << 10) + (128 << 10), &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], "zfs_member"),
            (12 * (256 << 10) - 1024, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c], "zfs_member"),
        ];
        for (at, magic, name) in cases {
            let mut disk = vec![0; SIZE];
            disk[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(names(&disk), [(name, at as u64)], "{name} at {at}");
            disk.copy_within(at..at + magic.len(), at - 512);
            disk[at..at + magic.len()].fill(0);
            assert_eq!(names(&disk), [], "{name} before {at}");
        }
    }

    #[test]
    fn small_disks_and_unreadable_ones_have_none() {
        for size in [0, 1, 511, 512, 8192, 1 << 16] {
            assert_eq!(names(&vec![0; size]), []);
        }
        assert_eq!(at_end(&mut |_, _| Err(std::io::ErrorKind::Other.into()), 10 << 20), []);
    }
}
