//! What an image is: for people and programs that have to choose one.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::bmap::Bmap;
use super::companions::{Companions, signature_of};
use super::digest::{Digest256, root};
use super::inspect::{describe, flawed};
use super::system::System;
use super::{Checks, Image, Signed, Signer, StoredImage};
use crate::disk::partition::{Flaw, Partition, Table};
use crate::disk::select::ImageSize;
use crate::error::Result;
use crate::progress::Progress;
use crate::progress::lines::size;
use crate::sys::log::printable;

#[derive(Debug, Clone, Serialize)]
pub struct Info {
    #[serde(flatten)]
    pub stored: StoredImage,
    /// Bytes of the image without its compression; if it goes on, those that were read.
    pub size: u64,
    /// Whether it goes on long after the end of its partition table, and was not read further: a few kilobytes may unpack to terabytes.
    pub goes_on: bool,
    pub table: Option<Table>,
    /// Why it has no table.
    pub flaw: Option<String>,
    #[serde(flatten)]
    pub system: System,
    /// `None` if it goes on.
    pub chunk_digest: Option<Digest256>,
    pub sha256: Option<Digest256>,
    pub block_map: Option<BlockMap>,
    /// With the SHA-256 of the stored file.
    #[serde(serialize_with = "crate::sys::path_text::option")]
    pub checksum_file: Option<PathBuf>,
    #[serde(serialize_with = "crate::sys::path_text::option")]
    pub signature_file: Option<PathBuf>,
    /// Where a certificate was given.
    pub signed: Option<Signed>,
}

/// A `.bmap` whose ranges the image agrees with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockMap {
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub file: PathBuf,
    pub version: String,
    /// Bytes of the blocks that hold data.
    pub mapped: u64,
}

/// Number, label or name, size and content of a partition.
pub(crate) fn row(p: &Partition) -> String {
    let name = p.label.as_deref().or(p.name.as_deref()).unwrap_or("-");
    let what = p.file_system.unwrap_or("unknown");
    format!("{:>3}  {:<16} {:>12} {what}", p.index, printable(name), size(p.size))
}

impl BlockMap {
    fn new(file: PathBuf, map: &Bmap) -> BlockMap {
        let blocks: u64 = map.ranges.iter().map(|range| range.last - range.first + 1).sum();
        let mapped = (blocks * map.block_size).min(map.image_size);
        BlockMap { file, version: format!("{}.{}", map.version.0, map.version.1), mapped }
    }
}

/// Padding allowed after the end of the partition table, in bytes. Build systems pad images to a card's erase block.
const MOST_AFTER_TABLE: u64 = 64 << 20;

/// Reads the whole image, unless it goes on long after the end of its table; for a signature it is read whole. Damage, and a companion file or signature that contradicts the image, is an error as in a flash; a table that is
/// missing or invalid is not.
pub fn info(path: &Path, signer: Option<Signer>, progress: &dyn Progress) -> Result<Info> {
    let image = Image::open_named(path)?;
    let companions = Companions::of(&image)?;
    let after_table = signer.is_none().then_some(MOST_AFTER_TABLE);
    let checks = Checks { force_raw: true, sha256: true, signer, after_table, ..Checks::default() };
    let (found, whole) = describe(&image, &checks, &companions, progress)?;
    let (table, flaw) = match found {
        Ok(found) => (Some(found.table), None),
        Err(Flaw::Read(e)) => return Err(flawed(Flaw::Read(e), path)),
        Err(flaw) => (None, Some(flaw.to_string())),
    };
    let system = table.as_ref().map(|table| System::of(&image, table)).transpose()?.unwrap_or_default();
    let signature = signature_of(path);
    let (ImageSize::Exact(bytes) | ImageSize::AtLeast(bytes)) = whole.size;
    Ok(Info {
        stored: (&image).into(),
        size: bytes,
        table,
        flaw,
        system,
        goes_on: matches!(whole.size, ImageSize::AtLeast(_)),
        chunk_digest: whole.digests.map(|digests| root(&digests)),
        sha256: whole.sha256,
        block_map: companions.bmap.map(|(file, map)| BlockMap::new(file, &map)),
        checksum_file: companions.sha256.map(|(file, _)| file),
        signature_file: signature.exists().then_some(signature),
        signed: whole.signed,
    })
}
