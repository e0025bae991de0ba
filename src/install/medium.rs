//! The installation medium's own boot partition.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::disk::partition::label;
use crate::disk::select::{self, BootElsewhere, FLASHER_BOOT_LABEL};
use crate::error::{Code, Error, Result};
use crate::sys::mount;

/// A program that has just read the mounted folder releases it soon.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Mounts the boot partition of the disk that holds `/` at `/mnt/boot` if one of another disk is mounted there: an older
/// flasher on the internal disk has the same label, and the mount unit goes by the label. Returns whether it did.
///
/// Writes nothing: it replaces a mount by a read-only one.
pub(super) fn take_own_boot_partition(paths: &Paths) -> Result<bool> {
    let facts = Facts::gather(paths)?;
    let Some(elsewhere) = select::medium_boot_partition(&facts) else { return Ok(false) };
    let own = own_partition(&elsewhere)
        .ok_or_else(|| wrong(&elsewhere, "the medium has no single partition with that label"))?;
    tracing::warn!("using {} instead", own.display());
    let point = paths.boot();
    let failed = |e: std::io::Error| {
        wrong(&elsewhere, &format!("{} cannot be mounted there instead", own.display())).because(e)
    };
    mount::unmount(&point, UNMOUNT_TIMEOUT).map_err(failed)?;
    mount::mount_read_only(&own, &point, "vfat").map_err(failed)?;
    Ok(true)
}

fn own_partition(elsewhere: &BootElsewhere) -> Option<PathBuf> {
    if let Some(known) = &elsewhere.partition {
        return Some(known.clone());
    }
    let is_it = |node: &&PathBuf| label::of_node(node).as_deref() == Some(FLASHER_BOOT_LABEL);
    let mut labelled = elsewhere.partitions.iter().filter(is_it);
    match (labelled.next(), labelled.next()) {
        (Some(one), None) => Some(one.clone()),
        _ => None,
    }
}

fn wrong(elsewhere: &BootElsewhere, why: &str) -> Error {
    let mounted: &Path = &elsewhere.mounted;
    let mounted = mounted.display();
    let message =
        format!("/mnt/boot is {mounted}, which is not on the disk that this system runs from, and {why}");
    Error::new(Code::MediumBootElsewhere, message).object(mounted)
}
