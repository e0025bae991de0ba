//! `copal flash`.

use std::path::Path;

use super::receipt_file::ReceiptFile;
use super::{FlashArgs, Ui};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::flash::job::{Request, prepare};
use crate::flash::watch::Watch;
use crate::image::Checks;
use crate::install;
use crate::install::plan::Plan;
use crate::install::receipt::Receipt;
use crate::install::shutdown;

/// Flashes: hands `args` to the flasher, and its receipt or plan to `ui`.
pub(super) fn run_flash(args: &FlashArgs, ui: &Ui) -> Result<()> {
    let request = Request {
        conf: args.conf.clone(),
        image: args.image.clone(),
        target: args.target.clone(),
        checks: Checks {
            force_raw: args.force_raw,
            single_pass: args.single_pass,
            sha256: args.sha256.is_some(),
            expect_sha256: args.sha256.flatten(),
            at_most: None,
        },
        image_only: args.image_only,
        ..Request::of_environment(Paths::new(&args.root))
    };
    match (args.plan, request.is_installation()) {
        (true, true) => show_plan(&install::plan(&request, ui.progress())?, ui),
        (true, false) => show_plan(&prepare(&request, ui.progress())?.plan.into(), ui),
        (false, true) => install(args, &request, ui)?,
        (false, false) => write_image(args, &request, ui)?,
    }
    Ok(())
}

fn show_plan(plan: &Plan, ui: &Ui) {
    ui.result("plan", plan, plan.to_string().trim_end());
}

/// The image alone.
fn write_image(args: &FlashArgs, request: &Request, ui: &Ui) -> Result<()> {
    let watch = Watch::new(ui.shown(), &request.paths, args.led.as_deref());
    let prepared = prepare(request, watch.progress())?;
    let file = ReceiptFile::for_run(args.receipt.as_deref(), &prepared.plan)?;
    watch.started(&prepared.plan);
    let run = prepared.run(&request.paths, watch.progress());
    // A refusal is not shown by the LED: whoever started this by hand is not kept waiting for it.
    let receipt = run.inspect_err(|e| watch.failed(e))?;
    watch.succeeded(&receipt);
    show_receipt(&receipt.into(), file.as_ref(), ui)
}

/// Everything, and the end of the running system.
fn install(args: &FlashArgs, request: &Request, ui: &Ui) -> Result<()> {
    let watch = Watch::new(ui.shown(), &request.paths, args.led.as_deref());
    let place = args.receipt.as_deref();
    let installed = install::run(request, &watch, &|plan| ReceiptFile::for_run(place, plan).map(drop))?;
    let file = place.map(Path::to_owned).map(ReceiptFile::at);
    let shown = show_receipt(&installed.receipt, file.as_ref(), ui);
    if args.no_power_off {
        return shown;
    }
    if let Err(e) = &shown {
        tracing::error!("{e}");
    }
    Err(shutdown::now(installed.ending, &installed.environment, Some(request.flasher_conf())))
}

/// Into its file, or else to stdout: the boot partition of a plain file can be mounted by nobody, that of a disk that got
/// the image alone is left as it is, and whoever installs by hand wants to see it too.
fn show_receipt(receipt: &Receipt, file: Option<&ReceiptFile>, ui: &Ui) -> Result<()> {
    let text = receipt.to_text();
    let text = text.trim_end();
    let Some(file) = file else {
        ui.result("receipt", receipt, text);
        return Ok(());
    };
    if let Err(e) = file.save(text) {
        // It may be the only record of what is on the disk now.
        ui.event("receipt", receipt, text);
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
