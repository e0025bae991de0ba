//! The firmware's log of its measurements (TCG PC Client Platform Firmware Profile 1.06, 10.2: `TCG_PCR_EVENT`, `TCG_PCR_EVENT2`).

use std::fs::File;
use std::io::{self, Read as _};

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
    pub damage: Option<Damage>,
}

/// What keeps a log from being read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub why: String,
    /// The bytes after the last event.
    pub rest: Vec<u8>,
}

impl EventLog {
    /// The log of the running system, as far as it can be read; `None` where the kernel has none.
    #[must_use]
    pub fn read(paths: &Paths) -> Option<EventLog> {
        let (path, directory) = (paths.at(LOG), paths.at(SECURITYFS));
        if std::fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_none()) {
            // A kernel without it has no log either.
            drop(mount::mount_virtual("securityfs", &directory));
        }
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        match read {
            Ok(_) => Some(EventLog::beginning(&bytes)),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
            Err(e) => Some(EventLog::beginning(&bytes).ends_early(e.to_string(), Vec::new())),
        }
    }

    /// A whole log.
    pub fn parse(bytes: &[u8]) -> Result<EventLog, String> {
        let log = EventLog::beginning(bytes);
        log.damage().map(str::to_owned).map_or(Ok(log), Err)
    }

    /// The events before the first damage: a kernel that another one has started may show a log whose memory was used meanwhile (kexec, before Linux
    /// 6.12).
    #[must_use]
    pub fn beginning(bytes: &[u8]) -> EventLog {
        let mut fields = Fields::of(bytes);
        let mut log = EventLog::default();
        let sizes = match algorithms(&mut fields) {
            None if bytes.is_empty() => return log.ends_early("it is empty".to_owned(), Vec::new()),
            None => {
                let why = "it does not begin with a Spec ID event of TCG 2.0";
                return log.ends_early(why.to_owned(), bytes.to_vec());
            }
            Some(sizes) => sizes,
        };
        if !sizes.contains(&(ALGORITHM_SHA256, 32)) {
            return log.ends_early("it has no SHA-256 digests".to_owned(), bytes.to_vec());
        }
        while !fields.is_empty() {
            let rest = fields.clone();
            match event(&mut fields, &sizes) {
                Some(event) => log.events.push(event),
                None => {
                    return log
                        .ends_early("an event is damaged, or cut off".to_owned(), rest.rest().to_vec());
                }
            }
        }
        log
    }

    fn ends_early(self, why: String, rest: Vec<u8>) -> EventLog {
        EventLog { damage: Some(Damage { why, rest }), ..self }
    }

    /// Why it cannot be read to its end.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_ref().map(|damage| damage.why.as_str())
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

    /// Whether the firmware says that devices can read and write the whole memory. In a damaged part, the words alone say it.
    #[must_use]
    pub fn has_dma_protection_disabled(&self) -> bool {
        let says =
            |bytes: &[u8]| bytes.windows(DMA_DISABLED.len()).any(|w| w.eq_ignore_ascii_case(DMA_DISABLED));
        let is_action = |event: &&Event| event.pcr == 7 && event.kind == EFI_ACTION;
        self.events.iter().filter(is_action).any(|event| says(&event.data))
            || self.damage.as_ref().is_some_and(|damage| says(&damage.rest))
    }

    pub(super) fn of_pcr(&self, pcr: u32) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.pcr == pcr && event.kind != NO_ACTION)
    }
}

/// The value of a PCR after an event.
#[must_use]
pub fn extended(value: Hash, digest: &Hash) -> Hash {
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
