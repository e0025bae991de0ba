//! Reads sysfs, procfs and the udev database, once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use blockdev::{BlockDevice, BlockDevices, DeviceType};

use super::origin::{Group, Tracer, mount_of};
use super::{Backing, Dev, Device, Facts, Role, node, tree};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::{loopdev, mount};

impl Facts {
    /// Opens only loop devices that are in use, to ask for their files.
    pub fn gather(paths: &Paths) -> Result<Facts> {
        let failed = |what: &'static str| {
            move |e: std::io::Error| {
                Error::new(Code::Io, format!("cannot read {what}")).object(what).because(e)
            }
        };
        let tree = tree::read(paths)?;
        let mounts =
            mount::read_mounts(&paths.at("/proc/self/mountinfo")).map_err(failed("/proc/self/mountinfo"))?;
        let swaps = mount::read_swaps(&paths.at("/proc/swaps")).map_err(failed("/proc/swaps"))?;
        let devices = devices(paths, &tree);
        let mut facts = Facts { paths: paths.clone(), devices, mounts, origins: Vec::new(), swaps };
        let groups = facts.btrfs_groups();
        facts.origins = Tracer {
            paths,
            mounts: &facts.mounts,
            groups: &groups.iter().map(|(_, g)| g.clone()).collect::<Vec<Group>>(),
            known: &|dev| facts.devices.contains_key(&dev),
            dev_at: &|path| facts.device_at(path).map(|d| d.dev),
        }
        .trace_all();
        facts.link_loops();
        facts.note_uses(&groups);
        Ok(facts)
    }

    /// Every mounted btrfs (listed since Linux 3.14) with its identifier and members.
    fn btrfs_groups(&self) -> Vec<(String, Group)> {
        let folders = names(&self.paths.at("/sys/fs/btrfs")).into_iter();
        let groups = folders.map(|uuid| {
            let members = names(&self.paths.at("/sys/fs/btrfs").join(&uuid).join("devices")).into_iter();
            let devs = members.filter_map(|name| self.dev_named(&name)).collect();
            (uuid, devs)
        });
        groups.filter(|(_, g): &(String, Group)| !g.is_empty()).collect()
    }

    /// Links loop devices to what holds their file; sysfs does not.
    fn link_loops(&mut self) {
        let mut links: Vec<(Dev, Backing, BTreeSet<Dev>)> = Vec::new();
        for device in self.devices.values() {
            if let Some(backing) = self.backing(device) {
                let below = self.below_loop(&backing);
                links.push((device.dev, backing, below));
            }
        }
        for (dev, backing, below) in links {
            for &lower in &below {
                if let Some(d) = self.devices.get_mut(&lower) {
                    d.above.push(dev);
                }
            }
            if let Some(d) = self.devices.get_mut(&dev) {
                d.below.extend(below);
                d.backing = Some(backing);
            }
        }
    }

    fn backing(&self, device: &Device) -> Option<Backing> {
        let file = sysfs(&self.paths, &device.kernel_name).join("loop/backing_file");
        let mut path = fs::read(file).ok()?;
        path.truncate(path.trim_ascii_end().len());
        let path = PathBuf::from(OsString::from_vec(path));
        // The driver knows the file even where its path now leads elsewhere (a changed root, a mount on top).
        let reported = loopdev::backing(&self.node_of(device)).ok();
        let block = reported.and_then(|t| t.device).or_else(|| self.device_at(&path).map(|d| d.dev));
        Some(Backing { path, file: reported.map(|t| (t.file_system, t.inode)), device: block })
    }

    fn below_loop(&self, backing: &Backing) -> BTreeSet<Dev> {
        if let Some(dev) = backing.device {
            return BTreeSet::from([dev]);
        }
        if let Some((dev, _)) = backing.file
            && self.devices.contains_key(&dev)
        {
            // All devices of that file system: its log may be on another one.
            let same = self.mounts().find(|(m, _)| m.dev == dev).map(|(_, devs)| devs.clone());
            return same.unwrap_or_else(|| BTreeSet::from([dev]));
        }
        let path = node::resolve(&self.paths, &backing.path).unwrap_or_else(|_| backing.path.clone());
        let index = mount_of(&self.mounts, &path, None);
        index.and_then(|i| self.origins.get(i)).cloned().unwrap_or_default()
    }

    /// Notes uses that neither the mount table nor sysfs holders show.
    fn note_uses(&mut self, groups: &[(String, Group)]) {
        for (uuid, members) in groups {
            for dev in members {
                if let Some(d) = self.devices.get_mut(dev) {
                    d.uses.push(format!("it belongs to the btrfs file system {uuid}, which is in use"));
                }
            }
        }
        // jbd2 lists a journal inside its file system with the inode number after the name (`sda1-8`), an external journal by
        // the name of its device alone (Linux `jbd2_journal_init_dev`).
        let journals = names(&self.paths.at("/proc/fs/jbd2"));
        for d in self.devices.values_mut().filter(|d| journals.contains(&d.kernel_name)) {
            d.uses.push("it holds the journal of a mounted ext4 file system".into());
        }
    }
}

