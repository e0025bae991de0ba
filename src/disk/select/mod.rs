//! What will be written, and why nothing else.
//!
//! Some devices are passed over, each with its reason: they cannot be meant ([`skip`](checks)). The first that remains
//! is the target or refuses the flash; the search never goes on behind it, because moving on would wipe a disk nobody
//! meant, and board programs that look for the disk again would find the first one.

mod checks;
mod file;
mod identity;
mod named;
mod raid;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

pub use identity::Identity;
pub use named::named;

use crate::config::paths::Paths;
use crate::disk::{Dev, Device, Facts, Role};
use crate::error::{Code, Error, Result};
use crate::sys::log::events;

/// Kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// A whole disk.
    Block,
    /// A plain file, present or to be created.
    File,
}

/// Size of the uncompressed image that a target has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSize {
    /// Known.
    Exact(u64),
    /// Not known without a full pass; at least this much (what the partition table spans).
    AtLeast(u64),
}

/// A target that passed every check.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Target {
    /// The name as matched or as given: what board programs see.
    pub name: PathBuf,
    /// The device node after all symbolic links; for files the same as `name`.
    pub node: PathBuf,
    /// Disk or file.
    pub kind: TargetKind,
    /// `(major, minor)` of a block device.
    pub dev: Option<(u32, u32)>,
    /// Bytes; of a file its present size, 0 where it is not there yet.
    pub size: u64,
    /// Logical block size in bytes; 512 for files unless the image says otherwise.
    pub block_size: u32,
    /// `/dev/disk/by-id/…` link, where udev made one.
    pub by_id: Option<PathBuf>,
    /// Model, as the kernel or udev names it.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
}

/// A name that a pattern matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// `/dev/…` as matched.
    pub name: PathBuf,
    /// Whether the pattern asks for an array (`md/…`): only then may it be one whose content looks like a member.
    pub md: bool,
}

/// A device that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The name as matched.
    pub name: PathBuf,
    /// Bytes, where it is a block device.
    pub size: Option<u64>,
    /// Model, where known.
    pub model: Option<String>,
    /// Why, in words.
    pub reason: String,
    /// The error this would be, had the device been named by its owner.
    pub code: Code,
}

/// The outcome of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What to write.
    pub target: Target,
    /// What was passed over before it.
    pub rejected: Vec<Rejection>,
}

/// All names that patterns match, in the order of the patterns. `matches` returns paths below the root's `/dev`.
///
/// # Errors
/// [`Code::NoTargetPattern`] where there is no pattern; [`Code::Io`] where a pattern's folder cannot be read.
pub fn candidates<P>(
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

/// Chooses the target among `candidates`, in their order.
///
/// # Errors
/// [`Code::NoTarget`] where none remains, with every device seen. Otherwise what is wrong with the first that remains:
/// [`Code::TargetMounted`], [`Code::TargetSwap`], [`Code::TargetHeld`], [`Code::TargetReadOnly`],
/// [`Code::TargetTooSmall`], in this order: what is in use would be lost, and the later ones are no danger to it.
pub fn choose(candidates: &[Candidate], facts: &Facts, image: Option<ImageSize>) -> Result<Choice> {
    choose_again(candidates, facts, image, &mut Vec::new())
}

/// [`choose`] for whoever chooses several times: what `told` has is not logged once more.
///
/// # Errors
/// As there.
pub fn choose_again(
    candidates: &[Candidate],
    facts: &Facts,
    image: Option<ImageSize>,
    told: &mut Vec<Rejection>,
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
                if !told.contains(&rejection) {
                    tell(&rejection);
                    told.push(rejection.clone());
                }
                rejected.push(rejection);
            }
        }
    }
    Err(none_left(facts, &rejected))
}

fn tell(rejection: &Rejection) {
    let device = rejection.name.display();
    tracing::info!(
        MESSAGE_ID = events::TARGET_REJECTED,
        COPAL_DEVICE = %device,
        COPAL_ERROR_CODE = %rejection.code,
        "{device} is not the target: {} [{}]", rejection.reason, rejection.code
    );
}

/// A chosen disk with all that is known about it.
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

/// An overlay whose layers lie out of sight excludes no disk; the disk below is still refused as in use.
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

/// As many devices as an error lists; a disk array has hundreds.
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

/// Devices that are always there and never disks: loop devices without a file, disks in memory.
fn is_idle(device: &Device) -> bool {
    device.role == Role::Memory || (device.role == Role::Loop && device.size == 0)
}

fn line(name: &Path, size: Option<u64>, model: Option<&str>, reason: &str) -> String {
    let size = size.map_or_else(|| "not a block device".to_owned(), human);
    format!("{} ({size}, {}): {reason}", name.display(), model.unwrap_or("model unknown"))
}

/// A size as owners read it, followed by the exact number.
fn human(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    let Some((unit, shift)) = unit else { return format!("{bytes} bytes") };
    let tenths = u128::from(bytes) * 10 / (1_u128 << shift);
    format!("{}.{} {unit}, {bytes} bytes", tenths / 10, tenths % 10)
}

/// The medium's boot partition is not what is mounted at `/mnt/boot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootElsewhere {
    /// The device that is mounted there.
    pub mounted: PathBuf,
    /// The partition labelled `flash-boot` on the disk that holds `/`, where udev has read exactly one such label.
    pub partition: Option<PathBuf>,
    /// All partitions of that disk, for whoever reads labels himself.
    pub partitions: Vec<PathBuf>,
}

/// Looks whether `/mnt/boot` comes from another disk than `/`, as it does where an older flasher on the internal disk
/// has the same label; warns. `None`: it does not, or one of the two is not on a disk.
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
    let labelled: Vec<&&Device> = parts.iter().filter(|d| d.label.as_deref() == Some("flash-boot")).collect();
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
