//! Measured boot: what the firmware has measured into the PCRs of the TPM, and what it will measure at a later start.

pub mod event_log;
pub mod pcr;

pub use event_log::EventLog;
pub use pcr::{Measured, Values};

/// A digest, or the value of a PCR: SHA-256.
pub type Hash = [u8; 32];
