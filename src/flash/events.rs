//! Events of a flash in the journal: it started, finished, or failed.

use super::plan::Plan;
use super::receipt::Receipt;
use crate::sys::log::{self, events};

/// From now on every error that ends the program is a failed flash, a refusal included.
pub fn requested() {
    log::failing_as(events::FLASH_FAILED, &[]);
}

/// The target is known: a failure names it from now on.
pub(crate) fn planned(plan: &Plan) {
    let device = plan.target.name.display().to_string();
    log::failing_as(events::FLASH_FAILED, &[("COPAL_DEVICE", &device)]);
}

/// Nothing refuses any more; the first write follows.
pub fn started(plan: &Plan) {
    planned(plan);
    let device = plan.target.name.display().to_string();
    let image = plan.image.stored.path.display();
    tracing::info!(
        MESSAGE_ID = events::FLASH_STARTED,
        COPAL_DEVICE = device,
        COPAL_IMAGE = %image,
        "flashing {image} to {device}"
    );
}

/// A later failure is not one of the flash.
pub fn finished(receipt: &Receipt) {
    let device = receipt.target.name.display();
    let (image, size) = (&receipt.image.name, receipt.image.size);
    tracing::info!(
        MESSAGE_ID = events::FLASH_FINISHED,
        COPAL_DEVICE = %device,
        COPAL_IMAGE = %image,
        COPAL_DIGEST = %receipt.image.chunk_digest,
        "{image} was written to {device} and verified, {size} bytes"
    );
    log::failing_plainly();
}
