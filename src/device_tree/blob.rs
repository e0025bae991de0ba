//! The structure of a flattened device tree (Devicetree Specification v0.4, chapter 5), read within its bounds. What is accepted here, the
//! library of bootloaders and kernels (libfdt) walks to its end.
//!
//! Our own reader: crates that check a tree refuse names of more than 31 bytes, which trees of boards have, and panic in the accessors if the tree
//! was not checked.

use std::ops::Range;

const MAGIC: u32 = 0xd00d_feed;

/// From the oldest version that libfdt reads to the present one.
const VERSIONS: Range<u32> = 2..18;

/// Limit of a name in bytes. The specification allows 31; trees of boards have more.
const MAX_NAME_BYTES: usize = 255;

/// Nodes in nodes. The kernel's own limit (`FDT_MAX_DEPTH` in `drivers/of/fdt.c`).
const MAX_DEPTH: usize = 64;

/// One property of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Property<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
enum Token<'a> {
    Begin(&'a [u8]),
    End,
    Property(Property<'a>),
    Finish,
}

#[derive(Debug, Clone, Copy)]
pub struct Blob<'a> {
    structure: &'a [u8],
    strings: &'a [u8],
    version: u32,
}

impl<'a> Blob<'a> {
    /// Checks header and structure. The error says what is wrong, for a sentence about the file.
    pub fn check(bytes: &'a [u8]) -> Result<Blob<'a>, &'static str> {
        let blob = Self::header(bytes)?;
        blob.walk(&mut |_, _| ())?;
        Ok(blob)
    }

    fn header(bytes: &'a [u8]) -> Result<Blob<'a>, &'static str> {
        let field =
            |index: usize| number(bytes, index * 4).ok_or("it is shorter than the header of a device tree");
        if field(0)? != MAGIC {
            return Err("it does not begin as a device tree does");
        }
        let (version, compatible) = (field(5)?, field(6)?);
        if !VERSIONS.contains(&version) || compatible >= VERSIONS.end {
            return Err("its version is unknown");
        }
        let whole = bytes.get(..index(field(1)?)).ok_or("it is shorter than its header says")?;
        // The sizes of both parts came with versions 3 and 17.
        let size = |since: u32, at: usize| if version < since { Ok(None) } else { field(at).map(Some) };
        let part = |start: u32, size: Option<u32>| {
            let start = index(start);
            let end = size.map_or(Some(whole.len()), |size| start.checked_add(index(size)));
            end.and_then(|end| whole.get(start..end)).ok_or("its header points outside of it")
        };
        let (structure, strings) = (part(field(2)?, size(17, 9)?)?, part(field(3)?, size(3, 8)?)?);
        let reserved = part(field(4)?, None)?;
        let mut sizes = reserved.chunks_exact(16).filter_map(|entry| entry.get(8..));
        if !sizes.any(|size| size.iter().all(|byte| *byte == 0)) {
            return Err("its list of reserved memory has no end");
        }
        Ok(Blob { structure, strings, version })
    }

    /// Each property, in the tree's order, with the names of the nodes from the root to it.
    pub fn properties(&self, each: &mut dyn FnMut(&[&'a [u8]], Property<'a>)) {
        // It was checked.
        let _done = self.walk(each);
    }

    fn walk(&self, each: &mut dyn FnMut(&[&'a [u8]], Property<'a>)) -> Result<(), &'static str> {
        let mut at = 0;
        let mut open: Vec<&[u8]> = Vec::new();
        let mut began = false;
        loop {
            match self.token(&mut at)? {
                Token::Begin(_) if began && open.is_empty() => return Err("it has more than one root"),
                Token::Begin(_) if open.len() == MAX_DEPTH => return Err("its nodes are nested too deeply"),
                Token::Begin(name) => {
                    began = true;
                    open.push(name);
                }
                Token::End => drop(open.pop().ok_or("a node ends that did not begin")?),
                Token::Property(_) if open.is_empty() => return Err("a property is in no node"),
                Token::Property(property) => each(&open, property),
                Token::Finish if !began => return Err("it has no root"),
                Token::Finish if !open.is_empty() => return Err("it ends within a node"),
                Token::Finish => return Ok(()),
            }
        }
    }

    fn token(&self, at: &mut usize) -> Result<Token<'a>, &'static str> {
        const CUT: &str = "its structure is cut off";
        loop {
            let tag = number(self.structure, *at).ok_or(CUT)?;
            *at += 4;
            let token = match tag {
                1 => {
                    let name = text(self.structure, *at).ok_or(CUT)?;
                    *at += name.len() + 1;
                    Token::Begin(name)
                }
                2 => Token::End,
                3 => {
                    let len = index(number(self.structure, *at).ok_or(CUT)?);
                    let name = index(number(self.structure, *at + 4).ok_or(CUT)?);
                    *at += 8;
                    // Older versions align long values to 8 bytes.
                    if self.version < 16 && len >= 8 {
                        *at = at.next_multiple_of(8);
                    }
                    let end = at.checked_add(len).ok_or(CUT)?;
                    let value = self.structure.get(*at..end).ok_or(CUT)?;
                    *at = end;
                    let name = text(self.strings, name).ok_or("the name of a property is missing")?;
                    Token::Property(Property { name, value })
                }
                4 => continue,
                9 => Token::Finish,
                _ => return Err("its structure is damaged"),
            };
            *at = at.next_multiple_of(4);
            return Ok(token);
        }
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

/// Up to a NUL.
fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let rest = rest.get(..=MAX_NAME_BYTES).unwrap_or(rest);
    rest.get(..rest.iter().position(|byte| *byte == 0)?)
}

/// The smallest tree. Bytes after it in a file are ignored.
#[cfg(test)]
pub(super) const LEAST: &[u8] =
    b"\xd0\r\xfe\xed\0\0\0\x48\0\0\0\x38\0\0\0\x48\0\0\0\x28\0\0\0\x11\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\x10\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x09";
