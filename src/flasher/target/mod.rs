//! What will be written, and why nothing else.

use std::path::PathBuf;

/// Kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A whole disk.
    Block,
    /// A plain file, present or to be created.
    File,
}

/// A target that passed every check.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Target {
    /// The name as matched or as given: what board programs see.
    pub name: PathBuf,
    /// The device node after all symbolic links; for files the same as `name`.
    pub node: PathBuf,
    /// Disk or file.
    pub kind: Kind,
    /// `(major, minor)` of a block device.
    pub dev: Option<(u32, u32)>,
    /// Bytes; of a file its present size, 0 where it is not there yet.
    pub size: u64,
    /// Logical block size in bytes; 512 for files unless the image says otherwise.
    pub block_size: u32,
    /// `/dev/disk/by-id/…` link, where udev made one.
    pub by_id: Option<PathBuf>,
    /// Model, as the kernel or udev names it.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
}
