//! Raw flash: NOR chips and their partitions, through the kernel's MTD layer.
//!
//! `/dev/mtdblockN` means `/dev/mtdN`: the block device hides erasing, and erases unchanged blocks. It is written, in whole
//! erase blocks, only where the kernel has no character devices.

mod chip;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::disk::{self, Disk, cannot_open, read_only};
use super::region::inside;
use super::storage::Storage;
use super::{Coming, Job, NamedDevice, StorageKind, Target};
use crate::config::paths::Paths;
use crate::disk::io::Io;
use crate::error::{Code, Error, Result};
use crate::sys::block::Access;
use crate::sys::mount::read_mounts;
use crate::sys::mtd::{BLOCK_MAJOR, Mtd};

pub(crate) use chip::BY_NAME;
pub use chip::{Chip, list};

/// Types without bad blocks: NOR, battery-backed memory (or mapped memory in tests), and Atmel's DataFlash.
const WRITTEN_HERE: [&str; 3] = ["nor", "ram", "dataflash"];

enum Way {
    Char(PathBuf),
    Block(PathBuf),
}

struct Flash {
    paths: Paths,
    chip: Chip,
    way: Way,
}

/// Accepts MTD devices under all their names.
pub(super) fn claim(named: &NamedDevice<'_>) -> Result<Option<Box<dyn Target>>> {
    let Some(index) = chip::index(named)? else { return Ok(None) };
    let missing = |why: &str| {
        Error::new(Code::FlashDeviceMissing, format!("cannot write a bootloader to {}: {why}", named.name))
            .object(named.name)
    };
    let chip =
        Chip::read(named.paths, index).ok_or_else(|| missing("the kernel knows no such MTD device"))?;
    let (char, block) =
        (named.paths.at(format!("/dev/mtd{index}")), named.paths.at(format!("/dev/mtdblock{index}")));
    let way = if fs::metadata(&char).is_ok_and(|m| m.file_type().is_char_device()) {
        Way::Char(char)
    } else if block.exists() {
        tracing::warn!("there is no {}; going through {}", char.display(), block.display());
        Way::Block(block)
    } else {
        return Err(missing("neither its character nor its block device is there"));
    };
    Ok(Some(Box::new(Flash { paths: named.paths.clone(), chip, way })))
}

impl Flash {
    fn open(&self, node: &Path, write: bool) -> Result<CharDevice<'_>> {
        // Only another copal locks it, so this does not wait.
        let mtd = Mtd::open(node, write).map_err(|e| cannot_open(node, e))?;
        let info = mtd.info();
        // The driver's sizes; only sysfs has sizes beyond 4 GiB.
        let unit = u64::from(info.erase_size).max(1);
        let grain = u64::from(info.write_size).max(1);
        Ok(CharDevice { mtd, name: self.name(), size: self.chip.size, unit, grain, lifted: Vec::new() })
    }

    fn refuse(&self, code: Code, why: &str) -> Error {
        let (name, label) = (self.name().display(), &self.chip.name);
        Error::new(code, format!("cannot write a bootloader to {name} (`{label}`): {why}")).object(name)
    }

    fn refuse_kind(&self) -> Result<()> {
        let kind = self.chip.kind.as_str();
        if WRITTEN_HERE.contains(&kind) {
            return Ok(());
        }
        if kind.ends_with("nand") {
            let why = "it is NAND, where bad blocks and the boot ROM's own layout decide where a bootloader is placed";
            let hint = "let the board's own program write it, with nandwrite or kobs-ng";
            return Err(self.refuse(Code::FlashDeviceUnsupported, why).with_hint(hint));
        }
        Err(self.refuse(Code::FlashDeviceUnsupported, &format!("it is of type {kind}")))
    }

    /// UBI and JFFS2 use a whole device.
    fn refuse_used(&self) -> Result<()> {
        let ubi = fs::read_dir(self.paths.at("/sys/class/ubi")).into_iter().flatten().flatten();
        let attached = ubi
            .filter_map(|entry| fs::read_to_string(entry.path().join("mtd_num")).ok())
            .any(|number| number.trim() == self.chip.index.to_string());
        let mounts = read_mounts(&self.paths.at("/proc/self/mountinfo")).map_err(|e| {
            self.refuse(Code::TargetReadFailed, "the kernel does not say what is mounted").because(e)
        })?;
        let mounted = mounts.iter().find(|m| m.dev == (BLOCK_MAJOR, self.chip.index));
        match (attached, mounted) {
            (true, _) => Err(self.refuse(Code::SpanOverFileSystem, "it is attached to UBI")),
            (_, Some(mount)) => {
                let why = format!("it is mounted at {}", mount.point.display());
                Err(self.refuse(Code::SpanOverFileSystem, &why))
            }
            _ => Ok(()),
        }
    }

    fn refuse_bad(&self, place: &CharDevice<'_>, span: &Range<u64>) -> Result<()> {
        for unit in units(span, place.unit) {
            let bad = place.mtd.is_bad(unit).map_err(|e| {
                self.refuse(Code::TargetReadFailed, &format!("cannot ask whether block {unit:#x} is bad"))
                    .because(e)
            })?;
            if bad {
                let why = format!("the erase block at byte {unit} is marked bad");
                return Err(self.refuse(Code::FlashDeviceBad, &why));
            }
        }
        Ok(())
    }

    fn block<'n>(&self, node: &'n Path, access: Access) -> Result<Disk<'n>> {
        let device = disk::open(&self.paths, node, access)?;
        Ok(Disk { device, name: node, erase_block: Some(self.chip.erase_size) })
    }
}

