//! The hardware boot partitions of an eMMC, `mmcblkNboot0` and `mmcblkNboot1`.
//!
//! The kernel protects them: writes fail until `0` is written to `force_ro` in sysfs. A setting of the chip
//! (`PARTITION_CONFIG`) selects which of the two it starts from; this program never changes it.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::disk::{self, Disk, read_only};
use super::region::inside;
use super::{Coming, Job, NamedDevice, StorageKind, Target};
use crate::config::paths::Paths;
use crate::disk::io::Io;
use crate::error::{Code, Error, Result};
use crate::sys::block::Access;

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BootPartition {
    pub name: String,
    pub size: Option<u64>,
    /// Whether the kernel refuses writes. They are allowed during the write of a bootloader.
    pub force_ro: Option<bool>,
    /// Whether the chip starts from it, where debugfs shows that.
    pub active: Option<bool>,
}

/// `mmcblk0boot1` → (`mmcblk0`, 1).
fn parts(name: &str) -> Option<(&str, u8)> {
    let (disk, number) = name.rsplit_once("boot")?;
    let digits = disk.strip_prefix("mmcblk")?;
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then_some((disk, number.parse().ok()?))
}

#[must_use]
pub fn list(paths: &Paths) -> Vec<BootPartition> {
    let entries = fs::read_dir(paths.at("/sys/block")).into_iter().flatten().flatten();
    let mut found: Vec<BootPartition> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (disk, number) = parts(&name)?;
            let sectors = fs::read_to_string(entry.path().join("size")).ok();
            let active = active(paths, disk).map(|selected| selected == number + 1);
            Some(BootPartition {
                // sysfs counts in units of 512 bytes, whatever the sector size.
                size: sectors.and_then(|s| s.trim().parse::<u64>().ok()).map(|s| s * 512),
                force_ro: ForceRo::of(paths, &name).read().ok(),
                active,
                name,
            })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The boot partition that the chip starts from: 1 or 2, 7 for the user area, 0 for none. The kernel shows the extended CSD
/// in debugfs as 1024 hex digits; this is byte 179, bits 3 to 5 (JESD84-B51, 7.4.69).
fn active(paths: &Paths, disk: &str) -> Option<u8> {
    let card = fs::read_link(paths.at(format!("/sys/block/{disk}/device"))).ok()?;
    let card = card.file_name()?.to_str()?.to_owned();
    let host = card.split(':').next()?;
    let text = fs::read_to_string(paths.at(format!("/sys/kernel/debug/{host}/{card}/ext_csd"))).ok()?;
    let byte = u8::from_str_radix(text.get(2 * 179..2 * 180)?, 16).ok()?;
    Some(byte >> 3 & 7)
}

/// Protects every boot partition again, in case a killed program has left one writable.
pub fn protect(paths: &Paths) -> Result<Vec<String>> {
    let mut done = Vec::new();
    let mut failed = None;
    for partition in list(paths).into_iter().filter(|p| p.force_ro.is_some()) {
        match ForceRo::of(paths, &partition.name).set(true) {
            Ok(()) => done.push(partition.name),
            Err(e) => {
                let text = format!("cannot protect {} against writing", partition.name);
                failed.get_or_insert(Error::new(Code::LeftWritable, text).object(partition.name).because(e));
            }
        }
    }
    failed.map_or(Ok(done), Err)
}

/// The kernel's write protection of one boot partition.
struct ForceRo(PathBuf);

impl ForceRo {
    fn of(paths: &Paths, name: &str) -> Self {
        ForceRo(paths.at(format!("/sys/block/{name}/force_ro")))
    }

    fn read(&self) -> io::Result<bool> {
        Ok(fs::read_to_string(&self.0)?.trim() != "0")
    }

    fn set(&self, on: bool) -> io::Result<()> {
        use std::io::Write as _;
        // Never creates the file: a plain file would protect nothing.
        let mut file = fs::OpenOptions::new().write(true).truncate(true).open(&self.0)?;
        file.write_all(if on { b"1\n" } else { b"0\n" })?;
        if self.read()? == on {
            return Ok(());
        }
        Err(io::Error::other(format!("{} does not take the value", self.0.display())))
    }
}

struct MmcBoot {
    paths: Paths,
    node: PathBuf,
    force_ro: ForceRo,
    /// The sysfs file about the chip's own protection, if it has one.
    lock: PathBuf,
    size: u64,
}

/// Accepts `mmcblkNbootM` by its name and by its `force_ro`, which the kernel gives only to boot partitions.
pub(super) fn claim(named: &NamedDevice<'_>) -> Result<Option<Box<dyn Target>>> {
    let Some(node) = named.node() else { return Ok(None) };
    let Some(name) = node.file_name().and_then(|n| n.to_str()).filter(|n| parts(n).is_some()) else {
        return Ok(None);
    };
    let force_ro = ForceRo::of(named.paths, name);
    if !force_ro.0.exists() {
        return Ok(None);
    }
    let device = disk::open(named.paths, &node, Access::Read)?;
    let size = Io::new(&device, &node).size()?;
    let lock = named.paths.at(format!("/sys/block/{name}/ro_lock_until_next_power_on"));
    Ok(Some(Box::new(MmcBoot { paths: named.paths.clone(), node, force_ro, lock, size })))
}

impl MmcBoot {
    fn open(&self, access: Access) -> Result<Disk<'_>> {
        let device = disk::open(&self.paths, &self.node, access)?;
        Ok(Disk { device, name: &self.node, erase_block: None })
    }

    fn run(&self, job: Job<'_>) -> Result<()> {
        // Opened after the protection was lifted: newer kernels refuse to open a protected device for writing.
        let mut disk = self.open(Access::Shared)?;
        if disk.device.is_read_only().unwrap_or(false) {
            return Err(read_only(&self.node));
        }
        job(&mut disk)
    }
}

