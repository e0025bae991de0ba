//! Whether this device unlocks its disk, and would after a restart. Writes nothing but what completes or secures the policy that there is.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::path::{Path, PathBuf};

use super::next_start::{self, MAX_FILE_BYTES, NextStart, PROGRAMS, Start};
use super::policies::Policies;
use super::release;
use super::seal::{self, Sealed};
use crate::config::paths::Paths;
use crate::config::update_conf::{self, UpdateConf};
use crate::disk::{Device, Facts, Role};
use crate::engine::archive::{self, Requested};
use crate::error::{Code, Error, Result};
use crate::luks::mapping;
use crate::luks::passphrase::Passphrase;
use crate::luks::recovery;
use crate::measurements::{EventLog, Measured, Values, pcr};
use crate::slot::{Root, hostapp};
use crate::sys::file::{read_bytes, read_text};
use crate::tpm::Tpm;
use crate::tpm::policy::Digest;
use crate::tpm::store::{INDEX, SPARE};
use crate::uefi::variables::{Firmware, Variable};

/// Far above any.
const MAX_HOOK_BYTES: u64 = 1 << 20;

const RECOVER: &str = "run `copal recover` with the recovery passphrase, which the owner's key decrypts from recovery.enc; after it, restart the device";

const RESTART: &str = "restart the device first: the TPM gives the passphrase to the next start";

/// What was found, in order.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) right: Vec<String>,
    pub(crate) wrong: Vec<Error>,
    /// What stops no update.
    pub(crate) doubtful: Vec<Error>,
    /// Why the next start would not be unlocked, where that can be predicted. An update may repair it.
    pub(crate) next_start: Option<Error>,
    /// Where the TPM gave the passphrase.
    pub(crate) sealed: Option<Sealed>,
    /// Whether the owner can open the disk with the recovery passphrase.
    pub(crate) is_recoverable: bool,
}

/// `None` on a device whose disk is not unlocked by firmware and TPM: without UEFI, without secure boot, or not encrypted. On an encrypted
/// one, variables that cannot be read are an error.
pub(super) fn in_force(paths: &Paths, active: &Root) -> Result<Option<Firmware>> {
    in_force_on(paths, active.encrypted)
}

fn in_force_on(paths: &Paths, encrypted: bool) -> Result<Option<Firmware>> {
    if !encrypted {
        return Ok(None);
    }
    let Some(firmware) = Firmware::find(paths)? else { return Ok(None) };
    let must = |variable| {
        firmware.flag(variable)?.ok_or_else(|| {
            let name = variable.0;
            Error::new(Code::FirmwareVariableFailed, format!("the firmware has no variable {name}"))
                .object(name)
        })
    };
    let locked = must(Variable::SECURE_BOOT)? && !must(Variable::SETUP_MODE)?;
    Ok(locked.then_some(firmware))
}

/// Whether the loader in place differs from the release's, whose boot files are in `boot_files`, where each loader needs a policy of the TPM. Only
/// [`put_in_place`](super::put_in_place) may replace it then; and the configuration in place is signed for it.
pub(crate) fn has_other_loader(paths: &Paths, encrypted: bool, boot_files: &Path) -> bool {
    // Where the variables cannot be read, the hook has refused.
    if !matches!(in_force_on(paths, encrypted), Ok(Some(_))) {
        return false;
    }
    let [loader, _] = PROGRAMS;
    let own = boot_files.join(release::LOADER.trim_start_matches("resin-boot/"));
    let read = |path: PathBuf| read_bytes(&path, MAX_FILE_BYTES).ok();
    matches!((read(paths.plain_boot().join(loader)), read(own)), (Some(there), Some(own)) if there != own)
}

/// Of the environment of hooks: the caller or the board accepts another key of the loader.
pub(crate) const LOADER_KEY_ACCEPTED: &str = "COPAL_ACCEPT_LOADER_KEY=1";

/// Whether an update may change the key of the loader. `asked`: by the caller of the update.
pub(crate) fn accepts_loader_key(paths: &Paths, asked: bool) -> bool {
    let of_caller = LOADER_KEY_ACCEPTED
        .split_once('=')
        .is_some_and(|(name, value)| env::var(name).as_deref() == Ok(value));
    asked || of_caller || UpdateConf::read(paths).is_ok_and(|conf| conf.accept_loader_key)
}