fn units(span: &Range<u64>, unit: u64) -> impl Iterator<Item = u64> {
    let unit = unit.max(1);
    let count = span.end.div_ceil(unit).saturating_sub(span.start / unit);
    let first = span.start / unit;
    (0..count).map(move |i| (first + i) * unit)
}

/// The locked erase blocks of `range`, by `is_locked`. Adjacent ones are joined: SPI NOR locks from one end of the chip, so
/// blocks in between can be locked again only together.
fn locked(range: &Range<u64>, unit: u64, is_locked: impl Fn(u64) -> Option<bool>) -> Option<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for start in units(range, unit) {
        if is_locked(start)? {
            match found.last_mut() {
                Some(last) if last.end == start => last.end += unit,
                _ => found.push(start..start + unit),
            }
        }
    }
    Some(found)
}

impl Target for Flash {
    fn kind(&self) -> StorageKind {
        StorageKind::Mtd
    }

    fn name(&self) -> &Path {
        match &self.way {
            Way::Char(node) | Way::Block(node) => node,
        }
    }

    fn size(&self) -> u64 {
        self.chip.size
    }

    fn check(&self, span: &Range<u64>, _coming: Option<&Coming<'_>>) -> Result<()> {
        self.refuse_kind()?;
        inside(self.name(), span, self.chip.size)?;
        if !self.chip.writeable {
            return Err(read_only(self.name()));
        }
        let (erase, write) = (self.chip.erase_size, self.chip.write_size.max(1));
        if erase == 0 || !erase.is_multiple_of(write) || !self.chip.size.is_multiple_of(erase) {
            let why = format!("{} bytes in erase blocks of {erase}, written by {write}", self.chip.size);
            return Err(self.refuse(Code::FlashDeviceUnsupported, &why));
        }
        self.refuse_used()?;
        match &self.way {
            Way::Char(node) => self.refuse_bad(&self.open(node, false)?, span),
            Way::Block(_) if !erase.is_multiple_of(512) => Err(self.refuse(
                Code::FlashDeviceUnsupported,
                "without /dev/mtdN erase blocks have to be whole sectors",
            )),
            Way::Block(node) => self.block(node, Access::Read).map(drop),
        }
    }

    fn read(&self, job: Job<'_>) -> Result<()> {
        match &self.way {
            Way::Char(node) => job(&mut self.open(node, false)?),
            Way::Block(node) => job(&mut self.block(node, Access::Read)?),
        }
    }

