//! Makes the TPM unlock a disk again that only the recovery passphrase opens: with a new passphrase, in a key slot beside the old one until the TPM has
//! it. The key slot of the recovery passphrase is never changed, so that a power cut anywhere leaves a disk that the owner can open.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::check::{measurements, open, would_not};
use super::next_start::{MAX_FILE_BYTES, PROGRAMS};
use super::partitions::{Disk, LOOK, Plain};
use super::pending::parsed;
use super::policies::Policies;
use super::{next_start, seal};
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Effect, Error, Result};
use crate::luks::mapping;
use crate::luks::passphrase::Passphrase;
use crate::luks::recovery::{self, DEVICE_SLOTS, Recovery, SLOT};
use crate::slot::Roots;
use crate::sys::block::major_minor;
use crate::sys::file::{self, read_bytes};
use crate::tpm::policy;
use crate::uefi::variables::{Firmware, Variable};

/// Not what an installation does after such an error.
const AGAIN: &str = "run `copal recover` again; do not flash the device: that erases its data";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovered {
    /// Nothing was changed.
    Whole,
    /// All was there but the removal of an old key.
    Completed,
    /// `own`: the running system is the one on this disk.
    Sealed { slot: u8, own: bool },
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, starts) = match self {
            Recovered::Whole => {
                return f.write_str(
                    "nothing to do: the TPM gives the passphrase, all encrypted partitions take it, and the next start is unlocked",
                );
            }
            Recovered::Completed => {
                return f.write_str(
                    "the TPM gives the passphrase already; the old key was removed from the partitions",
                );
            }
            Recovered::Sealed { slot, own: true } => (slot, "this start and to the next one"),
            Recovered::Sealed { slot, own: false } => (slot, "the next start from this disk"),
        };
        write!(
            f,
            "all encrypted partitions have a new key, in slot {slot}, and the TPM gives its passphrase to {starts}; the old key was removed; the recovery passphrase is the same as before"
        )
    }
}

/// `ask` gets the recovery passphrase, after all that can be refused without it.
pub(crate) fn recover(paths: &Paths, ask: &dyn Fn() -> Result<Recovery>) -> Result<Recovered> {
    let firmware = locked(paths)?;
    let disk = Disk::wait(paths, Duration::ZERO).map_err(|e| not_possible(&e.message()))?;
    let plain = Plain::to_write(paths, &disk.plain)?;
    let policies = Policies::at(plain.0.clone());
    let mut tpm = open(paths)?;
    tpm.check()?;
    let (text, start) = measurements(paths, &firmware)?;
    if start.log.is_none() {
        tracing::warn!("{text}");
        // Started from the disk, or from a medium with its own programs.
        let read = |path: PathBuf| read_bytes(&path, MAX_FILE_BYTES).ok();
        let [loader, kernel] = PROGRAMS;
        let of_disk = PROGRAMS.map(|name| read(plain.0.join(name)));
        let of_medium = [read(paths.boot().join(loader)), read(paths.at("/boot").join(kernel))];
        start.must_be_explained_by(&[&parsed(&of_disk), &parsed(&of_medium)])?;
    }
    let next = next_start::policies(&plain.0, &start)
        .map_err(|why| would_not(&format!("the next start cannot be predicted: {why}")))?;
    let known = ask()?.passphrase()?;
    for (name, node) in &disk.encrypted {
        mapping::test_slot(node, SLOT, &known).map_err(|e| {
            let node = node.display();
            recovery::wrong(&format!("key slot {SLOT} of {node} ({name}) does not take it"))
                .object(node)
                .because(e)
        })?;
    }

    let used = disk.encrypted.iter().map(|(_, node)| mapping::slots(node));
    let used =
        used.collect::<Result<Vec<_>>>().map_err(|e| e.with_effect(Effect::Refused).with_hint(LOOK))?;
    let partitions = || disk.encrypted.iter().map(|(_, node)| node.as_path()).zip(&used);
    if let Ok(sealed) = seal::read(&mut tpm, &policies)
        && sealed.is_whole
        && next.iter().any(|branch| sealed.list.branches().contains(branch))
    {
        let passphrase = Passphrase::of(&sealed.secret)?;
        let takes = |slot: &u8| {
            partitions().all(|(node, used)| {
                used.contains(slot) && mapping::test_slot(node, *slot, &passphrase).is_ok()
            })
        };
        if let Some(slot) = DEVICE_SLOTS.iter().find(|slot| takes(slot)) {
            let removed = remove(partitions(), *slot, &passphrase).map_err(|e| e.with_hint(AGAIN))?;
            return Ok(if removed { Recovered::Completed } else { Recovered::Whole });
        }
    }

    let slot = free_slot(&used);
    let secret = tpm.passphrase()?;
    let new = Passphrase::of(&secret)?;
    // Not where this start has asked for the recovery passphrase.
    let own = runs_from(paths, &disk.plain) && next.contains(&policy::pcr(&tpm.pcrs()?));
    let again =
        |e: Error| e.and_also("the recovery passphrase still opens the disk").with_hint(AGAIN).after_write();
    tracing::info!("slot {slot} of each encrypted partition gets a new key");
    put(partitions(), slot, &known, &new).map_err(again)?;
    tracing::info!("the TPM gets the passphrase");
    seal::replace(&mut tpm, &policies, &next, &secret).map_err(again)?;
    remove(partitions(), slot, &known).map_err(|e| {
        e.and_also("the TPM has the new passphrase; run `copal recover` again to remove the old key")
            .with_hint(AGAIN)
            .after_success()
    })?;
    Ok(Recovered::Sealed { slot, own })
}

