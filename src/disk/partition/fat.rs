//! The FAT file system (Microsoft's FAT specification 1.03): the label, and files in the root folder.

use std::io;

use super::ReadAt;

const ENTRY_BYTES: usize = 32;

/// The format's limit; it bounds the search in a damaged folder.
const MAX_ENTRIES: u64 = 65536;

const READ_BYTES: u64 = 4096;

const LABEL_BYTES: usize = 11;

/// In characters: at most 20 parts; a damaged folder may have more.
const MAX_NAME: usize = 20 * 13;

/// Attributes of a part of a long name: all four low bits.
const LONG_NAME: u8 = 0x0f;

/// Attributes of a folder and of a label.
const FOLDER: u8 = 0x10;
const VOLUME: u8 = 0x08;

/// Where the 13 UTF-16 characters of a long name's part are in its entry.
const LONG_NAME_PARTS: [(usize, usize); 3] = [(1, 11), (14, 26), (28, 32)];

#[derive(Clone, Copy)]
enum Bits {
    Fat12,
    Fat16,
    Fat32,
}

/// The content of the file `path`, with `/` between its folders, in the FAT file system that starts at offset 0 of `read_at`. `None` if there
/// is no such file system or file, or if the file is longer than `most` bytes. The case of names does not count.
pub(crate) fn file_in_fat(read_at: &mut ReadAt<'_>, path: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    in_folder_of_fat(read_at, folder, |fat, read_at, folder| fat.read_file(read_at, folder, name, most))
}

/// The names of the files in the folder `path`. `None` if there is no such file system or folder.
pub(crate) fn files_in_fat(read_at: &mut ReadAt<'_>, path: &str) -> io::Result<Option<Vec<String>>> {
    in_folder_of_fat(read_at, path, |fat, read_at, folder| {
        let mut names = Vec::new();
        fat.named(read_at, folder, &mut |name, entry| {
            if attributes(entry) & (FOLDER | VOLUME) == 0 {
                names.push(name);
            }
            None::<()>
        })?;
        Ok(Some(names))
    })
}

/// The bytes that the FAT file system that starts at offset 0 of `read_at` has for files and folders, and those that the folder `path` needs
/// with all that is in it. `None` if there is no such file system or folder.
pub(crate) fn room_in_fat(read_at: &mut ReadAt<'_>, path: &str) -> io::Result<Option<(u64, u64)>> {
    in_folder_of_fat(read_at, path, |fat, read_at, folder| {
        Ok(Some((fat.data_len, fat.needed(read_at, folder)?)))
    })
}

