//! `copal verify`.

use super::{Ui, VerifyArgs};
use crate::error::{Code, Error, Result};

/// Compares: `args.image` with `args.target`, the outcome to `ui`; a difference is [`Code::TargetDiffers`].
pub(super) fn run_verify(_args: &VerifyArgs, _ui: &Ui) -> Result<()> {
    Err(Error::new(Code::NotInThisBuild, "cannot run `copal verify`: it is not in this build yet")
        .object("verify"))
}
