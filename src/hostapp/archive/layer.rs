//! One layer of an image: a tar, in some archives compressed with gzip.

use std::io::{self, Read};
use std::path::Component;

use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use super::read_up_to;

/// Blocks of the other slot's ext4.
const BLOCK: u64 = 4096;
/// What the engine remembers of a file (tar-split), and its share of the folder it is in.
const MEMORY: u64 = 256;

/// What there is to know of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    /// `sha256:…` of the tar, not compressed: the layer's identity.
    pub(super) id: String,
    /// Bytes that it needs once it is unpacked.
    pub(super) unpacked: u64,
}

/// Unpacks a layer in memory. The error says why it is none.
pub(super) fn measure(content: &mut dyn Read) -> Result<Layer, String> {
    let mut head = [0; 6];
    let n = read_up_to(content, &mut head).map_err(|e| e.to_string())?;
    let packed = head.starts_with(&[0x1f, 0x8b]);
    if head.starts_with(b"\xfd7zXZ\0")
        || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || head.starts_with(b"BZh")
    {
        return Err("it is compressed with something else than gzip".to_owned());
    }
    let content = head.take(n as u64).chain(content);
    if packed { weigh(MultiGzDecoder::new(content)) } else { weigh(content) }
}

fn weigh(content: impl Read) -> Result<Layer, String> {
    let mut tar = tar::Archive::new(Hashed { inner: content, hash: Sha256::new() });
    let mut unpacked = 0u64;
    for entry in tar.entries().map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        let inside = |path: &std::path::Path| !path.components().any(|c| c == Component::ParentDir);
        let name = entry.path().map_err(|e| e.to_string())?;
        let kind = entry.header().entry_type();
        let target = entry.link_name().map_err(|e| e.to_string())?.filter(|_| kind.is_hard_link());
        if !inside(&name) || target.is_some_and(|t| !inside(&t)) {
            return Err(format!("{} leads out of it", name.display()));
        }
        let blocks = match kind {
            kind if kind.is_dir() => BLOCK,
            kind if kind.is_hard_link() => 0,
            _ => entry.size().next_multiple_of(BLOCK),
        };
        unpacked = unpacked.saturating_add(blocks).saturating_add(MEMORY);
    }
    // Padding behind the end of a tar is part of what is digested.
    let mut rest = tar.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(|e| e.to_string())?;
    let mut id = String::from("sha256:");
    for byte in rest.hash.finalize() {
        id.push_str(&format!("{byte:02x}"));
    }
    Ok(Layer { id, unpacked })
}

struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hash.update(buf.get(..n).unwrap_or_default());
        Ok(n)
    }
}
