//! Labels from the file system itself: FAT, and ext2/3/4 (`Documentation/filesystems/ext4/super.rst` of the kernel).

use std::io;
use std::path::Path;

use super::ReadAt;
use super::fat::{Fat, le16};
use crate::disk::io::Io;
use crate::sys::block::{self, Access, Medium as _};
use crate::sys::buffer::Buffer;

/// The label of the file system that starts at offset 0 of `read_at`; `None` for no label or an unknown file system. For
/// FAT: the volume entry of the root folder, else the field of the boot sector. `NO NAME` means no label.
pub fn label(read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Option<String>> {
    match find(read_at) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

/// [`label`] of what is in the block device; `None` where it cannot be read.
pub(crate) fn of_node(node: &Path) -> Option<String> {
    let device = block::Device::open(node, Access::Read)
        .inspect_err(|e| tracing::debug!("cannot open {}: {e}", node.display()))
        .ok()?;
    let io = Io::new(&device, node);
    let size = device.size().ok()?;
    let mut buffer = Buffer::zeroed(0);
    let mut read_at = |offset: u64, out: &mut [u8]| {
        if offset.saturating_add(out.len() as u64) > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes =
            io.read_any(&mut buffer, offset, out.len() as u64).map_err(|e| io::Error::other(e.message()))?;
        out.copy_from_slice(bytes.get(..out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    label(&mut read_at)
        .inspect_err(|e| tracing::debug!("cannot read the label of {}: {e}", node.display()))
        .ok()
        .flatten()
}

fn find(read_at: &mut ReadAt<'_>) -> io::Result<Option<String>> {
    let mut boot = [0; 512];
    read_at(0, &mut boot)?;
    // FAT first: mkfs.ext4 clears the boot sector, but mkfs.vfat leaves an old ext superblock.
    if let Some(fat) = Fat::parse(&boot) {
        return match fat.root_label(read_at)? {
            Some(name) => Ok(Some(name).filter(|n| !n.is_empty())),
            None => Ok(fat.boot_label),
        };
    }
    let mut superblock = [0; 136];
    read_at(1024, &mut superblock)?;
    // s_magic at 0x38, s_volume_name at 0x78.
    if le16(&superblock, 0x38) != 0xef53 {
        return Ok(None);
    }
    let name = superblock.get(0x78..0x88).unwrap_or_default();
    let name: Vec<u8> = name.iter().copied().take_while(|b| *b != 0).collect();
    Ok(Some(String::from_utf8_lossy(&name).into_owned()).filter(|n| !n.is_empty()))
}

/// The UUID of the ext2/3/4 file system that starts at offset 0 of `read_at`, in lower case with dashes; `None` for any other.
pub(crate) fn ext_uuid(
    read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Option<String>> {
    let mut superblock = [0; 136];
    match read_at(1024, &mut superblock) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let uuid = superblock.get(0x68..0x78).filter(|_| le16(&superblock, 0x38) == 0xef53);
    let dashes = [4, 6, 8, 10];
    let hex = |(at, byte): (usize, &u8)| {
        let dash = if dashes.contains(&at) { "-" } else { "" };
        format!("{dash}{byte:02x}")
    };
    Ok(uuid.map(|bytes| bytes.iter().enumerate().map(hex).collect()))
}
