//! The partitions of the disk that was just written.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::config::paths::Paths;
use crate::disk::partition::{Partition, Table, label};
use crate::disk::select::Target;
use crate::disk::{Device, Facts, Role};
use crate::error::{Code, Error, Result};
use crate::image::BOOT_LABEL;
use crate::slot::Slot;
use crate::sys::uevent::{self, Uevents};

/// How long the kernel may take to show the partitions, and udev to process them.
const PARTITIONS_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until the kernel shows the partitions of `table` on `target` and udev has processed them, because scripts use
/// `/dev/disk/by-*`.
///
/// Only partitions of this disk count. The label is read from the file system itself, not from udev.
pub(super) fn find(paths: &Paths, target: &Target, table: Option<&Table>) -> Result<Partitions> {
    let deadline = Instant::now() + PARTITIONS_TIMEOUT;
    // Before the first check, so that no event is missed.
    let events = Uevents::open().inspect_err(|e| tracing::debug!("no kernel events: {e}")).ok();
    let mut found = look(paths, target)?;
    while !is_complete(&found, table) && Instant::now() < deadline {
        pause(events.as_ref(), deadline);
        found = look(paths, target)?;
    }
    if !is_complete(&found, table) {
        tracing::warn!("the kernel does not show all partitions of {}", target.name.display());
    }
    settle_until(paths, deadline.max(Instant::now() + Duration::from_secs(5)));
    // udev may have created or renamed nodes meanwhile.
    let mut found = look(paths, target)?;
    // Partitions that the kernel knows from an older table lead to other bytes of the disk.
    found.retain(|p| table.is_none_or(|t| t.partitions.iter().any(|q| p.is_at(q))));
    let labelled = found.into_iter().map(|p| (p.clone(), label::of_node(&p.node))).collect();
    Ok(Partitions { disk: target.name.clone(), labelled })
}

/// Waits for udev, as long as for partitions.
pub(super) fn settle(paths: &Paths) {
    settle_until(paths, Instant::now() + PARTITIONS_TIMEOUT);
}

fn settle_until(paths: &Paths, deadline: Instant) {
    if !uevent::udev_settled(paths.root(), deadline) {
        tracing::warn!("udev is still busy; the installation continues");
    }
}

/// The partitions of the internal disk, with their labels.
pub(super) struct Partitions {
    disk: PathBuf,
    labelled: Vec<(Part, Option<String>)>,
}

impl Partitions {
    pub(super) fn boot(&self) -> Result<PathBuf> {
        self.only(&format!("labelled {BOOT_LABEL}"), |label| label == BOOT_LABEL)
    }

    /// The root of the image's system.
    pub(super) fn root(&self) -> Result<PathBuf> {
        let is_root = |label: &str| Slot::of_label(label) == Some(Slot::A);
        self.only(&format!("labelled {}", Slot::A.label()), is_root)
    }

    /// The node of the partition in this place.
    pub(super) fn at(&self, planned: &Partition) -> Option<PathBuf> {
        self.labelled.iter().find(|(part, _)| part.is_at(planned)).map(|(part, _)| part.node.clone())
    }

    fn only(&self, role: &str, is_it: impl Fn(&str) -> bool) -> Result<PathBuf> {
        let mut matching = self.labelled.iter().filter(|(_, label)| label.as_deref().is_some_and(&is_it));
        match (matching.next(), matching.next()) {
            (Some((part, _)), None) => Ok(part.node.clone()),
            (one, _) => Err(self.not_found(role, one.is_some())),
        }
    }

    fn not_found(&self, role: &str, several: bool) -> Error {
        let name = self.disk.display();
        let list: Vec<String> = self
            .labelled
            .iter()
            .map(|(part, label)| {
                format!("{} ({})", part.node.display(), label.as_deref().unwrap_or("no label"))
            })
            .collect();
        let seen =
            if list.is_empty() { "the kernel shows no partition of it".to_owned() } else { list.join(", ") };
        let what = if several { "several partitions" } else { "no partition" };
        Error::new(Code::BootPartitionNotFound, format!("{what} of {name} {role}: found {seen}")).object(name)
    }
}

#[derive(Debug, Clone)]
struct Part {
    node: PathBuf,
    start: u64,
    size: u64,
}

fn look(paths: &Paths, target: &Target) -> Result<Vec<Part>> {
    let facts = Facts::gather(paths)?;
    let disk = target.dev.and_then(|dev| facts.device(dev));
    let above = disk.into_iter().flat_map(|d| &d.above).filter_map(|dev| facts.device(*dev));
    let parts = above.filter(|d| d.role == Role::Partition);
    let start = |d: &Device| {
        let path = paths.at(format!("/sys/class/block/{}/start", d.kernel_name));
        let sectors: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        // Units of 512 bytes, whatever the disk's sector size.
        sectors.checked_mul(512)
    };
    Ok(parts.filter_map(|d| Some(Part { node: facts.node_of(d), start: start(d)?, size: d.size })).collect())
}

impl Part {
    fn is_at(&self, planned: &Partition) -> bool {
        (self.start, self.size) == (planned.start, planned.size)
    }
}

/// Every partition of the table exists, at its place, with its node.
fn is_complete(found: &[Part], table: Option<&Table>) -> bool {
    let Some(table) = table else { return !found.is_empty() };
    table.partitions.iter().all(|q| found.iter().any(|p| p.is_at(q) && p.node.exists()))
}

pub(super) fn pause(events: Option<&Uevents>, deadline: Instant) {
    // Some nodes appear without an event that is received here, so the check is repeated every few seconds.
    let until = deadline.min(Instant::now() + Duration::from_secs(2));
    match events.map(|e| e.wait(until)) {
        Some(Ok(_)) => {}
        Some(Err(_)) | None => {
            std::thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
        }
    }
}