fn in_folder_of_fat<T>(
    read_at: &mut ReadAt<'_>,
    path: &str,
    use_it: impl FnOnce(&Fat, &mut ReadAt<'_>, &Folder) -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let mut boot = [0; 512];
    let found = read_at(0, &mut boot).and_then(|()| {
        let Some(fat) = Fat::parse(&boot) else { return Ok(None) };
        let mut folder = fat.root.clone();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let Some((first, _)) = fat.find(read_at, &folder, name, FOLDER)? else { return Ok(None) };
            folder = Folder::Chain(first);
        }
        use_it(&fat, read_at, &folder)
    });
    match found {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

/// Bytes to write, each from its offset on.
type Edits = Vec<(u64, Vec<u8>)>;

/// The bytes to write, so that the FAT file system that starts at offset 0 of `read_at` has this label: of the boot sector,
/// its copy, and the root folder. `None` if there is no such file system, or if its root folder has no label: GRUB looks nowhere else.
/// A label has at most eleven bytes.
pub(crate) fn fat_label(read_at: &mut ReadAt<'_>, label: &str) -> io::Result<Option<Edits>> {
    let mut boot = [0; 512];
    read_at(0, &mut boot)?;
    let Some(fat) = Fat::parse(&boot) else { return Ok(None) };
    let mut padded = label.as_bytes().to_vec();
    padded.resize(LABEL_BYTES, b' ');
    let mut edits = Vec::new();
    let mut sectors = vec![0];
    if matches!(fat.bits, Bits::Fat32) {
        // Past the reserved sectors there is no copy.
        let copy = le16(&boot, 50) * le16(&boot, 11);
        sectors.extend((copy > 0 && copy < fat.fat_start).then_some(copy));
    }
    for start in sectors {
        let mut sector = [0; 512];
        read_at(start, &mut sector)?;
        if let (Some(_), Some(at)) = (Fat::parse(&sector), label_field(&sector)) {
            edits.push((start + at as u64, padded.clone()));
        }
    }
    let entry = fat.entries(read_at, &fat.root, &mut |at, entry| is_label(entry).then_some(at))?;
    Ok(entry.map(|at| {
        edits.push((at, padded));
        edits
    }))
}

/// Where a boot sector has a label, if it has one.
fn label_field(boot: &[u8]) -> Option<usize> {
    let signature = if le16(boot, 22) == 0 { 66 } else { 38 };
    (boot.get(signature) == Some(&0x29)).then_some(signature + 5)
}

/// Where the entries of a folder are.
#[derive(Clone)]
enum Folder {
    /// The root folder of FAT12 and FAT16.
    Area {
        start: u64,
        len: u64,
    },
    Chain(u64),
}

pub(super) struct Fat {
    bits: Bits,
    root: Folder,
    fat_start: u64,
    cluster_len: u64,
    data_start: u64,
    /// Of the clusters.
    data_len: u64,
    pub(super) boot_label: Option<String>,
}

impl Fat {
    /// By the boot sector; `None` if it is not that of a FAT file system.
    pub(super) fn parse(boot: &[u8]) -> Option<Fat> {
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
        let root_len = le16(boot, 17) * ENTRY_BYTES as u64;
        // As in Linux (fs/fat/inode.c): FAT32 has no 16-bit size; the number of clusters only separates FAT12 from FAT16.
        let is_32 = le16(boot, 22) == 0;
        let fat_sectors = if is_32 { le32(boot, 36) } else { le16(boot, 22) };
        let fat_start = reserved * sector;
        let fat_end = fat_start + fats * fat_sectors * sector;
        let data_start = fat_end + root_len.next_multiple_of(sector);
        let sectors = if le16(boot, 19) == 0 { le32(boot, 32) } else { le16(boot, 19) };
        let clusters = (sectors * sector).saturating_sub(data_start) / (per_cluster * sector);
        let bits = match clusters {
            _ if is_32 => Bits::Fat32,
            ..=4084 => Bits::Fat12,
            _ => Bits::Fat16,
        };
        let boot_label = label_field(boot)
            .map(|at| name_of(boot.get(at..at + LABEL_BYTES).unwrap_or_default()))
            .filter(|name| !name.is_empty());
        let root = if is_32 {
            Folder::Chain(le32(boot, 44))
        } else {
            Folder::Area { start: fat_end, len: root_len }
        };
        let cluster_len = per_cluster * sector;
        Some(Fat {
            bits,
            root,
            fat_start,
            cluster_len,
            data_start,
            data_len: clusters * cluster_len,
            boot_label,
        })
    }

    /// The label of the root folder, which may be empty; `None` if it has none.
    pub(super) fn root_label(&self, read_at: &mut ReadAt<'_>) -> io::Result<Option<String>> {
        self.entries(read_at, &self.root, &mut |_, entry| {
            is_label(entry).then(|| name_of(entry.get(..LABEL_BYTES).unwrap_or_default()))
        })
    }

    /// Shows the files and folders of a folder with their names to `see`, until that returns something.
    fn named<T>(
        &self,
        read_at: &mut ReadAt<'_>,
        folder: &Folder,
        see: &mut dyn FnMut(String, &[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut long = LongName::default();
        self.entries(read_at, folder, &mut |_, entry| {
            if is_part_of_long_name(entry) {
                long.add(entry);
                return None;
            }
            see(std::mem::take(&mut long).of(entry).unwrap_or_else(|| short_name(entry)), entry)
        })
    }

    /// The first cluster and the size of the file or folder (`kind`) with that name.
    fn find(
        &self,
        read_at: &mut ReadAt<'_>,
        folder: &Folder,
        name: &str,
        kind: u8,
    ) -> io::Result<Option<(u64, u64)>> {
        self.named(read_at, folder, &mut |found, entry| {
            let is_it = attributes(entry) & (FOLDER | VOLUME) == kind && found.eq_ignore_ascii_case(name);
            is_it.then(|| (self.first_cluster(entry), le32(entry, 28)))
        })
    }

    /// In bytes: what a folder and all in it occupy.
    fn needed(&self, read_at: &mut ReadAt<'_>, folder: &Folder) -> io::Result<u64> {
        let (mut bytes, mut seen) = (0, 0);
        let mut folders = vec![folder.clone()];
        while let Some(folder) = folders.pop() {
            let mut own = 1;
            self.named(read_at, &folder, &mut |name, entry| {
                // The parts of a long name, and the file itself.
                own += ENTRY_BYTES as u64 * (2 + name.len() as u64 / 13);
                match attributes(entry) & (FOLDER | VOLUME) {
                    0 => bytes += le32(entry, 28).next_multiple_of(self.cluster_len),
                    FOLDER if !matches!(name.as_str(), "." | "..") => {
                        folders.push(Folder::Chain(self.first_cluster(entry)));
                    }
                    _ => {}
                }
                seen += 1;
                (seen > MAX_ENTRIES).then_some(())
            })?;
            bytes += own.next_multiple_of(self.cluster_len);
            if seen > MAX_ENTRIES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its folders have no end"));
            }
        }
        Ok(bytes)
    }

    /// The content of a file. `None` if there is none, or if it is longer than `most` bytes.
    fn read_file(
        &self,
        read_at: &mut ReadAt<'_>,
        folder: &Folder,
        name: &str,
        most: u64,
    ) -> io::Result<Option<Vec<u8>>> {
        let file = self.find(read_at, folder, name, 0)?;
        let Some((mut cluster, size)) = file.filter(|(_, size)| *size <= most) else { return Ok(None) };
        let mut content = Vec::new();
        let mut left = size;
        while left > 0 {
            let piece = left.min(self.cluster_len);
            // The link is read before its cluster, so that a stream is read in order.
            let next = if left > piece { self.link(read_at, cluster)? } else { None };
            let Some(start) = self.start_of(cluster) else { return Ok(None) };
            let mut bytes = vec![0; usize::try_from(piece).unwrap_or(0)];
            read_at(start, &mut bytes)?;
            content.extend(bytes);
            left -= piece;
            cluster = match next {
                Some(next) => next,
                None if left == 0 => break,
                None => return Ok(None),
            };
        }
        Ok(Some(content))
    }

    fn first_cluster(&self, entry: &[u8]) -> u64 {
        let high = if matches!(self.bits, Bits::Fat32) { le16(entry, 20) << 16 } else { 0 };
        high | le16(entry, 26)
    }

    fn start_of(&self, cluster: u64) -> Option<u64> {
        Some(self.data_start + cluster.checked_sub(2)? * self.cluster_len)
    }

    /// The cluster after this one; `None` at the end of a chain.
    fn link(&self, read_at: &mut ReadAt<'_>, cluster: u64) -> io::Result<Option<u64>> {
        let (at, len) = match self.bits {
            Bits::Fat12 => (cluster + cluster / 2, 2),
            Bits::Fat16 => (cluster * 2, 2),
            Bits::Fat32 => (cluster * 4, 4),
        };
        let mut bytes = [0; 4];
        read_at(self.fat_start + at, bytes.split_at_mut(len).0)?;
        let link = u64::from(u32::from_le_bytes(bytes));
        let (link, bad) = match self.bits {
            Bits::Fat12 if cluster % 2 == 1 => (link >> 4, 0xff7),
            Bits::Fat12 => (link & 0xfff, 0xff7),
            Bits::Fat16 => (link, 0xfff7),
            Bits::Fat32 => (link & 0x0fff_ffff, 0x0fff_fff7),
        };
        Ok(Some(link).filter(|link| (2..bad).contains(link)))
    }

    /// Shows the entries of a folder that are in use, and where they are, to `see`, until that returns something.
    fn entries<T>(
        &self,
        read_at: &mut ReadAt<'_>,
        folder: &Folder,
        see: &mut dyn FnMut(u64, &[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut next = match folder {
            Folder::Area { start, len } => return Ok(scan(read_at, *start, *len, see)?.flatten()),
            Folder::Chain(first) => Some(*first),
        };
        let mut entries = 0;
        while let Some((cluster, start)) = next.and_then(|cluster| Some((cluster, self.start_of(cluster)?)))
            && entries < MAX_ENTRIES
        {
            next = self.link(read_at, cluster)?;
            if let Some(end) = scan(read_at, start, self.cluster_len, see)? {
                return Ok(end);
            }
            entries += self.cluster_len / ENTRY_BYTES as u64;
        }
        Ok(None)
    }
}

/// Shows the entries in a part of a folder. `None`: the folder continues after it; `Some(None)`: it ends.
fn scan<T>(
    read_at: &mut ReadAt<'_>,
    start: u64,
    len: u64,
    see: &mut dyn FnMut(u64, &[u8]) -> Option<T>,
) -> io::Result<Option<Option<T>>> {
    let mut at = 0;
    while at < len {
        let mut block = vec![0; usize::try_from((len - at).min(READ_BYTES)).unwrap_or(0)];
        read_at(start + at, &mut block)?;
        for (place, entry) in (start + at..).step_by(ENTRY_BYTES).zip(block.chunks_exact(ENTRY_BYTES)) {
            match entry.first() {
                Some(0) => return Ok(Some(None)),
                // Deleted.
                Some(0xe5) => {}
                _ => {
                    if let Some(found) = see(place, entry) {
                        return Ok(Some(Some(found)));
                    }
                }
            }
        }
        at += READ_BYTES;
    }
    Ok(None)
}

fn attributes(entry: &[u8]) -> u8 {
    entry.get(11).copied().unwrap_or(0)
}

/// A volume entry, not a folder.
fn is_label(entry: &[u8]) -> bool {
    attributes(entry) & (FOLDER | VOLUME) == VOLUME && !is_part_of_long_name(entry)
}

fn is_part_of_long_name(entry: &[u8]) -> bool {
    attributes(entry) & 0x3f == LONG_NAME
}

/// Eleven bytes of a label without blanks at the end; `NO NAME` becomes empty.
fn name_of(raw: &[u8]) -> String {
    let name = String::from_utf8_lossy(raw);
    let name = name.trim_end_matches([' ', '\0']);
    if name == "NO NAME" { String::new() } else { name.to_owned() }
}

/// The name of at most eight letters and three after the point.
fn short_name(entry: &[u8]) -> String {
    let part =
        |from, to| String::from_utf8_lossy(entry.get(from..to).unwrap_or_default()).trim_end().to_owned();
    match (part(0, 8), part(8, 11)) {
        (name, suffix) if suffix.is_empty() => name,
        (name, suffix) => format!("{name}.{suffix}"),
    }
}

/// A name whose parts are in the entries before that of the file, the last part first.
#[derive(Default)]
struct LongName {
    characters: Vec<u16>,
    /// Of the short name that they belong to.
    checksum: u8,
}

impl LongName {
    fn add(&mut self, entry: &[u8]) {
        let is_last = entry.first().is_some_and(|order| order & 0x40 != 0);
        let checksum = entry.get(13).copied().unwrap_or(0);
        if is_last || checksum != self.checksum {
            *self = LongName { checksum, ..LongName::default() };
        }
        let bytes =
            LONG_NAME_PARTS.into_iter().flat_map(|(from, to)| entry.get(from..to).unwrap_or_default());
        let bytes: Vec<u8> = bytes.copied().collect();
        let pairs = bytes.chunks_exact(2).filter_map(|pair| Some(u16::from_le_bytes(pair.try_into().ok()?)));
        if self.characters.len() < MAX_NAME {
            self.characters.splice(0..0, pairs);
        }
    }

    /// The name of the file with this entry, if they belong together.
    fn of(self, entry: &[u8]) -> Option<String> {
        let short = entry.get(..11)?;
        let checksum = short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let characters = self.characters.split(|c| *c == 0).next()?;
        (!characters.is_empty() && checksum == self.checksum).then(|| String::from_utf16_lossy(characters))
    }
}

pub(super) fn le16(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..at + 2) {
        Some([a, b]) => u64::from(u16::from_le_bytes([*a, *b])),
        _ => 0,
    }
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u64 {
    le16(bytes, at) | le16(bytes, at + 2) << 16
}

pub(super) fn is_fat(boot: &[u8]) -> bool {
    Fat::parse(boot).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a long name, and the entry of its file.
    fn entries(order: u8, name: &str, short: &[u8; 11]) -> ([u8; 32], [u8; 32]) {
        let mut file = [0; 32];
        file[..11].copy_from_slice(short);
        let mut part = [0xff; 32];
        part[0] = order;
        part[11] = LONG_NAME;
        part[13] = short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let places = LONG_NAME_PARTS.into_iter().flat_map(|(from, to)| (from..to).step_by(2));
        for (at, c) in places.zip(name.encode_utf16().chain([0])) {
            part[at..at + 2].copy_from_slice(&c.to_le_bytes());
        }
        (part, file)
    }

    #[test]
    fn a_long_name_belongs_to_the_entry_after_it() {
        let (last, file) = entries(0x42, "json", b"DEVICE~1JSO");
        let (first, _) = entries(1, "device-type.j", b"DEVICE~1JSO");
        let mut long = LongName::default();
        long.add(&last);
        long.add(&first);
        // 13 characters fill a part, so that the second one follows without an end.
        assert_eq!(long.of(&file).as_deref(), Some("device-type.jjson"));
        let (part, _) = entries(0x41, "os-release", b"OS-REL~1   ");
        let mut long = LongName::default();
        long.add(&part);
        assert_eq!(long.of(&file), None, "it is of another file");
        assert_eq!(LongName::default().of(&file), None);
        assert_eq!(short_name(b"README  TXT"), "README.TXT");
        assert_eq!(short_name(b"KERNEL     "), "KERNEL");
    }
}
