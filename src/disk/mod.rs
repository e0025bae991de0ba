//! Facts about this device's block devices, gathered once: what there is, what is stacked on what, what is in use.
//!
//! The tree of disks, partitions and holders comes from the crate `blockdev`. Added here is what sysfs does not link:
//! loop devices and the file system that holds their file, the members of a btrfs, the layers of an overlay, external
//! journals. Everything is decided by device numbers; a name or a label only ever leads to one.

mod gather;
pub mod io;
mod node;
mod origin;
pub mod partition;
pub mod select;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub use node::{claimed, resolve};

use crate::config::paths::Paths;
use crate::sys::mount::{Mount, Swap};

/// Major and minor device number.
pub type Dev = (u32, u32);

/// What a block device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A disk, as far as software can see.
    Disk,
    /// A partition of a disk, an array or a loop device.
    Partition,
    /// A part that the hardware sets aside (eMMC `boot0`, `boot1`, `gp0`, `rpmb`).
    HardwarePartition,
    /// An optical drive.
    Optical,
    /// An MD array.
    Array,
    /// An LVM volume.
    Lvm,
    /// An encrypted volume.
    Crypt,
    /// Another device-mapper volume.
    Mapped,
    /// A loop device.
    Loop,
    /// A disk in memory (`ram`, `zram`).
    Memory,
}

impl Role {
    /// The role in words, with an article.
    #[must_use]
    pub const fn describe(self) -> &'static str {
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

    /// Whether an image of a whole disk can be meant for it.
    #[must_use]
    pub const fn is_whole_disk(self) -> bool {
        matches!(self, Role::Disk | Role::Array | Role::Loop | Role::Memory)
    }
}

/// The file or device behind a loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// The path the driver remembers. It need not lead there any more.
    pub path: PathBuf,
    /// Device and inode number of the file, where the driver could be asked.
    pub file: Option<(Dev, u64)>,
    /// The block device behind it, where it is not a file.
    pub device: Option<Dev>,
}

/// One block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name: `sda`, `nvme0n1p1`, `dm-0`.
    pub kernel_name: String,
    /// The name an owner knows: the mapper name of device-mapper volumes, else the kernel's.
    pub name: String,
    /// Device number.
    pub dev: Dev,
    /// What it is.
    pub role: Role,
    /// Bytes; 0 without a medium.
    pub size: u64,
    /// Write-protected, by hardware or by software.
    pub read_only: bool,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Model, as udev or the kernel names it.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Type of the file system or other content, where udev has looked.
    pub content: Option<String>,
    /// Label of the file system, where udev has looked.
    pub label: Option<String>,
    /// Partitions and whatever is stacked directly on it.
    pub above: Vec<Dev>,
    /// What it lies directly on.
    pub below: Vec<Dev>,
    /// Of a loop device in use: what is behind it.
    pub backing: Option<Backing>,
    /// Uses that show neither as a mount nor as a holder, in words: member of a mounted btrfs, external journal.
    pub uses: Vec<String>,
}

/// What is known about the block devices, mounts and swap areas.
#[derive(Debug, Clone)]
pub struct Facts {
    paths: Paths,
    devices: BTreeMap<Dev, Device>,
    mounts: Vec<Mount>,
    /// For every mount the devices that hold its file system.
    origins: Vec<BTreeSet<Dev>>,
    swaps: Vec<Swap>,
}

impl Facts {
    /// The root everything was read below.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The device with this number.
    #[must_use]
    pub fn device(&self, dev: Dev) -> Option<&Device> {
        self.devices.get(&dev)
    }

    /// All devices, by device number.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// The device a path leads to through symbolic links, `None` where that is not a block device that the kernel lists.
    #[must_use]
    pub fn device_at(&self, path: &Path) -> Option<&Device> {
        let dev = node::dev_at(&self.paths, path, |name| self.dev_named(name))?;
        self.device(dev)
    }

    fn dev_named(&self, kernel_name: &str) -> Option<Dev> {
        self.devices.values().find(|d| d.kernel_name == kernel_name).map(|d| d.dev)
    }

    /// The device node of a device, by the kernel's name for it.
    #[must_use]
    pub fn node_of(&self, device: &Device) -> PathBuf {
        // The kernel writes the `/` of a name like `cciss/c0d0` as `!` in sysfs.
        self.paths.at("/dev").join(device.kernel_name.replace('!', "/"))
    }

    /// Every mount with the devices that hold its file system.
    pub fn mounts(&self) -> impl DoubleEndedIterator<Item = (&Mount, &BTreeSet<Dev>)> {
        self.mounts.iter().zip(&self.origins)
    }

    /// Active swap areas.
    #[must_use]
    pub fn swaps(&self) -> &[Swap] {
        &self.swaps
    }

    /// The mount that a path is on, with the devices that hold it.
    #[must_use]
    pub fn mount_of(&self, path: &Path) -> Option<(&Mount, &BTreeSet<Dev>)> {
        let index = origin::mount_of(&self.mounts, path, None)?;
        Some((self.mounts.get(index)?, self.origins.get(index)?))
    }

    /// A device and all it lies on.
    #[must_use]
    pub fn all_below(&self, start: impl IntoIterator<Item = Dev>) -> BTreeSet<Dev> {
        self.closure(start, |d| &d.below)
    }

    /// A device and all that is stacked on it, partitions included.
    #[must_use]
    pub fn all_above(&self, start: impl IntoIterator<Item = Dev>) -> BTreeSet<Dev> {
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

    /// The installation medium: every device that holds the mounted `/`, at any depth. Empty where `/` is in memory or
    /// comes over the network.
    #[must_use]
    pub fn medium(&self) -> BTreeSet<Dev> {
        let origins = self.mount_of(Path::new("/")).map(|(_, o)| o.clone()).unwrap_or_default();
        self.all_below(origins)
    }

    /// Partitions of the disks that hold `/`.
    pub fn medium_partitions(&self) -> Vec<&Device> {
        let medium = self.medium();
        let disks = medium.iter().filter_map(|d| self.device(*d));
        let parts: BTreeSet<Dev> = disks.flat_map(|d| d.above.iter().copied()).collect();
        let parts = parts.into_iter().filter_map(|d| self.device(d));
        parts.filter(|d| d.role == Role::Partition).collect()
    }
}

/// Serial number of a whole disk as it is now; the same source as [`Facts`] use.
#[must_use]
pub fn serial_of(paths: &Paths, dev: Dev) -> Option<String> {
    let wanted = blockdev::MajMin::new(dev.0, dev.1);
    let devices = tree::read(paths).ok()?;
    devices.into_iter().find(|d| d.maj_min == wanted)?.serial
}
