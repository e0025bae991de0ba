//! Writing a loader (SPL, MLO, U-Boot, …) to where it lies outside of file systems.
//!
//! What can be refused is refused by [`prepare`], with nothing written. [`Prepared::run`] goes through the one
//! [sequence](sequence) that all kinds of places share. A further kind is a file of its own and a line in [`KINDS`].

mod disk;
pub mod mmcboot;
pub mod mtd;
pub mod region;
pub mod sequence;
pub mod storage;

use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::bootloader::storage::Storage;
use crate::config::paths::Paths;
use crate::disk::partition::Table;
use crate::disk::resolve;
use crate::error::{Code, Error, Result};
use crate::sys::log::events;
use crate::sys::signal::{self, SignalGuard};
use sequence::{Difference, Done, Sequence};

/// Bootloaders are held in memory, so that they do not change between comparison, writing and proof. The largest in the
/// field have some 16 MiB.
const MOST: u64 = 64 << 20;

/// What is to be written where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Name below `/dev` (`mmcblk0`, `mmcblk0boot0`, `mtd0`, `mtdblock0`), a path, or `mtd:name`.
    pub device: String,
    /// The bootloader's file.
    pub image: PathBuf,
    /// Where it begins on the device, in bytes.
    pub offset: u64,
}

/// A disk whose content will be another one by the time of the write: what is on it now does not count.
#[derive(Debug, Clone, Copy)]
pub struct Coming<'a> {
    /// Major and minor number.
    pub dev: (u32, u32),
    /// The kernel's name of it, of which those of its partitions are made.
    pub kernel_name: &'a OsStr,
    /// The partition table it will have; `None` for none.
    pub table: Option<&'a Table>,
}

/// Kind of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageKind {
    /// A region of a disk or partition.
    Region,
    /// A hardware boot partition of an eMMC.
    MmcBoot,
    /// Raw flash.
    Mtd,
}

/// What is done with an open place.
type Job<'a> = &'a mut dyn FnMut(&mut dyn Storage) -> Result<()>;

/// A device of one kind.
trait Target {
    fn kind(&self) -> StorageKind;

    /// What errors and reports call it.
    fn name(&self) -> &Path;

    /// Bytes.
    fn size(&self) -> u64;

    /// Refuses bytes `span`.
    fn check(&self, span: &Range<u64>, coming: Option<&Coming<'_>>) -> Result<()>;

    /// Refuses where the device takes no writes at all, which is no fault as long as none is needed.
    fn writable(&self) -> Result<()> {
        Ok(())
    }

    /// Does a job that only reads.
    fn read(&self, job: Job<'_>) -> Result<()>;

    /// Does a job that writes, with whatever has to be switched before and back after it.
    fn write(&self, job: Job<'_>) -> Result<()>;
}

/// Tells whether a device is of a kind, and opens it to look at it.
type Claim = fn(&NamedDevice<'_>) -> Result<Option<Box<dyn Target>>>;

/// The kinds, the more special ones first.
const KINDS: &[Claim] = &[mtd::claim, mmcboot::claim, region::claim];

/// A device by name, below a root folder.
struct NamedDevice<'a> {
    name: &'a str,
    paths: &'a Paths,
}

impl NamedDevice<'_> {
    /// The node behind the name, through links; `None` for a name that is none of a node.
    fn node(&self) -> Option<PathBuf> {
        if self.name.starts_with(mtd::BY_NAME) {
            return None;
        }
        let path = Path::new("/dev").join(self.name);
        Some(self.paths.at(resolve(self.paths, &path).unwrap_or(path)))
    }
}

/// A write that nothing speaks against.
pub struct Prepared {
    target: Box<dyn Target>,
    write: Write,
    image: Vec<u8>,
    sha256: String,
}

/// A comparison of an image with what is on the device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Compared {
    /// Kind of place.
    pub kind: StorageKind,
    /// The device.
    pub device: PathBuf,
    /// First byte of the image on it.
    pub offset: u64,
    /// Bytes of the image.
    pub length: u64,
    /// SHA-256 of the image.
    pub sha256: String,
    /// SHA-256 of the same bytes of the device.
    pub device_sha256: String,
    /// Whether they are the same.
    pub identical: bool,
    /// Bytes that a write would write again: the pieces that differ, and the first unit.
    pub would_write: u64,
}

/// What a write did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Written {
    /// Kind of place.
    pub kind: StorageKind,
    /// The device.
    pub device: PathBuf,
    /// First byte of the image on it.
    pub offset: u64,
    /// Bytes of the image.
    pub length: u64,
    /// SHA-256 of the image, and of what was read back.
    pub sha256: String,
    /// Whether anything had to be written.
    pub changed: bool,
    /// Erase blocks erased; 0 where nothing is erased before it is written.
    pub blocks_erased: u64,
    /// Bytes written, around the image too.
    pub bytes_written: u64,
}