/// What the loader of the running release takes; `None` where another key is accepted, with a warning, or where the release does not say it.
pub(super) fn running_loader_keys(paths: &Paths, accepted: bool) -> Option<Vec<u8>> {
    if accepted {
        tracing::warn!(
            "another key of the loader is accepted: if the release has one, a power cut before the update has ended leaves a device that does not start"
        );
        return None;
    }
    read_bytes(&path_in_slot(&paths.active(), release::LOADER_KEYS)?, MAX_FILE_BYTES).ok()
}

/// [`release::check`] of what is in the slot mounted at `slot`.
pub(crate) fn check_release(
    paths: &Paths,
    active: &Root,
    slot: &Path,
    accept_loader_key: bool,
) -> Result<()> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(()) };
    // That of the new release, as its hooks will read it.
    let conf = hostapp::release_file(slot, Path::new(update_conf::FILE.trim_start_matches('/')));
    let new = conf.as_deref().and_then(|conf| conf.ancestors().nth(3)).map(Paths::new);
    let accepted = accepts_loader_key(paths, accept_loader_key)
        || new.is_some_and(|new| accepts_loader_key(&new, false));
    let running = running_loader_keys(paths, accepted);
    release::check(&Measured::of(&firmware)?, running.as_deref(), &|name| {
        path_in_slot(slot, name).map_or(Ok(None), |path| read_below(slot, &path))
    })
}

/// A file of the release in the slot mounted at `slot`.
pub(super) fn path_in_slot(slot: &Path, name: &str) -> Option<PathBuf> {
    match name.strip_prefix("boot/") {
        // The boot folder is a volume.
        Some(name) => Some(slot.join("current/boot").join(name)),
        None => hostapp::release_file(slot, Path::new(name)),
    }
}

/// Reads a file of the release in the folder `top`; `None` if the file is missing. Refuses a link that leads out of the folder.
pub(super) fn read_below(top: &Path, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match path.symlink_metadata() {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    }
    // An absolute link would lead to the file of the running system.
    let path = path.canonicalize()?;
    if !path.starts_with(top.canonicalize()?) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it leads out of the release"));
    }
    read_bytes(&path, MAX_FILE_BYTES).map(Some)
}

/// [`release::reasons`] for a release that is not installed: in an image archive, or in the folder that would be its root. `None` as in
/// [`in_force`].
pub(crate) fn reasons_against(paths: &Paths, active: &Root, release: &Path) -> Result<Option<Vec<Error>>> {
    release.metadata().map_err(|e| {
        let name = release.display();
        Error::new(Code::Io, format!("cannot read the release {name}")).object(name).because(e)
    })?;
    let Some(firmware) = in_force(paths, active)? else { return Ok(None) };
    let now = Measured::of(&firmware)?;
    let running = running_loader_keys(paths, accepts_loader_key(paths, false));
    if release.is_dir() {
        let reasons =
            release::reasons(&now, running.as_deref(), &|name| read_below(release, &release.join(name)));
        return Ok(Some(reasons));
    }
    let names = release::files();
    let files: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    let archive = archive::read_files(release, &files, MAX_FILE_BYTES)?;
    let contents: BTreeMap<String, Requested> = names.into_iter().zip(archive.contents).collect();
    Ok(Some(release::reasons(&now, running.as_deref(), &|name| match contents.get(name) {
        Some(Requested::Content(content)) => Ok(Some(content.clone())),
        Some(Requested::Unclear) => {
            let why = "only the engine can determine what it is: install the archive, or name the folder of an unpacked release";
            Err(io::Error::new(io::ErrorKind::Unsupported, why))
        }
        Some(Requested::Missing) | None => Ok(None),
    })))
}

