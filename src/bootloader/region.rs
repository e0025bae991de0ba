//! A region of a block device outside its file systems.
//!
//! The device may be in use: a host OS update writes the bootloader of the disk that it runs from. An exclusive open would
//! fail as soon as a partition is mounted. Instead the write must not touch the table, a partition with a file system, or a
//! partition in use.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::disk::{Disk, open, read_only};
use super::{Coming, Job, NamedDevice, StorageKind, Target};
use crate::config::paths::Paths;
use crate::disk::claimed;
use crate::disk::io::Io;
use crate::disk::partition::{self, Flaw, Partition, SIGNATURE, Table, TableKind};
use crate::error::{Code, Error, Result};
use crate::sys::block::{Access, Device};
use crate::sys::buffer::Buffer;

/// Refuses bytes `span` of a device `name` of `size` bytes whose present or future table is `table`.
///
/// Pure: the table may come from an image that is not written yet. Returns warnings.
pub fn check(name: &Path, span: &Range<u64>, size: u64, table: Option<&Table>) -> Result<Vec<String>> {
    inside(name, span, size)?;
    let mut warnings = Vec::new();
    if let Some(area) = table.iter().flat_map(|t| &t.areas).find(|a| overlaps(a, span)) {
        let what = format!("bytes {} to {} hold its partition table", area.start, area.end);
        return Err(refuse(Code::SpanOverTable, name, span, &what));
    }
    if table.is_some_and(|t| t.kind == TableKind::Mbr) && overlaps(&SIGNATURE, span) {
        let text = "the bootloader overwrites the disk signature: the PARTUUIDs of its partitions change";
        warnings.push(format!("{}: {text}", name.display()));
    }
    for p in table.iter().flat_map(|t| &t.partitions) {
        let bytes = p.start..p.start.saturating_add(p.size);
        if !overlaps(&bytes, span) {
            continue;
        }
        let label = p.name.as_ref().or(p.label.as_ref()).map(|l| format!(" `{l}`")).unwrap_or_default();
        let partition = format!("partition {}{label}, bytes {} to {}", p.index, bytes.start, bytes.end);
        if let Some(content) = p.file_system {
            let what = format!("{partition}, holds {content}");
            return Err(refuse(Code::SpanOverFileSystem, name, span, &what));
        }
        warnings.push(format!(
            "{}: the bootloader overlaps {partition}, which holds no file system",
            name.display()
        ));
    }
    Ok(warnings)
}

pub(super) fn inside(name: &Path, span: &Range<u64>, size: u64) -> Result<()> {
    if span.start <= span.end && span.end <= size {
        return Ok(());
    }
    Err(refuse(Code::SpanOutsideDevice, name, span, &format!("it has {size} bytes")))
}

fn refuse(code: Code, name: &Path, span: &Range<u64>, why: &str) -> Error {
    let name = name.display();
    let text = format!("cannot write a bootloader to bytes {} to {} of {name}: {why}", span.start, span.end);
    Error::new(code, text).object(name)
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

pub(super) struct Region {
    paths: Paths,
    node: PathBuf,
    size: u64,
}

/// Accepts any block device.
pub(super) fn claim(named: &NamedDevice<'_>) -> Result<Option<Box<dyn Target>>> {
    let Some(node) = named.node() else { return Ok(None) };
    let device = open(named.paths, &node, Access::Read)?;
    let size = Io::new(&device, &node).size()?;
    Ok(Some(Box::new(Region { paths: named.paths.clone(), node, size })))
}

impl Region {
    fn open(&self, access: Access) -> Result<Disk<'_>> {
        let device = open(&self.paths, &self.node, access)?;
        Ok(Disk { device, name: &self.node, erase_block: None })
    }

    fn table(&self, device: &Device) -> Result<Option<Table>> {
        let io = Io::new(device, &self.node);
        let mut buffer = Buffer::zeroed(0);
        let mut read_at = |offset: u64, buf: &mut [u8]| {
            if offset.saturating_add(buf.len() as u64) > self.size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let bytes = io.read_any(&mut buffer, offset, buf.len() as u64);
            buf.copy_from_slice(bytes.map_err(|e| io::Error::other(e.message()))?);
            Ok(())
        };
        let name = self.node.display();
        // A partition has no table, but the boot sector of its file system may look like one.
        let whole = sysfs(&self.paths, device).is_none_or(|folder| !folder.join("partition").exists());
        let found = if whole {
            partition::of_disk(&mut read_at, self.size)
        } else {
            Err(Flaw::Missing(String::new()))
        };
        match found {
            Ok(table) => Ok(Some(table)),
            Err(Flaw::Missing(_)) => match partition::file_system(&mut read_at) {
                Ok(None) => Ok(None),
                Ok(Some(content)) => {
                    let text = format!("cannot write a bootloader to {name}: it holds {content}");
                    Err(Error::new(Code::SpanOverFileSystem, text).object(name))
                }
                Err(e) => Err(Error::new(Code::TargetReadFailed, format!("cannot read {name}"))
                    .object(name)
                    .because(e)),
            },
            Err(flaw) => {
                let (code, why) = match flaw {
                    Flaw::Read(e) => (Code::TargetReadFailed, e.to_string()),
                    Flaw::Invalid(why) | Flaw::Cut(why) | Flaw::Missing(why) => {
                        (Code::PartitionTableInvalid, why)
                    }
                    Flaw::Pending => (Code::PartitionTableInvalid, "it ends too early".into()),
                };
                let text = format!("cannot determine what a bootloader would overwrite on {name}: {why}");
                let hint = "repair the partition table of the device first";
                Err(Error::new(code, text).object(name).with_hint(hint))
            }
        }
    }

    /// Refuses use without a known signature: of the device itself below an array or a volume, of the whole device where no
    /// table divides it, or of a partition in `span`.
    fn refuse_used(&self, device: &Device, span: &Range<u64>, table: Option<&Table>) -> Result<()> {
        let Some(folder) = sysfs(&self.paths, device) else { return Ok(()) };
        let used = |what: &str| Err(refuse(Code::SpanOverFileSystem, &self.node, span, what));
        if let Some(holder) = fs::read_dir(folder.join("holders")).into_iter().flatten().flatten().next() {
            return used(&format!("it is held by {}", holder.file_name().to_string_lossy()));
        }
        let Some(table) = table else {
            return if claimed(&self.node) { used("it is in use") } else { Ok(()) };
        };
        for p in &table.partitions {
            if !overlaps(&(p.start..p.start.saturating_add(p.size)), span) {
                continue;
            }
            if partition_node(&self.paths, &folder, p.index).is_some_and(|node| claimed(&node)) {
                return used(&format!("partition {} is in use", p.index));
            }
        }
        Ok(())
    }
}

