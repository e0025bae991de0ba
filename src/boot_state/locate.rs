//! Detects the backend by the files on the boot partition.

use std::fs;
use std::path::{Path, PathBuf};

use super::configured::{self, Configured};
use super::grub::{Grub, Legacy};
use super::{Backend, balena as bl, change, grub as gr, uboot as ub};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Folder};
use crate::sys::mount;

/// Looks for `resinOS_uEnv.txt`, `bootenv` and GRUB's files, in this order. A device with none of them has U-Boot and was never
/// updated: no image comes with its file.
pub fn detect(paths: &Paths) -> Result<Box<dyn Backend>> {
    let boot = paths.plain_boot();
    mounted(paths, &boot)?;
    if has(&boot, ub::UENV_FILE)? {
        uboot(paths)
    } else if has(&boot, bl::BOOTENV_FILE)? {
        balena(paths)
    } else if grub_place(paths)?.is_some() {
        grub(paths)
    } else {
        not_elsewhere(paths)?;
        uboot(paths)
    }
}

/// As [`detect`], for a change: refuses a boot partition whose drive cannot be flushed.
pub fn detect_to_change(paths: &Paths) -> Result<Box<dyn Backend>> {
    let backend = detect(paths)?;
    Folder::open(&paths.plain_boot()).map_err(|e| super::unwritable(backend.file()).because(e))?;
    Ok(backend)
}

/// The empty folder below an unmounted boot partition looks like a device that was never updated; a selection written there is read
/// by no bootloader. Where the kernel lists no mounts at all, the check is skipped.
fn mounted(paths: &Paths, boot: &Path) -> Result<()> {
    let mounts = mount::read_mounts(&paths.at("/proc/self/mountinfo")).unwrap_or_default();
    if mounts.is_empty() || mounts.iter().any(|m| paths.at(&m.point) == boot) {
        return Ok(());
    }
    Err(missing(boot, "nothing is mounted there"))
}

/// On an encrypted disk `EFI` links to the other boot partition. While that is not mounted, GRUB's files are invisible.
fn not_elsewhere(paths: &Paths) -> Result<()> {
    let link = paths.boot().join("EFI");
    if link.is_symlink() && !link.exists() {
        return Err(missing(&link, "the boot partition that it leads to is not mounted"));
    }
    Ok(())
}

fn missing(place: &Path, why: &str) -> Error {
    let text = format!("cannot find the boot selection in {}: {why}", place.display());
    Error::new(Code::BootMountFailed, text)
        .object(place.display())
        .with_hint("check the mount units of the boot partition and the kernel log")
}

pub fn uboot(paths: &Paths) -> Result<Box<dyn Backend>> {
    let boot = paths.plain_boot();
    mounted(paths, &boot)?;
    look(&boot)?;
    // U-Boot takes the partition after the boot partition for root A (`resin_roota`).
    let first_root = partition_of(paths, &boot).map_or(2, |index| index.saturating_add(1));
    Ok(Box::new(ub::Uboot::new(boot, first_root, RollbackConf::fallback_count(paths))))
}

pub fn grub(paths: &Paths) -> Result<Box<dyn Backend>> {
    mounted(paths, &paths.plain_boot())?;
    let Some(place) = grub_place(paths)? else {
        let boot = paths.plain_boot();
        return Err(Error::new(
            Code::BootStateInvalid,
            format!(
                "cannot find GRUB's {} or {} below {}",
                gr::GRUBENV_FILE,
                gr::GRUB_CFG_FILE,
                boot.display()
            ),
        )
        .object(boot.display()));
    };
    let config = place.join(gr::GRUB_CFG_FILE);
    let text = content(&place, gr::GRUB_CFG_FILE)?.unwrap_or_default();
    let grub = Grub::new(place.join(gr::GRUBENV_FILE), gr::default_root(&text));
    if !grub.has_selection()? {
        if configured::has_selection(&text) {
            return Ok(Box::new(Configured::new(config, grub)));
        }
        // A configuration that reads the selection has both labels; a legacy one has only the label that it boots.
        if is_legacy(&text) {
            return Ok(Box::new(Legacy::new(config)));
        }
    }
    Ok(Box::new(grub))
}

pub fn balena(paths: &Paths) -> Result<Box<dyn Backend>> {
    let boot = paths.plain_boot();
    mounted(paths, &boot)?;
    look(&boot)?;
    Ok(Box::new(bl::Balena::new(boot.join(bl::BOOTENV_FILE))))
}

fn is_legacy(config: &[u8]) -> bool {
    !gr::contains(config, super::envblock::ROOT) && gr::labels(config).next().is_some()
}

/// On an encrypted disk the other boot partition has a link `EFI` to the folder.
fn grub_place(paths: &Paths) -> Result<Option<PathBuf>> {
    let mut folders = ["grub", "EFI/BOOT"];
    if paths.at("/sys/firmware/efi").is_dir() {
        folders.reverse();
    }
    let (plain, boot) = (paths.plain_boot(), paths.boot());
    let all: Vec<PathBuf> =
        [&plain, &boot].into_iter().flat_map(|top| folders.map(|f| top.join(f))).collect();
    // Without links: `open` refuses a folder that is a link.
    let all: Vec<PathBuf> = all.iter().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
    for name in [gr::GRUBENV_FILE, gr::GRUB_CFG_FILE] {
        for folder in all.iter().filter(|folder| folder.is_dir()) {
            if has(folder, name)? {
                return Ok(Some(folder.clone()));
            }
        }
        if name == gr::GRUBENV_FILE && has(&plain, name)? {
            return Ok(Some(plain));
        }
    }
    Ok(None)
}

fn look(folder: &Path) -> Result<Folder> {
    Folder::open_to_read(folder).map_err(|e| {
        Error::new(Code::BootStateInvalid, format!("cannot read the boot partition, {}", folder.display()))
            .object(folder.display())
            .because(e)
    })
}

/// Whether the file exists, or a side file that `fatrw` would rename to it.
fn has(folder: &Path, name: &str) -> Result<bool> {
    let open = look(folder)?;
    let found = change::find(&open, name).map_err(|e| super::invalid(&folder.join(name)).because(e))?;
    Ok(found.is_some() || content(folder, name)?.is_some())
}

fn content(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let content = file::current_content(&look(folder)?, name.as_ref());
    content.map_err(|e| super::invalid(&folder.join(name)).because(e))
}

fn partition_of(paths: &Paths, point: &Path) -> Option<u32> {
    let mounts = mount::read_mounts(&paths.at("/proc/self/mountinfo")).ok()?;
    let mounted = mounts.iter().rev().find(|m| paths.at(&m.point) == point && m.dev.0 != 0)?;
    let (major, minor) = mounted.dev;
    let by_number = paths.at(format!("/sys/dev/block/{major}:{minor}/partition"));
    let text = fs::read_to_string(by_number).or_else(|_| {
        let class = paths.at("/sys/class/block");
        let mut nodes = fs::read_dir(class)?.filter_map(|entry| entry.ok().map(|e| e.path()));
        let is_it = |node: &PathBuf| {
            fs::read_to_string(node.join("dev"))
                .is_ok_and(|dev| mount::parse_dev(dev.trim()) == Some(mounted.dev))
        };
        let node = nodes.find(is_it).ok_or(std::io::ErrorKind::NotFound)?;
        fs::read_to_string(node.join("partition"))
    });
    text.ok()?.trim().parse().ok()
}