/// `None` as in [`in_force`].
pub(crate) fn look(paths: &Paths, facts: &Facts, active: &Root) -> Result<Option<Look>> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(None) };
    let mut look = Look::default();
    look_for_recovery(paths, facts, active, &mut look);
    let is_recoverable = look.is_recoverable;
    let with_remedy = |e: Error| if is_recoverable { e.with_hint(RECOVER) } else { e };
    match passphrase(paths) {
        Ok(sealed) => {
            look.right.push(format!(
                "the TPM gives the passphrase: index 0x{:x}, one of {} policies",
                sealed.index,
                sealed.list.branches().len()
            ));
            look.sealed = Some(sealed);
        }
        Err(e) => look.wrong.push(with_remedy(e)),
    }
    if let Some(why) = EventLog::read(paths).as_ref().and_then(EventLog::damage) {
        let message = format!("the firmware's log of its measurements cannot be read to its end: {why}");
        look.doubtful.push(Error::new(Code::MeasurementsNotUnderstood, message).object("TPM"));
    }
    match measurements(paths, &firmware) {
        Ok((text, start)) => {
            look.right.push(text);
            let known = look.sealed.as_ref().map(|sealed| sealed.list.branches()).or_else(|| held(paths));
            match known.map(|known| next_start::look(&paths.plain_boot(), &start, &known)) {
                Some(NextStart::Unlocks) => {
                    // As after an update to a release with the scripts.
                    look.wrong = look.wrong.into_iter().map(|e| e.with_hint(RESTART)).collect();
                    look.right.push(
                        "the next start, of the loader and the stage-2 kernel in place, meets a policy of the TPM"
                            .to_owned(),
                    );
                }
                Some(NextStart::DoesNotUnlock) => look.next_start = Some(would_not(
                    "the next start, of the loader and the stage-2 kernel in place, meets no policy of the TPM",
                ).with_hint("do not restart the device before another update, which seals the passphrase again")),
                Some(NextStart::Unknown(why)) => {
                    let message =
                        format!("cannot predict whether the next start unlocks the encrypted disk: {why}");
                    look.doubtful.push(Error::new(Code::WouldNotUnlock, message).object("TPM"));
                }
                None => {}
            }
        }
        Err(e) => look.wrong.push(e),
    }
    if let Some(sealed) = &look.sealed {
        match key_slots(facts, active, sealed) {
            Ok(text) => look.right.push(text),
            Err(e) => look.wrong.push(with_remedy(e)),
        }
    }
    Ok(Some(look))
}

/// Refuses an update of a device that would not unlock its disk, and completes a change that was cut off. `force`: not where the owner can open the
/// disk.
pub(crate) fn before_update(paths: &Paths, facts: &Facts, active: &Root, force: bool) -> Result<()> {
    let Some(look) = look(paths, facts, active)? else { return Ok(()) };
    match look.wrong.into_iter().next() {
        Some(e) if force && look.is_recoverable => {
            tracing::warn!(
                "--force: updating although {}; the recovery passphrase opens the disk",
                e.message()
            );
        }
        Some(e) => return Err(e),
        None => {}
    }
    look.doubtful.iter().chain(&look.next_start).for_each(|e| tracing::warn!("{}", e.message()));
    if let Some(sealed) = look.sealed.filter(|sealed| !sealed.is_whole && !sealed.is_for_another) {
        tracing::warn!("a change of the policy that unlocks the disk was cut off: completing it");
        seal::repair(&mut open(paths)?, &Policies::of(paths), &sealed)?;
    }
    Ok(())
}

/// At each start of the system: settles a spare index that the scripts' initramfs does not know, or that `copal unlock` could not settle.
pub(crate) fn settle_spare(paths: &Paths, active: &Root) -> Result<()> {
    if in_force(paths, active)?.is_none() {
        return Ok(());
    }
    let mut tpm = open(paths)?;
    if tpm.public(SPARE)?.is_none() {
        return Ok(());
    }
    let policies = Policies::of(paths);
    tracing::warn!("the TPM has a spare index: a change of the policy that unlocks the disk was cut off");
    // An initramfs that reads one index has opened the disk with that one.
    let sealed = seal::read_any(&mut tpm, &policies)?;
    seal::settle(&mut tpm, &sealed)?;
    seal::tidy(&policies, &sealed)
}

