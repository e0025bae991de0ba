use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::storage::Storage;
use crate::config::paths::Paths;
use crate::disk::io::Io;
use crate::error::{Code, Error, Result};
use crate::sys::block::{Access, Device, Medium};

const WRITE_STRIDE: u64 = 256 << 10;

/// How long to wait for another program's lock: udev locks a disk that was just written, to probe it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn open(paths: &Paths, node: &Path, access: Access) -> Result<Device> {
    let end = Instant::now() + LOCK_TIMEOUT;
    let opened = loop {
        match Device::open(node, access) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => break other,
        }
    };
    let device = opened.map_err(|e| cannot_open(node, e))?;
    // `dd` leaves a plain file in /dev if the node is missing.
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

/// An open block device: sectors, or whole erase blocks if raw flash backs it.
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

impl Storage for Disk<'_> {
    fn name(&self) -> String {
        self.name.display().to_string()
    }

    fn unit(&self) -> u64 {
        // In a test a plain file replaces the disk. It has no alignment.
        self.erase_block.unwrap_or(self.device.block_size().max(512) as u64)
    }

    fn stride(&self) -> u64 {
        self.erase_block.unwrap_or(WRITE_STRIDE)
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
