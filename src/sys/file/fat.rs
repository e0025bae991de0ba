//! The owners of the clusters of a FAT, read from its block device: no system call shows that the chains of two files meet.
//!
//! After Microsoft's FAT specification 1.03. Like Linux (`fs/fat/inode.c`), it takes a missing 16-bit table size for FAT32, and reads
//! the first table only.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use super::content::STEP;
use super::flush::sync_file_system;
use super::folder::{Folder, fill_direct};
use super::temporary::is_temporary;
use crate::sys::buffer::Buffer;

/// How long the map of one partition may take. A boot partition on an SD card takes less than a second.
const MAP_LIMIT: Duration = Duration::from_secs(10);
/// Limits of what is kept in memory: bytes of a table (a FAT32 with 4 million clusters), and entries in all folders.
const LARGEST_TABLE: u64 = 16 << 20;
const MOST_ENTRIES: usize = 1 << 17;
/// `FAT_MAX_DIR_SIZE` of Linux, in bytes.
const LARGEST_FOLDER: usize = 2 << 20;

const ENTRY: usize = 32;
const FOLDER: u8 = 0x10;
/// Also of every piece of a long name.
const LABEL: u8 = 0x08;

/// Why a temporary file must stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It shares clusters with these files, by their short names.
    Shared(Vec<String>),
    /// It is not known whose clusters it has.
    Unknown(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Shared(with) => write!(f, "it shares clusters with {}", with.join(", ")),
            Obstacle::Unknown(why) => write!(f, "the owners of its clusters are unknown: {why}"),
        }
    }
}

/// The map of the partition below some folders, read when a temporary file is looked at for the first time.
#[derive(Default)]
pub(crate) struct Owners(Option<io::Result<ClusterMap>>);

impl Owners {
    /// `block`: where the file starts, in blocks of the file system, 0 for an empty one. `twin`: whether another file of the folder also starts there.
    pub(super) fn obstacle(
        &mut self,
        folder: &Folder,
        name: &OsStr,
        block: u64,
        twin: bool,
    ) -> Option<Obstacle> {
        let map = self.0.get_or_insert_with(|| {
            // A process that was killed has left entries that only the kernel knows.
            sync_file_system(folder.path())?;
            ClusterMap::read(&folder.device()?, MAP_LIMIT)
        });
        match map {
            Ok(map) => map.obstacle(name, block, twin),
            Err(e) => Some(Obstacle::Unknown(e.to_string())),
        }
    }
}

struct Entry {
    path: String,
    /// 8 and 3 bytes, filled up with spaces.
    name: [u8; 11],
    first: u32,
    folder: bool,
}

/// Every entry of a FAT, and its table.
pub struct ClusterMap {
    table: Vec<u8>,
    bits: u8,
    /// The first number that is not a cluster.
    end: u32,
    /// Bytes of a block of the file system and of a cluster; where the first cluster starts.
    block: u64,
    cluster: u64,
    data: u64,
    entries: Vec<Entry>,
    until: Instant,
}