/// Before the hooks of the new release, which is in the slot mounted at `slot`. A shell release seals the passphrase in the main index for its own
/// start only: if the update ends before it restarts, the spare index gives it back, through the second list.
pub(crate) fn before_hooks(paths: &Paths, active: &Root, slot: &Path) -> Result<()> {
    const HOOK: &str = "etc/hostapp-update-hooks.d/0-signed-update";
    if in_force(paths, active)?.is_none() {
        return Ok(());
    }
    let hook =
        hostapp::release_file(slot, Path::new(HOOK)).and_then(|path| read_text(&path, MAX_HOOK_BYTES).ok());
    if hook.is_none_or(|text| text.contains("/copal")) {
        return Ok(());
    }
    tracing::info!(
        "the new release seals the passphrase of the disk in its own way; until its hooks have ended, the spare index keeps the policy of this start"
    );
    let (mut tpm, policies) = (open(paths)?, Policies::of(paths));
    let sealed = seal::read(&mut tpm, &policies)?;
    seal::keep_aside(&mut tpm, &policies, &sealed)
}

/// At the end of an update, of an undo and of a rollback: removes what [`before_hooks`] has made, so that nothing of it is there at rest. The
/// programs in place decide which start comes next.
pub(crate) fn after_hooks(paths: &Paths, active: &Root) -> Result<()> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(()) };
    let mut tpm = open(paths)?;
    if tpm.public(SPARE)?.is_none() {
        return Ok(());
    }
    let policies = Policies::of(paths);
    let sealed = seal::read(&mut tpm, &policies)?;
    let next = measurements(paths, &firmware)
        .map(|(_, start)| next_start::look(&paths.plain_boot(), &start, &sealed.list.branches()));
    match next {
        Ok(NextStart::Unlocks) => seal::take_back(&mut tpm, &policies, &sealed),
        _ => seal::end_aside(&mut tpm, &policies, &sealed),
    }
}

/// The branches of the first index, where the TPM does not give the passphrase to this start.
fn held(paths: &Paths) -> Option<Vec<Digest>> {
    let list = Policies::of(paths).current().ok()?;
    let public = open(paths).ok()?.public(INDEX).ok()??;
    public.holds(&list.policy()).then(|| list.branches())
}

fn passphrase(paths: &Paths) -> Result<Sealed> {
    seal::read(&mut open(paths)?, &Policies::of(paths))
}

pub(super) fn open(paths: &Paths) -> Result<Tpm> {
    Tpm::open(paths)?.ok_or_else(|| would_not("the device shows no TPM 2.0 (/dev/tpmrm0)"))
}

pub(super) fn would_not(why: &str) -> Error {
    Error::new(Code::WouldNotUnlock, format!("the encrypted disk would not be unlocked: {why}")).object("TPM")
}

/// What cannot be explained now cannot be predicted for the next start.
pub(super) fn measurements(paths: &Paths, firmware: &Firmware) -> Result<(String, Start)> {
    let mut values = open(paths)?.pcrs()?;
    let now = Measured::of(firmware)?;
    let log = EventLog::read(paths);
    if log.as_ref().is_some_and(EventLog::has_dma_protection_disabled) {
        let why =
            "the firmware says that DMA protection is disabled, and the initramfs reads no passphrase then";
        return Err(would_not(why).with_hint("switch the IOMMU on in the firmware's setup (VT-d, AMD-Vi)"));
    }
    // The next start is predicted from what the firmware has measured.
    let before = log.as_ref().and_then(|log| pcr::before_extended(log, &values, &seal::mark()));
    let is_closed = before.is_some();
    values = before.unwrap_or(values);
    let damage = log.as_ref().and_then(EventLog::damage).map(str::to_owned);
    // What is damaged may be of other PCRs, or after the last event.
    let log = log.filter(|log| damage.is_none() || pcr::leads_to(log, &values).is_ok());
    let text = match (&log, damage) {
        (None, damage) => {
            let has = match damage {
                None => "the firmware has left no log of its measurements".to_owned(),
                Some(why) => {
                    format!("the firmware's log of its measurements cannot be read to its end ({why})")
                }
            };
            format!("{has}, so the next start cannot be predicted exactly")
        }
        (Some(log), _) => explained(log, &now, &values)?,
    };
    let text = if is_closed {
        format!("{text}; this start has asked for the recovery passphrase, and the TPM gives nothing to it")
    } else {
        text
    };
    Ok((text, Start { log, now, values }))
}

