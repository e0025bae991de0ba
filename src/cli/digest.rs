//! `copal digest`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::Ui;
use crate::error::Result;
use crate::image::digest_file;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the output failed
  2  wrong arguments
  3  the image cannot be read, or is damaged";

const EXAMPLES: &str = "\
Examples:
  copal digest os.img.zst
  copal digest os.img --json";

/// Print the chunk digest of an image, as receipts have it
///
/// The image is cut into chunks of 1 MiB, the last one shorter; the chunk digest is
/// the SHA-256 over the SHA-256 digests of the chunks. A compressed image has the
/// digest of what is in it.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct DigestArgs {
    /// The image: raw, gzip, xz, zstd or bzip2
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run_digest(args: &DigestArgs, ui: &Ui) -> Result<()> {
    let digest = digest_file(&args.file, ui.progress())?;
    ui.result("digest", &digest, &format!("{}  {}", digest.chunks, args.file.display()));
    Ok(())
}