impl ClusterMap {
    /// Reads a partition or an image of one. `limit` is for this and all questions about it.
    pub fn read(device: &File, limit: Duration) -> io::Result<ClusterMap> {
        let until = Instant::now() + limit;
        let mut boot = Buffer::zeroed(super::SECTOR);
        read_exact(device, &mut boot, 0)?;
        let boot = &boot;
        let block = number(boot, 11, 2);
        let cluster = block * number(boot, 13, 1);
        let sizes = (number(boot, 22, 2), number(boot, 36, 4));
        let (wide, per_table) = if sizes.0 == 0 { (true, sizes.1) } else { (false, sizes.0) };
        let start = block * number(boot, 14, 2);
        let top = start + block * number(boot, 16, 1) * per_table;
        // A part of a block is a whole one.
        let top_size = (number(boot, 17, 2) * 32).next_multiple_of(block.max(1));
        let data = top + top_size;
        let total = if number(boot, 19, 2) == 0 { number(boot, 32, 4) } else { number(boot, 19, 2) };
        let bytes = per_table * block;
        if !(512..=4096).contains(&block) || cluster == 0 || bytes == 0 || data > total * block {
            return Err(damaged("its first sector does not describe a FAT"));
        }
        if bytes > LARGEST_TABLE {
            return Err(damaged("its table is too large to be looked at"));
        }
        let clusters = (total * block - data) / cluster;
        // MAX_FAT12 of Linux.
        let bits = if wide {
            32
        } else if clusters > 0xff4 {
            16
        } else {
            12
        };
        let fit = (bytes * 8 / u64::from(bits)).saturating_sub(2);
        let end = u32::try_from(clusters.min(fit)).unwrap_or(u32::MAX - 2) + 2;
        let mut map =
            ClusterMap { table: Vec::new(), bits, end, block, cluster, data, entries: Vec::new(), until };
        map.table = map.bytes(device, start, bytes)?;
        if wide {
            let first = u32::try_from(number(boot, 44, 4)).unwrap_or(0);
            let name = [b' '; 11];
            map.entries.push(Entry { path: "the top folder".to_owned(), name, first, folder: true });
            map.walk(device, vec![(String::new(), first)])?;
        } else {
            let bytes = map.bytes(device, top, top_size)?;
            let mut folders = Vec::new();
            map.list("", &bytes, &mut folders)?;
            map.walk(device, folders)?;
        }
        Ok(map)
    }

    /// Reads folders and what is below them, each once: the folders of a damaged FAT may lead in circles.
    fn walk(&mut self, device: &File, mut folders: Vec<(String, u32)>) -> io::Result<()> {
        let mut seen = HashSet::new();
        while let Some((path, first)) = folders.pop() {
            if !seen.insert(first) {
                continue;
            }
            let (mut bytes, mut own) = (Vec::new(), HashSet::new());
            for cluster in self.chain(first).take_while(|c| own.insert(*c)) {
                if bytes.len() > LARGEST_FOLDER {
                    return Err(damaged("a folder is too large to be looked at"));
                }
                let offset = self.data + (u64::from(cluster) - 2) * self.cluster;
                bytes.extend(self.bytes(device, offset, self.cluster)?);
            }
            self.list(&path, &bytes, &mut folders)?;
        }
        Ok(())
    }

    fn list(&mut self, above: &str, bytes: &[u8], folders: &mut Vec<(String, u32)>) -> io::Result<()> {
        for entry in bytes.chunks_exact(ENTRY) {
            let Some((name, rest)) = entry.split_first_chunk::<11>() else { continue };
            let attributes = rest.first().copied().unwrap_or(0);
            match name {
                [0, ..] => break,
                [0xe5, ..] | b".          " | b"..         " => continue,
                _ if attributes & LABEL != 0 => continue,
                _ => {}
            }
            let high = if self.bits == 32 { number(entry, 20, 2) << 16 } else { 0 };
            let first = u32::try_from(high | number(entry, 26, 2)).unwrap_or(0);
            let path = join(above, name);
            let folder = attributes & FOLDER != 0;
            // One that a power cut left half made has any content, and none that counts.
            if folder && !is_temporary(OsStr::new(&shown(name))) {
                folders.push((path.clone(), first));
            }
            self.entries.push(Entry { path, name: *name, first, folder });
            if self.entries.len() > MOST_ENTRIES {
                return Err(damaged("it has too many files to be looked at"));
            }
        }
        Ok(())
    }

    /// Why the temporary file must stay; parameters as of [`Owners::obstacle`].
    pub fn obstacle(&self, name: &OsStr, block: u64, twin: bool) -> Option<Obstacle> {
        match self.sharers(name, block, twin) {
            Ok(sharers) if sharers.is_empty() => None,
            Ok(sharers) => Some(Obstacle::Shared(sharers)),
            Err(e) => Some(Obstacle::Unknown(e.to_string())),
        }
    }