    fn write(&self, job: Job<'_>) -> Result<()> {
        match &self.way {
            Way::Char(node) => job(&mut self.open(node, true)?),
            Way::Block(node) => job(&mut self.block(node, Access::Shared)?),
        }
    }
}

struct CharDevice<'a> {
    mtd: Mtd,
    name: &'a Path,
    size: u64,
    unit: u64,
    grain: u64,
    /// Ranges that were locked before.
    lifted: Vec<Range<u64>>,
}

impl CharDevice<'_> {
    fn io(&self) -> Io<'_> {
        Io::new(&self.mtd, self.name)
    }

    /// The locked blocks of `range`, adjacent ones joined; `None` where the chip does not report locks.
    fn locked(&self, range: &Range<u64>) -> Option<Vec<Range<u64>>> {
        // Drivers differ in the error for "not supported".
        locked(range, self.unit, |unit| self.mtd.is_locked(unit, self.unit).ok().flatten())
    }
}

impl Storage for CharDevice<'_> {
    fn name(&self) -> String {
        self.name.display().to_string()
    }

    fn unit(&self) -> u64 {
        self.unit
    }

    fn grain(&self) -> Option<u64> {
        Some(self.grain)
    }

    fn blank(&self) -> u8 {
        0xff
    }

    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.io().read(buf, offset)
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.io().write(bytes, offset)
    }

    fn erase(&mut self, offset: u64) -> Result<()> {
        self.mtd.erase(offset, self.unit).map_err(|e| {
            let name = self.name.display();
            let text = format!("cannot erase the block at byte {offset} of {name}");
            Error::new(Code::TargetWriteFailed, text).object(name).because(e)
        })
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn unlock(&mut self, range: Range<u64>) -> Result<()> {
        let Some(locked) = self.locked(&range) else {
            // Some drivers unlock, but do not report locks. If a failed unlock was necessary, erasing fails.
            if let Err(e) = self.mtd.unlock(range.start, range.end - range.start) {
                tracing::debug!("{} cannot be unlocked: {e}", self.name.display());
            }
            return Ok(());
        };
        if locked.is_empty() {
            return Ok(());
        }
        let refused =
            |e| read_only(self.name).because(e).with_hint("lift the chip's lock, or its write-protect pin");
        let Err(e) = self.mtd.unlock(range.start, range.end - range.start) else {
            self.lifted = locked;
            return Ok(());
        };
        // SPI NOR locks from one end of the chip: a part in the middle cannot be unlocked alone.
        let all = 0..self.size;
        if self.locked(&all).is_none_or(|l| l != [all.clone()]) {
            return Err(refused(e));
        }
        self.mtd.unlock(0, self.size).map_err(refused)?;
        self.lifted = vec![all];
        Ok(())
    }

    fn relock(&mut self) {
        for range in self.lifted.drain(..) {
            if let Err(e) = self.mtd.lock(range.start, range.end - range.start) {
                let name = self.name.display();
                tracing::warn!("cannot lock bytes {} to {} of {name} again: {e}", range.start, range.end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erase_blocks_that_a_span_touches() {
        let list = |span: Range<u64>| units(&span, 1056).collect::<Vec<_>>();
        assert_eq!(list(0..1), [0]);
        assert_eq!(list(1055..1057), [0, 1056]);
        assert_eq!(list(1056..2112), [1056]);
    }
    #[test]
    fn locked_blocks_side_by_side_are_one_range() {
        let of = |answers: &'static [bool]| {
            locked(&(0..answers.len() as u64 * 64), 64, |at| {
                usize::try_from(at / 64).ok().map(|i| answers[i])
            })
        };
        assert_eq!(of(&[false, true, true, true, false, true]), Some(vec![64..256, 320..384]));
        assert_eq!(of(&[true, true]), Some(vec![Range { start: 0, end: 128 }]));
        assert_eq!(of(&[false]), Some(vec![]));
        assert_eq!(locked(&(0..64), 64, |_| None), None);
    }
}
