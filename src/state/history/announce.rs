//! Events of a trial, for the owner. Each has an entry in the journal's catalogue.

use super::Check;
use crate::error::Error;
use crate::slot::Slot;
use crate::sys::log::events;

pub(crate) fn trial_started(slot: Slot, version: Option<&str>) {
    tracing::info!(
        MESSAGE_ID = events::TRIAL_STARTED,
        COPAL_SLOT = slot.letter(),
        COPAL_VERSION = version,
        "slot {slot}{} is on trial",
        release(version)
    );
}

pub(crate) fn health_check_failed(slot: Slot, check: &Check, attempt: u32, attempts: u32) {
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

pub fn committed(slot: Slot, version: Option<&str>) {
    tracing::info!(
        MESSAGE_ID = events::COMMITTED,
        COPAL_SLOT = slot.letter(),
        COPAL_VERSION = version,
        "slot {slot}{} is committed",
        release(version)
    );
}

/// To be called when the selection of slot `to` is on the medium.
pub fn rolled_back(to: Slot, why: &str) {
    tracing::error!(
        MESSAGE_ID = events::ROLLED_BACK,
        COPAL_SLOT = to.letter(),
        "rolling back to slot {to}: {why}"
    );
}

pub(crate) fn rollback_failed(to: Slot, why: &Error) {
    tracing::error!(
        MESSAGE_ID = events::ROLLBACK_FAILED,
        COPAL_SLOT = to.letter(),
        COPAL_ERROR_CODE = why.code().as_str(),
        "cannot roll back to slot {to}: {}",
        why.message()
    );
}

fn release(version: Option<&str>) -> String {
    version.map(|v| format!(" ({v})")).unwrap_or_default()
}
