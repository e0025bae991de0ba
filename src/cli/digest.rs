//! `copal digest`.

use super::{DigestArgs, Ui};
use crate::error::{Code, Error, Result};

/// Computes the chunk digest of `args.file`, and hands it to `ui`.
pub(super) fn run_digest(_args: &DigestArgs, _ui: &Ui) -> Result<()> {
    Err(Error::new(Code::NotInThisBuild, "cannot run `copal digest`: it is not in this build yet")
        .object("digest"))
}