    fn sharers(&self, name: &OsStr, block: u64, twin: bool) -> io::Result<Vec<String>> {
        let mut short = [b' '; 11];
        for (to, from) in short.iter_mut().zip(name.as_bytes().iter().filter(|b| **b != b'.')) {
            *to = from.to_ascii_uppercase();
        }
        let missing = || damaged("its entry was not found");
        let start = match block {
            0 => None,
            block => {
                let inside = block.checked_sub(self.data / self.block).ok_or_else(missing)?;
                Some(inside * self.block / self.cluster + 2)
            }
        };
        let is_it = |e: &&Entry| {
            e.name == short && !e.folder && start.is_none_or(|start| u64::from(e.first) == start)
        };
        let mut own = self.entries.iter().filter(is_it);
        // The kernel shows no cluster of a file without content; its entry may have some.
        let (Some(own), None) = (own.next(), own.next()) else {
            return Err(missing());
        };
        let chain: HashSet<u32> = self.chain(own.first).collect();
        let mut sharers = Vec::new();
        // Clusters from which no chain runs into `chain`.
        let mut others = HashSet::new();
        for entry in self.entries.iter().filter(|e| !std::ptr::eq(*e, own)) {
            self.in_time()?;
            let mut passed = Vec::new();
            let mut rest = self.chain(entry.first).take_while(|c| !others.contains(c));
            if rest.any(|c| {
                passed.push(c);
                chain.contains(&c)
            }) {
                sharers.push(entry);
            } else {
                others.extend(passed);
            }
        }
        let is_twin = |e: &&Entry| twin && !e.folder && e.first == own.first;
        match sharers[..] {
            [only] if is_twin(&only) => Ok(Vec::new()),
            _ => Ok(sharers.into_iter().map(|e| e.path.clone()).collect()),
        }
    }

    /// The clusters of a chain, up to its end or to the first number that is not a cluster.
    fn chain(&self, first: u32) -> impl Iterator<Item = u32> + use<'_> {
        let valid = |cluster: u32| Some(cluster).filter(|c| (2..self.end).contains(c));
        // The longest chain that is not a circle.
        let longest = usize::try_from(self.end).unwrap_or(usize::MAX);
        std::iter::successors(valid(first), move |c| valid(self.next(*c))).take(longest)
    }

    fn next(&self, cluster: u32) -> u32 {
        let index = usize::try_from(cluster).unwrap_or(usize::MAX);
        let at = |at: usize, len: usize| u32::try_from(number(&self.table, at, len)).unwrap_or(0);
        match self.bits {
            12 if index % 2 == 1 => at(index + index / 2, 2) >> 4,
            12 => at(index + index / 2, 2) & 0xfff,
            16 => at(index * 2, 2),
            _ => at(index * 4, 4) & 0x0fff_ffff,
        }
    }

    fn bytes(&self, device: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut buf = Buffer::zeroed(STEP);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        while bytes.len() < len {
            self.in_time()?;
            let n = STEP.min(len - bytes.len());
            let Some(part) = buf.get_mut(..n) else { break };
            read_exact(device, part, offset + u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
            bytes.extend_from_slice(part);
        }
        Ok(bytes)
    }

    fn in_time(&self) -> io::Result<()> {
        if Instant::now() < self.until {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "looking at the files of the partition took too long"))
    }
}

fn read_exact(device: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    match fill_direct(device, buf, offset)? {
        n if n == buf.len() => Ok(()),
        _ => Err(damaged("the partition is smaller than its file system")),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Little-endian; 0 past the end of `bytes`.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let part = bytes.get(at..).and_then(|rest| rest.get(..len)).unwrap_or_default();
    part.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn join(above: &str, name: &[u8; 11]) -> String {
    if above.is_empty() { shown(name) } else { format!("{above}/{}", shown(name)) }
}

/// `NAME.EXT`.
fn shown(name: &[u8; 11]) -> String {
    let (base, ending) = name.split_at(8);
    let text = |part: &[u8]| String::from_utf8_lossy(part).trim_end().to_owned();
    match text(ending) {
        ending if ending.is_empty() => text(base),
        ending => format!("{}.{ending}", text(base)),
    }
}
