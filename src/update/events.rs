use super::Installed;
use crate::job::Source;
use crate::slot::Slot;
use crate::sys::log::{self, events};
use crate::update::preflight::Ready;

/// From now on an error that ends the program, including a refusal, is reported as a failed update.
pub(super) fn requested() {
    log::failing_as(events::UPDATE_FAILED, &[]);
}

/// All checks have passed; the slot is erased next.
pub(super) fn started(source: &Source, ready: &Ready) {
    let image = source.to_string();
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

/// The update has succeeded; later failures do not change that.
pub(super) fn installed(source: &Source, installed: &Installed) {
    let image = source.to_string();
    let slot = installed.slot.map(Slot::letter);
    tracing::info!(
        MESSAGE_ID = events::UPDATE_INSTALLED,
        COPAL_IMAGE = image,
        COPAL_SLOT = slot,
        "{}",
        summary(source, installed)
    );
    log::failing_plainly();
}

#[must_use]
pub fn summary(source: &Source, installed: &Installed) -> String {
    let next = if installed.selected { "boots next, on trial" } else { "was not selected" };
    format!("{} is installed; {} {next}", source, named(installed.slot.map(Slot::letter)))
}

fn named(slot: Option<&str>) -> String {
    slot.map_or_else(|| "the root of an image".to_owned(), |letter| format!("slot {letter}"))
}
