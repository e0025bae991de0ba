//! `copal flash`.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};

use super::image_and_target::in_their_places;
use super::labelled::fitted;
use super::receipt_file::ReceiptFile;
use super::{EXIT_CODES, Ui};
use crate::config::paths::Paths;
use crate::disk::select::Target;
use crate::error::{Code, Error, Result};
use crate::flash::former::Content;
use crate::flash::job::{hold_signals, nothing_written};
use crate::flash::plan::TargetLines;
use crate::flash::watch::Watch;
use crate::image::digest::Digest256;
use crate::image::{Checks, Signer, heed};
use crate::install::plan::Plan;
use crate::install::receipt::Receipt;
use crate::install::shutdown;
use crate::install::{self, FlashMode, FlashRequest};
use crate::progress::lines::{clock, size};
use crate::sys::log::printable;
use crate::sys::terminal::{self, Echo};

const EXAMPLES: &str = "\
Examples:
  copal flash --plan              show everything that an installation by the
                                  board's configuration would write
  copal flash --no-power-off      install: image, bootloaders, boot partition,
                                  the board's own program
  copal flash os.img.zst /dev/mmcblk0
                                  write the image, and nothing else; the same
                                  as with --image and --target
  copal flash os.img.gz disk.img  make a disk image: no root needed";

