//! A reader of FAT file systems that doubts everything: for what a power cut may have left.
//!
//! After Microsoft's FAT specification 1.03. Long names as UTF-16; short names with the case that Windows NT noted.

use std::collections::BTreeMap;

use crate::bootpart::is_temporary;

const FOLDER: u8 = 0x10;
const LABEL: u8 = 0x08;
const LONG: u8 = 0x0f;

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Folder,
    /// Its contents, or why they cannot be read.
    File(Result<Vec<u8>, String>),
}

/// Everything on a disk.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// By path, `/` between the names.
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Pairs of paths that share a cluster.
    pub(crate) shared: Vec<(String, String)>,
    /// Clusters that the table calls used and nobody uses.
    pub(crate) lost: usize,
    /// Folders whose last cluster the table calls free: they were growing. What is before it counts, which is also what `fsck`
    /// makes of them; Linux refuses the folder until then.
    pub(crate) growing: Vec<String>,
    /// Files with clusters behind their end.
    pub(crate) long: Vec<String>,
    /// By cluster, the number of the path in `paths` that it belongs to; 0 where it belongs to none.
    owners: Vec<usize>,
    paths: Vec<String>,
}

struct Fat<'a> {
    disk: &'a [u8],
    bits: u8,
    table: usize,
    data: usize,
    cluster: usize,
    clusters: usize,
    root: Result<std::ops::Range<usize>, usize>,
}

fn number(disk: &[u8], at: usize, len: usize) -> usize {
    let bytes = &disk[at..at + len];
    match *bytes {
        [a, b] => usize::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]) as usize,
        _ => bytes.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)),
    }
}

impl<'a> Fat<'a> {
    fn new(disk: &'a [u8]) -> Self {
        let field = |at, len| number(disk, at, len);
        let sector = field(11, 2);
        let cluster = field(13, 1) * sector;
        let per_table = if field(22, 2) == 0 { field(36, 4) } else { field(22, 2) };
        let table = field(14, 2) * sector;
        let root = table + field(16, 1) * per_table * sector;
        let root_len = field(17, 2) * 32;
        let data = root + root_len;
        let total = if field(19, 2) == 0 { field(32, 4) } else { field(19, 2) };
        let clusters = (total * sector - data) / cluster;
        // FAT32 is told by the missing 16-bit size, as in Linux, not by the number of clusters.
        let bits = if field(22, 2) == 0 {
            32
        } else if clusters < 4085 {
            12
        } else {
            16
        };
        let root = if bits == 32 { Err(field(44, 4)) } else { Ok(root..data) };
        Fat { disk, bits, table, data, cluster, clusters, root }
    }

    fn next(&self, cluster: usize) -> usize {
        match self.bits {
            12 => {
                let pair = number(self.disk, self.table + cluster + cluster / 2, 2);
                if cluster % 2 == 1 { pair >> 4 } else { pair & 0xfff }
            }
            16 => number(self.disk, self.table + cluster * 2, 2),
            _ => number(self.disk, self.table + cluster * 4, 4) & 0x0fff_ffff,
        }
    }

    /// How many clusters of a chain there are before one that is free; an error where there is none, or none before it.
    fn chain_to_free(&self, first: usize) -> Result<usize, ()> {
        let (mut cluster, mut n) = (first, 0);
        while (2..self.clusters + 2).contains(&cluster) && n <= self.clusters {
            match self.next(cluster) {
                0 => return if n > 0 { Ok(n) } else { Err(()) },
                next => cluster = next,
            }
            n += 1;
        }
        Err(())
    }

    fn is_end(&self, cluster: usize) -> bool {
        cluster >= (0xfff_ffff_usize >> (if self.bits == 32 { 0 } else { 28 - self.bits })) - 7
    }

    fn bytes(&self, cluster: usize) -> &'a [u8] {
        let at = self.data + (cluster - 2) * self.cluster;
        &self.disk[at..at + self.cluster]
    }

    /// The clusters of a file of `size` bytes, or of a folder up to the end of its chain.
    fn chain(&self, first: usize, size: Option<usize>) -> Result<Vec<usize>, String> {
        let wanted = size.map(|s| s.div_ceil(self.cluster));
        let mut chain = Vec::new();
        let mut cluster = first;
        while wanted.is_none_or(|w| chain.len() < w) {
            if self.is_end(cluster) {
                break;
            }
            if !(2..self.clusters + 2).contains(&cluster) || self.next(cluster) == 0 {
                return Err(format!("cluster {cluster} after {} is free or none", chain.len()));
            }
            if chain.len() > self.clusters {
                return Err("a chain in a circle".into());
            }
            chain.push(cluster);
            cluster = self.next(cluster);
        }
        match wanted {
            Some(w) if chain.len() < w => Err(format!("{} clusters of {w}", chain.len())),
            _ => Ok(chain),
        }
    }
}