impl Target for MmcBoot {
    fn kind(&self) -> StorageKind {
        StorageKind::MmcBoot
    }

    fn name(&self) -> &Path {
        &self.node
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn check(&self, span: &Range<u64>, _coming: Option<&Coming<'_>>) -> Result<()> {
        inside(&self.node, span, self.size)
    }

    /// The chip's own protection, which `force_ro` does not show: writes would fail after other data may have been written.
    fn writable(&self) -> Result<()> {
        // Linux, Documentation/driver-api/mmc/mmc-dev-parts.rst, and power_ro_lock_show() in drivers/mmc/core/block.c.
        let (how, hint) = match fs::read_to_string(&self.lock).unwrap_or_default().trim() {
            "1" => (
                "the chip protects it until it is switched off",
                "switch the device off and on; a bootloader that protects the chip at each start must stop doing so",
            ),
            "2" => {
                ("the chip protects it for ever", "keep the present bootloader, or use another device for it")
            }
            _ => return Ok(()),
        };
        let name = self.node.display();
        let text = format!("cannot write a bootloader to {name}: {how}");
        Err(Error::new(Code::TargetReadOnly, text).object(name).with_hint(hint))
    }

    fn read(&self, job: Job<'_>) -> Result<()> {
        job(&mut self.open(Access::Read)?)
    }

    fn write(&self, job: Job<'_>) -> Result<()> {
        let name = self.node.display();
        let refused = |e: io::Error| {
            let text = format!("cannot lift the write protection of {name}");
            Error::new(Code::TargetReadOnly, text).object(&name).because(e)
        };
        let was_on = self.force_ro.read().map_err(&refused)?;
        let result = match self.force_ro.set(false) {
            Ok(()) => self.run(job),
            Err(e) => Err(refused(e)),
        };
        // On every path, whatever the result of the write. Signals are blocked until then.
        match (self.force_ro.set(was_on), result) {
            (Ok(()), result) => result,
            (Err(e), Ok(())) => {
                let text = format!("the bootloader is on {name}, but its write protection was not restored");
                Err(Error::new(Code::LeftWritable, text).object(name).because(e).after_success())
            }
            (Err(e), Err(error)) => {
                tracing::warn!("the write protection of {name} was not restored: {e}");
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_boot_partitions() {
        assert_eq!(parts("mmcblk0boot0"), Some(("mmcblk0", 0)));
        assert_eq!(parts("mmcblk12boot1"), Some(("mmcblk12", 1)));
        for other in
            ["mmcblk0", "mmcblk0p1", "mmcblk0rpmb", "mmcblk0gp0", "mmcblkboot0", "sdaboot0", "mmcblk0boot"]
        {
            assert_eq!(parts(other), None, "{other}");
        }
    }
}
