//! `copal flash`.

use super::{FlashArgs, Ui};
use crate::error::{Code, Error, Result};

/// Flashes: hands `args` to the flasher, and its receipt or plan to `ui`.
pub(super) fn run_flash(_args: &FlashArgs, _ui: &Ui) -> Result<()> {
    Err(Error::new(Code::NotInThisBuild, "cannot run `copal flash`: it is not in this build yet")
        .object("flash"))
}