/// Reads a whole disk.
pub(crate) fn read(disk: &[u8]) -> Tree {
    let fat = Fat::new(disk);
    let mut tree = Tree { owners: vec![0; fat.clusters + 2], ..Tree::default() };
    let root = match &fat.root {
        Ok(area) => disk[area.clone()].to_vec(),
        Err(first) => tree.grown(&fat, "", *first).expect("the root folder"),
    };
    tree.folder(&fat, "", &root, 0);
    tree.lost = (2..fat.clusters + 2).filter(|c| tree.owners[*c] == 0 && fat.next(*c) != 0).count();
    tree
}

impl Tree {
    /// The contents of a folder, up to the cluster it was growing by.
    fn grown(&mut self, fat: &Fat<'_>, path: &str, first: usize) -> Result<Vec<u8>, String> {
        let whole = self.contents(fat, path, first, None);
        let (Err(_), Ok(chain)) = (&whole, fat.chain_to_free(first)) else { return whole };
        self.growing.push(path.to_owned());
        self.contents(fat, path, first, Some(chain * fat.cluster))
    }

    fn contents(
        &mut self,
        fat: &Fat<'_>,
        path: &str,
        first: usize,
        size: Option<usize>,
    ) -> Result<Vec<u8>, String> {
        if size == Some(0) {
            return Ok(Vec::new());
        }
        // What the table has beyond the size belongs to the file, too.
        let used = fat.chain(first, size)?;
        self.paths.push(path.to_owned());
        let whole = fat.chain(first, None).unwrap_or_else(|_| used.clone());
        if whole.len() > used.len() {
            self.long.push(path.to_owned());
        }
        for cluster in whole {
            let other = std::mem::replace(&mut self.owners[cluster], self.paths.len());
            if other > 0 {
                self.shared.push((self.paths[other - 1].clone(), path.to_owned()));
            }
        }
        let mut data = Vec::with_capacity(used.len() * fat.cluster);
        used.iter().for_each(|c| data.extend_from_slice(fat.bytes(*c)));
        data.truncate(size.unwrap_or(data.len()));
        Ok(data)
    }

    fn folder(&mut self, fat: &Fat<'_>, path: &str, entries: &[u8], depth: usize) {
        assert!(depth < 8, "{path}: folders in a circle");
        let mut long: Vec<u16> = Vec::new();
        let mut wanted = (0, 0);
        for entry in entries.chunks_exact(32) {
            match (entry[0], entry[11]) {
                (0, _) => return,
                (0xe5, _) => long.clear(),
                (number, LONG) => {
                    // The pieces come last first; those that do not belong together are none, as in Linux.
                    let (n, sum) = (number & 0x3f, entry[13]);
                    if number & 0x40 != 0 {
                        long.clear();
                        wanted = (n, sum);
                    }
                    if n == 0 || (n, sum) != wanted {
                        long.clear();
                        wanted = (0, 0);
                        continue;
                    }
                    wanted = (n - 1, sum);
                    let units = [1..11, 14..26, 28..32].into_iter().flat_map(|r| entry[r].chunks_exact(2));
                    let part = units.map(|u| u16::from_le_bytes([u[0], u[1]]));
                    let part: Vec<u16> = part.take_while(|u| !matches!(u, 0 | 0xffff)).collect();
                    long.splice(0..0, part);
                }
                (b'.', FOLDER) if depth > 0 => {}
                (_, attributes) if attributes & LABEL != 0 => long.clear(),
                (_, attributes) => {
                    let sum = entry[..11].iter().fold(0u8, |sum, b| sum.rotate_right(1).wrapping_add(*b));
                    let whole = !long.is_empty() && wanted == (0, sum);
                    let name = if whole { String::from_utf16_lossy(&long) } else { short(entry) };
                    long.clear();
                    let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                    let first = number(entry, 26, 2) | number(entry, 20, 2) << 16;
                    let node = if attributes & FOLDER != 0 && is_temporary(&path) {
                        // It was being made when the power went: its cluster holds entries, or what was there before.
                        drop(self.grown(fat, &path, first));
                        Node::Folder
                    } else if attributes & FOLDER != 0 {
                        match self.grown(fat, &path, first) {
                            Ok(inner) => self.folder(fat, &path, &inner, depth + 1),
                            Err(why) => panic!("folder {path}: {why}"),
                        }
                        Node::Folder
                    } else {
                        Node::File(self.contents(fat, &path, first, Some(number(entry, 28, 4))))
                    };
                    if self.nodes.insert(path.clone(), node).is_some() {
                        panic!("{path} is there twice");
                    }
                }
            }
        }
    }
}

fn short(entry: &[u8]) -> String {
    let part = |bytes: &[u8], lower: bool| {
        // One letter of code page 437 is all that the tests need.
        let letters = bytes.iter().map(|b| if *b == 0x90 { 'É' } else { char::from(*b) });
        let text = letters.collect::<String>().trim_end().to_owned();
        if lower { text.to_lowercase() } else { text }
    };
    let (name, ending) = (part(&entry[..8], entry[12] & 8 != 0), part(&entry[8..11], entry[12] & 16 != 0));
    if ending.is_empty() { name } else { format!("{name}.{ending}") }
}
