//! The firmware's log of its measurements (TCG PC Client Platform Firmware Profile 1.06, 10.2: `TCG_PCR_EVENT`, `TCG_PCR_EVENT2`).

use std::io;

use sha2::{Digest as _, Sha256};

use super::{Hash, SELECTED};
use crate::config::paths::Paths;
use crate::sys::mount;
use crate::uefi::Fields;

const LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";
const SECURITYFS: &str = "/sys/kernel/security";

/// Not measured.
const NO_ACTION: u32 = 3;
const SHA1_BYTES: usize = 20;
const ALGORITHM_SHA256: u16 = 0x000b;

const SPEC_ID: &[u8] = b"Spec ID Event03\0";
const STARTUP_LOCALITY: &[u8] = b"StartupLocality\0";

/// By an action of the firmware, in PCR 7.
const DMA_DISABLED: &[u8] = b"DMA Protection Disabled";
const EFI_ACTION: u32 = 0x8000_0007;

pub(super) const AUTHORITY: u32 = 0x8000_00e0;

/// Far above any.
const MAX_ALGORITHMS: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub pcr: u32,
    pub kind: u32,
    /// What the PCR was extended with.
    pub digest: Hash,
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventLog {
    pub events: Vec<Event>,
}

impl EventLog {
    /// That of the running system; `None` where the kernel has none.
    pub fn read(paths: &Paths) -> io::Result<Option<EventLog>> {
        let (path, folder) = (paths.at(LOG), paths.at(SECURITYFS));
        if std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none()) {
            // A kernel without it has no log either.
            drop(mount::mount_virtual("securityfs", &folder));
        }
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        EventLog::parse(&bytes).map(Some).map_err(invalid)
    }

    pub fn parse(bytes: &[u8]) -> Result<EventLog, &'static str> {
        let mut fields = Fields::of(bytes);
        let sizes = algorithms(&mut fields).ok_or("it does not begin with a Spec ID event of TCG 2.0")?;
        if !sizes.contains(&(ALGORITHM_SHA256, 32)) {
            return Err("it has no SHA-256 digests");
        }
        let mut log = EventLog::default();
        while !fields.is_empty() {
            log.events.push(event(&mut fields, &sizes).ok_or("an event is damaged, or cut off")?);
        }
        Ok(log)
    }

    /// The value that a PCR has after all events.
    #[must_use]
    pub fn replay(&self, pcr: u32) -> Hash {
        let mut value = [0; 32];
        for event in self.events.iter().filter(|event| event.pcr == pcr) {
            if event.kind != NO_ACTION {
                value = extended(value, &event.digest);
            } else if let Some([locality, ..]) = event.data.strip_prefix(STARTUP_LOCALITY)
                && let Some(last) = value.last_mut()
            {
                // Where the TPM was started from; PCR 0 begins with it.
                *last = *locality;
            }
        }
        value
    }

    /// Whether the firmware says that devices can read and write the whole memory.
    #[must_use]
    pub fn has_dma_protection_disabled(&self) -> bool {
        let says = |event: &Event| {
            event.data.windows(DMA_DISABLED.len()).any(|w| w.eq_ignore_ascii_case(DMA_DISABLED))
        };
        self.events.iter().any(|event| event.pcr == 7 && event.kind == EFI_ACTION && says(event))
    }

    pub(super) fn of_pcr(&self, pcr: u32) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.pcr == pcr && event.kind != NO_ACTION)
    }
}

pub(super) fn extended(value: Hash, digest: &Hash) -> Hash {
    Sha256::new().chain_update(value).chain_update(digest).finalize().into()
}

/// The first event says which digests the others have, and of which lengths.
fn algorithms(fields: &mut Fields<'_>) -> Option<Vec<(u16, usize)>> {
    let (_pcr, kind) = (fields.u32()?, fields.u32()?);
    fields.bytes(SHA1_BYTES)?;
    let len = fields.len32()?;
    let mut data = Fields::of(fields.bytes(len)?);
    if kind != NO_ACTION || data.bytes(SPEC_ID.len())? != SPEC_ID {
        return None;
    }
    // Platform class, version of the specification, size of its numbers.
    data.bytes(8)?;
    let count = data.len32().filter(|count| *count <= MAX_ALGORITHMS)?;
    (0..count).map(|_| Some((data.u16()?, usize::from(data.u16()?)))).collect()
}

fn event(fields: &mut Fields<'_>, sizes: &[(u16, usize)]) -> Option<Event> {
    let (pcr, kind) = (fields.u32()?, fields.u32()?);
    let count = fields.len32().filter(|count| *count <= MAX_ALGORITHMS)?;
    let mut digest = None;
    for _ in 0..count {
        let algorithm = fields.u16()?;
        let (_, size) = sizes.iter().find(|(known, _)| *known == algorithm)?;
        let bytes = fields.bytes(*size)?;
        if algorithm == ALGORITHM_SHA256 {
            digest = bytes.try_into().ok();
        }
    }
    // What a policy names has to be whole. Firmware leaves digests out where nothing was measured.
    let digest = digest.or((kind == NO_ACTION || !SELECTED.contains(&pcr)).then_some([0; 32]))?;
    let len = fields.len32()?;
    Some(Event { pcr, kind, digest, data: fields.bytes(len)?.to_vec() })
}
