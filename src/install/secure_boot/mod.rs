//! Secure boot with UEFI and a TPM 2.0, without plug-ins: copal enrols the keys, and the TPM keeps the passphrase.
//!
//! Names, files, index and PCRs are those of meta-balena v8.0.2 (`balena-init-flasher-efi`, `-tpm`): the initramfs of each release relies on them.
//! The order is that of `docs/secure-boot.md`: `PK` comes last, when the disk is complete. Until then the firmware starts the medium again.

mod keys;
mod programs;
mod split;

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::boot_files::install::BootPartition;
use crate::config::config_json::ConfigJson;
use crate::config::flasher_conf::FlasherConf;
use crate::config::paths::Paths;
use crate::disk::partition::of_bytes;
use crate::error::{Code, Error, Result};
use crate::image::digest::Digest256;
use crate::luks::recovery;
use crate::measurements::{EventLog, Measured, pcr};
use crate::tpm::policy::{self, Digest};
use crate::tpm::store::Secret;
use crate::tpm::{Tpm, store};
use crate::uefi::authenticode::Program;
use crate::uefi::variables::{Firmware, Variable};
use crate::uefi::{Guid, authenticated, signature_list};
use crate::unlock::policies::{self, List};
use keys::Keys;
use programs::{Programs, SECURE_SUFFIX};
pub(super) use split::EFI;

/// The partition that the firmware reads, and where it is mounted beside the encrypted one.
pub(super) const LABEL: &str = "balena-efi";
const POINT: &str = "/tmp/efi";

/// What the firmware allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The firmware is in setup mode.
    EnrolKeys,
    /// The medium's keys are enrolled.
    KeysAreEnrolled,
}

