//! PCR 7, which shows whether secure boot is on, with which keys, and what they have allowed; computed for this start and for later ones.
//!
//! TCG PC Client Platform Firmware Profile 1.06, 3.3.4.8: the five variables, a separator, then an event for each entry of `db` that lets the
//! firmware start a program ("authority"). Not all firmware measures the last ones. balenaOS binds the passphrase to PCRs 0, 2, 3 and 7.

use sha2::{Digest as _, Sha256};

use super::event_log::{AUTHORITY, EventLog, extended};
use super::{Hash, SELECTED, Values};
use crate::error::Error;
use crate::uefi::Guid;
use crate::uefi::authenticode::Program;
use crate::uefi::signature_list::{self, Entry};
use crate::uefi::variables::{Firmware, Variable};

/// Contents of the five variables; one that is not there has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    /// One byte, 1 if secure boot is on.
    pub secure_boot: Vec<u8>,
    pub pk: Vec<u8>,
    pub kek: Vec<u8>,
    pub db: Vec<u8>,
    pub dbx: Vec<u8>,
}

/// An event's digest over a variable: `UEFI_VARIABLE_DATA`.
fn of_variable(Variable(name, vendor): Variable<'_>, contents: &[u8]) -> Hash {
    let len = |n: usize| u64::try_from(n).unwrap_or(u64::MAX).to_le_bytes();
    let mut hash = Sha256::new();
    hash.update(vendor.bytes());
    hash.update(len(name.encode_utf16().count()));
    hash.update(len(contents.len()));
    name.encode_utf16().for_each(|unit| hash.update(unit.to_le_bytes()));
    hash.update(contents);
    hash.finalize().into()
}

impl Measured {
    /// The variables as they are.
    pub fn of(firmware: &Firmware) -> Result<Measured, Error> {
        let contents = |variable| firmware.read(variable).map(Option::unwrap_or_default);
        Ok(Measured {
            secure_boot: contents(Variable::SECURE_BOOT)?,
            pk: contents(Variable::PK)?,
            kek: contents(Variable::KEK)?,
            db: contents(Variable::DB)?,
            dbx: contents(Variable::DBX)?,
        })
    }

    fn digests(&self) -> [Hash; 5] {
        [
            of_variable(Variable::SECURE_BOOT, &self.secure_boot),
            of_variable(Variable::PK, &self.pk),
            of_variable(Variable::KEK, &self.kek),
            of_variable(Variable::DB, &self.db),
            of_variable(Variable::DBX, &self.dbx),
        ]
    }

    /// PCR 7 with these variables, the events between them and the first authority, and the authorities.
    #[must_use]
    pub fn pcr7(&self, between: &[Hash], authorities: &[Hash]) -> Hash {
        let own = self.digests();
        own.iter().chain(between).chain(authorities).fold([0; 32], extended)
    }

    /// Whether the log's start has measured these variables. Since then, lists may have been appended to `db` and `dbx`.
    fn were_measured(&self, log: &EventLog) -> bool {
        let measured: Vec<Hash> = log.of_pcr(7).take(5).map(|event| event.digest).collect();
        let [others @ .., db, dbx] = measured.as_slice() else { return false };
        let was = |variable, contents: &[u8], digest: &Hash| {
            signature_list::beginnings(contents).iter().any(|then| of_variable(variable, then) == *digest)
        };
        self.digests().strip_prefix(others).is_some_and(|rest| rest.len() == 2)
            && was(Variable::DB, &self.db, db)
            && was(Variable::DBX, &self.dbx, dbx)
    }

    /// What allows the program, by its hash or by the certificate that it is signed with. `None`: the firmware does not start it.
    ///
    /// A certificate counts if its very bytes are among the program's signatures: chains that end at a certificate that is not in the program
    /// are not followed.
    fn authority(&self, program: &Program<'_>) -> Option<Hash> {
        let allowed = signature_list::entries(&self.db).ok()?;
        let forbidden = signature_list::entries(&self.dbx).ok()?;
        if forbidden.iter().any(|entry| allows(entry, program)) {
            return None;
        }
        // As EDK2's DxeImageVerificationLib, which looks for a hash only where no certificate allows the program.
        let of_kind =
            |kind: Guid| allowed.iter().find(|entry| entry.kind == kind.bytes() && allows(entry, program));
        let entry = match of_kind(Guid::X509) {
            // An entry that is not understood may forbid a certificate.
            Some(_) if forbidden.iter().any(|entry| !is_understood(entry)) => return None,
            Some(entry) => entry,
            None => of_kind(Guid::SHA256)?,
        };
        Some(of_variable(Variable::DB, entry.bytes))
    }

