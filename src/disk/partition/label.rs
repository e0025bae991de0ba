//! Labels from the file system itself: FAT (Microsoft's FAT specification 1.03) and ext2/3/4
//! (`Documentation/filesystems/ext4/super.rst` of the kernel).

use std::io;

/// Fills the buffer from a byte offset. `UnexpectedEof`: the device or image ends before.
pub(crate) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

const FAT_ENTRY_BYTES: usize = 32;

/// The format's limit; it bounds the search in a damaged folder.
const MAX_ENTRIES: u64 = 65536;

const READ_BYTES: u64 = 4096;

/// The label of the file system that starts at offset 0 of `read_at`; `None` for no label or an unknown file system. For
/// FAT: the volume entry of the root folder, else the field of the boot sector. `NO NAME` means no label.
pub fn label(read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Option<String>> {
    match find(read_at) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

fn find(read_at: &mut ReadAt<'_>) -> io::Result<Option<String>> {
    let mut boot = [0; 512];
    read_at(0, &mut boot)?;
    // FAT first: mkfs.ext4 clears the boot sector, but mkfs.vfat leaves an old ext superblock.
    if let Some(fat) = Fat::parse(&boot) {
        return match fat.root_label(read_at)? {
            Some(name) => Ok(Some(name).filter(|n| !n.is_empty())),
            None => Ok(fat.boot_label),
        };
    }
    let mut superblock = [0; 136];
    read_at(1024, &mut superblock)?;
    // s_magic at 0x38, s_volume_name at 0x78.
    if le16(&superblock, 0x38) != 0xef53 {
        return Ok(None);
    }
    let name = superblock.get(0x78..0x88).unwrap_or_default();
    let name: Vec<u8> = name.iter().copied().take_while(|b| *b != 0).collect();
    Ok(Some(String::from_utf8_lossy(&name).into_owned()).filter(|n| !n.is_empty()))
}

/// The UUID of the ext2/3/4 file system that starts at offset 0 of `read_at`, in lower case with dashes; `None` for any other.
pub(crate) fn ext_uuid(
    read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<String>> {
    let mut superblock = [0; 136];
    match read_at(1024, &mut superblock) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let uuid = superblock.get(0x68..0x78).filter(|_| le16(&superblock, 0x38) == 0xef53);
    let dashes = [4, 6, 8, 10];
    let hex = |(at, byte): (usize, &u8)| {
        let dash = if dashes.contains(&at) { "-" } else { "" };
        format!("{dash}{byte:02x}")
    };
    Ok(uuid.map(|bytes| bytes.iter().enumerate().map(hex).collect()))
}

fn le16(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..at + 2) {
        Some([a, b]) => u64::from(u16::from_le_bytes([*a, *b])),
        _ => 0,
    }
}

fn le32(bytes: &[u8], at: usize) -> u64 {
    le16(bytes, at) | le16(bytes, at + 2) << 16
}

/// Eleven bytes of a FAT name without blanks at the end; `NO NAME` becomes empty.
fn fat_name(raw: &[u8]) -> String {
    let name = String::from_utf8_lossy(raw);
    let name = name.trim_end_matches([' ', '\0']);
    if name == "NO NAME" { String::new() } else { name.to_owned() }
}

enum Root {
    Area { start: u64, len: u64 },
    Chain(u64),
}

pub(super) fn is_fat(boot: &[u8]) -> bool {
    Fat::parse(boot).is_some()
}

struct Fat {
    root: Root,
    fat_start: u64,
    cluster_len: u64,
    data_start: u64,
    boot_label: Option<String>,
}

impl Fat {
    fn parse(boot: &[u8]) -> Option<Fat> {
        let byte = |at: usize| boot.get(at).copied().unwrap_or(0);
        let (sector, per_cluster) = (le16(boot, 11), u64::from(byte(13)));
        let (reserved, fats, media) = (le16(boot, 14), u64::from(byte(16)), byte(21));
        let plausible = matches!(byte(0), 0xeb | 0xe9)
            && le16(boot, 510) == 0xaa55
            && matches!(sector, 512 | 1024 | 2048 | 4096)
            && per_cluster.is_power_of_two()
            && reserved > 0
            && (1..=4).contains(&fats)
            && (media == 0xf0 || media >= 0xf8);
        if !plausible {
            return None;
        }
        let root_len = le16(boot, 17) * FAT_ENTRY_BYTES as u64;
        // As in Linux (fs/fat/inode.c): FAT32 has no 16-bit size. The number of clusters does not count.
        let is_32 = le16(boot, 22) == 0;
        let fat_sectors = if is_32 { le32(boot, 36) } else { le16(boot, 22) };
        let fat_start = reserved * sector;
        let fat_end = fat_start + fats * fat_sectors * sector;
        let fields = if is_32 { 66 } else { 38 };
        let boot_label = (byte(fields) == 0x29)
            .then(|| fat_name(boot.get(fields + 5..fields + 16).unwrap_or_default()))
            .filter(|name| !name.is_empty());
        Some(Fat {
            root: if is_32 {
                Root::Chain(le32(boot, 44))
            } else {
                Root::Area { start: fat_end, len: root_len }
            },
            fat_start,
            cluster_len: per_cluster * sector,
            data_start: fat_end + root_len.next_multiple_of(sector),
            boot_label,
        })
    }

    fn root_label(&self, read_at: &mut ReadAt<'_>) -> io::Result<Option<String>> {
        let mut cluster = match self.root {
            Root::Area { start, len } => return Ok(scan(read_at, start, len)?.flatten()),
            Root::Chain(first) => first,
        };
        let mut entries = 0;
        while (2..0x0fff_fff7).contains(&cluster) && entries < MAX_ENTRIES {
            // The link is read before its cluster, so that a stream is read in order.
            let mut link = [0; 4];
            read_at(self.fat_start + cluster * 4, &mut link)?;
            let start = self.data_start + (cluster - 2) * self.cluster_len;
            if let Some(end) = scan(read_at, start, self.cluster_len)? {
                return Ok(end);
            }
            entries += self.cluster_len / FAT_ENTRY_BYTES as u64;
            cluster = u64::from(u32::from_le_bytes(link) & 0x0fff_ffff);
        }
        Ok(None)
    }
}

/// Looks for the volume entry in a part of a folder. `None`: continue after it; `Some(None)`: the folder ends without one.
fn scan(read_at: &mut ReadAt<'_>, start: u64, len: u64) -> io::Result<Option<Option<String>>> {
    let mut at = 0;
    while at < len {
        let mut block = vec![0; usize::try_from((len - at).min(READ_BYTES)).unwrap_or(0)];
        read_at(start + at, &mut block)?;
        for entry in block.chunks_exact(FAT_ENTRY_BYTES) {
            let (Some(first), Some(attributes)) = (entry.first(), entry.get(11)) else { break };
            match (*first, *attributes) {
                (0, _) => return Ok(Some(None)),
                (0xe5, _) => {}
                // A part of a long name has all four low bits set.
                (_, a) if a & 0x3f == 0x0f => {}
                // A volume entry, not a folder.
                (_, a) if a & 0x18 == 0x08 => {
                    return Ok(Some(Some(fat_name(entry.get(..11).unwrap_or_default()))));
                }
                _ => {}
            }
        }
        at += READ_BYTES;
    }
    Ok(None)
}
