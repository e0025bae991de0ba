//! Opens the encrypted partitions when the device starts, from its initramfs: in place of meta-balena's `cryptsetup-efi-tpm` (v8.0.2), with the
//! same checks.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ask;
use super::check::{open as open_tpm, would_not};
use super::policies::Policies;
use super::seal::{self, Sealed};
use crate::config::paths::Paths;
use crate::disk::partition::label;
use crate::error::{Code, Error, Result, counted};
use crate::luks::passphrase::Passphrase;
use crate::luks::{header, mapping};
use crate::measurements::EventLog;
use crate::sys::block::major_minor;
use crate::sys::mount;
use crate::tpm::store::Secret;
use crate::uefi::variables::{Firmware, Variable};

/// Names of partitions: the one that the firmware reads, and those that are encrypted. A name of the latter begins with `resin-` or `balena-`.
const PLAIN: &str = "balena-efi";
const ENCRYPTED: [&str; 5] = ["boot", "rootA", "rootB", "state", "data"];

pub(super) const LOOK: &str =
    "look at the header with `cryptsetup luksDump`; do not flash the device: that erases its data";
const READ_ONLY: &str =
    "it may be mounted read-only, at /mnt/efi: unmount it, check it with `fsck.vfat`, and mount it again";

/// A disk may show up late.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);
const PARTITIONS_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opened {
    /// The mappings, in the order of the partitions.
    Partitions(Vec<String>),
    /// Why there is nothing to open.
    Nothing(&'static str),
}

/// All partitions or none.
pub(crate) fn open_partitions(paths: &Paths) -> Result<Opened> {
    let Some(firmware) = Firmware::find(paths)? else {
        return Ok(Opened::Nothing("the system was not started by UEFI"));
    };
    let is = |variable, value| Ok::<bool, Error>(firmware.flag(variable)? == Some(value));
    if !is(Variable::SECURE_BOOT, true)? || !is(Variable::SETUP_MODE, false)? {
        return Ok(Opened::Nothing("secure boot is off, or the firmware is in setup mode"));
    }
    let log = EventLog::read(paths);
    // The TPM judges the start by itself, not by the log.
    if let Some(why) = log.as_ref().and_then(EventLog::damage) {
        tracing::warn!("the firmware's log of its measurements cannot be read to its end: {why}");
    }
    if log.is_some_and(|log| log.has_dma_protection_disabled()) {
        let why =
            "the firmware says that DMA protection is disabled, and no passphrase comes into the memory then";
        return Err(would_not(why).with_hint("switch the IOMMU on in the firmware's setup (VT-d, AMD-Vi)"));
    }
    let disk = Disk::wait(paths, DISK_TIMEOUT)?;
    let plain = Plain::to_read(paths, &disk.plain)?;
    let policies = Policies::at(plain.0.clone());
    let opened = open_tpm(paths).and_then(|mut tpm| {
        let takes = |secret: &Secret| Ok(disk.takes(&Passphrase::of(secret)?));
        let open = |secret: &Secret| disk.open(paths, &Passphrase::of(secret)?);
        seal::unlock(&mut tpm, &policies, &takes, &open, &|names: &Vec<String>| close(paths, names))
    });
    let (sealed, names) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            let opened = ask::instead(&plain.0, open_tpm(paths), e, |known| disk.open(paths, known));
            return opened.map(Opened::Partitions);
        }
    };
    drop(plain);
    if !sealed.is_whole {
        tracing::warn!("a change of the policy that unlocks the disk was cut off: completing it");
        // The next start or update tries again.
        if let Err(e) = tidy(paths, &disk, &sealed) {
            tracing::warn!("{}", e.message());
        }
    }
    Ok(Opened::Partitions(names))
}

fn tidy(paths: &Paths, disk: &Disk, sealed: &Sealed) -> Result<()> {
    let plain = Plain::to_write(paths, &disk.plain)?;
    seal::tidy(&Policies::at(plain.0.clone()), sealed)
}

fn close(paths: &Paths, mappings: &[String]) {
    for name in mappings.iter().rev() {
        if let Err(e) = mapping::close(paths, name) {
            tracing::warn!("{}", e.message());
        }
    }
}

/// Nodes of the partitions.
pub(super) struct Disk {
    pub(super) plain: PathBuf,
    /// With their names.
    pub(super) encrypted: Vec<(String, PathBuf)>,
}

