//! Writes a bootloader (SPL, MLO, U-Boot, …) to its place outside of file systems.
//!
//! [`prepare`] makes all refusals, and writes nothing. [`Prepared::run`] executes the one [sequence](sequence) that all kinds
//! of storage share. A new kind is one file and one line in [`KINDS`].

mod disk;
pub mod mmcboot;
pub mod mtd;
pub mod region;
pub mod sequence;
pub mod storage;

use std::ffi::OsStr;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::bootloader::storage::Storage;
use crate::config::paths::Paths;
use crate::disk::partition::Table;
use crate::disk::resolve;
use crate::error::{Code, Error, Result};
use crate::sys::file::{Version, open_regular};
use crate::sys::log::events;
use crate::sys::signal::{self, SignalGuard};
use sequence::{Difference, Done, Sequence};

/// Memory holds the whole bootloader, so that it does not change between comparison, write and read-back. The largest known
/// ones have 16 MiB.
const MAX_BOOTLOADER_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Name below `/dev` (`mmcblk0`, `mmcblk0boot0`, `mtd0`, `mtdblock0`), a path, or `mtd:name`.
    pub device: String,
    pub image: PathBuf,
    /// Start on the device, in bytes.
    pub offset: u64,
}

/// A disk that gets new content before this write: its present content does not count.
#[derive(Debug, Clone, Copy)]
pub struct Coming<'a> {
    pub dev: (u32, u32),
    /// The kernel's name; the names of its partitions derive from it.
    pub kernel_name: &'a OsStr,
    /// Its future partition table; `None` for none.
    pub table: Option<&'a Table>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageKind {
    Region,
    MmcBoot,
    Mtd,
}

type Job<'a> = &'a mut dyn FnMut(&mut dyn Storage) -> Result<()>;

trait Target {
    fn kind(&self) -> StorageKind;

    /// The name in errors and reports.
    fn name(&self) -> &Path;

    fn size(&self) -> u64;

