//! Whether the next start meets a policy of the TPM, with the programs that are in place now.

use std::path::Path;

use super::seal;
use crate::error::{Code, Error};
use crate::measurements::event_log::extended;
use crate::measurements::{EventLog, Hash, Measured, Values, pcr};
use crate::sys::file::read_bytes;
use crate::tpm::policy::{self, Digest};
use crate::uefi::authenticode::Program;
use crate::uefi::signature_list;

/// Loader and stage-2 kernel, on the partition that the firmware reads (meta-balena v8.0.2, `0-signed-update`).
pub(super) const PROGRAMS: [&str; 2] = ["EFI/BOOT/bootx64.efi", "bzImage"];

/// Far above any program; they are held in memory.
pub(super) const MAX_FILE_BYTES: u64 = 128 << 20;

/// What this start has measured, and the variables as they are now.
#[derive(Debug, Clone)]
pub struct Start {
    pub log: Option<EventLog>,
    pub now: Measured,
    pub values: Values,
}

/// Loader and stage-2 kernel; `None` where a file is missing or damaged.
pub type Pair<'a> = [Option<Program<'a>>; 2];

impl Start {
    /// An error unless the log explains what this start has measured, or else one of these pairs does, with the variables as they are or as they
    /// were before appends.
    pub fn must_be_explained_by(&self, pairs: &[&Pair<'_>]) -> Result<(), Error> {
        let [.., pcr7] = self.values;
        let keys = || {
            let lists = |list| signature_list::beginnings(list).into_iter();
            lists(&self.now.db).flat_map(move |db| {
                lists(&self.now.dbx).map(move |dbx| Measured {
                    db: db.to_vec(),
                    dbx: dbx.to_vec(),
                    ..self.now.clone()
                })
            })
        };
        let is_of = |pair: &&Pair<'_>| {
            let [Some(loader), Some(kernel)] = pair else { return false };
            // As it was measured, or after the recovery passphrase was asked for.
            let leads_to_it = |value: &Hash| {
                let marked =
                    std::iter::successors(Some(*value), |value| Some(extended(*value, &seal::mark())));
                marked.take(1 + pcr::MOST_MARKS).any(|value| value == pcr7)
            };
            let mut found = keys().filter_map(|keys| pcr::of_start(None, &keys, &[loader, kernel]));
            found.any(|values| values.iter().any(leads_to_it))
        };
        if self.log.is_some() || pairs.iter().any(is_of) {
            return Ok(());
        }
        let message = "cannot predict whether the next start unlocks the encrypted disk: the firmware has left no log, and PCR 7 is not explained by variables, loader and kernel";
        Err(Error::new(Code::WouldNotUnlock, message).object("TPM"))
    }

    /// Of a later start of this firmware, with these variables and programs, as [`pcr::of_start`].
    #[must_use]
    pub fn policies(&self, keys: &Measured, programs: &[&Program<'_>]) -> Option<Vec<Digest>> {
        let [pcr0, pcr2, pcr3, _] = self.values;
        let pcr7 = pcr::of_start(self.log.as_ref(), keys, programs)?;
        Some(pcr7.into_iter().map(|pcr7| policy::pcr(&[pcr0, pcr2, pcr3, pcr7])).collect())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStart {
    Unlocks,
    DoesNotUnlock,
    /// Why it cannot be determined.
    Unknown(String),
}

/// The policies of the next start, of the programs in place; or why they cannot be predicted. `plain`: the mount point of the partition that the
/// firmware reads. [`pcr::explain`] and [`pcr::explains_authorities`] must hold for the log.
pub fn policies(plain: &Path, start: &Start) -> Result<Vec<Digest>, String> {
    let files = PROGRAMS.map(|name| (read_bytes(&plain.join(name), MAX_FILE_BYTES), plain.join(name)));
    let mut programs = Vec::new();
    for (bytes, path) in &files {
        let path = path.display();
        match bytes.as_deref().map(Program::parse) {
            Ok(Some(program)) if program.is_aligned => programs.push(program),
            Ok(Some(_)) => {
                return Err(format!(
                    "the length of {path} is not a multiple of 8, so tools and firmware compute different hashes"
                ));
            }
            Ok(None) => return Err(format!("{path} is not a UEFI program, or is damaged")),
            Err(e) => return Err(format!("{path} cannot be read: {e}")),
        }
    }
    let programs: Vec<&Program<'_>> = programs.iter().collect();
    start.policies(&start.now, &programs).ok_or_else(|| {
        "the firmware's db has neither hash nor certificate of the loader or of the stage-2 kernel in place, or dbx forbids one".to_owned()
    })
}

/// `known`: the branches of the TPM's policy. The rest as for [`policies`].
#[must_use]
pub fn look(plain: &Path, start: &Start, known: &[Digest]) -> NextStart {
    let next = match policies(plain, start) {
        Ok(next) => next,
        Err(why) => return NextStart::Unknown(why),
    };
    match (next.iter().any(|met| known.contains(met)), &start.log) {
        (true, _) => NextStart::Unlocks,
        (false, Some(_)) => NextStart::DoesNotUnlock,
        // The firmware may measure more than is predicted without its log.
        (false, None) => NextStart::Unknown("the firmware has left no log of its measurements".to_owned()),
    }
}
