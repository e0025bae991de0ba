//! What an owner finds in the journal about a trial: each step of it is an event with an entry in the catalogue.

use super::Check;
use crate::error::Error;
use crate::slot::Slot;
use crate::sys::log::events;

/// The running system has to prove itself.
pub fn trial_started(slot: Slot, version: Option<&str>) {
    tracing::info!(
        MESSAGE_ID = events::TRIAL_STARTED,
        COPAL_SLOT = slot.letter(),
        COPAL_VERSION = version,
        "slot {slot}{} is on trial",
        release(version)
    );
}

/// A required check has failed at one of so many attempts.
pub fn health_check_failed(slot: Slot, check: &Check, attempt: u32, attempts: u32) {
    tracing::warn!(
        MESSAGE_ID = events::HEALTH_CHECK_FAILED,
        COPAL_SLOT = slot.letter(),
        COPAL_CHECK = check.name.as_str(),
        COPAL_ATTEMPT = attempt,
        "health check {}, attempt {attempt} of {attempts}: {}",
        check.name,
        if check.reason.is_empty() { "failed" } else { &check.reason }
    );
}

/// The running system stays.
pub fn committed(slot: Slot, version: Option<&str>) {
    tracing::info!(
        MESSAGE_ID = events::COMMITTED,
        COPAL_SLOT = slot.letter(),
        COPAL_VERSION = version,
        "slot {slot}{} stays",
        release(version)
    );
}

/// The device goes back to slot `to`, whose selection is on the medium.
pub fn rolled_back(to: Slot, why: &str) {
    tracing::error!(
        MESSAGE_ID = events::ROLLED_BACK,
        COPAL_SLOT = to.letter(),
        "going back to slot {to}: {why}"
    );
}

/// The device cannot go back to slot `to`.
pub fn rollback_failed(to: Slot, why: &Error) {
    tracing::error!(
        MESSAGE_ID = events::ROLLBACK_FAILED,
        COPAL_SLOT = to.letter(),
        COPAL_ERROR_CODE = why.code().as_str(),
        "cannot go back to slot {to}: {}",
        why.message()
    );
}

fn release(version: Option<&str>) -> String {
    version.map(|v| format!(" ({v})")).unwrap_or_default()
}
