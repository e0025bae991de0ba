//! The checks of a disk: some reject a device, others refuse the flash.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Candidate, Rejection, human, raid};
use crate::disk::select::ImageSize;
use crate::disk::{Dev, Device, Facts, Role, claimed};
use crate::error::{Code, Error, Result};

/// Rejects a device that cannot be the target, or returns it.
pub(super) fn skip<'a>(
    candidate: &Candidate,
    device: Option<&'a Device>,
    facts: &Facts,
    medium: &BTreeSet<Dev>,
) -> std::result::Result<&'a Device, Rejection> {
    let reject = |code, reason: String| Rejection {
        name: candidate.name.clone(),
        size: device.map(|d| d.size),
        model: device.and_then(|d| d.model.clone()),
        reason,
        code,
    };
    let Some(device) = device else {
        return Err(reject(Code::TargetNotDisk, "it is not a block device".into()));
    };
    if !device.role.is_whole_disk() {
        return Err(reject(
            Code::TargetNotDisk,
            format!("it is {}, not a whole disk", device.role.describe()),
        ));
    }
    if device.size == 0 {
        return Err(reject(Code::TargetNoMedium, "there is no medium in it".into()));
    }
    if medium.contains(&device.dev) {
        return Err(reject(Code::TargetIsMedium, "it holds the running system".into()));
    }
    // Only for an array: a link below /dev/md to a plain disk gives the disk no exception.
    let as_array = candidate.md && device.role == Role::Array;
    if !as_array && let Some(what) = raid::member(facts, device) {
        return Err(reject(Code::TargetRaidMember, format!("it is a RAID member: {what}")));
    }
    Ok(device)
}

/// Refuses a disk that must not be written now. Use is checked first, because it means a loss of data.
pub(super) fn refuse(name: &Path, device: &Device, facts: &Facts, image: Option<ImageSize>) -> Result<()> {
    let refused = |code, why: String| {
        Err(Error::new(code, format!("cannot flash {}: {why}", name.display())).object(name.display()))
    };
    if let Some((code, why)) = in_use(device, facts) {
        return refused(code, why);
    }
    if device.read_only {
        return refused(Code::TargetReadOnly, "it is read-only".into());
    }
    if let Some(why) = too_small(device.size, image) {
        return refused(Code::TargetTooSmall, why);
    }
    Ok(())
}

fn too_small(size: u64, image: Option<ImageSize>) -> Option<String> {
    let (least, at_least) = match image? {
        ImageSize::Exact(n) => (n, ""),
        ImageSize::AtLeast(n) => (n, "at least "),
    };
    (size < least).then(|| format!("the image needs {at_least}{}, and it has {}", human(least), human(size)))
}

/// The first use of a device or of anything stacked on it: mounted, used for swap, held.
pub(super) fn in_use(device: &Device, facts: &Facts) -> Option<(Code, String)> {
    let stack = facts.all_above([device.dev]);
    mounted(&stack, facts)
        .map(|why| (Code::TargetMounted, why))
        .or_else(|| swapped(&stack, facts).map(|why| (Code::TargetSwap, why)))
        .or_else(|| held(device, &stack, facts).map(|why| (Code::TargetInUse, why)))
        .or_else(|| claimed_elsewhere(device, facts).map(|why| (Code::Busy, why)))
}

fn mounted(stack: &BTreeSet<Dev>, facts: &Facts) -> Option<String> {
    let mut found = facts.mounts().filter_map(|(mount, devs)| {
        let dev = devs.intersection(stack).next()?;
        Some((&mount.point, facts.device(*dev)?))
    });
    let (point, device) = found.next()?;
    let more = match found.count() {
        0 => String::new(),
        1 => " (and at another place)".into(),
        n => format!(" (and at {n} other places)"),
    };
    Some(format!("/dev/{} is mounted at {}{more}", device.name, point.display()))
}

fn swapped(stack: &BTreeSet<Dev>, facts: &Facts) -> Option<String> {
    facts.swaps().iter().find_map(|swap| {
        let on: BTreeSet<Dev> = if swap.is_device {
            // In a chroot with a mount namespace of its own, the path starts outside of it; the device name is the same.
            let by_name = || facts.device_at(&Path::new("/dev").join(swap.path.file_name()?));
            facts.device_at(&swap.path).or_else(by_name).map(|d| d.dev).into_iter().collect()
        } else {
            facts.mount_of(&swap.path)?.1.clone()
        };
        (!on.is_disjoint(stack)).then(|| format!("the system uses {} for swap", swap.path.display()))
    })
}

fn held(device: &Device, stack: &BTreeSet<Dev>, facts: &Facts) -> Option<String> {
    let members = || stack.iter().filter_map(|d| facts.device(*d));
    let holder = members().find(|d| d.dev != device.dev && d.role != Role::Partition);
    if let Some(holder) = holder {
        let beneath = holder.below.iter().find(|d| stack.contains(d)).and_then(|d| facts.device(*d));
        let beneath = beneath.map_or(device.name.as_str(), |d| d.name.as_str());
        return Some(format!("/dev/{beneath} is held by {}, {}", holder.name, holder.role.describe()));
    }
    if let Some((user, what)) = members().find_map(|d| Some((d, d.uses.first()?))) {
        return Some(format!("/dev/{} is in use: {what}", user.name));
    }
    None
}

fn claimed_elsewhere(device: &Device, facts: &Facts) -> Option<String> {
    claimed(&facts.node_of(device)).then(|| {
        "another program or the kernel uses it exclusively; it may be mounted in another mount namespace"
            .into()
    })
}
