//! What an owner finds in the journal about a flash as a whole: it started, finished, or failed.

use super::plan::Plan;
use super::receipt::Receipt;
use crate::sys::log::{self, events};

/// Somebody wants a flash: an error that ends the program from now on is a failed flash, also where it is refused.
pub fn wanted() {
    log::failing_as(events::FLASH_FAILED, &[]);
}

/// It is known which disk is meant: a failure names it from now on.
pub fn planned(plan: &Plan) {
    let device = plan.target.name.display().to_string();
    log::failing_as(events::FLASH_FAILED, &[("COPAL_DEVICE", &device)]);
}

/// `plan` is about to be carried out, and nothing can refuse it any more.
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

/// The flash is complete: whatever fails from now on, this does not.
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