/// Write an OS image to a disk, and prove that it is there
///
/// With an image and a target, or with --image-only, the image is all that is
/// written. Otherwise the board's configuration is followed to its end, as
/// resin-init-flasher does: bootloaders, boot partition, the board's own
/// programs, and power off.
#[derive(Debug, Clone, Default, Args)]
#[command(verbatim_doc_comment, next_line_help = true, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct FlashArgs {
    /// As --image
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    pub(super) plain_image: Option<PathBuf>,

    /// As --target
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    pub(super) plain_target: Option<PathBuf>,

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

    /// Do not ask on a terminal before a used target is erased
    #[arg(long)]
    pub(super) yes: bool,

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

    /// Accept only an image that the key of this certificate has signed
    #[arg(long, value_name = "CERT", value_hint = ValueHint::FilePath)]
    pub(super) verify_signature: Option<PathBuf>,

    /// Put the receipt into FILE; stdout gets four lines, as a terminal does
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "plan")]
    pub(super) receipt: Option<PathBuf>,

    /// An LED that shows progress: the file of sysfs that takes 1 and 0
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
    let FlashArgs { image, target, plain_image, plain_target, .. } = args.clone();
    let (image, target) = in_their_places("flash", [image, target], [plain_image, plain_target])?;
    let is_bare = args.conf.is_none() && image.is_none() && target.is_none();
    let request = FlashRequest::of_environment(Paths::new(&args.root));
    let mut request = request.naming(args.conf.clone(), image, target, args.image_only);
    if is_bare {
        refuse_without_names(&request.flasher_conf())?;
    }
    request.checks = Checks {
        force_raw: args.force_raw,
        single_pass: args.single_pass,
        sha256: args.sha256.is_some(),
        expect_sha256: args.sha256.flatten(),
        at_most: None,
        after_table: None,
        signer: args.verify_signature.as_deref().map(Signer::named).transpose()?,
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

/// A call that names nothing is for a flasher medium.
fn refuse_without_names(conf: &Path) -> Result<()> {
    if conf.symlink_metadata().is_ok() {
        return Ok(());
    }
    let conf = conf.display();
    let text = format!("cannot flash: neither image nor target is named, and {conf} does not exist");
    Err(Error::new(Code::ConfMissing, text)
        .object(conf)
        .with_hint("name them: `copal flash IMAGE TARGET`; only a flasher medium has this file"))
}

/// Where the text of a plan begins beside the label of a line.
const PLAN_TEXT_COLUMN: usize = 8;

fn show_plan(plan: &Plan, ui: &Ui) {
    let text = format!("{plan}nothing was written: this is the plan");
    ui.result("plan", plan, &fitted(&text, PLAN_TEXT_COLUMN));
}

fn write_image(args: &FlashArgs, request: &FlashRequest, ui: &Ui) -> Result<()> {
    let signals = hold_signals()?;
    let watch = Watch::new(ui.shown(), &request.paths, args.led.as_deref())?;
    let terminal = terminal::of_stdin().filter(|_| terminal::stderr_is_terminal() && !args.yes && !ui.json());
    let agree = terminal.as_ref().map(|terminal| move |target: &_, holds: &_| ask(terminal, target, holds));
    let agree = agree.as_ref().map(|agree| agree as &dyn Fn(&Target, &Content) -> Result<()>);
    let prepared = install::prepare_image(request, agree, watch.progress())?;
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

/// Asks once, if the target holds anything. Without an answer nothing is erased.
fn ask(terminal: &File, target: &Target, holds: &Content) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(600);
    if holds.is_blank() {
        return Ok(());
    }
    let name = printable(&target.name.display().to_string()).into_owned();
    let text = fitted(&TargetLines(target, Some(holds)).to_string(), PLAN_TEXT_COLUMN);
    let question = format!("{text}Erase {name}? [y/N] ");
    let mut line = [0; 64];
    let length = terminal::ask(terminal, &question, Echo::Shown, Instant::now() + LIMIT, &mut line)
        .map_err(|e| Error::new(Code::Io, "cannot ask on the terminal").because(e).with_hint("use --yes"))?;
    heed(format_args!("before {name} was erased"))?;
    let answer = length.map(|length| line.split_at(length).0.trim_ascii().to_ascii_lowercase());
    let why = match answer.as_deref() {
        Some(b"y" | b"yes") => return Ok(()),
        Some(_) => "the answer was not `y`",
        None => "the question was not answered",
    };
    Err(Error::new(Code::Aborted, format!("{name} is not erased: {why}"))
        .object(name)
        .with_hint("run it again and answer `y`, or use --yes"))
}

/// The whole installation, then the power off.
fn install(args: &FlashArgs, request: &FlashRequest, ui: &Ui) -> Result<()> {
    let watch = Watch::new(ui.shown(), &request.paths, args.led.as_deref())?;
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
/// left as it is. A person gets four lines.
fn show_receipt(receipt: &Receipt, file: Option<&ReceiptFile>, ui: &Ui) -> Result<()> {
    let text = receipt.to_text()?;
    let text = text.trim_end();
    match file {
        Some(file) => {
            if let Err(e) = file.save(text) {
                // It may be the only record of what is on the disk now.
                ui.finding("receipt", receipt, text);
                return Err(e);
            }
        }
        None if !terminal::stdout_is_terminal() => {
            ui.result("receipt", receipt, text);
            return Ok(());
        }
        None => {}
    }
    ui.result("receipt", receipt, &ending(receipt));
    Ok(())
}

/// Image, target, digest (the SHA-256 if it was requested, otherwise the chunk digest), and times.
fn ending(receipt: &Receipt) -> String {
    let flash = &receipt.flash;
    let (image, target, bytes) = (&flash.image, &flash.target, &flash.bytes);
    let parts = [(bytes.written, "written"), (bytes.zeroed, "zeroed"), (bytes.skipped, "there already")];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, how)| format!("{} {how}", size(*n)));
    let names = [&target.model, &target.serial].into_iter().flatten();
    let names: String = names.map(|name| format!(" {name}")).collect();
    let stages =
        [("check", flash.check.as_ref()), ("write", Some(&flash.write)), ("verify", Some(&flash.verify))];
    let stages = stages.iter().filter_map(|(stage, time)| time.map(|time| (stage, time)));
    let mut whole: f64 = stages.clone().map(|(_, time)| time.seconds).sum();
    let mut times: Vec<String> = stages
        .map(|(stage, time)| format!("{stage} {}, {}/s", lasted(time.seconds), rate(time.bytes_per_second)))
        .collect();
    if let Some(last) = receipt.timeline.last() {
        times.push(format!("other steps {}", lasted((last.at + last.seconds - whole).max(0.0))));
        whole = last.at + last.seconds;
    }
    let digest = image
        .sha256
        .map_or_else(|| format!("digest  {}", image.chunk_digest), |sha256| format!("SHA-256 {sha256}"));
    let lines = [
        format!("image   {}, {}: {}", image.name, size(image.size), parts.collect::<Vec<_>>().join(", ")),
        format!("target  {}{names}: the image was read back from it, and is right", target.name.display()),
        digest,
        format!("time    {}: {}", lasted(whole), times.join("; ")),
    ];
    lines.map(|line| printable(&line).into_owned()).join("\n")
}

/// `5.2 s`, `21 s` or `m:ss`: the line with the times of a flash fits into 80 columns, that of an installation nearly.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates
fn lasted(seconds: f64) -> String {
    match seconds {
        ..9.95 => format!("{seconds:.1} s"),
        ..59.5 => format!("{seconds:.0} s"),
        _ => clock(seconds.round() as u64),
    }
}

fn rate(bytes: u64) -> String {
    let mib = bytes >> 20;
    if mib < 10 { size(bytes) } else { format!("{mib} MiB") }
}

fn sha256(text: &str) -> Result<Digest256, &'static str> {
    Digest256::from_hex(text).ok_or("64 hex digits are required")
}
