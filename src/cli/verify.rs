//! `copal verify`.

use serde_json::json;

use super::{Ui, VerifyArgs};
use crate::error::Result;
use crate::flash::job::verify;

/// Compares: `args.image` with `args.target`, the outcome to `ui`; a difference is [`Code::TargetDiffers`].
///
/// [`Code::TargetDiffers`]: crate::error::Code::TargetDiffers
pub(super) fn run_verify(args: &VerifyArgs, ui: &Ui) -> Result<()> {
    let found = verify(&args.image, &args.target, ui.progress())?;
    let (image, target) = (args.image.display(), args.target.display());
    let text = format!("{target}: all {} bytes of {image} are there", found.size);
    ui.result("verify", &json!({ "bytes": found.size }), &text);
    Ok(())
}
