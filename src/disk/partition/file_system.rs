//! Content of a partition by its signature. The offsets are from the kernel's headers (`include/uapi/linux/magic.h`, `fs/*/`,
//! `drivers/md/`, `mm/swapfile.c`) or from the format's specification, named at each.

use std::io;

use super::ReadAt;
use super::fat::is_fat;

/// Page sizes of balenaOS architectures: the signature of a swap area ends with its first page.
const PAGES: [u64; 3] = [4096, 16 << 10, 64 << 10];

/// `None` where the content is unknown, such as a bootloader. Reads in ascending order, and stops at the first match: a stream is
/// read once.
pub fn file_system(
    read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<&'static str>> {
    let Some(first) = piece(read_at, 0, 512)? else { return Ok(None) };
    if let Some(name) = in_first_sector(&first) {
        return Ok(Some(name));
    }
    if let Some(sectors) = piece(read_at, 512, 1536)?
        && let Some(name) = in_superblock(&sectors)
    {
        return Ok(Some(name));
    }
    for page in PAGES {
        if let Some(signature) = piece(read_at, page - 10, 10)?
            && matches!(signature.as_slice(), b"SWAPSPACE2" | b"SWAP-SPACE")
        {
            return Ok(Some("swap"));
        }
        // Superblock version 1.2, the default of mdadm (`drivers/md/md.c`).
        if page == 4096 && piece(read_at, page, 4)?.is_some_and(|m| is_md(&m)) {
            return Ok(Some("a RAID member"));
        }
    }
    // `struct btrfs_super_block` at 64 KiB; its magic is 64 bytes into it.
    let btrfs = piece(read_at, (64 << 10) + 64, 8)?;
    Ok(btrfs.filter(|m| m == b"_BHRfS_M").map(|_| "btrfs"))
}

fn in_first_sector(sector: &[u8]) -> Option<&'static str> {
    let at = |place: usize, magic: &[u8]| sector.get(place..place + magic.len()) == Some(magic);
    // The OEM names are part of the formats (exFAT specification 3.1.2; `fs/ntfs3/ntfs.h`).
    if at(3, b"EXFAT   ") {
        Some("exFAT")
    } else if at(3, b"NTFS    ") {
        Some("NTFS")
    } else if is_fat(sector) {
        Some("FAT")
    } else if at(0, b"XFSB") {
        Some("xfs")
    } else if at(0, b"hsqs") || at(0, b"sqsh") {
        Some("squashfs")
    } else if at(0, b"LUKS\xba\xbe") {
        Some("LUKS")
    } else if at(0, b"LABELONE") && at(24, b"LVM2 001") {
        Some("LVM")
    } else if is_md(sector) {
        Some("a RAID member")
    } else {
        None
    }
}

/// Superblocks at byte 1024, and LVM's label, which may be in any of the first four sectors (`lib/label/label.h` of LVM2).
/// `sectors` are the second to the fourth.
fn in_superblock(sectors: &[u8]) -> Option<&'static str> {
    let at = |place: usize, magic: &[u8]| sectors.get(place..place + magic.len()) == Some(magic);
    let superblock = 1024 - 512;
    let le32 = |place: usize| -> u32 {
        let bytes = sectors.get(superblock + place..superblock + place + 4);
        bytes.and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    // A bootloader can contain two bytes of magic by chance: the inode count (0x00) and the logarithm of the block size (0x18,
    // at most 64 KiB) must also make sense.
    if at(superblock + 0x38, &[0x53, 0xef]) && le32(0) > 0 && le32(0x18) <= 6 {
        return Some("ext");
    }
    match le32(0) {
        0xf2f5_2010 => Some("f2fs"),
        0xe0f5_e1e2 => Some("erofs"),
        _ => (0..3)
            .map(|sector| sector * 512)
            .any(|s| at(s, b"LABELONE") && at(s + 24, b"LVM2 001"))
            .then_some("LVM"),
    }
}

fn is_md(bytes: &[u8]) -> bool {
    bytes.starts_with(&0xa92b_4efc_u32.to_le_bytes())
}

fn piece(read_at: &mut ReadAt<'_>, at: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; len];
    match read_at(at, &mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Mark = (usize, &'static [u8]);

    fn found(marks: &[Mark], len: usize) -> Option<&'static str> {
        let mut data = vec![0u8; len];
        for (at, bytes) in marks {
            data[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        let mut last = 0;
        let name = file_system(&mut |offset, buf| {
            assert!(offset >= last, "{offset} is read after {last}");
            last = offset;
            let at = usize::try_from(offset).unwrap();
            let source = data.get(at..at + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(source);
            Ok(())
        });
        name.unwrap()
    }

    #[test]
    fn every_signature_is_known_at_its_place() {
        let ext: &[Mark] = &[(1024, &[1, 2, 0, 0]), (1024 + 0x38, &[0x53, 0xef])];
        let all: &[(&[Mark], &str)] = &[
            (&[(3, b"EXFAT   ")], "exFAT"),
            (&[(3, b"NTFS    ")], "NTFS"),
            (&[(0, b"XFSB")], "xfs"),
            (&[(0, b"hsqs")], "squashfs"),
            (&[(0, b"LUKS\xba\xbe")], "LUKS"),
            (&[(0, b"LABELONE"), (24, b"LVM2 001")], "LVM"),
            (&[(512, b"LABELONE"), (536, b"LVM2 001")], "LVM"),
            (&[(1536, b"LABELONE"), (1560, b"LVM2 001")], "LVM"),
            (ext, "ext"),
            (&[(1024, &[0x10, 0x20, 0xf5, 0xf2])], "f2fs"),
            (&[(1024, &[0xe2, 0xe1, 0xf5, 0xe0])], "erofs"),
            (&[(0, &[0xfc, 0x4e, 0x2b, 0xa9])], "a RAID member"),
            (&[(4096, &[0xfc, 0x4e, 0x2b, 0xa9])], "a RAID member"),
            (&[(4086, b"SWAPSPACE2")], "swap"),
            (&[(16374, b"SWAPSPACE2")], "swap"),
            (&[(65526, b"SWAP-SPACE")], "swap"),
            (&[(65600, b"_BHRfS_M")], "btrfs"),
        ];
        for (marks, name) in all {
            assert_eq!(found(marks, 128 << 10), Some(*name), "{marks:?}");
        }
    }

    #[test]
    fn loaders_and_stubs_are_none() {
        assert_eq!(found(&[], 1 << 20), None);
        for len in [0, 511, 512, 2048, 4096, 65607] {
            assert_eq!(found(&[], len), None, "{len}");
        }
        assert_eq!(found(&[(1024 + 0x38, &[0x53, 0xef])], 4096), None);
        let odd: &[Mark] = &[(1024, &[1]), (1024 + 0x18, &[9]), (1024 + 0x38, &[0x53, 0xef])];
        assert_eq!(found(odd, 4096), None);
    }
}
