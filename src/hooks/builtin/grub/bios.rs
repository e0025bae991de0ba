//! GRUB for a BIOS: `boot.img` in the master boot record, `core.img` from sector 1 on.
//!
//! `boot.img` names the sector that it loads; that sector (`diskboot.img`, the first of `core.img`) lists those after it. So a second
//! copy of the new `core.img`, changed for its place, goes to the middle of the space before the first partition; one sector write
//! makes the BIOS start that copy; then sector 1 and those after it are written; a second sector write returns to them. GRUB starts
//! after a power cut at any instant.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::bootloader::{Prepared, Write, prepare_bytes, read_image};
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::disk::partition::{self, TableKind};
use crate::error::{Code, Error, Result};
use crate::slot::Roots;

const FOLDER: &str = "/resin-boot/grub";

const SECTOR: usize = 512;
/// Bytes of code in the master boot record; the partition table follows.
const CODE: usize = 446;

/// Offset in `boot.img` of the sector that it loads, 64 bits (`GRUB_BOOT_MACHINE_KERNEL_SECTOR` in `include/grub/i386/pc/boot.h`).
const LOADS: usize = 0x5c;
/// Offset in `diskboot.img` of its first list of sectors: start, 64 bits, and count, 16 bits (`GRUB_BOOT_MACHINE_LIST_SIZE` before the
/// end of the sector, there). The next list is before it; the last has the count 0.
const LIST: usize = 500;
const LIST_COUNT: usize = 508;
const NEXT_COUNT: usize = 496;

pub(super) fn write(paths: &Paths, facts: &Facts) -> Result<()> {
    let active = Roots::of(facts)?.active;
    let disk = active.disk.and_then(|dev| facts.device(dev)).ok_or_else(|| {
        let text = "cannot write GRUB: the disk of the running root is unknown";
        Error::new(Code::FlashDeviceMissing, text)
            .object(format!("{}:{}", active.partition.0, active.partition.1))
    })?;
    let (node, size) = (facts.node_of(disk), disk.size);
    let [boot, core] = ["boot.img", "core.img"].map(|name| paths.at(FOLDER).join(name));
    let code = first_sector_code(&boot)?;
    let core_image = read_image(&core)?;
    let gap = Gap::of(&node, size, core_image.len())?;

    let place = GapWriter { paths, name: disk.kernel_name.replace('!', "/") };
    let new_core = place.prepare(&core, core_image.clone(), SECTOR)?;
    let mut aside = None;
    if !new_core.compare()?.identical {
        aside = Aside::plan(&node, &gap, &code, &core_image)?;
        match &aside {
            // After a power cut in here, perhaps of another release: the BIOS starts another copy than the one written now.
            _ if gap.copy_is_started(&node)? => {}
            Some(aside) => {
                place.prepare(&core, aside.core.clone(), aside.at)?.run()?;
                place.prepare(&boot, aside.code.clone(), 0)?.run()?;
            }
            None => tracing::warn!(
                "no space for a second core.img: after a power cut now, GRUB must be installed again"
            ),
        }
        new_core.run()?;
    }
    if read(&node, 0, CODE)? != code {
        place.prepare(&boot, code, 0)?.run()?;
    }
    if let Some(aside) = aside {
        clear(&place, &core, &aside);
    }
    Ok(())
}

fn first_sector_code(path: &Path) -> Result<Vec<u8>> {
    let mut image = read_image(path)?;
    if image.len() < CODE || image.len() > SECTOR {
        let text =
            format!("cannot use {}: it has {} bytes, not those of a sector", path.display(), image.len());
        return Err(Error::new(Code::BootloaderTooLarge, text).object(path.display()));
    }
    image.truncate(CODE);
    Ok(image)
}

/// The copy is no longer used. It does no harm, but the next update needs the space to be zero.
fn clear(place: &GapWriter<'_>, core: &Path, aside: &Aside) {
    let zeroes = vec![0; aside.core.len()];
    if let Err(e) = place.prepare(core, zeroes, aside.at).and_then(|p| p.run()) {
        tracing::warn!("{e}");
    }
}

struct GapWriter<'a> {
    paths: &'a Paths,
    name: String,
}

impl GapWriter<'_> {
    fn prepare(&self, file: &Path, image: Vec<u8>, offset: usize) -> Result<Prepared> {
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        let write = Write { device: self.name.clone(), image: PathBuf::from(file), offset };
        prepare_bytes(&write, image, self.paths)
    }
}