    /// Whether the firmware starts the program.
    #[must_use]
    pub fn starts(&self, program: &Program<'_>) -> bool {
        self.authority(program).is_some()
    }

    /// Why the firmware does not start the program, with its hash as `db` and `dbx` know it; `None` where it starts it.
    #[must_use]
    pub fn refusal(&self, program: &Program<'_>) -> Option<String> {
        if self.starts(program) {
            return None;
        }
        let is_forbidden = signature_list::entries(&self.dbx)
            .is_ok_and(|forbidden| forbidden.iter().any(|entry| allows(entry, program)));
        let why = if is_forbidden { "dbx forbids it" } else { "db does not allow it" };
        let hash: String = program.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{why} (SHA-256 {hash})"))
    }

    /// What allows a driver of which only the hash is known.
    fn authority_of_hash(&self, hash: &Hash) -> Option<Hash> {
        let allowed = signature_list::entries(&self.db).ok()?;
        let entry = allowed.iter().find(|entry| is_hash(entry, hash))?;
        Some(of_variable(Variable::DB, entry.bytes))
    }
}

fn is_understood(entry: &Entry<'_>) -> bool {
    [Guid::SHA256, Guid::X509].iter().any(|kind| entry.kind == kind.bytes())
}

fn is_hash(entry: &Entry<'_>, hash: &Hash) -> bool {
    entry.kind == Guid::SHA256.bytes() && entry.data() == hash
}

fn allows(entry: &Entry<'_>, program: &Program<'_>) -> bool {
    let data = entry.data();
    let is_certificate = || {
        entry.kind == Guid::X509.bytes()
            && !data.is_empty()
            && program.certificates.windows(data.len()).any(|window| window == data)
    };
    is_hash(entry, &program.digest) || is_certificate()
}

/// The events of PCR 7 of this start after the five variables and before the first authority: a later start has the same.
/// Without a log, the separator.
#[must_use]
pub fn between(log: Option<&EventLog>) -> Vec<Hash> {
    let Some(log) = log else { return vec![separator()] };
    let events = log.of_pcr(7).skip(5);
    events.take_while(|event| event.kind != AUTHORITY).map(|event| event.digest).collect()
}

fn separator() -> Hash {
    Sha256::digest([0; 4]).into()
}

/// PCR 2 of a start without drivers: with the other events of this log. Without a log, of the separator alone, or of nothing on firmware that
/// measures none; `None` where that is not what this firmware has measured.
#[must_use]
pub fn pcr2_without_drivers(log: Option<&EventLog>, today: Hash) -> Option<Hash> {
    const NOTHING: Hash = [0; 32];
    match log {
        Some(log) => {
            let others = log.of_pcr(2).filter(|event| !DRIVERS.contains(&event.kind));
            Some(others.fold(NOTHING, |value, event| extended(value, &event.digest)))
        }
        None => [NOTHING, extended(NOTHING, &separator())].into_iter().find(|value| *value == today),
    }
}

/// `EV_EFI_BOOT_SERVICES_APPLICATION`, `EV_EFI_BOOT_SERVICES_DRIVER` and `EV_EFI_RUNTIME_SERVICES_DRIVER`: of what PCR 2 has, these are programs,
/// which `db` has to allow.
const DRIVERS: [u32; 3] = [0x8000_0003, 0x8000_0004, 0x8000_0005];

/// The drivers that the firmware has measured into PCR 2, each once, in their order.
#[must_use]
pub fn drivers(log: &EventLog) -> Vec<Hash> {
    once(log.of_pcr(2).filter(|event| DRIVERS.contains(&event.kind)).map(|event| event.digest))
}

fn once(hashes: impl Iterator<Item = Hash>) -> Vec<Hash> {
    let mut found = Vec::new();
    hashes.for_each(|hash| {
        if !found.contains(&hash) {
            found.push(hash);
        }
    });
    found
}

/// The authorities of this start.
fn authorities(log: &EventLog) -> Vec<Hash> {
    let events = log.of_pcr(7).skip(5).skip_while(|event| event.kind != AUTHORITY);
    events.map(|event| event.digest).collect()
}

/// An error names the first PCR whose value does not follow from the events of the log.
pub fn leads_to(log: &EventLog, values: &Values) -> Result<(), String> {
    match SELECTED.iter().zip(values).find(|(pcr, value)| log.replay(**pcr) != **value) {
        Some((pcr, _)) => {
            Err(format!("the events in the firmware's log do not lead to the value of PCR {pcr}"))
        }
        None => Ok(()),
    }
}

