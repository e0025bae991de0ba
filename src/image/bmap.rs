//! Block maps as `bmaptool create` writes them: which blocks of an image hold data, and their checksums.
//!
//! Versions, from bmaptool's `BmapCreate.py`: up to 1.2 without checksums; 1.3 with SHA-1 in attributes and elements of
//! that name; 1.4 (a mistake, the same as 2.0) and 2.x with a `ChecksumType`.

use std::fmt::Write as _;

use roxmltree::{Document, Node, ParsingOptions};
use sha1::Sha1;
use sha2::{Digest, Sha256};

// A map of the largest size takes 16 MiB of memory at most. A range takes 112 bytes with its checksum, and three nodes:
// its element, the text in it, and the blanks before the next one.

/// The largest map that is read. It has space for 9,300 ranges with checksums.
pub const MAX_BYTES: usize = 1 << 20;
/// A map of the largest size without checksums has 87,000.
const MAX_NODES: u32 = 100_000;
/// In the whole map. A range has one.
const MAX_ATTRIBUTES: usize = 20_000;
/// The reader compares each attribute of an element with all others.
const MAX_ATTRIBUTES_OF_ONE: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bmap {
    pub version: (u32, u32),
    pub image_size: u64,
    pub block_size: u64,
    /// Of the ranges and of the map itself; `None` in versions below 1.3.
    pub checksum: Option<Checksum>,
    /// Ascending, without overlap. All other blocks are zero.
    pub ranges: Vec<Range>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    Sha1,
    Sha256,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub first: u64,
    pub last: u64,
    /// Lower-case hex. Of the image's last block only the bytes that it has count.
    pub checksum: Option<String>,
}

pub enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Checksum {
    #[must_use]
    pub fn hasher(self) -> Hasher {
        match self {
            Checksum::Sha1 => Hasher::Sha1(Sha1::new()),
            Checksum::Sha256 => Hasher::Sha256(Sha256::new()),
        }
    }

    fn of(self, bytes: &[u8]) -> String {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.hex()
    }

    fn digits(self) -> usize {
        match self {
            Checksum::Sha1 => 40,
            Checksum::Sha256 => 64,
        }
    }
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha1(h) => h.update(bytes),
            Hasher::Sha256(h) => h.update(bytes),
        }
    }

    #[must_use]
    pub fn hex(self) -> String {
        let bytes = match self {
            Hasher::Sha1(h) => h.finalize().to_vec(),
            Hasher::Sha256(h) => h.finalize().to_vec(),
        };
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap_or_default();
            text
        })
    }
}

impl Bmap {
    pub fn parse(bytes: &[u8]) -> Result<Bmap, String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("it has more than {MAX_BYTES} bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|e| format!("it is not text: {e}"))?;
        check_cost(text)?;
        let options = ParsingOptions { nodes_limit: MAX_NODES, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options).map_err(|e| match e {
            roxmltree::Error::NodesLimitReached => format!("it has more than {MAX_NODES} elements and texts"),
            // The error quotes names of any length.
            e => format!("it is not well-formed XML: {:.200}", e.to_string()),
        })?;
        let root = document.root_element();
        if !root.has_tag_name("bmap") {
            return Err(format!("it holds <{:.40}>, not <bmap>", root.tag_name().name()));
        }
        let version = version(root.attribute("version").unwrap_or_default())?;
        let (checksum, attribute, element) = checksum_names(version, root)?;
        if let Some(kind) = checksum {
            verify_own(text, root, kind, element)?;
        }
        let bmap = Bmap {
            version,
            image_size: number(root, "ImageSize")?,
            block_size: number(root, "BlockSize")?,
            checksum,
            ranges: ranges(child(root, "BlockMap")?, checksum, attribute)?,
        };
        bmap.check(number(root, "BlocksCount")?, number(root, "MappedBlocksCount")?)?;
        Ok(bmap)
    }

    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.image_size.div_ceil(self.block_size.max(1))
    }

    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.ranges.iter().map(|r| r.last - r.first + 1).sum()
    }

    fn check(&self, blocks: u64, mapped: u64) -> Result<(), String> {
        if self.block_size == 0 || self.image_size == 0 || self.image_size > 1 << 62 {
            return Err("image size or block size cannot be".into());
        }
        if blocks != self.blocks() {
            return Err(format!("it counts {blocks} blocks where the sizes give {}", self.blocks()));
        }
        let mut next = 0;
        for range in &self.ranges {
            let (first, last) = (range.first, range.last);
            if first > last || last >= blocks || first < next {
                return Err(format!("block range {first}-{last} is out of order or past the image's end"));
            }
            next = last + 1;
        }
        if mapped != self.mapped() {
            return Err(format!("it counts {mapped} mapped blocks, its ranges have {}", self.mapped()));
        }
        Ok(())
    }

    #[must_use]
    pub fn print(&self) -> String {
        let (type_line, element, attribute) = match self.checksum {
            None => (String::new(), "", ""),
            Some(Checksum::Sha1) if self.version == (1, 3) => (String::new(), "BmapFileSHA1", "sha1"),
            Some(kind) => {
                let name = if kind == Checksum::Sha1 { "sha1" } else { "sha256" };
                (format!("    <ChecksumType> {name} </ChecksumType>\n"), "BmapFileChecksum", "chksum")
            }
        };
        let zeroes = "0".repeat(self.checksum.map_or(0, Checksum::digits));
        let own = match element {
            "" => String::new(),
            name => format!("    <{name}> {zeroes} </{name}>\n"),
        };
        let head = format!(
            "<?xml version=\"1.0\" ?>\n<bmap version=\"{}.{}\">\n    <ImageSize> {} </ImageSize>\n    <BlockSize> {} \
             </BlockSize>\n    <BlocksCount> {} </BlocksCount>\n    <MappedBlocksCount> {} </MappedBlocksCount>\n",
            self.version.0,
            self.version.1,
            self.image_size,
            self.block_size,
            self.blocks(),
            self.mapped()
        );
        let mut list = String::from("    <BlockMap>\n");
        for range in &self.ranges {
            let sum = range.checksum.as_ref().map_or(String::new(), |sum| format!(" {attribute}=\"{sum}\""));
            let blocks = if range.first == range.last {
                range.first.to_string()
            } else {
                format!("{}-{}", range.first, range.last)
            };
            list.push_str(&format!("        <Range{sum}> {blocks} </Range>\n"));
        }
        list.push_str("    </BlockMap>\n</bmap>\n");
        let text = [head.as_str(), &type_line, &own, &list].concat();
        match self.checksum {
            None => text,
            Some(kind) => {
                let sum = kind.of(text.as_bytes());
                [head.as_str(), &type_line, &own.replace(&zeroes, &sum), &list].concat()
            }
        }
    }
}

