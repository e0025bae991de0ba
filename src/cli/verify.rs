//! `copal verify`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;

use super::Ui;
use super::image_and_target::both;
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
  copal verify os.img.zst /dev/mmcblk0
  copal verify os.img disk.img --json";

/// Compare a disk with an image, without writing
#[derive(Debug, Clone, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct VerifyArgs {
    /// As --image
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    plain_image: Option<PathBuf>,

    /// As --target
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    plain_target: Option<PathBuf>,

    /// The image: raw, gzip, xz, zstd or bzip2
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    image: Option<PathBuf>,

    /// The disk or plain file to read
    #[arg(long, value_name = "DEV|FILE", value_hint = ValueHint::AnyPath)]
    target: Option<PathBuf>,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run_verify(args: &VerifyArgs, ui: &Ui) -> Result<()> {
    let VerifyArgs { image, target, plain_image, plain_target, .. } = args.clone();
    let (image, target) = both("verify", [image, target], [plain_image, plain_target])?;
    let compared = verify(&image, &target, ui.progress())?;
    let (image, target) = (shown(&image), shown(&target));
    let text = format!("{target}: all {} bytes of {image} are there", compared.size);
    ui.result("verify", &json!({ "bytes": compared.size }), &text);
    Ok(())
}