struct Gap {
    end: usize,
    middle: usize,
}

impl Gap {
    fn of(node: &Path, size: u64, core: usize) -> Result<Gap> {
        let name = node.display();
        let refuse = |code, why: String| {
            Error::new(code, format!("cannot write core.img from sector 1 of {name} on: {why}")).object(&name)
        };
        let file = File::open(node)
            .map_err(|e| refuse(Code::TargetReadFailed, "it cannot be read".into()).because(e))?;
        let table = partition::of_disk(&mut |at, buf| file.read_exact_at(buf, at), size)
            .map_err(|flaw| refuse(Code::PartitionTableInvalid, format!("its partition table: {flaw}")))?;
        if table.kind == TableKind::Gpt {
            let why = "its GPT is there, and this device has no UEFI to boot it otherwise".to_owned();
            return Err(refuse(Code::SpanOverTable, why));
        }
        let first = table.partitions.iter().map(|p| p.start).min().unwrap_or(size);
        let end = usize::try_from(first).unwrap_or(usize::MAX);
        if SECTOR.saturating_add(core) > end {
            let why = format!("it has {core} bytes, but the first partition begins at byte {end}");
            return Err(refuse(Code::SpanOverFileSystem, why));
        }
        Ok(Gap { end, middle: end / 2 / SECTOR * SECTOR })
    }

    fn copy_is_started(&self, node: &Path) -> Result<bool> {
        let loads = number(&read(node, 0, SECTOR)?, LOADS);
        let copy = read(node, self.middle, SECTOR)?;
        Ok(loads == Some(sector(self.middle)) && is_linked(&copy, self.middle))
    }
}

/// A second `core.img`, and the `boot.img` that loads it.
struct Aside {
    at: usize,
    core: Vec<u8>,
    code: Vec<u8>,
}

impl Aside {
    /// `None` without certainly free space, or where GRUB has another layout than the known one.
    fn plan(node: &Path, gap: &Gap, code: &[u8], core: &[u8]) -> Result<Option<Aside>> {
        let at = gap.middle;
        // Neither over the `core.img` in use nor over the new one.
        let now = read(node, SECTOR, SECTOR)?;
        let longest = sectors(&now).unwrap_or(0).saturating_mul(SECTOR).max(core.len());
        if SECTOR.saturating_add(longest) > at || at.saturating_add(core.len()) > gap.end {
            return Ok(None);
        }
        let Some(aside) = Self::linked(at, code, core) else { return Ok(None) };
        let there = read(node, at, aside.core.len())?;
        let own = if is_linked(&there, at) { sectors(&there).unwrap_or(0).saturating_mul(SECTOR) } else { 0 };
        let free = there.iter().skip(own).all(|b| *b == 0);
        Ok(free.then_some(aside))
    }

    fn linked(at: usize, code: &[u8], core: &[u8]) -> Option<Aside> {
        let (mut code, mut core) = (code.to_vec(), core.to_vec());
        let known = number(&code, LOADS)? == 1
            && number(&core, LIST)? == 2
            && sectors(&core)? == core.len().div_ceil(SECTOR);
        let sector = sector(at);
        code.get_mut(LOADS..LOADS + 8)?.copy_from_slice(&sector.to_le_bytes());
        core.get_mut(LIST..LIST + 8)?.copy_from_slice(&(sector + 1).to_le_bytes());
        known.then_some(Aside { at, core, code })
    }
}

fn is_linked(core: &[u8], at: usize) -> bool {
    number(core, LIST) == Some(sector(at) + 1)
}

fn sector(at: usize) -> u64 {
    u64::try_from(at / SECTOR).unwrap_or(u64::MAX - 1)
}

/// Sectors of a contiguous `core.img`, by its own list.
fn sectors(core: &[u8]) -> Option<usize> {
    let count = |at: usize| {
        let bytes = core.get(at..at + 2)?.try_into().ok()?;
        Some(usize::from(u16::from_le_bytes(bytes)))
    };
    (count(NEXT_COUNT)? == 0).then_some(count(LIST_COUNT)? + 1)
}

fn read(node: &Path, at: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let done = File::open(node).and_then(|file| file.read_exact_at(&mut bytes, at as u64));
    done.map(|()| bytes).map_err(|e| {
        Error::new(Code::TargetReadFailed, format!("cannot read {}", node.display()))
            .object(node.display())
            .because(e)
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