fn devices(paths: &Paths, tree: &BlockDevices) -> BTreeMap<Dev, Device> {
    let mut devices = BTreeMap::new();
    for name in names(&paths.at("/sys/class/block")) {
        if let Some(device) = device(paths, &name) {
            devices.insert(device.dev, device);
        }
    }
    for listed in tree.iter_all() {
        let dev = number(listed);
        if let Some(device) = devices.get_mut(&dev) {
            adopt(device, listed);
        }
        for child in &listed.children {
            link(&mut devices, dev, number(child));
        }
    }
    devices
}

fn link(devices: &mut BTreeMap<Dev, Device>, lower: Dev, upper: Dev) {
    if let Some(d) = devices.get_mut(&lower).filter(|d| !d.above.contains(&upper)) {
        d.above.push(upper);
    }
    if let Some(d) = devices.get_mut(&upper).filter(|d| !d.below.contains(&lower)) {
        d.below.push(lower);
    }
}

/// One device as sysfs describes it. The tree leaves out ram disks and loop devices without a file; this does not.
fn device(paths: &Paths, kernel_name: &str) -> Option<Device> {
    let dir = sysfs(paths, kernel_name);
    let dev = mount::parse_dev(&attribute(&dir, "dev")?)?;
    let sectors: u64 = attribute(&dir, "size").and_then(|s| s.parse().ok()).unwrap_or(0);
    let block_size = attribute(&dir, "queue/logical_block_size").and_then(|s| s.parse().ok());
    Some(Device {
        kernel_name: kernel_name.to_owned(),
        name: kernel_name.replace('!', "/"),
        dev,
        role: role(&dir, kernel_name),
        size: sectors.saturating_mul(512), // sysfs counts in units of 512 bytes
        read_only: attribute(&dir, "ro").is_some_and(|ro| ro == "1"),
        block_size: block_size.unwrap_or(512),
        // An MMC has its name where other disks have their model.
        model: attribute(&dir, "device/name").filter(|_| kernel_name.starts_with("mmcblk")),
        serial: None,
        content: None,
        label: None,
        above: Vec::new(),
        below: Vec::new(),
        backing: None,
        uses: Vec::new(),
    })
}

/// Takes over what `blockdev` knows better: mapper names, udev's properties, types.
fn adopt(device: &mut Device, listed: &BlockDevice) {
    device.name.clone_from(&listed.name);
    device.model = listed.model.clone().or_else(|| device.model.take());
    device.serial.clone_from(&listed.serial);
    device.content.clone_from(&listed.fstype);
    device.label.clone_from(&listed.label);
    device.role = match (device.role, listed.device_type) {
        (Role::Mapped, DeviceType::Lvm) => Role::Lvm,
        (Role::Mapped, DeviceType::Crypt) => Role::Crypt,
        (Role::Disk, DeviceType::Rom) => Role::Optical,
        (Role::Disk, DeviceType::Part) => Role::Partition,
        (role, _) => role,
    };
}

fn role(dir: &Path, kernel_name: &str) -> Role {
    if dir.join("partition").exists() {
        Role::Partition
    } else if kernel_name.starts_with("dm-") {
        // Several paths to one disk, or a firmware RAID: both act as a disk.
        let uuid = attribute(dir, "dm/uuid").unwrap_or_default();
        let is_disk = uuid.starts_with("mpath-") || uuid.starts_with("DMRAID-");
        if is_disk { Role::Disk } else { Role::Mapped }
    } else if is_numbered(kernel_name, "loop") {
        Role::Loop
    } else if is_numbered(kernel_name, "ram") || is_numbered(kernel_name, "zram") {
        Role::Memory
    } else if is_numbered(kernel_name, "sr") {
        Role::Optical
    } else if dir.join("md").is_dir() || is_numbered(kernel_name, "md") {
        Role::Array
    } else if is_hardware_partition(kernel_name) {
        Role::HardwarePartition
    } else {
        Role::Disk
    }
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn is_hardware_partition(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("mmcblk") else { return false };
    let part = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    part == "rpmb" || is_numbered(part, "boot") || is_numbered(part, "gp")
}

fn sysfs(paths: &Paths, kernel_name: &str) -> PathBuf {
    paths.at("/sys/class/block").join(kernel_name)
}

fn number(device: &BlockDevice) -> Dev {
    (device.maj_min.major, device.maj_min.minor)
}

fn attribute(dir: &Path, name: &str) -> Option<String> {
    let text = fs::read(dir.join(name)).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned()).filter(|t| !t.is_empty())
}

/// In byte order; empty where the folder cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}
