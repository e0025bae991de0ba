//! A region of a block device outside its file systems.
//!
//! The device may be in use: a host OS update writes the loader of the disk it runs from. So the disk is not opened
//! exclusively, which fails as soon as a partition of it is mounted; instead nothing is written where a partition with a
//! file system, or one that is in use, or the table lies.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::io::Io;
use super::sequence::Place;
use super::{Asked, Coming, Job, Kind, Target};
use crate::config::paths::Paths;
use crate::device::claimed;
use crate::error::{Code, Error, Result};
use crate::partition::{self, Flaw, Table};
use crate::sys::block::{Access, Device, Medium};
use crate::sys::buffer::Buffer;

/// Bytes of the body at once.
const STRIDE: u64 = 256 << 10;

/// How long another program's lock is waited for: udev takes one to look at a disk that was just written.
const PATIENCE: Duration = Duration::from_secs(5);

/// Refuses bytes `span` of a device called `name`, of `size` bytes, that is or will be divided by `table`.
///
/// Pure, so that a disk can be judged by the table of an image that is not written yet. Returns what is worth a warning.
///
/// # Errors
/// [`Code::SpanOutsideDevice`], [`Code::SpanOverTable`], [`Code::SpanOverFileSystem`].
pub fn check(name: &Path, span: &Range<u64>, size: u64, table: Option<&Table>) -> Result<Vec<String>> {
    inside(name, span, size)?;
    let mut warnings = Vec::new();
    if let Some(area) = table.iter().flat_map(|t| &t.areas).find(|a| overlaps(a, span)) {
        let what = format!("bytes {} to {} hold its partition table", area.start, area.end);
        return Err(refuse(Code::SpanOverTable, name, span, &what));
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

/// Refuses a span that leaves a device of `size` bytes.
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

/// Opens the node of a block device.
///
/// # Errors
/// [`Code::FlashDeviceMissing`], [`Code::NotRoot`], [`Code::Busy`], [`Code::TargetReadOnly`], [`Code::Io`].
pub(super) fn open(paths: &Paths, node: &Path, access: Access) -> Result<Device> {
    let end = Instant::now() + PATIENCE;
    let opened = loop {
        match Device::open(node, access) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => break other,
        }
    };
    let device = opened.map_err(|e| cannot_open(node, e))?;
    // A plain file in /dev is what a careless `dd` leaves where a node is missing.
    if device.dev().is_none() && paths.root() == Path::new("/") {
        return Err(cannot_open(
            node,
            io::Error::new(io::ErrorKind::InvalidInput, "it is not a block device"),
        ));
    }
    Ok(device)
}

pub(super) fn cannot_open(node: &Path, cause: io::Error) -> Error {
    let code = match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => Code::FlashDeviceMissing,
        io::ErrorKind::PermissionDenied => Code::NotRoot,
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => Code::Busy,
        io::ErrorKind::ReadOnlyFilesystem => Code::TargetReadOnly,
        _ => Code::Io,
    };
    let name = node.display();
    Error::new(code, format!("cannot open {name} for a bootloader")).object(name).because(cause)
}

pub(super) fn read_only(name: &Path) -> Error {
    let name = name.display();
    Error::new(Code::TargetReadOnly, format!("cannot write a bootloader to {name}: it is write-protected"))
        .object(name)
}

/// An open block device as a place: sectors, or whole erase blocks where one of raw flash is behind it.
pub(super) struct Disk<'a> {
    pub(super) device: Device,
    pub(super) name: &'a Path,
    /// Of a `/dev/mtdblockN`: its driver erases and writes this many bytes at once.
    pub(super) erase_block: Option<u64>,
}

impl Disk<'_> {
    fn io(&self) -> Io<'_> {
        Io::new(&self.device, self.name)
    }
}

impl Place for Disk<'_> {
    fn name(&self) -> String {
        self.name.display().to_string()
    }

    fn unit(&self) -> u64 {
        // A plain file, which stands for a disk in a test, takes anything.
        self.erase_block.unwrap_or(self.device.block_size().max(512) as u64)
    }

    fn stride(&self) -> u64 {
        self.erase_block.unwrap_or(STRIDE)
    }

    fn erases_by_itself(&self) -> bool {
        self.erase_block.is_some()
    }

    fn blank(&self) -> u8 {
        if self.erase_block.is_some() { 0xff } else { 0 }
    }

    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        let io = self.io();
        if !self.device.is_direct() {
            io.drop_cache()?;
        }
        io.read(buf, offset)
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.io().write(bytes, offset)
    }

    fn erase(&mut self, _offset: u64) -> Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.io().flush()?;
        self.io().drop_cache()
    }
}

/// A disk or a partition.
pub(super) struct Region {
    paths: Paths,
    node: PathBuf,
    size: u64,
}

/// Takes any block device.
pub(super) fn claim(asked: &Asked<'_>) -> Result<Option<Box<dyn Target>>> {
    let Some(node) = asked.node() else { return Ok(None) };
    let device = open(asked.paths, &node, Access::Read)?;
    let size = Io::new(&device, &node).size()?;
    Ok(Some(Box::new(Region { paths: asked.paths.clone(), node, size })))
}

impl Region {
    fn open(&self, access: Access) -> Result<Disk<'_>> {
        let device = open(&self.paths, &self.node, access)?;
        Ok(Disk { device, name: &self.node, erase_block: None })
    }

    /// The table that is on the device now; `None` where there is none.
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
        match partition::of_disk(&mut read_at, self.size) {
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
                let text = format!("cannot tell what a bootloader would overwrite on {name}: {why}");
                let hint = "repair the partition table of the device first";
                Err(Error::new(code, text).object(name).with_hint(hint))
            }
        }
    }

    /// Refuses a partition that somebody uses without a file system known here.
    fn refuse_used(&self, device: &Device, span: &Range<u64>, table: &Table) -> Result<()> {
        let Some((major, minor)) = device.dev() else { return Ok(()) };
        let folder = self.paths.at(format!("/sys/dev/block/{major}:{minor}"));
        for p in &table.partitions {
            if !overlaps(&(p.start..p.start.saturating_add(p.size)), span) {
                continue;
            }
            let Some(node) = partition_node(&self.paths, &folder, p.index) else { continue };
            if claimed(&node) {
                let what = format!("partition {} is in use", p.index);
                return Err(refuse(Code::SpanOverFileSystem, &self.node, span, &what));
            }
        }
        Ok(())
    }
}

/// The node of the partition with this number, of the disk whose folder in sysfs this is.
fn partition_node(paths: &Paths, disk: &Path, index: u32) -> Option<PathBuf> {
    std::fs::read_dir(disk).ok()?.flatten().find_map(|entry| {
        let number = std::fs::read_to_string(entry.path().join("partition")).ok()?;
        (number.trim() == index.to_string()).then(|| paths.at("/dev").join(entry.file_name()))
    })
}

impl Target for Region {
    fn kind(&self) -> Kind {
        Kind::Region
    }

    fn name(&self) -> &Path {
        &self.node
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn check(&self, span: &Range<u64>, coming: Option<&Coming<'_>>) -> Result<()> {
        let Disk { device, .. } = self.open(Access::Read)?;
        // Before the table is read: where the span leaves the device is the simpler message.
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
            table.map_or(Ok(()), |table| self.refuse_used(&device, span, &table))?;
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
