//! What a device with UEFI and a TPM needs to unlock its encrypted disk at the next start.

mod check;
pub mod next_start;
pub mod policies;
pub mod release;
pub mod seal;

pub(crate) use check::{before_update, check_release, look, reasons_against};