/// Whether log and variables give the values that the TPM has now, but for lists that were appended to `db` and `dbx` since the start. What cannot
/// be computed now cannot be predicted. Returns the first that differs.
pub fn explain(log: &EventLog, now: &Measured, values: &Values) -> Result<(), String> {
    leads_to(log, values)?;
    if !now.were_measured(log) {
        return Err("the firmware's variables do not lead to the value of PCR 7".to_owned());
    }
    Ok(())
}

/// How often a start can have asked for the recovery passphrase: each of its initramfs may do it.
pub const MOST_MARKS: usize = 4;

/// The values before `digest` was extended into PCR 7, once or several times; `None` if it was not.
#[must_use]
pub fn before_extended(log: &EventLog, values: &Values, digest: &Hash) -> Option<Values> {
    let [pcr0, pcr2, pcr3, pcr7] = *values;
    let measured = log.replay(7);
    let mut marked = std::iter::successors(Some(measured), |value| Some(extended(*value, digest)));
    marked
        .by_ref()
        .skip(1)
        .take(MOST_MARKS)
        .any(|value| value == pcr7)
        .then_some([pcr0, pcr2, pcr3, measured])
}

/// PCR 7 of firmware that measures no authorities, of firmware that does so for these programs, and, if it has `drivers` that `db` allows, of
/// firmware that does so for these first. `None` if it does not start one of the programs. Each authority is measured once.
#[must_use]
pub fn branches(
    keys: &Measured,
    between: &[Hash],
    drivers: &[Hash],
    programs: &[&Program<'_>],
) -> Option<Vec<Hash>> {
    let manners = manners(keys, drivers, programs)?;
    Some(once(manners.iter().map(|authorities| keys.pcr7(between, authorities))))
}

/// What firmware may measure: no authorities, the authorities of the programs, or the authorities of drivers and programs.
fn manners(keys: &Measured, drivers: &[Hash], programs: &[&Program<'_>]) -> Option<[Vec<Hash>; 3]> {
    let programs: Option<Vec<Hash>> = programs.iter().map(|program| keys.authority(program)).collect();
    let programs = programs?;
    let drivers = drivers.iter().filter_map(|driver| keys.authority_of_hash(driver));
    let all = once(drivers.chain(programs.iter().copied()));
    Some([Vec::new(), once(programs.into_iter()), all])
}

/// PCR 7 at a start of these programs, on the firmware of this log, which [`explains_authorities`]. Several values where the log leaves more than
/// one possible: without a log, and where this start has measured the authority of its loader only, as with a loader that starts the kernel
/// itself. `None` if the firmware does not start one of the programs.
#[must_use]
pub fn of_start(log: Option<&EventLog>, keys: &Measured, programs: &[&Program<'_>]) -> Option<Vec<Hash>> {
    let started = log.map(drivers).unwrap_or_default();
    let [nothing, of_programs, all] = manners(keys, &started, programs)?;
    let manners = match log {
        Some(log) if measures_authorities(log) => {
            let of_loader_only = authorities(log).len() < all.len();
            let [_, _, loader] = manners(keys, &started, programs.get(..1)?)?;
            [Some(all), of_loader_only.then_some(loader)].into_iter().flatten().collect()
        }
        Some(_) => vec![nothing],
        None => vec![nothing, of_programs],
    };
    let between = between(log);
    Some(once(manners.iter().map(|authorities| keys.pcr7(&between, authorities))))
}

/// Whether this firmware measures what allows its programs.
#[must_use]
pub fn measures_authorities(log: &EventLog) -> bool {
    !authorities(log).is_empty()
}

/// Whether the events of PCR 7 from the first authority on are predictable for another start: there are none, or only authorities, with the
/// drivers' first and at most two more, for loader and kernel.
#[must_use]
pub fn explains_authorities(log: &EventLog, now: &Measured) -> bool {
    let mut from_first = log.of_pcr(7).skip(5).skip_while(|event| event.kind != AUTHORITY);
    let found = once(authorities(log).into_iter());
    let allowed: Option<Vec<Hash>> =
        drivers(log).iter().map(|driver| now.authority_of_hash(driver)).collect();
    let is_explained = |allowed: &Vec<Hash>| {
        let allowed = once(allowed.iter().copied());
        found.strip_prefix(allowed.as_slice()).is_some_and(|programs| programs.len() <= 2)
    };
    found.is_empty()
        || from_first.all(|event| event.kind == AUTHORITY) && allowed.as_ref().is_some_and(is_explained)
}