impl Disk {
    /// Waits for the partition that is not encrypted; the others are on its disk.
    pub(super) fn wait(paths: &Paths, timeout: Duration) -> Result<Disk> {
        let end = Instant::now() + timeout;
        let mut first = None;
        loop {
            let found = Partition::all(paths);
            match found.iter().filter(|p| p.name == PLAIN).collect::<Vec<_>>().as_slice() {
                [] if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
                [] => return Err(would_not(&format!("no disk has a partition {PLAIN}"))),
                [plain] => match Disk::of(paths, plain, &found) {
                    // The kernel shows the partitions of a disk one after the other.
                    Err(_) if first.get_or_insert_with(Instant::now).elapsed() < PARTITIONS_TIMEOUT => {
                        std::thread::sleep(POLL_INTERVAL);
                    }
                    found => return found,
                },
                [one, other, ..] => {
                    let why = format!(
                        "two partitions have the name {PLAIN}: {} and {}",
                        one.kernel_name, other.kernel_name
                    );
                    return Err(would_not(&why));
                }
            }
        }
    }

    fn of(paths: &Paths, plain: &Partition, all: &[Partition]) -> Result<Disk> {
        let node = |partition: &Partition| node_of(paths, &partition.kernel_name);
        let on_it: Vec<&Partition> = all.iter().filter(|p| p.disk == plain.disk).collect();
        let encrypted = ENCRYPTED.map(|name| {
            let is_it = |p: &&&Partition| {
                ["resin-", "balena-"].iter().any(|start| p.name.strip_prefix(start) == Some(name))
            };
            match on_it.iter().filter(is_it).collect::<Vec<_>>().as_slice() {
                [one] => Ok((one.name.clone(), node(one))),
                [] => Err(would_not(&format!("{} has no partition {name}", plain.disk))),
                _ => Err(would_not(&format!("{} has two partitions {name}", plain.disk))),
            }
        });
        let encrypted = encrypted.into_iter().collect::<Result<Vec<_>>>()?;
        let count = on_it.iter().filter(|partition| uuid_of(&node(partition)).is_some()).count();
        if count != encrypted.len() {
            let why = format!(
                "{} has {}, and not {}",
                plain.disk,
                counted(count, "encrypted partition"),
                encrypted.len()
            );
            return Err(would_not(&why));
        }
        Ok(Disk { plain: node(plain), encrypted })
    }

    /// Whether a key slot of each encrypted partition does.
    fn takes(&self, passphrase: &Passphrase) -> bool {
        self.encrypted.iter().all(|(_, node)| mapping::test(node, passphrase).is_ok())
    }

    /// Names of the mappings.
    fn open(&self, paths: &Paths, passphrase: &Passphrase) -> Result<Vec<String>> {
        let mut open = Vec::new();
        let mut nodes = BTreeSet::new();
        let opened = self.encrypted.iter().try_for_each(|(name, node)| {
            let uuid = uuid_of(node)
                .ok_or_else(|| would_not(&format!("{} ({name}) is not encrypted", node.display())))?;
            let mapped = format!("luks-{uuid}");
            // An attacker who has changed the header knows its key.
            if mapping::has_null_cipher(node).map_err(|e| e.with_hint(LOOK))? {
                return Err(would_not(&format!("{} ({name}) is encrypted with nothing", node.display())));
            }
            mapping::open(node, &mapped, passphrase).map_err(|e| e.with_hint(LOOK))?;
            open.push(mapped.clone());
            let shown = mapping::check(paths, node, &mapped).map_err(|e| e.with_hint(LOOK))?;
            // Nor does a label in the header count.
            nodes.extend([rdev(&shown), rdev(node)]);
            // One under the name of another would be mounted in its place.
            match label::of_node(&shown) {
                Some(label) if label == *name => Ok(()),
                _ => Err(would_not(&format!("{} does not have the file system {name}", node.display()))),
            }
        });
        if let Err(e) = opened.and_then(|()| self.are_alone(paths, &nodes)) {
            close(paths, &open);
            return Err(e);
        }
        Ok(open)
    }