impl Written {
    fn tell(&self) {
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

/// Finds the device and reads the bootloader, and refuses whatever can be refused. Nothing is written.
///
/// `coming`: a disk that will be written before; it is judged by the table it will have.
///
/// # Errors
/// No such device or image; of a kind that cannot be written; the image does not fit, or would lie over a partition table
/// or file system; the device is in use, bad there, or write-protected.
pub fn prepare(write: &Write, paths: &Paths, coming: Option<&Coming<'_>>) -> Result<Prepared> {
    let coming_partition =
        coming.map(|c| region::claim_coming(&asked(&write.device, paths), c)).transpose()?;
    let target = coming_partition.flatten().map_or_else(|| find(&write.device, paths), Ok)?;
    judge(target, write, read_image(&write.image)?, coming)
}

/// [`prepare`] with a bootloader that is in memory: what [`read_image`] gave, or was made of it.
///
/// # Errors
/// As for [`prepare`], save those of the image's file.
pub fn prepare_bytes(write: &Write, image: Vec<u8>, paths: &Paths) -> Result<Prepared> {
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

fn asked<'a>(name: &'a str, paths: &'a Paths) -> NamedDevice<'a> {
    NamedDevice { name: name.strip_prefix("/dev/").unwrap_or(name), paths }
}

fn find(name: &str, paths: &Paths) -> Result<Box<dyn Target>> {
    let asked = asked(name, paths);
    for claim in KINDS {
        if let Some(target) = claim(&asked)? {
            return Ok(target);
        }
    }
    Err(Error::new(Code::FlashDeviceMissing, format!("there is no device {name}")).object(name))
}

/// Reads a bootloader's file.
///
/// # Errors
/// [`Code::ImageMissing`], [`Code::ImageNotRegular`], [`Code::ImageEmpty`], [`Code::LoaderTooLarge`], [`Code::ImageChanged`],
/// [`Code::Io`].
pub fn read_image(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let wrong = |code, why: &str| {
        let hint = "name the bootloader's file";
        Error::new(code, format!("cannot use bootloader {shown}: {why}")).object(&shown).with_hint(hint)
    };
    let unreadable = |e: std::io::Error| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        wrong(if missing { Code::ImageMissing } else { Code::Io }, "it cannot be read").because(e)
    };
    let meta = std::fs::metadata(path).map_err(&unreadable)?;
    match meta.len() {
        _ if !meta.is_file() => Err(wrong(Code::ImageNotRegular, "it is not a regular file")),
        0 => Err(wrong(Code::ImageEmpty, "it is empty")),
        n if n > MOST => Err(wrong(Code::LoaderTooLarge, &format!("it has {n} bytes"))),
        n => match std::fs::read(path).map_err(&unreadable)? {
            image if image.len() as u64 == n => Ok(image),
            _ => Err(wrong(Code::ImageChanged, "it changed while it was read")),
        },
    }
}

impl Prepared {
    /// Kind of place.
    #[must_use]
    pub fn kind(&self) -> StorageKind {
        self.target.kind()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Path {
        self.target.name()
    }

    /// Bytes of the bootloader.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.image.len() as u64
    }

    /// Whether both want bytes of the same device.
    #[must_use]
    pub fn overlaps(&self, other: &Prepared) -> bool {
        let end = |of: &Prepared| of.write.offset.saturating_add(of.length());
        self.device() == other.device() && self.write.offset < end(other) && other.write.offset < end(self)
    }

    /// Whether the device takes what would have to be written: for whoever writes something else first.
    ///
    /// # Errors
    /// [`Code::TargetReadOnly`], unless the bootloader is there already.
    pub fn ensure_writable(&self) -> Result<()> {
        match self.target.writable() {
            Err(e) if !self.compare()?.identical => Err(e),
            _ => Ok(()),
        }
    }

    /// Reads what is there now. Writes nothing.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn compare(&self) -> Result<Compared> {
        let mut found: Option<(Difference, u64, String)> = None;
        self.target.read(&mut |place| {
            let mut sequence = self.sequence(place)?;
            let difference = sequence.compare()?;
            found = Some((difference.clone(), sequence.cost(&difference), sequence.digest()?));
            Ok(())
        })?;
        let (identical, would_write, device_sha256) =
            found.map(|(d, cost, digest)| (d.is_none(), cost, digest)).unwrap_or_default();
        Ok(Compared {
            kind: self.kind(),
            device: self.device().to_owned(),
            offset: self.write.offset,
            length: self.image.len() as u64,
            sha256: self.sha256.clone(),
            device_sha256,
            identical,
            would_write,
        })
    }

    /// Writes what differs, reads it back, and says what was done. A signal to end the program is obeyed only then: an
    /// interrupted write would leave no loader, and takes longer to mend than to finish.
    ///
    /// # Errors
    /// [`Code::Busy`], [`Code::TargetReadOnly`] and others with nothing written; input and output errors and
    /// [`Code::VerifyMismatch`] after writing began, with the loader incomplete; [`Code::LeftWritable`] with the loader
    /// complete.
    pub fn run(&self) -> Result<Written> {
        match self.attempt()? {
            (_, Some(left)) => Err(left),
            (written, None) => Ok(written),
        }
    }

    /// [`run`](Self::run) for a system that is about to go down: a protection that is not back is a warning, since the kernel sets it
    /// anew at each start. The loader is there, and to give up what was written besides would help nobody.
    ///
    /// # Errors
    /// Those of `run` but [`Code::LeftWritable`].
    pub fn run_before_power_off(&self) -> Result<Written> {
        let (written, left) = self.attempt()?;
        if let Some(left) = left {
            tracing::warn!("{}; the next start protects it", left.message());
        }
        Ok(written)
    }

    /// What was done, and why the device is still writable although the loader is complete.
    fn attempt(&self) -> Result<(Written, Option<Error>)> {
        // Looked at first with nothing lifted, locked or opened for writing, for most often nothing is to be done.
        if self.compare()?.identical {
            let written = self.report(Done::default());
            written.tell();
            return Ok((written, None));
        }
        self.target.writable()?;
        let off = SignalGuard::begin().map_err(|e| {
            let text = format!("cannot put off signals while {} is written", self.device().display());
            Error::new(Code::Io, text).object(self.device().display()).because(e)
        })?;
        let mut done = Done::default();
        let result = self.target.write(&mut |place| {
            done = self.sequence(place)?.run()?;
            Ok(())
        });
        if let Some(signal) = signal::came() {
            tracing::warn!("{signal} came while {} was written; obeyed now", self.device().display());
        }
        off.release();
        let left = match result {
            Ok(()) => None,
            Err(e) if e.code() == Code::LeftWritable => Some(e),
            Err(e) => return Err(e),
        };
        let written = self.report(done);
        written.tell();
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

    /// An eMMC boot partition that takes no protection any more once it was written.
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