fn sysfs(paths: &Paths, device: &Device) -> Option<PathBuf> {
    device.dev().map(|(major, minor)| paths.at(format!("/sys/dev/block/{major}:{minor}")))
}

fn partition_node(paths: &Paths, disk: &Path, index: u32) -> Option<PathBuf> {
    fs::read_dir(disk).ok()?.flatten().find_map(|entry| {
        let number = fs::read_to_string(entry.path().join("partition")).ok()?;
        (number.trim() == index.to_string()).then(|| paths.at("/dev").join(entry.file_name()))
    })
}

/// A partition of the new image. The present partition of that name vanishes before.
struct ComingPartition {
    node: PathBuf,
    partition: Partition,
}

/// Accepts, by its name, a partition of the disk that is written before.
pub(super) fn claim_coming(named: &NamedDevice<'_>, coming: &Coming<'_>) -> Result<Option<Box<dyn Target>>> {
    let Some(node) = named.node() else { return Ok(None) };
    let Some(index) = node.file_name().and_then(|name| index_on(coming.kernel_name, name)) else {
        return Ok(None);
    };
    let found = coming.table.and_then(|table| table.partitions.iter().find(|p| p.index == index));
    let Some(partition) = found.cloned() else {
        let name = node.display();
        let text = format!("cannot write a bootloader to {name}: the image has no partition {index}");
        return Err(Error::new(Code::FlashDeviceMissing, text).object(name));
    };
    Ok(Some(Box::new(ComingPartition { node, partition })))
}

/// The kernel's rule: `sda` has `sda1`; `mmcblk0`, which ends with a digit, has `mmcblk0p1`.
fn index_on(disk: &OsStr, name: &OsStr) -> Option<u32> {
    let (disk, name) = (disk.to_str()?, name.to_str()?);
    let rest = name.strip_prefix(disk)?;
    let digits = if disk.ends_with(|c: char| c.is_ascii_digit()) { rest.strip_prefix('p')? } else { rest };
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

impl Target for ComingPartition {
    fn kind(&self) -> StorageKind {
        StorageKind::Region
    }

    fn name(&self) -> &Path {
        &self.node
    }

    fn size(&self) -> u64 {
        self.partition.size
    }

    fn check(&self, span: &Range<u64>, _coming: Option<&Coming<'_>>) -> Result<()> {
        inside(&self.node, span, self.partition.size)?;
        match self.partition.file_system {
            Some(content) => {
                let what = format!("the image has {content} there");
                Err(refuse(Code::SpanOverFileSystem, &self.node, span, &what))
            }
            None => Ok(()),
        }
    }

    fn read(&self, _job: Job<'_>) -> Result<()> {
        Err(self.not_yet())
    }

    fn write(&self, _job: Job<'_>) -> Result<()> {
        Err(self.not_yet())
    }
}

impl ComingPartition {
    fn not_yet(&self) -> Error {
        let name = self.node.display();
        Error::new(Code::FlashDeviceMissing, format!("{name} exists only after the image was written"))
            .object(name)
    }
}

impl Target for Region {
    fn kind(&self) -> StorageKind {
        StorageKind::Region
    }

    fn name(&self) -> &Path {
        &self.node
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn check(&self, span: &Range<u64>, coming: Option<&Coming<'_>>) -> Result<()> {
        let Disk { device, .. } = self.open(Access::Read)?;
        // Before the table is read: a span outside of the device gives the simpler message.
        inside(&self.node, span, self.size)?;
        if device.is_read_only().unwrap_or(false) {
            return Err(read_only(&self.node));
        }
        let coming = coming.filter(|c| Some(c.dev) == device.dev());
        let warnings = if let Some(coming) = coming {
            check(&self.node, span, self.size, coming.table)?
        } else {
            let table = self.table(&device)?;
            let warnings = check(&self.node, span, self.size, table.as_ref())?;
            self.refuse_used(&device, span, table.as_ref())?;
            warnings
        };
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    fn read(&self, job: Job<'_>) -> Result<()> {
        job(&mut self.open(Access::Read)?)
    }

    fn write(&self, job: Job<'_>) -> Result<()> {
        job(&mut self.open(Access::Shared)?)
    }
}
