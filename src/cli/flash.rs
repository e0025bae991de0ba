//! `copal flash`.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::receipt_file::ReceiptFile;
use super::{EXIT_CODES, Ui};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::flash::job::{hold_signals, nothing_written};
use crate::flash::watch::Watch;
use crate::image::Checks;
use crate::image::digest::Digest256;
use crate::install::plan::Plan;
use crate::install::receipt::Receipt;
use crate::install::shutdown;
use crate::install::{self, FlashMode, FlashRequest};

const EXAMPLES: &str = "\
Examples:
  copal flash --plan              show everything that an installation by the
                                  board's configuration would write
  copal flash --no-power-off      install: image, bootloaders, boot partition,
                                  the board's own program
  copal flash --image os.img.zst --target /dev/mmcblk0
                                  write the image, and nothing else
  copal flash --image os.img.gz --target disk.img
                                  make a disk image: no root needed";

/// Write an OS image to a disk, and prove that it is there
///
/// With --image and --target, or with --image-only, the image is all that is
/// written. Otherwise the board's configuration is followed to its end, as
/// resin-init-flasher does: bootloaders, boot partition, the board's own
/// programs, and power off.
#[derive(Debug, Clone, Default, Args)]
#[command(verbatim_doc_comment, next_line_help = true, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct FlashArgs {
    /// The board's configuration [default: /etc/resin-init-flasher.conf]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) conf: Option<PathBuf>,

    /// The image: raw, gzip, xz, zstd or bzip2 [default: the configuration's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) image: Option<PathBuf>,

    /// A whole disk, or a plain file [default: the configuration's patterns]
    #[arg(long, value_name = "DEV|FILE", value_hint = ValueHint::AnyPath)]
    pub(super) target: Option<PathBuf>,

    /// Check everything and show what would be written; write nothing
    #[arg(long)]
    pub(super) plan: bool,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    pub(super) json: bool,

    /// Accept an image without a valid partition table or boot partition
    #[arg(long)]
    pub(super) force_raw: bool,

    /// Do not check a compressed image first: faster, but damage shows late
    #[arg(long)]
    pub(super) single_pass: bool,

    /// Compute the uncompressed image's SHA-256; with HEX, refuse any other
    #[arg(long, value_name = "HEX", num_args = 0..=1, require_equals = true, value_parser = sha256)]
    #[allow(clippy::option_option)] // absent, without a value, with one
    pub(super) sha256: Option<Option<Digest256>>,

    /// Put the receipt into FILE, and only a summary on stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "plan")]
    pub(super) receipt: Option<PathBuf>,

    /// An LED that shows progress: the file that takes 1 and 0
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) led: Option<PathBuf>,

    /// Write and verify the image only, whatever the configuration asks for
    #[arg(long)]
    pub(super) image_only: bool,

    /// Stay on when an installation is done; always so with the image only
    #[arg(long)]
    pub(super) no_power_off: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    pub(super) root: PathBuf,
}

pub(super) fn run_flash(args: &FlashArgs, ui: &Ui) -> Result<()> {
    let FlashArgs { conf, image, target, .. } = args.clone();
    let mut request =
        FlashRequest::of_environment(Paths::new(&args.root)).naming(conf, image, target, args.image_only);
    request.checks = Checks {
        force_raw: args.force_raw,
        single_pass: args.single_pass,
        sha256: args.sha256.is_some(),
        expect_sha256: args.sha256.flatten(),
        at_most: None,
    };
    if args.plan {
        show_plan(&install::plan(&request, ui.progress())?, ui);
        return Ok(());
    }
    match request.mode() {
        FlashMode::Installation => install(args, &request, ui),
        FlashMode::Image | FlashMode::ImageOnly => write_image(args, &request, ui).map_err(nothing_written),
    }
}

fn show_plan(plan: &Plan, ui: &Ui) {
    ui.result("plan", plan, plan.to_string().trim_end());
}

fn write_image(args: &FlashArgs, request: &FlashRequest, ui: &Ui) -> Result<()> {
    let signals = hold_signals()?;
    let watch = Watch::new(ui.shown(), &request.paths, args.led.as_deref());
    let prepared = install::prepare_image(request, watch.progress())?;
    let file = ReceiptFile::for_run(args.receipt.as_deref(), &prepared.plan)?;
    watch.started(&prepared.plan);
    let run = prepared.run(&request.paths, watch.progress());
    // The LED does not show a refusal: the operator at the terminal would wait for it.
    let receipt = run.inspect_err(|e| watch.failed(e))?;
    // After a failure they stay held back: the error is still to be shown.
    signals.end();
    watch.succeeded(&receipt);
    show_receipt(&receipt.into(), file.as_ref(), ui)
}

/// The whole installation, then the power off.
fn install(args: &FlashArgs, request: &FlashRequest, ui: &Ui) -> Result<()> {
    let watch = Watch::new(ui.shown(), &request.paths, args.led.as_deref());
    let place = args.receipt.as_deref();
    let file = RefCell::new(None);
    let installed = install::run(request, &watch, &|plan| {
        file.replace(ReceiptFile::for_run(place, plan)?);
        Ok(())
    })?;
    let shown = show_receipt(&installed.receipt, file.take().as_ref(), ui);
    if args.no_power_off {
        return shown;
    }
    if let Err(e) = &shown {
        tracing::error!("{e}");
    }
    Err(shutdown::now(installed.ending, &installed.environment, Some(request.flasher_conf())))
}

/// Into its file, or else to stdout: nothing mounts the boot partition of a plain file, and that of a disk which got the image alone is
/// left as it is.
fn show_receipt(receipt: &Receipt, file: Option<&ReceiptFile>, ui: &Ui) -> Result<()> {
    let text = receipt.to_text();
    let text = text.trim_end();
    let Some(file) = file else {
        ui.result("receipt", receipt, text);
        return Ok(());
    };
    if let Err(e) = file.save(text) {
        // It may be the only record of what is on the disk now.
        ui.finding("receipt", receipt, text);
        return Err(e);
    }
    ui.result("receipt", receipt, &summary(receipt));
    Ok(())
}

fn summary(receipt: &Receipt) -> String {
    let r = &receipt.flash;
    let mib = |n: u64| n.div_ceil(1 << 20);
    format!(
        "{}: {} MiB verified ({} written, {} zeroed, {} there already) in {:.1} s + {:.1} s; chunk digest {}",
        r.target.name.display(),
        mib(r.bytes.verified),
        mib(r.bytes.written),
        mib(r.bytes.zeroed),
        mib(r.bytes.skipped),
        r.write.seconds,
        r.verify.seconds,
        r.image.chunk_digest
    )
}

fn sha256(text: &str) -> Result<Digest256, &'static str> {
    Digest256::from_hex(text).ok_or("64 hex digits are required")
}
