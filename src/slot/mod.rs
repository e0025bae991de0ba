//! The two root partitions, `resin-rootA` and `resin-rootB`.

pub mod hostapp;

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::config::paths::Paths;
use crate::disk::partition;
use crate::disk::{Dev, Device, Facts, Role};
use crate::error::{Code, Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Slot {
    A,
    B,
}

impl Slot {
    #[must_use]
    pub const fn other(self) -> Slot {
        match self {
            Slot::A => Slot::B,
            Slot::B => Slot::A,
        }
    }

    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Slot::A => "A",
            Slot::B => "B",
        }
    }

    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Slot::A => "resin-rootA",
            Slot::B => "resin-rootB",
        }
    }

    /// Newer images may say `balena-` for `resin-`.
    #[must_use]
    pub(crate) fn of_label(label: &str) -> Option<Slot> {
        let rest = label.strip_prefix("resin-root").or_else(|| label.strip_prefix("balena-root"))?;
        match rest {
            "A" => Some(Slot::A),
            "B" => Some(Slot::B),
            _ => None,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letter())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    pub slot: Slot,
    /// The partition's number, as the bootloader counts: from 1.
    pub index: u32,
    /// The mounted device: the partition, or the volume decrypted from it.
    pub dev: Dev,
    pub partition: Dev,
    /// `None` where sysfs does not name it.
    pub disk: Option<Dev>,
    pub encrypted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Mounted at `/mnt/sysroot/active`.
    pub active: Root,
    /// Mounted at `/mnt/sysroot/inactive`; `None` where it is not mounted.
    inactive: Option<Root>,
}

impl Roots {
    pub fn of(facts: &Facts) -> Result<Roots> {
        let paths = facts.paths();
        let active = MountedRoot::at(facts, ACTIVE)?
            .ok_or_else(|| unknown(ACTIVE, "no ext4 file system is mounted there"))?;
        let inactive = MountedRoot::at(facts, INACTIVE)?;
        if inactive.as_ref().is_some_and(|i| i.dev == active.dev || i.partition == active.partition) {
            return Err(Error::new(
                Code::SlotSame,
                format!("{ACTIVE} and {INACTIVE} are the same device, {}", active.name),
            )
            .object(&active.name));
        }
        let slot = active.slot(inactive.as_ref(), paths)?;
        Ok(Roots { active: active.root(slot), inactive: inactive.map(|i| i.root(slot.other())) })
    }

    /// Fails where it is not mounted.
    pub fn inactive(&self) -> Result<&Root> {
        self.inactive.as_ref().ok_or_else(|| unknown(INACTIVE, "no ext4 file system is mounted there"))
    }

    /// Also where it is not mounted.
    #[must_use]
    pub fn inactive_slot(&self) -> Slot {
        self.active.slot.other()
    }

    /// `None` where it is not mounted.
    #[must_use]
    pub fn in_slot(&self, slot: Slot) -> Option<&Root> {
        if self.active.slot == slot { Some(&self.active) } else { self.inactive.as_ref() }
    }
}

pub const ACTIVE: &str = "/mnt/sysroot/active";
pub const INACTIVE: &str = "/mnt/sysroot/inactive";

/// Its slot is not known yet.
struct MountedRoot {
    name: String,
    node: PathBuf,
    label: Option<String>,
    dev: Dev,
    partition: Dev,
    disk: Option<Dev>,
    index: u32,
}

impl MountedRoot {
    fn at(facts: &Facts, point: &str) -> Result<Option<MountedRoot>> {
        // The table lists an automount before the file system mounted on it: the last entry is on top.
        let mut mounts = facts.mounts().filter(|(m, _)| m.point == Path::new(point) && m.fstype == "ext4");
        let Some((mount, _)) = mounts.next_back() else { return Ok(None) };
        let device = facts.device(mount.dev).ok_or_else(|| {
            unknown(point, &format!("the kernel lists no block device {}:{}", mount.dev.0, mount.dev.1))
        })?;
        let partition = below(facts, device)
            .ok_or_else(|| unknown(point, &format!("{} is not a partition, nor on one", device.name)))?;
        let index = index_of(facts.paths(), partition).ok_or_else(|| {
            unknown(point, &format!("sysfs has no number of the partition {}", partition.name))
        })?;
        let mut disks = partition.below.iter().filter_map(|d| facts.device(*d));
        Ok(Some(MountedRoot {
            name: device.name.clone(),
            node: facts.node_of(device),
            label: device.label.clone(),
            dev: device.dev,
            partition: partition.dev,
            disk: disks.find(|d| d.role.is_whole_disk()).map(|d| d.dev),
            index,
        }))
    }

    /// By its own label, else by that of the other root, else the first on the disk is A.
    fn slot(&self, other: Option<&MountedRoot>, paths: &Paths) -> Result<Slot> {
        let own = self.labelled();
        let theirs = other.and_then(MountedRoot::labelled);
        match (own, theirs) {
            (Some(own), Some(theirs)) if own == theirs => {
                Err(unknown(ACTIVE, &format!("both root partitions have the label {}", own.label())))
            }
            (Some(own), _) => Ok(own),
            (None, Some(theirs)) => Ok(theirs.other()),
            (None, None) => match other {
                Some(other) if self.disk == other.disk => {
                    tracing::warn!("neither root partition has its label; taking the first one for A");
                    Ok(if self.index < other.index { Slot::A } else { Slot::B })
                }
                _ => {
                    let node = paths.at(&self.node);
                    Err(unknown(ACTIVE, &format!("{} has no label of a root partition", node.display())))
                }
            },
        }
    }

    /// Read from the file system: udev's entry may be older.
    fn labelled(&self) -> Option<Slot> {
        let read = File::open(&self.node).ok().and_then(|file| {
            partition::label::label(&mut |offset, buf| file.read_exact_at(buf, offset)).ok().flatten()
        });
        Slot::of_label(read.as_deref().or(self.label.as_deref())?)
    }

    fn root(&self, slot: Slot) -> Root {
        Root {
            slot,
            index: self.index,
            dev: self.dev,
            partition: self.partition,
            disk: self.disk,
            encrypted: self.dev != self.partition,
        }
    }
}

/// The partition of a mounted device, also below a decrypted volume.
fn below<'f>(facts: &'f Facts, device: &'f Device) -> Option<&'f Device> {
    if device.role == Role::Partition {
        return Some(device);
    }
    let mut partitions =
        device.below.iter().filter_map(|d| facts.device(*d)).filter(|d| d.role == Role::Partition);
    partitions.next().filter(|_| device.role == Role::Crypt && partitions.next().is_none())
}

/// The kernel prints it in decimal for every kind of partition table.
fn index_of(paths: &Paths, partition: &Device) -> Option<u32> {
    let file = paths.at("/sys/class/block").join(&partition.kernel_name).join("partition");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn unknown(point: &str, why: &str) -> Error {
    Error::new(Code::SlotUnknown, format!("cannot identify the root partitions by {point}: {why}"))
        .object(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        assert_eq!(Slot::of_label("resin-rootA"), Some(Slot::A));
        assert_eq!(Slot::of_label("balena-rootB"), Some(Slot::B));
        for other in ["resin-root", "resin-rootC", "resin-rootAB", "rootA", "RESIN-ROOTA", ""] {
            assert_eq!(Slot::of_label(other), None, "{other}");
        }
        for slot in [Slot::A, Slot::B] {
            assert_eq!(slot.other().other(), slot);
            assert_eq!(Slot::of_label(slot.label()), Some(slot));
        }
    }
}