    fn check(&self, span: &Range<u64>, coming: Option<&Coming<'_>>) -> Result<()>;

    /// Refuses a device that accepts no writes at all. That matters only if a write is needed.
    fn writable(&self) -> Result<()> {
        Ok(())
    }

    fn read(&self, job: Job<'_>) -> Result<()>;

    /// Runs a job that writes; lifts the device's protection before it, and restores it afterwards.
    fn write(&self, job: Job<'_>) -> Result<()>;
}

/// Returns the device if it is of this kind.
type Claim = fn(&NamedDevice<'_>) -> Result<Option<Box<dyn Target>>>;

/// More special kinds come first.
const KINDS: &[Claim] = &[mtd::claim, mmcboot::claim, region::claim];

struct NamedDevice<'a> {
    name: &'a str,
    paths: &'a Paths,
}

impl NamedDevice<'_> {
    /// The node that the name leads to, through links; `None` if it leads to none.
    fn node(&self) -> Option<PathBuf> {
        if self.name.starts_with(mtd::BY_NAME) {
            return None;
        }
        let path = Path::new("/dev").join(self.name);
        Some(self.paths.at(resolve(self.paths, &path).unwrap_or(path)))
    }
}

pub struct Prepared {
    target: Box<dyn Target>,
    write: Write,
    image: Vec<u8>,
    sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Compared {
    pub kind: StorageKind,
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub device: PathBuf,
    /// First byte of the image on the device.
    pub offset: u64,
    pub length: u64,
    pub sha256: String,
    pub device_sha256: String,
    pub identical: bool,
    /// Bytes that a write would rewrite: the pieces that differ, and the first unit.
    pub would_write: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Written {
    pub kind: StorageKind,
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub device: PathBuf,
    /// First byte of the image on the device.
    pub offset: u64,
    pub length: u64,
    pub sha256: String,
    pub changed: bool,
    /// 0 where the device needs no erasing.
    pub blocks_erased: u64,
    /// Includes bytes around the image.
    pub bytes_written: u64,
}

impl Written {
    fn log(&self) {
        let (device, offset) = (self.device.display(), self.offset);
        if self.changed {
            tracing::info!(
                MESSAGE_ID = events::BOOTLOADER_WRITTEN,
                COPAL_DEVICE = %device,
                COPAL_OFFSET = offset,
                COPAL_DIGEST = self.sha256,
                "a bootloader of {} bytes was written to {device} at byte {offset} and verified",
                self.length
            );
        } else {
            tracing::info!(
                "the bootloader of {} bytes on {device} at byte {offset} is up to date",
                self.length
            );
        }
    }
}

/// Finds the device, reads the bootloader, and makes all refusals. Writes nothing.
///
/// `coming`: a disk that will be written before; its future table counts.
pub fn prepare(write: &Write, paths: &Paths, coming: Option<&Coming<'_>>) -> Result<Prepared> {
    let coming_partition =
        coming.map(|c| region::claim_coming(&named_device(&write.device, paths), c)).transpose()?;
    let target = coming_partition.flatten().map_or_else(|| find(&write.device, paths), Ok)?;
    judge(target, write, read_image(&write.image)?, coming)
}

pub(crate) fn prepare_bytes(write: &Write, image: Vec<u8>, paths: &Paths) -> Result<Prepared> {
    judge(find(&write.device, paths)?, write, image, None)
}

fn judge(
    target: Box<dyn Target>,
    write: &Write,
    image: Vec<u8>,
    coming: Option<&Coming<'_>>,
) -> Result<Prepared> {
    let end = write.offset.saturating_add(image.len() as u64);
    target.check(&(write.offset..end), coming)?;
    let sha256 = sequence::sha256(&image);
    Ok(Prepared { target, write: write.clone(), image, sha256 })
}

fn named_device<'a>(name: &'a str, paths: &'a Paths) -> NamedDevice<'a> {
    NamedDevice { name: name.strip_prefix("/dev/").unwrap_or(name), paths }
}

fn find(name: &str, paths: &Paths) -> Result<Box<dyn Target>> {
    let named_device = named_device(name, paths);
    for claim in KINDS {
        if let Some(target) = claim(&named_device)? {
            return Ok(target);
        }
    }
    Err(Error::new(Code::FlashDeviceMissing, format!("device {name} does not exist")).object(name))
}

pub(crate) fn read_image(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let wrong = |code, why: &str| {
        let hint = "name the bootloader's file";
        Error::new(code, format!("cannot use bootloader {shown}: {why}")).object(&shown).with_hint(hint)
    };
    let unreadable = |e: std::io::Error| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        wrong(if missing { Code::ImageMissing } else { Code::Io }, "it cannot be read").because(e)
    };
    if !std::fs::metadata(path).map_err(&unreadable)?.is_file() {
        return Err(wrong(Code::ImageNotRegular, "it is not a regular file"));
    }
    let mut file = open_regular(path).map_err(&unreadable)?;
    let version = Version::of(&file).map_err(&unreadable)?;
    match version.size {
        0 => return Err(wrong(Code::ImageEmpty, "it is empty")),
        n if n > MAX_BOOTLOADER_BYTES => {
            return Err(wrong(Code::BootloaderTooLarge, &format!("it has {n} bytes")));
        }
        _ => {}
    }
    let mut image = Vec::new();
    file.read_to_end(&mut image).map_err(&unreadable)?;
    // A bootloader of which one half is old does not start.
    if Version::of(&file).map_err(&unreadable)? == version && image.len() as u64 == version.size {
        Ok(image)
    } else {
        Err(wrong(Code::ImageChanged, "it changed while it was read"))
    }
}

impl Prepared {
    #[must_use]
    pub fn kind(&self) -> StorageKind {
        self.target.kind()
    }

    #[must_use]
    pub fn device(&self) -> &Path {
        self.target.name()
    }

    #[must_use]
    pub fn length(&self) -> u64 {
        self.image.len() as u64
    }

    /// Whether both use bytes of the same device.
    #[must_use]
    pub fn overlaps(&self, other: &Prepared) -> bool {
        let end = |of: &Prepared| of.write.offset.saturating_add(of.length());
        self.device() == other.device() && self.write.offset < end(other) && other.write.offset < end(self)
    }

    /// Refuses a device that does not accept the necessary writes, for a caller that writes something else first.
    pub fn ensure_writable(&self) -> Result<()> {
        match self.target.writable() {
            Err(e) if !self.compare()?.identical => Err(e),
            _ => Ok(()),
        }
    }

    pub fn compare(&self) -> Result<Compared> {
        let mut found: Option<(Difference, u64, String)> = None;
        self.target.read(&mut |place| {
            let mut sequence = self.sequence(place)?;
            let difference = sequence.compare()?;
            found = Some((difference.clone(), sequence.cost(&difference), sequence.digest()?));
            Ok(())
        })?;
        let (difference, would_write, device_sha256) =
            found.ok_or_else(|| Error::internal("the device was not read"))?;
        Ok(Compared {
            kind: self.kind(),
            device: self.device().to_owned(),
            offset: self.write.offset,
            length: self.image.len() as u64,
            sha256: self.sha256.clone(),
            device_sha256,
            identical: difference.is_none(),
            would_write,
        })
    }

    /// Writes what differs and reads it back. Handles a signal only after that: an interrupted write leaves no bootloader, and
    /// takes longer to repair than to finish.
    pub fn run(&self) -> Result<Written> {
        match self.attempt()? {
            (_, Some(left)) => Err(left),
            (written, None) => Ok(written),
        }
    }

    /// [`run`](Self::run) for a system that shuts down next. A protection that was not restored is only a warning, because the
    /// kernel sets it at each start, and the bootloader is complete.
    pub(crate) fn run_before_power_off(&self) -> Result<Written> {
        let (written, left) = self.attempt()?;
        if let Some(left) = left {
            tracing::warn!("{}; the next start protects it", left.message());
        }
        Ok(written)
    }

    /// The result, and why the device is still writable although the bootloader is complete.
    fn attempt(&self) -> Result<(Written, Option<Error>)> {
        // The first comparison lifts, locks and opens nothing for writing: most often no write is needed.
        if self.compare()?.identical {
            let written = self.report(Done::default());
            written.log();
            return Ok((written, None));
        }
        self.target.writable()?;
        let off = SignalGuard::begin().map_err(|e| {
            let text = format!("cannot block signals while {} is written", self.device().display());
            Error::new(Code::Io, text).object(self.device().display()).because(e)
        })?;
        let mut done = Done::default();
        let result = self.target.write(&mut |place| {
            done = self.sequence(place)?.run()?;
            Ok(())
        });
        if let Some(signal) = signal::came() {
            tracing::warn!(
                "{signal} came while {} was written; the program ends now",
                self.device().display()
            );
        }
        off.release();
        let left = match result {
            Ok(()) => None,
            Err(e) if e.code() == Code::LeftWritable => Some(e),
            Err(e) => return Err(e),
        };
        let written = self.report(done);
        written.log();
        Ok((written, left))
    }

    fn sequence<'p>(&self, place: &'p mut dyn Storage) -> Result<Sequence<'p>> {
        Sequence::new(place, &self.image, self.write.offset, self.target.size())
    }

    fn report(&self, done: Done) -> Written {
        Written {
            kind: self.kind(),
            device: self.device().to_owned(),
            offset: self.write.offset,
            length: self.image.len() as u64,
            sha256: self.sha256.clone(),
            changed: done.changed,
            blocks_erased: done.blocks_erased,
            bytes_written: done.bytes_written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An eMMC boot partition that accepts no protection after it was written.
    struct Unprotectable {
        boot: Box<dyn Target>,
        force_ro: PathBuf,
    }

    impl Target for Unprotectable {
        fn kind(&self) -> StorageKind {
            self.boot.kind()
        }

        fn name(&self) -> &Path {
            self.boot.name()
        }

        fn size(&self) -> u64 {
            self.boot.size()
        }

        fn check(&self, span: &Range<u64>, coming: Option<&Coming<'_>>) -> Result<()> {
            self.boot.check(span, coming)
        }

        fn read(&self, job: Job<'_>) -> Result<()> {
            self.boot.read(job)
        }

        fn write(&self, job: Job<'_>) -> Result<()> {
            self.boot.write(&mut |place| {
                job(place)?;
                std::fs::remove_file(&self.force_ro).unwrap();
                Ok(())
            })
        }
    }

    #[test]
    fn a_protection_that_is_not_back_spoils_no_installation() {
        for before_power_off in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (dev, sys) = (dir.path().join("dev"), dir.path().join("sys/block/mmcblk0boot0"));
            std::fs::create_dir_all(&dev).unwrap();
            std::fs::create_dir_all(&sys).unwrap();
            std::fs::write(dev.join("mmcblk0boot0"), [0x11; 8192]).unwrap();
            std::fs::write(sys.join("force_ro"), "1\n").unwrap();
            let boot = find("mmcblk0boot0", &Paths::new(dir.path())).unwrap();
            let target = Box::new(Unprotectable { boot, force_ro: sys.join("force_ro") });
            let write = Write { device: "mmcblk0boot0".into(), image: "image".into(), offset: 512 };
            let prepared = judge(target, &write, vec![3; 1000], None).unwrap();
            if before_power_off {
                let written = prepared.run_before_power_off().unwrap();
                assert!(written.changed && written.bytes_written > 0, "{written:?}");
            } else {
                let e = prepared.run().unwrap_err();
                assert_eq!(
                    (e.code(), e.effect()),
                    (Code::LeftWritable, crate::error::Effect::Completed),
                    "{e}"
                );
            }
            assert!(prepared.compare().unwrap().identical);
        }
    }
}