fn check_cost(text: &str) -> Result<(), String> {
    // All attributes of one element lie between one `<` and the next: no value has a `<` in it.
    let counts = text.split('<').map(|part| part.bytes().filter(|b| *b == b'=').count());
    let (all, most) = counts.fold((0, 0), |(all, most), n| (all + n, most.max(n)));
    if most > MAX_ATTRIBUTES_OF_ONE || all > MAX_ATTRIBUTES {
        return Err(format!(
            "it has more than {MAX_ATTRIBUTES_OF_ONE} attributes in one element, or {MAX_ATTRIBUTES} in all"
        ));
    }
    // Each element that declares a namespace gets a copy of the list of all elements around it.
    if text.contains("xmlns") {
        return Err("it declares XML namespaces, which no block map has".into());
    }
    Ok(())
}

fn version(text: &str) -> Result<(u32, u32), String> {
    let parts = text.trim().split_once('.');
    let parsed = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    match parsed {
        Some((major @ 1..=2, minor)) => Ok((major, minor)),
        Some((major, minor)) => Err(format!("its format version is {major}.{minor}; 1.x and 2.x are known")),
        None => Err(format!("its format version `{text:.40}` cannot be read")),
    }
}

fn checksum_names(
    version: (u32, u32),
    root: Node<'_, '_>,
) -> Result<(Option<Checksum>, &'static str, &'static str), String> {
    match version {
        (1, 0..=2) => Ok((None, "", "")),
        (1, 3) => Ok((Some(Checksum::Sha1), "sha1", "BmapFileSHA1")),
        _ => {
            let kind = match text(child(root, "ChecksumType")?) {
                "sha1" => Checksum::Sha1,
                "sha256" => Checksum::Sha256,
                other => {
                    return Err(format!("its checksums are of type {other:.40}; sha256 and sha1 are known"));
                }
            };
            Ok((Some(kind), "chksum", "BmapFileChecksum"))
        }
    }
}

/// The map's own checksum covers the file with zeroes in place of the checksum.
fn verify_own(text_of_file: &str, root: Node<'_, '_>, kind: Checksum, element: &str) -> Result<(), String> {
    let node = child(root, element)?;
    let stated = text(node);
    // The first occurrence, as in bmaptool: no range before it can have the same digits.
    let cut = text_of_file.split_once(stated);
    let Some((before, after)) = cut.filter(|_| is_sum(stated, kind)) else {
        return Err(format!("its {element} is not a checksum"));
    };
    let mut hasher = kind.hasher();
    hasher.update(before.as_bytes());
    hasher.update("0".repeat(stated.len()).as_bytes());
    hasher.update(after.as_bytes());
    if hasher.hex() == stated.to_ascii_lowercase() {
        Ok(())
    } else {
        Err("its own checksum does not match: it was damaged or edited".into())
    }
}

fn is_sum(text: &str, kind: Checksum) -> bool {
    text.len() == kind.digits() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn ranges(map: Node<'_, '_>, kind: Option<Checksum>, attribute: &str) -> Result<Vec<Range>, String> {
    let mut all = Vec::new();
    for node in map.children().filter(|n| n.has_tag_name("Range")) {
        let blocks = text(node);
        let (first, last) = blocks.split_once('-').unwrap_or((blocks, blocks));
        let bad = || format!("`{blocks:.40}` is not a range of blocks");
        let first = decimal(first.trim()).ok_or_else(bad)?;
        let last = decimal(last.trim()).ok_or_else(bad)?;
        let checksum = match kind.and_then(|kind| Some((kind, node.attribute(attribute)?))) {
            Some((kind, sum)) if !is_sum(sum.trim(), kind) => {
                return Err(format!("range {blocks:.40} has the checksum `{sum:.100}`, which is not valid"));
            }
            Some((_, sum)) => Some(sum.trim().to_ascii_lowercase()),
            None => None,
        };
        all.push(Range { first, last, checksum });
    }
    Ok(all)
}

fn child<'a, 'i>(parent: Node<'a, 'i>, name: &str) -> Result<Node<'a, 'i>, String> {
    parent.children().find(|n| n.has_tag_name(name)).ok_or_else(|| format!("it has no <{name}>"))
}

fn text<'a>(node: Node<'a, '_>) -> &'a str {
    node.text().unwrap_or_default().trim()
}

fn number(root: Node<'_, '_>, name: &str) -> Result<u64, String> {
    let text = text(child(root, name)?);
    decimal(text).ok_or_else(|| format!("its {name} `{text:.40}` is not a number"))
}

/// Digits only: `parse` accepts a sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}
