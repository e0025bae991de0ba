//! What an owner finds in the journal about an update as a whole: it started, is installed, or failed.

use super::{Installed, Request};
use crate::slot::Slot;
use crate::sys::log::{self, events};
use crate::update::preflight::Ready;

/// Somebody wants an update: an error that ends the program from now on is a failed update, also where it is refused.
pub(super) fn wanted() {
    log::failing_as(events::UPDATE_FAILED, &[]);
}

/// Everything is checked, and the slot is about to be emptied.
pub(super) fn started(request: &Request, ready: &Ready) {
    let image = request.source.to_string();
    let slot = ready.device.as_ref().map(|d| d.target.slot.letter());
    let mut fields = vec![("COPAL_IMAGE", image.as_str())];
    fields.extend(slot.map(|s| ("COPAL_SLOT", s)));
    log::failing_as(events::UPDATE_FAILED, &fields);
    tracing::info!(
        MESSAGE_ID = events::UPDATE_STARTED,
        COPAL_IMAGE = image,
        COPAL_SLOT = slot,
        "updating {} to {image}",
        named(slot)
    );
}

/// It is installed: whatever fails from now on, this does not.
pub(super) fn installed(request: &Request, installed: &Installed) {
    let image = request.source.to_string();
    let slot = installed.slot.map(Slot::letter);
    tracing::info!(
        MESSAGE_ID = events::UPDATE_INSTALLED,
        COPAL_IMAGE = image,
        COPAL_SLOT = slot,
        "{}",
        told(request, installed)
    );
    log::failing_plainly();
}

/// The same in one sentence.
#[must_use]
pub fn told(request: &Request, installed: &Installed) -> String {
    let next = if installed.selected { "boots next, on trial" } else { "was not selected" };
    format!("{} is installed; {} {next}", request.source, named(installed.slot.map(Slot::letter)))
}

fn named(slot: Option<&str>) -> String {
    slot.map_or_else(|| "the root of an image".to_owned(), |letter| format!("slot {letter}"))
}
