//! The image: where it is, how it is stored, what is in it.

pub mod bmap;
mod bmap_check;
mod bzip2;
mod checksum_file;
pub mod chunks;
mod companions;
mod decode;
pub mod digest;
mod inspect;
mod locate;
mod open;
mod owner;
mod pass;
mod raw;
mod sparse;
mod stored;
mod zstd;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use bzip2::Bzip2;
pub use inspect::{check_sector_size, glance, inspect};
pub(crate) use locate::CORRECT_NAME;
pub use locate::{find, locate};
pub use pass::{FileDigest, digest_file};

use super::image::digest::Digest256;
use crate::disk::partition::Table;
use crate::disk::select::ImageSize;

/// The file-system label of the partition that a balenaOS device boots from.
pub const BOOT_LABEL: &str = "resin-boot";

/// How an image is stored. Taken from its first bytes, never from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// As it will be on the disk.
    Raw,
    /// One or several gzip members.
    Gzip,
    /// One or several xz streams.
    Xz,
    /// One or several zstd frames.
    Zstd,
    /// One or several bzip2 streams.
    Bzip2,
}

/// An image file that exists, is regular and not empty.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// How it is stored.
    pub format: Format,
    /// Bytes as stored.
    pub stored_size: u64,
    /// What lies beside it is opened alike.
    surroundings: Surroundings,
    /// Largest window (dictionary) of a decoder, in bytes.
    window: u64,
    /// Kept open, so that every pass reads the file that was checked, whatever happens to its name.
    file: Arc<File>,
}

/// Where a file was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surroundings {
    /// Where the operator, or the maker of the medium, has put it.
    Any,
    /// Below a folder where every user may put files: it has to be root's alone.
    Shared,
}

/// What is known about an image before it is written.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Uncompressed size.
    pub size: ImageSize,
    /// The partition table; `None` only where the caller did not insist on one.
    pub table: Option<Table>,
    /// One digest per chunk, where the whole image was read.
    pub digests: Option<Vec<Digest256>>,
    /// SHA-256 of the whole uncompressed image, where it was asked for.
    pub sha256: Option<Digest256>,
}

/// What to look at before writing.
#[derive(Debug, Clone, Default)]
pub struct Checks {
    /// Accept an image without a valid partition table or without `resin-boot`.
    pub force_raw: bool,
    /// Do not decode a compressed image ahead of the write: only its beginning is checked.
    pub single_pass: bool,
    /// Compute the SHA-256 of the whole uncompressed image.
    pub sha256: bool,
    /// Bytes that the target has: a compressed image that turns out to be larger is refused at once.
    pub at_most: Option<u64>,
    /// Fail unless the whole uncompressed image has this SHA-256.
    pub expect_sha256: Option<Digest256>,
}
