//! The policy loses the starts that are past, at a commit.
//!
//! Each change of the policy has an instant at which the scripts of an initramfs do not unlock the disk, for they know one index and one list; `copal
//! unlock` has none. So this is done only while each start that is possible has `copal unlock` in both of its initramfs.

use std::fs;
use std::io;
use std::path::Path;

use super::check::{in_force, measurements, open, path_in_slot};
use super::next_start::{MAX_FILE_BYTES, PROGRAMS};
use super::pending::{InUse, parsed};
use super::policies::Policies;
use super::release::KERNEL;
use super::seal::{self, Sealed};
use crate::config::paths::Paths;
use crate::error::{Result, counted};
use crate::slot::Root;
use crate::sys::file::read_bytes;
use crate::tpm::Tpm;
use crate::uefi::variables::Firmware;

/// Beside the stage-2 kernel of a release whose two initramfs, that kernel's and the release's own, run `copal unlock`; made by the Yocto layer.
const MARK: &str = "boot/copal-unlock";

/// Kernels of extensions, each with an initramfs of its own (meta-balena, `initrdscripts/files/kexec`).
const OTHER_KERNELS: &str = "/mnt/data/boot-by-abi";

/// Why a start may have the scripts in an initramfs; `None`: each has `copal unlock`.
pub(crate) fn why_scripts_may_unlock(paths: &Paths) -> Option<String> {
    let slots = [("running", paths.active()), ("other", paths.inactive())];
    let mut starting = Vec::new();
    for (name, slot) in &slots {
        match may_start(slot) {
            Ok(true) => starting.push((name, slot)),
            Ok(false) => {}
            Err(e) => return Some(format!("the {name} system cannot be read: {e}")),
        }
    }
    for (name, slot) in &starting {
        if !path_in_slot(slot, MARK).is_some_and(|path| path.is_file()) {
            return Some(format!("the {name} system has no mark /{MARK}"));
        }
    }
    let [_, stage2] = PROGRAMS;
    let stage2 = read_bytes(&paths.plain_boot().join(stage2), MAX_FILE_BYTES).ok();
    let is_in_place = |slot: &Path| {
        let own = path_in_slot(slot, KERNEL).and_then(|path| read_bytes(&path, MAX_FILE_BYTES).ok());
        own.is_some() && own == stage2
    };
    if !starting.iter().any(|(_, slot)| is_in_place(slot)) {
        return Some("the stage-2 kernel in place is that of no system with the mark".to_owned());
    }
    match fs::read_dir(paths.at(OTHER_KERNELS)) {
        Ok(mut entries) => entries.next().map(|_| format!("{OTHER_KERNELS} has kernels of extensions")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => Some(format!("{OTHER_KERNELS} cannot be read: {e}")),
    }
}

/// Whether a slot has a system.
fn may_start(slot: &Path) -> io::Result<bool> {
    fs::read_dir(slot)?;
    match slot.join("current").symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// At a commit: completes a change that was cut off, and [narrows](narrow) the policy.
pub(crate) fn settle(paths: &Paths, active: &Root) -> Result<()> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(()) };
    let (mut tpm, policies) = (open(paths)?, Policies::of(paths));
    let sealed = seal::read(&mut tpm, &policies)?;
    seal::repair(&mut tpm, &policies, &sealed)?;
    narrow(paths, &firmware, &mut tpm, &policies, &sealed)
}

/// Drops each branch but those of the next start: of programs that are not in place any more, and without authorities once this firmware was seen to
/// measure them. Does nothing where this start has not met one that stays.
fn narrow(
    paths: &Paths,
    firmware: &Firmware,
    tpm: &mut Tpm,
    policies: &Policies,
    sealed: &Sealed,
) -> Result<()> {
    if sealed.is_for_another {
        return Ok(());
    }
    if let Some(why) = why_scripts_may_unlock(paths) {
        tracing::debug!("the policy keeps the starts that are past: {why}");
        return Ok(());
    }
    let (_, start) = measurements(paths, firmware)?;
    let in_use = InUse::read(paths);
    start.must_be_explained_by(&[&parsed(&in_use.in_place), &parsed(&in_use.release)])?;
    let next = in_use.policies(&start, &start.now);
    if !next.contains(&sealed.met) {
        tracing::debug!("the policy keeps the starts that are past: this start is not like the next one");
        return Ok(());
    }
    let known = sealed.list.branches();
    if known.iter().all(|branch| next.contains(branch)) {
        return Ok(());
    }
    tracing::info!(
        "the disk is no longer unlocked in {} of the past",
        counted(known.iter().filter(|branch| !next.contains(branch)).count(), "state")
    );
    seal::seal(tpm, policies, sealed, &next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose running slot has these files, and whose other one those; `None`: it has no system.
    fn device(running: &[(&str, &str)], other: Option<&[(&str, &str)]>, in_place: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for slot in ["active", "inactive"] {
            fs::create_dir_all(dir.path().join("mnt/sysroot").join(slot)).unwrap();
        }
        for (slot, files) in [("active", Some(running)), ("inactive", other)] {
            for (name, text) in files.into_iter().flatten() {
                put(&format!("mnt/sysroot/{slot}/current/boot/{name}"), text);
            }
        }
        put("mnt/boot/bzImage", in_place);
        dir
    }

    fn why(dir: &tempfile::TempDir) -> Option<String> {
        why_scripts_may_unlock(&Paths::new(dir.path()))
    }

    #[test]
    fn each_system_that_may_start_needs_the_mark_and_one_has_the_kernel_in_place() {
        const MARKED: [(&str, &str); 2] = [("bzImage", "one"), ("copal-unlock", "")];
        const UNMARKED: [(&str, &str); 1] = [("bzImage", "two")];
        assert_eq!(why(&device(&MARKED, None, "one")), None);
        assert_eq!(why(&device(&MARKED, Some(&[("bzImage", "two"), ("copal-unlock", "")]), "two")), None);
        let refused = [
            (device(&UNMARKED, None, "two"), "the running system has no mark"),
            (device(&MARKED, Some(&UNMARKED), "one"), "the other system has no mark"),
            (device(&MARKED, Some(&MARKED), "three"), "that of no system"),
            (device(&[("copal-unlock", "")], None, "one"), "that of no system"),
            (device(&[], None, "one"), "that of no system"),
        ];
        for (dir, words) in &refused {
            let said = why(dir).unwrap();
            assert!(said.contains(words), "{words}: {said}");
        }
        let dir = device(&MARKED, None, "one");
        fs::remove_file(dir.path().join("mnt/boot/bzImage")).unwrap();
        assert!(why(&dir).is_some());
        let dir = device(&MARKED, None, "one");
        fs::remove_dir(dir.path().join("mnt/sysroot/inactive")).unwrap();
        assert!(
            why(&dir).unwrap().contains("cannot be read"),
            "a slot that is not mounted may have a system"
        );
        // The kernel of an extension has an initramfs of its own.
        let dir = device(&MARKED, None, "one");
        fs::create_dir_all(dir.path().join("mnt/data/boot-by-abi/abc")).unwrap();
        assert!(why(&dir).unwrap().contains("extensions"));
    }
}
