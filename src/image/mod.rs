pub mod bmap;
mod bmap_check;
mod checksum_file;
pub mod chunks;
mod companions;
mod decode;
pub mod digest;
mod headers;
mod info;
mod inspect;
mod locate;
mod open;
mod owner;
mod pass;
mod raw;
mod signed;
mod sparse;
mod stored;
mod system;
mod unpack;
mod zstd;

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use companions::companions;
pub(crate) use info::row;
pub use info::{BlockMap, Info, info};
pub use inspect::{check_sector_size, inspect};
pub(crate) use inspect::{flawed, glance};
pub(crate) use locate::CORRECT_NAME;
pub use locate::{find, locate};
pub use pass::{FileDigest, digest_file};
pub(crate) use pass::{estimate_zeroes, heed};
pub use signed::{Signed, Signer};
pub use system::System;

use super::image::digest::Digest256;
use crate::disk::partition::Table;
use crate::disk::select::ImageSize;
use crate::sys::file::Version;

pub(crate) const BOOT_LABEL: &str = "resin-boot";

/// How an image is stored, by its first bytes, never by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Raw,
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Raw => "raw",
            Format::Gzip => "gzip",
            Format::Xz => "xz",
            Format::Zstd => "zstd",
            Format::Bzip2 => "bzip2",
        })
    }
}

#[derive(Debug, Clone)]
pub struct Image {
    pub path: PathBuf,
    pub format: Format,
    pub stored_size: u64,
    /// Taken when the file was opened.
    version: Version,
    /// Companion files are opened with the same checks.
    surroundings: Surroundings,
    window: u64,
    /// Kept open, so that every pass reads the file that was checked, even when its name leads elsewhere later.
    file: Arc<File>,
}

/// As plans and descriptions have it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StoredImage {
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub path: PathBuf,
    pub format: Format,
    pub stored_size: u64,
}

impl From<&Image> for StoredImage {
    fn from(image: &Image) -> Self {
        StoredImage { path: image.path.clone(), format: image.format, stored_size: image.stored_size }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surroundings {
    /// The operator, or the maker of the medium, has put it there.
    Any,
    /// Below a folder where every user may put files: only root may own it.
    Shared,
}

#[derive(Debug, Clone)]
pub struct Inspection {
    pub size: ImageSize,
    /// `None` only where the caller did not require one.
    pub table: Option<Table>,
    /// Present where the whole image was read.
    pub digests: Option<Vec<Digest256>>,
    /// The least that it takes in a file with holes, in bytes; present where the whole image was read.
    pub data: Option<u64>,
    pub sha256: Option<Digest256>,
    /// Present where a signature was required.
    pub signed: Option<Signed>,
}

#[derive(Debug, Clone, Default)]
pub struct Checks {
    /// Accept an image without a valid partition table or without `resin-boot`.
    pub force_raw: bool,
    /// Check only the beginning of a compressed image before the write.
    pub single_pass: bool,
    pub sha256: bool,
    /// Size of the target: a compressed image that is larger is refused at once.
    pub at_most: Option<u64>,
    /// Stop reading a compressed image where more than so many bytes follow the end of its partition table.
    pub after_table: Option<u64>,
    pub expect_sha256: Option<Digest256>,
    /// Accept only an image that this signer has signed.
    pub signer: Option<Signer>,
}

impl Checks {
    /// Whether they need the digest of the uncompressed image, and so the whole image before the first write.
    fn need_sha256(&self) -> bool {
        self.sha256 || self.expect_sha256.is_some() || self.signer.is_some()
    }
}
