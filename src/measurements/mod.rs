//! Measured boot: what the firmware has measured into the PCRs of the TPM, and what it will measure at a later start.

pub mod event_log;
pub mod pcr;

pub use event_log::EventLog;
pub use pcr::Measured;

/// A digest, or the value of a PCR: SHA-256.
pub type Hash = [u8; 32];

/// The PCRs whose values a policy names, in their order.
pub const SELECTED: [u32; 4] = [0, 2, 3, 7];

/// Of the `SELECTED` PCRs.
pub type Values = [Hash; 4];
