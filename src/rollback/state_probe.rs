//! `resin_update_state_probe`: prints the purpose of a partition for udev, and whether it is the active root.
//!
//! The rule `65-resin-update-state.rules` calls it with device node, label and name of the parent. What it prints become properties of the
//! device, and from those come the links in `/dev/disk/by-state` (meta-balena, `recipes-core/systemd`). The script used `lsblk` to find
//! the root; copal reads the file systems themselves, since udev may not have probed them yet.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::config::paths::Paths;
use crate::disk::partition::label;
use crate::disk::{Dev, Device, Facts, Role};
use crate::error::{Code, Error, Result};
use crate::sys::file;

/// While it exists, the initramfs gives file systems new UUIDs, and has not recorded the UUID of the root (`fsuuidsinit`).
const BEING_WRITTEN: &str = "/run/initramfs/bootparam_root.mux";
/// How often, and how long, the probe waits for that, as in the script.
const MAX_POLLS: u32 = 30;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Limit of the record in bytes: one `root=` parameter.
const MAX_RECORD_BYTES: u64 = 4096;

struct Call {
    node: String,
    label: String,
    parent: String,
}

impl Call {
    fn of(args: &[OsString]) -> Result<Call> {
        let mut texts = args.iter().map(|a| a.to_str().unwrap_or_default().to_owned());
        let mut next = || texts.next().unwrap_or_default();
        let call = Call { node: next(), label: next(), parent: next() };
        // A newline in a label would be one more property.
        let clean = |text: &str| !text.is_empty() && !text.contains(char::is_control);
        if clean(&call.node) && clean(&call.label) {
            return Ok(call);
        }
        let text = "give a device node and a label, and the name of the parent device where there is one";
        Err(Error::new(Code::Usage, text).with_hint("let udev call it: see 65-resin-update-state.rules"))
    }

    /// Volumes and arrays have no parent to compare; a label of balenaOS is taken for the device's own.
    fn is_virtual(&self) -> bool {
        ["/dev/dm", "/dev/md"].iter().any(|prefix| self.node.starts_with(prefix))
    }

    fn is_root_partition(&self) -> bool {
        ["resin-root", "balena-root"].iter().any(|prefix| self.label.starts_with(prefix))
    }
}

/// One a line; none for a device that is not on the disk of the root.
pub fn properties(paths: &Paths, args: &[OsString]) -> Result<String> {
    let call = Call::of(args)?;
    if call.parent.is_empty() && !call.is_virtual() {
        return Ok(String::new());
    }
    let Some(name) = RootName::of(paths) else { return Ok(String::new()) };
    let facts = Facts::gather(paths)?;
    let root = name.find(&facts);
    let same_disk = root.and_then(|root| disk_of(&facts, root)).is_some_and(|disk| node(disk) == call.parent);
    let known = same_disk || call.is_virtual();
    let usage = format!("BALENA_FS_USE={}\n", call.label);
    Ok(match root {
        _ if !known => String::new(),
        _ if !call.is_root_partition() => usage,
        Some(root) if format!("/dev/{}", node(root)) == call.node => usage + "BALENA_UPDATE_STATE=active\n",
        Some(_) => usage + "BALENA_UPDATE_STATE=inactive\n",
        // While the root is unknown, neither state is certain.
        None => String::new(),
    })
}

fn node(device: &Device) -> String {
    device.kernel_name.replace('!', "/")
}

/// The disk of the root, also below a decrypted volume.
fn disk_of<'f>(facts: &'f Facts, root: &'f Device) -> Option<&'f Device> {
    let below = |device: &'f Device| device.below.iter().filter_map(|d| facts.device(*d));
    let partition = match root.role {
        Role::Partition => root,
        _ => below(root).find(|d| d.role == Role::Partition)?,
    };
    below(partition).find(|d| d.role.is_whole_disk())
}

enum RootName {
    Uuid(String),
    Label(String),
}

impl RootName {
    /// As the initramfs has recorded it, otherwise as on the kernel's command line.
    fn of(paths: &Paths) -> Option<RootName> {
        let mux = paths.at(BEING_WRITTEN);
        let mut polls = 0..MAX_POLLS;
        while mux.exists() {
            polls.next()?;
            thread::sleep(POLL_INTERVAL);
        }
        // Older releases have no /run at that time.
        let folder = if paths.at("/run/initramfs").is_dir() { "/run/initramfs" } else { "/tmp/initramfs" };
        // Every user may create the second one.
        if let Ok(text) = file::read_record(&paths.at(folder).join("bootparam_root"), MAX_RECORD_BYTES) {
            return Some(RootName::Uuid(text.trim().strip_prefix("UUID=")?.to_owned()));
        }
        let line = fs::read_to_string(paths.at("/proc/cmdline")).ok()?;
        line.split_whitespace().filter_map(|word| word.strip_prefix("root=")).find_map(|root| {
            let (kind, value) = root.split_once('=')?;
            match kind {
                "UUID" => Some(RootName::Uuid(value.to_owned())),
                "LABEL" => Some(RootName::Label(value.to_owned())),
                _ => None,
            }
        })
    }

    fn is_met(&self, node: &Path) -> bool {
        let Ok(file) = File::open(node) else { return false };
        let mut read = |offset: u64, buf: &mut [u8]| file.read_exact_at(buf, offset);
        match self {
            RootName::Uuid(uuid) => {
                label::ext_uuid(&mut read).ok().flatten().is_some_and(|u| u.eq_ignore_ascii_case(uuid))
            }
            RootName::Label(expected) => label::label(&mut read).ok().flatten().as_ref() == Some(expected),
        }
    }

    /// Of a disk and its copy, the mounted one.
    fn find<'f>(&self, facts: &'f Facts) -> Option<&'f Device> {
        let candidates = facts.devices().filter(|d| may_be_root(facts, d));
        let found: Vec<&Device> = candidates.filter(|d| self.is_met(&facts.node_of(d))).collect();
        let mounted = |d: &&&Device| facts.mounts().any(|(m, _)| m.dev == d.dev);
        found.iter().find(mounted).or_else(|| found.first()).copied()
    }
}

fn may_be_root(facts: &Facts, device: &Device) -> bool {
    let kind = matches!(device.role, Role::Partition | Role::Crypt | Role::Mapped | Role::Lvm | Role::Array);
    kind && !is_half_of_array(facts, device)
}

/// A disk of an array shows the partitions of the array as its own; the array may not exist yet.
fn is_half_of_array(facts: &Facts, device: &Device) -> bool {
    let is_array = |dev: &Dev| facts.device(*dev).is_some_and(|d| d.role == Role::Array);
    let below = facts.all_below([device.dev]);
    if below.iter().any(is_array) {
        return false;
    }
    let mut below = below.iter().filter_map(|d| facts.device(*d));
    below.any(|d| d.content.as_deref() == Some("linux_raid_member") || d.above.iter().any(is_array))
}