/// For the plan: nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub decision: Decision,
    /// SHA-256 of the lists that the variables of the firmware have afterwards.
    pub keys: Vec<Enrolled>,
    /// What `db` of the firmware allows besides, if the keys are enrolled already: hashes of programs, and fingerprints of certificates that the
    /// owner allows, both SHA-256.
    pub others: Vec<String>,
    /// Of the next start: without authorities, with the authorities of loader and kernel, and with the drivers' before these.
    #[serde(serialize_with = "hexadecimal")]
    pub pcr7: Vec<Digest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Enrolled {
    pub variable: &'static str,
    pub sha256: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.decision {
            Decision::EnrolKeys => "the medium's keys are enrolled, PK last",
            Decision::KeysAreEnrolled => "the medium's keys are in the firmware already",
        };
        writeln!(f, "        secure boot: {what}")?;
        for Enrolled { variable, sha256 } in &self.keys {
            writeln!(f, "        {variable:>6}  {sha256}")?;
        }
        for sha256 in &self.others {
            writeln!(f, "        {:>6}  {sha256}, also in db", "")?;
        }
        self.pcr7
            .iter()
            .try_for_each(|value| writeln!(f, "        {:>6}  {} at the next start", "PCR 7", hex(value)))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hexadecimal<S: Serializer>(digests: &[Digest], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(digests.iter().map(|digest| hex(digest)))
}

/// All that was found, checked and computed before anything is changed.
#[derive(Debug)]
pub(super) struct SecureBoot {
    firmware: Firmware,
    keys: Keys,
    programs: Programs,
    /// Drivers of option ROMs that are to be allowed.
    drivers: Vec<u8>,
    db: Vec<u8>,
    policies: List,
    pub(super) summary: Summary,
}

/// Whether copal itself provides secure boot on this board.
pub(super) fn is_built_in(conf: &FlasherConf) -> bool {
    conf.kernel_image.is_some()
}

/// What an installation has to be. `None`: without encryption. Refuses one that would not start, or that would not have what the owner asks for.
pub(super) fn decide(paths: &Paths, opted_in: bool) -> Result<Option<Decision>> {
    let unfit = |why: &str, hint: &str| {
        let message = format!("cannot install: {why}");
        Error::new(Code::SecureBootStateUnfit, message).object("secure boot").with_hint(hint)
    };
    let found = match Firmware::find(paths) {
        // A kernel without runtime services of the firmware, say.
        Err(e) if !opted_in => {
            tracing::warn!("{}; installing without encryption", e.message());
            None
        }
        found => found?,
    };
    let Some(firmware) = found else {
        let why =
            "config.json asks for secure boot (installer.secureboot), and the device was not started by UEFI";
        return if opted_in {
            Err(unfit(why, "switch the firmware's setup to UEFI, without a compatibility mode"))
        } else {
            Ok(None)
        };
    };
    let (secure, setup) = (firmware.flag(Variable::SECURE_BOOT)?, firmware.flag(Variable::SETUP_MODE)?);
    match (opted_in, secure, setup) {
        (false, Some(true), Some(false)) => Err(unfit(
            "secure boot is on, and config.json does not ask for it (installer.secureboot): the installed system would not start",
            "set installer.secureboot to true in config.json, or clear the keys in the firmware's setup",
        )),
        (false, ..) => Ok(None),
        (true, None, _) | (true, _, None) => Err(unfit(
            "config.json asks for secure boot (installer.secureboot), and the firmware does not have it",
            "update the firmware, or remove installer.secureboot from config.json",
        )),
        (true, _, Some(true)) => Ok(Some(Decision::EnrolKeys)),
        (true, Some(true), Some(false)) if are_enrolled(&firmware, &Keys::read(paths)?)? => {
            Ok(Some(Decision::KeysAreEnrolled))
        }
        (true, ..) => Err(unfit(
            "the firmware has other keys, or secure boot is off",
            "clear the keys in the firmware's setup, so that it is in setup mode, and start the medium again",
        )),
    }
}

fn are_enrolled(firmware: &Firmware, keys: &Keys) -> Result<bool> {
    let (pk, kek) = (firmware.read(Variable::PK)?, firmware.read(Variable::KEK)?);
    Ok(pk.as_ref() == Some(&keys.pk) && kek.as_ref() == Some(&keys.kek))
}

impl SecureBoot {
    /// Refuses what would not start, or would not unlock. `boot`: the image's boot partition.
    pub(super) fn prepare(
        paths: &Paths,
        conf: &FlasherConf,
        config: &ConfigJson,
        image: &std::path::Path,
        boot: &[u8],
        decision: Decision,
    ) -> Result<SecureBoot> {
        let cannot_be = |what: &str| {
            Error::new(Code::SecureBootStateUnfit, format!("cannot install: {what}")).object("secure boot")
        };
        let firmware =
            Firmware::find(paths)?.ok_or_else(|| cannot_be("the device was not started by UEFI"))?;
        let keys = Keys::read(paths)?;
        let programs = Programs::gather(paths, conf, image, &mut of_bytes(boot))?;
        let mut tpm = Tpm::open(paths)?.ok_or_else(|| {
            let message = "cannot install with secure boot: the device has no TPM 2.0 (/dev/tpmrm0)";
            Error::new(Code::TpmUnusable, message)
                .object("TPM")
                .with_hint("switch the TPM on in the firmware's setup")
        })?;
        tpm.check()?;

        let values = tpm.pcrs()?;
        let now = Measured::of(&firmware)?;
        let log = EventLog::read(paths);
        if let Some(why) = log.as_ref().and_then(EventLog::damage) {
            return Err(not_understood(&format!("its log cannot be used: {why}")));
        }
        match &log {
            Some(log) => pcr::explain(log, &now, &values).map_err(|why| not_understood(&why))?,
            None => tracing::warn!(
                "the firmware has left no log of its measurements: those of the next start are guessed"
            ),
        }
        if log.as_ref().is_some_and(EventLog::has_dma_protection_disabled) {
            let why =
                "the firmware says that DMA protection is disabled: a device could read the key of the disk";
            return Err(
                cannot_be(why).with_hint("switch the IOMMU on in the firmware's setup (VT-d, AMD-Vi)")
            );
        }

        let [pcr0, pcr2, pcr3, _] = values;
        let enrols = decision == Decision::EnrolKeys;
        if log.is_none() && enrols && now.pcr7(&pcr::between(None), &[]) != values[3] {
            return Err(not_understood(
                "it has left no log of them, and its variables do not lead to the value of PCR 7",
            ));
        }
        if !enrols && log.as_ref().is_some_and(|log| !pcr::explains_authorities(log, &now)) {
            return Err(not_understood(
                "its log does not say what allowed the programs and drivers of this start (PCR 7)",
            ));
        }
        let without_drivers = pcr::pcr2_without_drivers(log.as_ref(), pcr2).ok_or_else(|| {
            not_understood("it has started drivers (PCR 2), and has left no log that says which")
        })?;
        // Where the keys are enrolled, secure boot is on: the next start has the same drivers.
        let with_drivers = !enrols || config.installer_whitelist_pcr2()?;
        if !with_drivers && pcr2 != without_drivers {
            tracing::warn!(
                "the firmware has started drivers of cards, which it will not start with the new keys; installer.whitelist_pcr2 in config.json allows them"
            );
        }
        let started = log.as_ref().filter(|_| with_drivers).map(pcr::drivers).unwrap_or_default();
        let drivers = signature_list::of_hashes(&started, Guid::GLOBAL);
        let mut later = Measured { secure_boot: vec![1], ..now };
        if enrols {
            let append = |old: &[u8], new: &[u8]| signature_list::append(old, new).map_err(cannot_be);
            later.db = append(&append(&keys.loader, &keys.kernel)?, &drivers)?;
            (later.pk, later.kek) = (keys.pk.clone(), keys.kek.clone());
        }
        let others =
            if enrols { Vec::new() } else { others(&later.db, &keys, &config.installer_db_certificates()?)? };
        let loader = firmware_program(&programs.loader, "the image's loader")?;
        let kernel = firmware_program(&programs.kernel, "the stage-2 kernel")?;
        for (what, program) in [("image's loader", &loader), ("medium's stage-2 kernel", &kernel)] {
            if let Some(why) = later.refusal(program) {
                return Err(match decision {
                    Decision::EnrolKeys => {
                        programs::invalid("balena-keys", &format!("with its lists, the firmware would not start the {what}: {why}"))
                    }
                    Decision::KeysAreEnrolled => cannot_be(&format!("the firmware would not start the {what}: {why}"))
                        .with_hint("use a medium of the release that was installed last, or of a later one; or clear the keys in the firmware's setup"),
                });
            }
        }
        let pcr7 = pcr::branches(&later, &pcr::between(log.as_ref()), &started, &[&loader, &kernel])
            .ok_or_else(|| {
                Error::internal("the firmware starts both programs, and has nothing that allows them")
            })?;
        let pcr2 = if with_drivers { pcr2 } else { without_drivers };
        let branches: Vec<Digest> = pcr7.iter().map(|pcr7| policy::pcr(&[pcr0, pcr2, pcr3, *pcr7])).collect();
        let policies = List::of(&branches, &List::default(), &[pcr0, pcr2, pcr3, [0; 32]]);
        let list = |variable, lists: &[u8]| Enrolled { variable, sha256: hex(&Digest256::of(lists).0) };
        let summary = Summary {
            decision,
            keys: vec![list("PK", &later.pk), list("KEK", &later.kek), list("db", &later.db)],
            others,
            pcr7,
        };
        Ok(SecureBoot { firmware, keys, programs, drivers, db: later.db, policies, summary })
    }

    fn enrols(&self) -> bool {
        self.summary.decision == Decision::EnrolKeys
    }

    /// Puts all keys but `PK` into the firmware, and tests the TPM. Gives a new passphrase, which the TPM does not have yet. What an older installation
    /// unlocks with is left alone.
    pub(super) fn set_up(&self, paths: &Paths) -> Result<Secret> {
        if self.enrols() {
            self.enrol_all_but_pk()?;
        }
        let mut tpm = open(paths)?;
        tpm.test_space()?;
        tpm.passphrase()
    }

    /// Seals the passphrase in the TPM, after the old disk was cleared. First removes the spare index that an older copal may have made for that disk.
    pub(super) fn store(&self, paths: &Paths, secret: &Secret) -> Result<()> {
        let mut tpm = open(paths)?;
        let stored =
            tpm.remove(store::SPARE).and_then(|()| tpm.store(store::INDEX, &self.policies.policy(), secret));
        let encrypted = stored.map_err(|e| {
            if let Err(also) = tpm.remove(store::INDEX) {
                tracing::warn!("{}", also.message());
            }
            e.after_write()
        })?;
        if !encrypted {
            tracing::warn!(
                "the TPM cannot encrypt what is sent to it: the passphrase crosses its bus in the clear"
            );
        }
        Ok(())
    }

    fn enrol_all_but_pk(&self) -> Result<()> {
        let header = authenticated::unsigned(SystemTime::now().max(self.keys.made));
        let with_header = |lists: &[u8]| [header.as_slice(), lists].concat();
        // What an earlier run has written stays: firmware may refuse an older or equal time.
        let is_there = |variable, lists: &[u8]| -> Result<bool> {
            Ok(self.firmware.read(variable)?.is_some_and(|found| found == lists))
        };
        if !is_there(Variable::DB, &self.db)? {
            self.write_db(&with_header)?;
        }
        if !is_there(Variable::KEK, &self.keys.kek)? {
            tracing::info!("firmware: KEK");
            self.firmware.replace_keys(Variable::KEK, &self.keys.kek_auth, &self.keys.kek)?;
        }
        if self.firmware.flag(Variable::SETUP_MODE)? != Some(true) {
            let message = "the firmware left setup mode before PK was enrolled";
            return Err(Error::new(Code::FirmwareVariableFailed, message).object("SetupMode"));
        }
        Ok(())
    }

    fn write_db(&self, with_header: &dyn Fn(&[u8]) -> Vec<u8>) -> Result<()> {
        tracing::info!("firmware: db gets the hashes of loader and kernel");
        self.firmware.replace_keys(Variable::DB, &with_header(&self.keys.loader), &self.keys.loader)?;
        let mut db = self.keys.loader.clone();
        for lists in [&self.keys.kernel, &self.drivers] {
            let longer = signature_list::append(&db, lists).map_err(Error::internal)?;
            if longer != db {
                self.firmware.append_keys(Variable::DB, &with_header(lists), &longer)?;
            }
            db = longer;
        }
        if db == self.db {
            return Ok(());
        }
        let message = "the firmware has other contents in db than it was given";
        Err(Error::new(Code::FirmwareVariableFailed, message).object("db"))
    }

    /// From here on the firmware starts signed programs only. Does nothing where the keys are there. An error says that the firmware has no
    /// `PK`, and is in setup mode.
    pub(super) fn enrol_pk(&self) -> Result<()> {
        if !self.enrols() {
            return Ok(());
        }
        tracing::info!("firmware: PK, which ends setup mode");
        let written = self.firmware.replace_keys(Variable::PK, &self.keys.pk_auth, &self.keys.pk);
        // Firmware that has a PK starts signed programs only, at the latest from its next start on: to undo the installation then would leave a
        // device that starts nothing.
        match written {
            Err(e) if matches!(self.firmware.read(Variable::PK), Ok(None)) => return Err(e.after_write()),
            Err(e) => tracing::warn!("{}; the firmware may have a PK all the same", e.message()),
            Ok(()) => match self.firmware.flag(Variable::SETUP_MODE) {
                Ok(Some(false)) => {}
                Ok(_) => tracing::warn!(
                    "the firmware has PK, and does not say that setup mode has ended: its next start will show it"
                ),
                Err(e) => tracing::warn!("{}", e.message()),
            },
        }
        Ok(())
    }

    /// Mounts the partition that the firmware reads, which is returned even after a failure, and makes it start and unlock the encrypted disk.
    pub(super) fn split(
        &self,
        paths: &Paths,
        node: &std::path::Path,
        encrypted: &BootPartition,
        recovery: Option<&[u8]>,
    ) -> (Option<PathBuf>, Result<()>) {
        let plain = match BootPartition::mount(node, &paths.at(POINT)) {
            Ok(plain) => plain,
            Err(e) => return (None, Err(e)),
        };
        let mut files: Vec<split::NewFile<'_>> = self
            .policies
            .files()
            .map(|(name, content)| split::NewFile {
                folders: &[policies::FOLDER],
                name: name.as_os_str(),
                content,
            })
            .collect();
        let signature = format!("{}.sig", self.programs.kernel_name);
        files.push(split::NewFile {
            folders: &[],
            name: self.programs.kernel_name.as_ref(),
            content: &self.programs.kernel,
        });
        files.push(split::NewFile {
            folders: &[],
            name: signature.as_ref(),
            content: &self.programs.kernel_signature,
        });
        files.extend(recovery.map(|content| split::NewFile {
            folders: &[],
            name: recovery::FILE.as_ref(),
            content,
        }));
        let done = split::split(&plain, encrypted, &files)
            .and_then(|()| split::take_secure_programs(&plain, &self.programs.folder, &self.programs.names));
        (Some(plain.point().to_owned()), done)
    }

    /// After a failure: without the passphrase nothing of the disk can be read.
    pub(super) fn undo(paths: &Paths) {
        let index = store::INDEX;
        if let Err(e) = open(paths).and_then(|mut tpm| tpm.remove(index)) {
            let e = e.message();
            tracing::warn!(
                "the passphrase of the failed installation is left in the TPM, in index 0x{index:x}: {e}"
            );
        }
    }
}

fn open(paths: &Paths) -> Result<Tpm> {
    Tpm::open(paths)?
        .ok_or_else(|| Error::new(Code::TpmFailed, "the TPM has gone (/dev/tpmrm0)").object("TPM"))
}

/// What `db` has that the medium does not. Hashes are accepted, for each update appends those of its release. The owner of a certificate's key can
/// sign programs that the TPM's policy takes, where the firmware does not measure what allowed them.
fn others(db: &[u8], keys: &Keys, allowed: &[String]) -> Result<Vec<String>> {
    let entries = |lists| {
        signature_list::entries(lists).map_err(|why| {
            Error::new(Code::FirmwareVariableFailed, format!("cannot read db: {why}")).object("db")
        })
    };
    let own = [entries(&keys.loader)?, entries(&keys.kernel)?].concat();
    let mut found = Vec::new();
    for entry in entries(db)? {
        if own.iter().any(|one| (one.kind, one.data()) == (entry.kind, entry.data())) {
            continue;
        }
        let is_hash = entry.kind == Guid::SHA256.bytes();
        let sha256 = if is_hash { hex(entry.data()) } else { hex(&Digest256::of(entry.data()).0) };
        if !is_hash && !allowed.contains(&sha256) {
            let message = format!(
                "cannot install: the firmware's db has a certificate that the medium does not have; its SHA-256 fingerprint is {sha256}"
            );
            return Err(Error::new(Code::SecureBootStateUnfit, message).object("db").with_hint(
                "clear the keys in the firmware's setup, so that it is in setup mode, and start the medium again; or allow the certificate with installer.db_certificates in config.json",
            ));
        }
        if !found.contains(&sha256) {
            found.push(sha256);
        }
    }
    Ok(found)
}

fn not_understood(why: &str) -> Error {
    let message = format!("cannot predict what the firmware measures at the next start: {why}");
    Error::new(Code::MeasurementsNotUnderstood, message).object("firmware").with_hint(
        "restart the device and start the medium again, since keys may have changed meanwhile; else update the firmware, or install without secure boot",
    )
}

fn firmware_program<'a>(file: &'a [u8], what: &str) -> Result<Program<'a>> {
    match Program::parse(file) {
        Some(program) if program.is_aligned => Ok(program),
        Some(_) => Err(programs::invalid(
            what,
            "its length is no multiple of 8: tools and firmware would know it by different hashes",
        )),
        None => Err(programs::invalid(what, "it is no program of UEFI, or damaged")),
    }
}

/// On a board whose installations could be encrypted: one that is not has no use for the programs of those that are.
pub(super) fn remove_secure_programs(folder: &std::path::Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        let folder = folder.display();
        Error::new(Code::Io, format!("cannot remove the programs for secure boot from {folder}"))
            .object(folder)
            .because(e)
            .after_write()
    };
    let folder = match crate::sys::file::Folder::open(folder) {
        Ok(folder) => folder,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
    };
    for (name, _) in folder.list().map_err(failed)? {
        let lower = name.to_ascii_lowercase();
        if lower.to_str().is_some_and(|name| name.ends_with(&format!(".efi{SECURE_SUFFIX}"))) {
            crate::sys::file::remove(&folder, &name).map_err(failed)?;
        }
    }
    Ok(())
}
