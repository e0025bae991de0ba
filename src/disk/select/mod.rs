//! Chooses the target, and rejects everything else.
//!
//! A device that cannot be the target is rejected with a reason ([`skip`](checks)). The first other one is the target, or
//! refuses the flash. The search never continues after it: that could wipe a wrong disk, and board programs that look for
//! the disk again would find the first one.

mod checks;
mod file;
mod identity;
mod named;
mod raid;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use file::refuse_without_space;
pub use identity::Identity;
pub use named::named;

use crate::config::paths::Paths;
use crate::disk::{Dev, Device, Facts, Role};
use crate::error::{Code, Error, Result};
use crate::sys::log::events;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    Block,
    File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSize {
    Exact(u64),
    /// At least this much, the span of the partition table; only a full pass gives the exact size.
    AtLeast(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Target {
    /// As matched or as given. Board programs get this name.
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub name: PathBuf,
    /// The device node after all symbolic links; for files the same as `name`, unless that is a symbolic link.
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub node: PathBuf,
    pub kind: TargetKind,
    pub dev: Option<(u32, u32)>,
    /// In bytes; of a file its present size, 0 where it does not exist.
    pub size: u64,
    /// Logical, in bytes; 512 for files unless the image has another.
    pub block_size: u32,
    #[serde(serialize_with = "crate::sys::path_text::option")]
    pub by_id: Option<PathBuf>,
    pub model: Option<String>,
    pub serial: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub name: PathBuf,
    /// The pattern names an array (`md/…`). Only then may the content look like a RAID member.
    pub md: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub name: PathBuf,
    pub size: Option<u64>,
    pub model: Option<String>,
    pub reason: String,
    /// The error code if the owner had named this device.
    pub code: Code,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub target: Target,
    pub rejected: Vec<Rejection>,
}

/// All names that the patterns match, in the order of the patterns. `matches` returns paths below the root's `/dev`.
pub(crate) fn candidates<P>(
    patterns: &[P],
    paths: &Paths,
    matches: impl Fn(&P) -> io::Result<Vec<PathBuf>>,
    is_md: impl Fn(&P) -> bool,
) -> Result<Vec<Candidate>> {
    if patterns.is_empty() {
        return Err(Error::new(Code::NoTargetPattern, "no pattern says which disk is the internal one"));
    }
    let mut list = Vec::new();
    for pattern in patterns {
        let found = matches(pattern)
            .map_err(|e| Error::new(Code::Io, "cannot look for disks").object("/dev").because(e))?;
        for path in found {
            let name =
                path.strip_prefix(paths.root()).map_or_else(|_| path.clone(), |p| Path::new("/").join(p));
            list.push(Candidate { name, md: is_md(pattern) });
        }
    }
    Ok(list)
}

pub fn choose(candidates: &[Candidate], facts: &Facts, image: Option<ImageSize>) -> Result<Choice> {
    choose_again(candidates, facts, image, &mut Vec::new())
}

/// For repeated choices: rejections in `logged` are not logged again.
pub(crate) fn choose_again(
    candidates: &[Candidate],
    facts: &Facts,
    image: Option<ImageSize>,
    logged: &mut Vec<Rejection>,
) -> Result<Choice> {
    warn_of_hidden_root(facts);
    let medium = facts.medium();
    let mut seen: BTreeSet<Dev> = BTreeSet::new();
    let mut rejected: Vec<Rejection> = Vec::new();
    for candidate in candidates {
        let device = facts.device_at(&candidate.name);
        let again = match device {
            Some(d) => !seen.insert(d.dev),
            None => rejected.iter().any(|r| r.name == candidate.name),
        };
        if again {
            continue;
        }
        match checks::skip(candidate, device, facts, &medium) {
            Ok(device) => {
                checks::refuse(&candidate.name, device, facts, image)?;
                return Ok(Choice { target: block(&candidate.name, device, facts), rejected });
            }
            Err(rejection) => {
                if !logged.contains(&rejection) {
                    log_rejection(&rejection);
                    logged.push(rejection.clone());
                }
                rejected.push(rejection);
            }
        }
    }
    Err(none_left(facts, &rejected))
}

fn log_rejection(rejection: &Rejection) {
    let device = rejection.name.display();
    tracing::info!(
        MESSAGE_ID = events::TARGET_REJECTED,
        COPAL_DEVICE = %device,
        COPAL_ERROR_CODE = %rejection.code,
        "{device} is not the target: {} [{}]", rejection.reason, rejection.code
    );
}

fn block(name: &Path, device: &Device, facts: &Facts) -> Target {
    Target {
        name: name.to_owned(),
        node: facts.node_of(device),
        kind: TargetKind::Block,
        dev: Some(device.dev),
        size: device.size,
        block_size: device.block_size,
        by_id: identity::by_id(facts, device),
        model: device.model.clone(),
        serial: device.serial.clone(),
    }
}

/// An overlay whose layers are not visible excludes no disk; the disk below it is still refused as in use.
fn warn_of_hidden_root(facts: &Facts) {
    if let Some((mount, devs)) = facts.mount_of(Path::new("/"))
        && devs.is_empty()
        && !["rootfs", "tmpfs", "ramfs"].contains(&mount.fstype.as_str())
    {
        tracing::warn!(
            "no disk is found below / ({}): none is excluded as installation medium",
            mount.fstype
        );
    }
}

const MAX_LISTED: usize = 32;

fn none_left(facts: &Facts, rejected: &[Rejection]) -> Error {
    let mut lines: Vec<String> =
        rejected.iter().map(|r| line(&r.name, r.size, r.model.as_deref(), &r.reason)).collect();
    let named: BTreeSet<Dev> =
        rejected.iter().filter_map(|r| facts.device_at(&r.name)).map(|d| d.dev).collect();
    let disks =
        facts.devices().filter(|d| d.role != Role::Partition && !is_idle(d) && !named.contains(&d.dev));
    lines.extend(disks.map(|d| {
        let name = Path::new("/dev").join(d.kernel_name.replace('!', "/"));
        line(&name, Some(d.size), d.model.as_deref(), "no pattern names it")
    }));
    let more = lines.len().saturating_sub(MAX_LISTED);
    lines.truncate(MAX_LISTED);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let seen = if lines.is_empty() { "no block device was seen".to_owned() } else { lines.join("; ") };
    Error::new(Code::NoTarget, format!("found no disk to flash: {seen}")).object("/dev")
}

/// Devices that always exist and are never disks: loop devices without a file, disks in memory.
fn is_idle(device: &Device) -> bool {
    device.role == Role::Memory || (device.role == Role::Loop && device.size == 0)
}

fn line(name: &Path, size: Option<u64>, model: Option<&str>, reason: &str) -> String {
    let size = size.map_or_else(|| "not a block device".to_owned(), human);
    format!("{} ({size}, {}): {reason}", name.display(), model.unwrap_or("model unknown"))
}

fn human(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    let Some((unit, shift)) = unit else { return format!("{bytes} bytes") };
    let tenths = u128::from(bytes) * 10 / (1_u128 << shift);
    format!("{}.{} {unit}, {bytes} bytes", tenths / 10, tenths % 10)
}

/// Label of the boot partition of a flasher medium.
pub(crate) const FLASHER_BOOT_LABEL: &str = "flash-boot";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootElsewhere {
    pub mounted: PathBuf,
    /// The partition labelled `flash-boot` on the disk that holds `/`, if udev found exactly one.
    pub partition: Option<PathBuf>,
    pub partitions: Vec<PathBuf>,
}

/// Warns where `/mnt/boot` is on another disk than `/`: an older flasher on the internal disk has the same label. `None`:
/// it is on the same disk, or one of the two is not on a disk.
#[must_use]
pub fn medium_boot_partition(facts: &Facts) -> Option<BootElsewhere> {
    let (mount, devs) = facts.mount_of(Path::new("/mnt/boot"))?;
    let medium = facts.medium();
    if mount.point != Path::new("/mnt/boot") || devs.is_empty() || medium.is_empty() {
        return None;
    }
    if !facts.all_below(devs.iter().copied()).is_disjoint(&medium) {
        return None;
    }
    let mounted = devs.iter().filter_map(|d| facts.device(*d)).map(|d| facts.node_of(d)).next()?;
    let parts = facts.medium_partitions();
    let labelled: Vec<&&Device> =
        parts.iter().filter(|d| d.label.as_deref() == Some(FLASHER_BOOT_LABEL)).collect();
    let partition = if let [one] = labelled.as_slice() { Some(facts.node_of(one)) } else { None };
    tracing::warn!("/mnt/boot is {}, not on the disk that holds /", mounted.display());
    Some(BootElsewhere { mounted, partition, partitions: parts.iter().map(|d| facts.node_of(d)).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable_and_exact() {
        assert_eq!(human(0), "0 bytes");
        assert_eq!(human(1023), "1023 bytes");
        assert_eq!(human(16_008_609_792), "14.9 GiB, 16008609792 bytes");
        assert_eq!(human(u64::MAX), "16777215.9 TiB, 18446744073709551615 bytes");
    }

    #[test]
    fn without_patterns_there_is_an_error_of_its_own() {
        let none: [u8; 0] = [];
        let e = candidates(&none, &Paths::default(), |_| Ok(Vec::new()), |_| false).unwrap_err();
        assert_eq!(e.code(), Code::NoTargetPattern);
    }

    #[test]
    fn names_are_those_of_the_device_whatever_the_root() {
        let paths = Paths::new("/tmp/r");
        let found = |p: &&str| Ok(vec![PathBuf::from(format!("/tmp/r/dev/{p}"))]);
        let list = candidates(&["md/a", "sda"], &paths, found, |p| p.starts_with("md/")).unwrap();
        let expected = [
            Candidate { name: "/dev/md/a".into(), md: true },
            Candidate { name: "/dev/sda".into(), md: false },
        ];
        assert_eq!(list, expected);
    }
}