/// One that no partition has a key in; else one that an earlier run has not put into all of them. The TPM may hold the passphrase of any other.
fn free_slot(used: &[Vec<u8>]) -> u8 {
    let count = |slot: &u8| used.iter().filter(|used| used.contains(slot)).count();
    let [first, ..] = DEVICE_SLOTS;
    DEVICE_SLOTS.into_iter().min_by_key(count).unwrap_or(first)
}

fn not_possible(why: &str) -> Error {
    Error::new(Code::RecoveryNotPossible, format!("cannot recover: {why}"))
}

/// Where the firmware does not start signed programs only, what unlocks the disk would be sealed for any program.
fn locked(paths: &Paths) -> Result<Firmware> {
    let firmware =
        Firmware::find(paths)?.ok_or_else(|| not_possible("the device was not started by UEFI"))?;
    if firmware.flag(Variable::SECURE_BOOT)? == Some(true)
        && firmware.flag(Variable::SETUP_MODE)? == Some(false)
    {
        return Ok(firmware);
    }
    Err(not_possible("secure boot is off, or the firmware is in setup mode"))
}

fn put<'a>(
    partitions: impl Iterator<Item = (&'a Path, &'a Vec<u8>)>,
    slot: u8,
    known: &Passphrase,
    new: &Passphrase,
) -> Result<()> {
    for (node, used) in partitions {
        if used.contains(&slot) {
            mapping::remove_key(node, slot, known)?;
        }
        mapping::add_key(node, slot, known, new)?;
        mapping::test_slot(node, slot, new)?;
        // Before the TPM forgets the old passphrase.
        file::flush_node(node).map_err(|e| {
            let node = node.display();
            Error::new(Code::EncryptionFailed, format!("cannot flush {node}")).object(node).because(e)
        })?;
    }
    Ok(())
}

/// Removes the keys of the device but for that in the slot `kept`. Returns whether there were any.
fn remove<'a>(
    partitions: impl Iterator<Item = (&'a Path, &'a Vec<u8>)>,
    kept: u8,
    known: &Passphrase,
) -> Result<bool> {
    let mut removed = false;
    for (node, used) in partitions {
        for slot in DEVICE_SLOTS.iter().filter(|slot| **slot != kept && used.contains(slot)) {
            mapping::remove_key(node, *slot, known)?;
            removed = true;
        }
    }
    Ok(removed)
}

/// Whether the running root is on the disk of this partition.
fn runs_from(paths: &Paths, partition: &Path) -> bool {
    let Ok(facts) = Facts::gather(paths) else { return false };
    let active = Roots::of(&facts).ok().and_then(|roots| roots.active.disk);
    let dev = std::fs::metadata(partition).map(|meta| major_minor(meta.rdev()));
    let below = dev.ok().and_then(|dev| facts.device(dev)).map(|device| &device.below);
    active.zip(below).is_some_and(|(disk, below)| below.contains(&disk))
}
