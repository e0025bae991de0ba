//! `copal verify`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;

use super::Ui;
use crate::error::Result;
use crate::flash::job::verify;
use crate::sys::log::shown;

const EXIT_CODES: &str = "\
Exit codes:
  0  equal
  1  different: the message has the first place; or the output failed
  2  wrong arguments
  3  not compared: the image or the target cannot be read";

const EXAMPLES: &str = "\
Examples:
  copal verify --image os.img.zst --target /dev/mmcblk0
  copal verify --image os.img --target disk.img --json";

/// Compare a disk with an image, without writing
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct VerifyArgs {
    /// The image: raw, gzip, xz, zstd or bzip2
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    image: PathBuf,

    /// The disk or plain file to read
    #[arg(long, value_name = "DEV|FILE", value_hint = ValueHint::AnyPath)]
    target: PathBuf,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run_verify(args: &VerifyArgs, ui: &Ui) -> Result<()> {
    let compared = verify(&args.image, &args.target, ui.progress())?;
    let (image, target) = (shown(&args.image), shown(&args.target));
    let text = format!("{target}: all {} bytes of {image} are there", compared.size);
    ui.result("verify", &json!({ "bytes": compared.size }), &text);
    Ok(())
}
