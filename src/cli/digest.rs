//! `copal digest`.

use super::{DigestArgs, Ui};
use crate::error::Result;
use crate::image::digest_file;

/// Computes the chunk digest of `args.file`, and hands it to `ui`.
pub(super) fn run_digest(args: &DigestArgs, ui: &Ui) -> Result<()> {
    let digest = digest_file(&args.file, ui.progress())?;
    ui.result("digest", &digest, &format!("{}  {}", digest.chunks, args.file.display()));
    Ok(())
}
