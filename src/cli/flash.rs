//! `copal flash`.

use std::path::Path;

use super::{FlashArgs, Ui};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::flasher::image::Checks;
use crate::flasher::job::{Request, prepare};
use crate::flasher::receipt::Receipt;

/// Flashes: hands `args` to the flasher, and its receipt or plan to `ui`.
pub(super) fn run_flash(args: &FlashArgs, ui: &Ui) -> Result<()> {
    let request = Request {
        paths: Paths::new(&args.root),
        conf: args.conf.clone(),
        config_json: std::env::var_os("CONFIG_PATH").filter(|p| !p.is_empty()).map(Into::into),
        image: args.image.clone(),
        target: args.target.clone(),
        checks: Checks {
            force_raw: args.force_raw,
            single_pass: args.single_pass,
            sha256: args.sha256.is_some(),
            expect_sha256: args.sha256.flatten(),
        },
        image_only: args.image_only,
    };
    let prepared = prepare(&request, ui.progress())?;
    if args.plan {
        ui.result("plan", &prepared.plan, prepared.plan.to_string().trim_end());
        return Ok(());
    }
    let receipt = prepared.run(&request.paths, ui.progress())?;
    let pretty = serde_json::to_string_pretty(&receipt).unwrap_or_default();
    // The place of a receipt is the disk's boot partition. A plain file has none that anybody could mount, and an image
    // alone leaves it as it is: the receipt goes to stdout.
    if let Some(path) = &args.receipt {
        save(path, &pretty)?;
    }
    let text = if args.receipt.is_some() { summary(&receipt) } else { pretty };
    ui.result("receipt", &receipt, &text);
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, format!("{text}\n")).map_err(|e| {
        Error::new(
            Code::OutputFailed,
            format!("the image was written and verified, but not the receipt {}", path.display()),
        )
        .object(path.display())
        .because(e)
    })
}

fn summary(r: &Receipt) -> String {
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