fn explained(log: &EventLog, now: &Measured, values: &Values) -> Result<String> {
    pcr::explain(log, now, values).map_err(|why| would_not(&why))?;
    if !pcr::explains_authorities(log, now) {
        let why =
            "the firmware's log does not say what allowed the programs and drivers of this start (PCR 7)";
        return Err(would_not(why));
    }
    let authorities = if pcr::measures_authorities(log) { "also" } else { "not" };
    Ok(format!(
        "variables and log explain PCRs 0, 2, 3 and 7; the firmware does {authorities} measure what allowed its programs"
    ))
}

/// Each partition that is open and on the disk of the running root, with its node.
pub(super) fn encrypted_partitions<'a>(
    facts: &'a Facts,
    active: &Root,
) -> Result<Vec<(&'a Device, PathBuf)>> {
    let partitions: Vec<(&Device, PathBuf)> = facts
        .devices()
        .filter(|device| device.role == Role::Crypt)
        .flat_map(|device| device.below.iter().filter_map(move |dev| Some((device, facts.device(*dev)?))))
        .filter(|(_, below)| active.disk.is_some_and(|disk| below.below.contains(&disk)))
        .map(|(device, below)| (device, facts.node_of(below)))
        .collect();
    // The running root is on one of them.
    if partitions.is_empty() {
        return Err(would_not("no encrypted partition was found on the disk of the running root"));
    }
    Ok(partitions)
}

fn look_for_recovery(paths: &Paths, facts: &Facts, active: &Root, look: &mut Look) {
    let has_file = paths.plain_boot().join(recovery::FILE).is_file();
    if !mapping::can_be_tried() {
        return;
    }
    let slots = encrypted_partitions(facts, active).and_then(|all| {
        all.iter().map(|(_, node)| Ok(mapping::slots(node)?.contains(&recovery::SLOT))).collect()
    });
    let slots: Vec<bool> = match slots {
        Ok(slots) => slots,
        Err(e) => return look.doubtful.push(e),
    };
    let (count, all) = (slots.iter().filter(|is_used| **is_used).count(), slots.len());
    look.is_recoverable = has_file && count == all;
    if look.is_recoverable {
        let (file, slot) = (recovery::FILE, recovery::SLOT);
        look.right.push(format!(
            "there is a recovery slot: {file}, and key slot {slot} of {count} encrypted partitions"
        ));
    } else if has_file || count > 0 {
        let has = if has_file { "is there" } else { "is missing" };
        let message = format!(
            "the recovery slot is not complete: {} {has}, and {count} of {all} encrypted partitions have a key in slot {}",
            recovery::FILE,
            recovery::SLOT
        );
        let hint = "look at each header with `cryptsetup luksDump`; the receipt of the installation has a copy of the file";
        look.doubtful.push(Error::new(Code::WouldNotUnlock, message).object(recovery::FILE).with_hint(hint));
    } else {
        look.right.push(
            "the disk has no recovery slot: it stays locked if firmware, TPM or board change".to_owned(),
        );
    }
}

/// Of [`encrypted_partitions`].
fn key_slots(facts: &Facts, active: &Root, sealed: &Sealed) -> Result<String> {
    if !mapping::can_be_tried() {
        return Ok(
            "whether the key slots take the passphrase was not tried: cryptsetup is missing".to_owned()
        );
    }
    let passphrase = Passphrase::of(&sealed.secret)?;
    let partitions = encrypted_partitions(facts, active)?;
    for (device, node) in &partitions {
        mapping::test(node, &passphrase).map_err(|e| {
            let (node, name) = (node.display(), &device.name);
            let message = format!("no key slot of {node} ({name}) takes the passphrase of the TPM");
            Error::new(Code::WouldNotUnlock, message).object(node).because(e)
        })?;
    }
    Ok(format!("{} encrypted partitions take the passphrase", partitions.len()))
}
