//! `copal digest`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::Ui;
use super::labelled::{columns, labelled};
use crate::error::Result;
use crate::image::digest_file;
use crate::progress::lines::size;
use crate::sys::log::printable;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the output failed
  2  wrong arguments
  3  the image cannot be read, or is damaged";

const EXAMPLES: &str = "\
Examples:
  copal digest os.img.zst
  copal digest os.img --sha256 | sha256sum --check
  copal digest os.img --json";

/// Show the chunk digest of an image, as receipts have it
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

    /// Only the SHA-256, in a line as `sha256sum` prints it
    #[arg(long)]
    sha256: bool,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run_digest(args: &DigestArgs, ui: &Ui) -> Result<()> {
    let digest = digest_file(&args.file, args.sha256, ui.progress())?;
    let file = args.file.to_string_lossy();
    let text = match digest.sha256 {
        Some(sha256) => line_of_sha256sum(&sha256.to_string(), &file),
        None => {
            let columns = columns();
            let rows = [
                ("image", printable(&file).into_owned()),
                ("size", format!("{}, {} bytes", size(digest.size), digest.size)),
                ("digest", digest.chunks.to_string()),
            ];
            rows.map(|(label, text)| labelled(label, &text, columns)).join("\n")
        }
    };
    ui.result("digest", &digest, &text);
    Ok(())
}

/// A backslash before the line says that the name has characters that are written as two (coreutils, "cksum output modes").
fn line_of_sha256sum(digest: &str, file: &str) -> String {
    let name = file.replace('\\', r"\\").replace('\n', r"\n").replace('\r', r"\r");
    let mark = if name == file { "" } else { r"\" };
    format!("{mark}{digest}  {name}")
}
