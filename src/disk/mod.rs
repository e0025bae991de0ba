//! Block devices: facts, gathered once: which devices exist, how they are stacked, and which are in use.
//!
//! The crate `blockdev` reads the tree of disks, partitions and holders. Added here is what sysfs does not link: loop
//! devices and the file system that holds their file, the members of a btrfs, the layers of an overlay, external journals.
//! Every decision goes by device numbers; a name or a label only leads to one.

mod gather;
pub mod io;
mod node;
mod origin;
pub mod partition;
pub mod select;
pub mod signature;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub(crate) use node::{claimed, resolve};

use crate::config::paths::Paths;
use crate::sys::mount::{Mount, Swap};

pub(crate) type Dev = (u32, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Disk,
    Partition,
    /// Set aside by the hardware (eMMC `boot0`, `boot1`, `gp0`, `rpmb`).
    HardwarePartition,
    Optical,
    Array,
    Lvm,
    Crypt,
    Mapped,
    Loop,
    Memory,
}

impl Role {
    #[must_use]
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Role::Disk => "a disk",
            Role::Partition => "a partition",
            Role::HardwarePartition => "a hardware partition of an eMMC",
            Role::Optical => "an optical drive",
            Role::Array => "a RAID array",
            Role::Lvm => "an LVM volume",
            Role::Crypt => "an encrypted volume",
            Role::Mapped => "a device-mapper volume",
            Role::Loop => "a loop device",
            Role::Memory => "a disk in memory",
        }
    }

    /// Whether an image of a whole disk can be written to it.
    #[must_use]
    pub const fn is_whole_disk(self) -> bool {
        matches!(self, Role::Disk | Role::Array | Role::Loop | Role::Memory)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// As the driver remembers it. It may lead elsewhere by now.
    pub path: PathBuf,
    pub file: Option<(Dev, u64)>,
    /// Set where the loop device is backed by a block device.
    pub device: Option<Dev>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// As in `sda`, `nvme0n1p1`, `dm-0`.
    pub kernel_name: String,
    /// The name that an owner knows: the mapper name of device-mapper volumes, else the kernel's.
    pub name: String,
    pub dev: Dev,
    pub role: Role,
    /// In bytes; 0 without a medium.
    pub size: u64,
    pub read_only: bool,
    /// Logical, in bytes.
    pub block_size: u32,
    pub model: Option<String>,
    pub serial: Option<String>,
    /// Type of the file system or other content, as udev reports it.
    pub content: Option<String>,
    pub label: Option<String>,
    /// Partitions, and devices stacked directly on it.
    pub above: Vec<Dev>,
    /// Devices that it is stacked on directly.
    pub below: Vec<Dev>,
    pub backing: Option<Backing>,
    /// Uses that are neither a mount nor a holder, in words: member of a mounted btrfs, external journal.
    pub uses: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Facts {
    paths: Paths,
    devices: BTreeMap<Dev, Device>,
    mounts: Vec<Mount>,
    origins: Vec<BTreeSet<Dev>>,
    swaps: Vec<Swap>,
}

impl Facts {
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    #[must_use]
    pub fn device(&self, dev: Dev) -> Option<&Device> {
        self.devices.get(&dev)
    }

    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// Follows symbolic links. `None` where the path leads to no block device that the kernel lists.
    #[must_use]
    pub fn device_at(&self, path: &Path) -> Option<&Device> {
        let dev = node::dev_at(&self.paths, path, |name| self.dev_named(name))?;
        self.device(dev)
    }

    fn dev_named(&self, kernel_name: &str) -> Option<Dev> {
        self.devices.values().find(|d| d.kernel_name == kernel_name).map(|d| d.dev)
    }

    /// The device node, by the kernel's name.
    #[must_use]
    pub fn node_of(&self, device: &Device) -> PathBuf {
        // sysfs writes the `/` of a name like `cciss/c0d0` as `!`.
        self.paths.at("/dev").join(device.kernel_name.replace('!', "/"))
    }

    pub fn mounts(&self) -> impl DoubleEndedIterator<Item = (&Mount, &BTreeSet<Dev>)> {
        self.mounts.iter().zip(&self.origins)
    }

    #[must_use]
    pub fn swaps(&self) -> &[Swap] {
        &self.swaps
    }

    #[must_use]
    pub fn mount_of(&self, path: &Path) -> Option<(&Mount, &BTreeSet<Dev>)> {
        let index = origin::mount_of(&self.mounts, path, None)?;
        Some((self.mounts.get(index)?, self.origins.get(index)?))
    }

    /// The devices and all that they are stacked on.
    #[must_use]
    pub fn all_below(&self, start: impl IntoIterator<Item = Dev>) -> BTreeSet<Dev> {
        self.closure(start, |d| &d.below)
    }

    /// The devices and all that is stacked on them, partitions included.
    #[must_use]
    pub(crate) fn all_above(&self, start: impl IntoIterator<Item = Dev>) -> BTreeSet<Dev> {
        self.closure(start, |d| &d.above)
    }

    fn closure(
        &self,
        start: impl IntoIterator<Item = Dev>,
        next: impl Fn(&Device) -> &Vec<Dev>,
    ) -> BTreeSet<Dev> {
        let mut seen = BTreeSet::new();
        let mut todo: Vec<Dev> = start.into_iter().collect();
        while let Some(dev) = todo.pop() {
            if seen.insert(dev)
                && let Some(device) = self.device(dev)
            {
                todo.extend(next(device));
            }
        }
        seen
    }

    /// The installation medium: every device that holds the mounted `/`, at any depth. Empty where `/` is in memory or comes
    /// over the network.
    #[must_use]
    pub fn medium(&self) -> BTreeSet<Dev> {
        let origins = self.mount_of(Path::new("/")).map(|(_, o)| o.clone()).unwrap_or_default();
        self.all_below(origins)
    }

    pub(crate) fn medium_partitions(&self) -> Vec<&Device> {
        let medium = self.medium();
        let disks = medium.iter().filter_map(|d| self.device(*d));
        let parts: BTreeSet<Dev> = disks.flat_map(|d| d.above.iter().copied()).collect();
        let parts = parts.into_iter().filter_map(|d| self.device(d));
        parts.filter(|d| d.role == Role::Partition).collect()
    }
}

/// Read again from the source that [`Facts`] use.
#[must_use]
pub fn serial_of(paths: &Paths, dev: Dev) -> Option<String> {
    let number = blockdev::MajMin::new(dev.0, dev.1);
    let devices = tree::read(paths).ok()?;
    devices.into_iter().find(|d| d.maj_min == number)?.serial
}