    /// The system finds its file systems by their labels: another disk may not have one of them.
    fn are_alone(&self, paths: &Paths, open: &BTreeSet<Option<u64>>) -> Result<()> {
        for name in names(&paths.at("/sys/class/block")) {
            let node = node_of(paths, &name.to_string_lossy());
            let dev = rdev(&node);
            if open.contains(&dev) || dev == rdev(&self.plain) {
                continue;
            }
            let of_udev = dev.and_then(|dev| label_in_udev(paths, dev));
            for label in [label::of_node(&node), of_udev].into_iter().flatten() {
                // Spaces at the end do not count for programs that look for labels.
                let label = label.trim_end();
                if label == PLAIN || self.encrypted.iter().any(|(name, _)| name == label) {
                    let why = format!("{} also has a file system {label}", node.display());
                    return Err(would_not(&why).with_hint("remove that disk, or erase it"));
                }
            }
        }
        Ok(())
    }
}

/// sysfs has `!` where the node is in a folder.
fn node_of(paths: &Paths, kernel_name: &str) -> PathBuf {
    paths.at("/dev").join(kernel_name.replace('!', "/"))
}

/// udev knows file systems that copal does not.
fn label_in_udev(paths: &Paths, dev: u64) -> Option<String> {
    let (major, minor) = major_minor(dev);
    let text = fs::read_to_string(paths.at(format!("/run/udev/data/b{major}:{minor}"))).ok()?;
    text.lines().find_map(|line| line.strip_prefix("E:ID_FS_LABEL=")).map(str::to_owned)
}

fn rdev(node: &Path) -> Option<u64> {
    Some(node.metadata().ok()?.rdev())
}

fn names(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

struct Partition {
    kernel_name: String,
    /// In the table.
    name: String,
    disk: String,
}

impl Partition {
    /// Of all disks, as the kernel shows them: udev may not know them yet.
    fn all(paths: &Paths) -> Vec<Partition> {
        let top = paths.at("/sys/class/block");
        names(&top).iter().filter_map(|name| Partition::of(&top.join(name))).collect()
    }

    fn of(entry: &Path) -> Option<Partition> {
        let uevent = fs::read_to_string(entry.join("uevent")).ok()?;
        let name = uevent.lines().find_map(|line| line.strip_prefix("PARTNAME="))?.to_owned();
        // The folder of a partition is in that of its disk.
        let folder = entry.canonicalize().ok()?;
        let text = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        Some(Partition { kernel_name: text(&folder)?, name, disk: text(folder.parent()?)? })
    }
}

fn uuid_of(node: &Path) -> Option<String> {
    let mut start = [0; header::BYTES];
    fs::File::open(node).ok()?.read_exact(&mut start).ok()?;
    header::uuid(&start)
}

/// The mounted partition that is not encrypted.
pub(super) struct Plain(pub(super) PathBuf);

impl Plain {
    /// A start that completes nothing writes nothing there, not even that the file system is in use.
    pub(super) fn to_read(paths: &Paths, node: &Path) -> Result<Plain> {
        Plain::mount(paths, node, &|point| mount::mount_read_only(node, point, "vfat"))
    }

    pub(super) fn to_write(paths: &Paths, node: &Path) -> Result<Plain> {
        Plain::mount(paths, node, &|point| mount::mount_any(node, point, &["vfat"]).map(|_| ()))
    }

    fn mount(paths: &Paths, node: &Path, mount: &dyn Fn(&Path) -> io::Result<()>) -> Result<Plain> {
        let point = paths.run_files().join("efi");
        // Left by a run that was killed: it is not mounted twice in one place.
        drop(mount::unmount(&point, Duration::ZERO));
        fs::create_dir_all(&point).and_then(|()| mount(&point)).map_err(|e| {
            let node = node.display();
            // The kernel makes a FAT read-only where it finds damage.
            let is_read_only = e.raw_os_error() == Some(nix::libc::EBUSY);
            let message = format!("cannot mount {node} ({PLAIN}), which has the policies");
            let error = Error::new(Code::WouldNotUnlock, message).object(node).because(e);
            if is_read_only { error.with_hint(READ_ONLY) } else { error }
        })?;
        Ok(Plain(point))
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if let Err(e) = mount::unmount(&self.0, UNMOUNT_TIMEOUT) {
            tracing::warn!("cannot unmount {}: {e}", self.0.display());
        }
        drop(fs::remove_dir(&self.0));
    }
}
