//! `copal flash`.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use super::{FlashArgs, Ui};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::flasher::image::Checks;
use crate::flasher::job::{Request, prepare};
use crate::flasher::plan::Plan;
use crate::flasher::progress::led::{Led, Pattern};
use crate::flasher::receipt::Receipt;
use crate::sys::block::sync_name;

/// How long the LED shows a failure before the program ends with it.
const FAILURE_SHOWN: Duration = Duration::from_secs(3);

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
            at_most: None,
        },
        image_only: args.image_only,
    };
    let prepared = prepare(&request, ui.progress())?;
    if args.plan {
        ui.result("plan", &prepared.plan, prepared.plan.to_string().trim_end());
        return Ok(());
    }
    let file = args.receipt.as_deref().map(|path| ReceiptFile::open(path, &prepared.plan)).transpose()?;
    let led = args.led.as_deref().map_or_else(|| Led::configured(&request.paths), Led::at);
    ui.also(led.sink());
    let receipt = prepared.run(&request.paths, ui.progress()).inspect_err(|_| led.fail(FAILURE_SHOWN))?;
    led.show(Pattern::Solid);
    let pretty = serde_json::to_string_pretty(&receipt).unwrap_or_default();
    // The place of a receipt is the disk's boot partition. A plain file has none that anybody could mount, and an image
    // alone leaves it as it is: the receipt goes to stdout.
    let Some(file) = file else {
        ui.result("receipt", &receipt, &pretty);
        return Ok(());
    };
    if let Err(e) = file.save(&pretty) {
        // It is the only record of what is on the disk now.
        ui.event("receipt", &receipt, &pretty);
        return Err(e);
    }
    ui.result("receipt", &receipt, &summary(&receipt));
    Ok(())
}

/// The place of a receipt, proven to be writable before anything is flashed.
struct ReceiptFile {
    path: PathBuf,
}

impl ReceiptFile {
    fn open(path: &Path, plan: &Plan) -> Result<Self> {
        let refused = |why: &str| {
            Error::new(Code::OutputFailed, format!("cannot put a receipt into {}: {why}", path.display()))
                .object(path.display())
        };
        for (taken, why) in
            [(&plan.image.stored.path, "it is the image"), (&plan.target.node, "it is the target")]
        {
            if is_same(path, taken) {
                return Err(refused(why));
            }
        }
        // Through links: what they lead to is replaced, not they.
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let is_special = |p: &Path| ["/dev", "/proc", "/sys"].iter().any(|top| p.starts_with(top));
        if is_special(&real) || std::fs::symlink_metadata(&real).is_ok_and(|m| !m.is_file()) {
            return Err(refused("it is not a plain file"));
        }
        let file = ReceiptFile { path: real };
        file.temporary().map_err(|e| refused("its folder cannot be written").because(e))?;
        Ok(file)
    }

    /// A new file beside the receipt's place, gone again with the value.
    fn temporary(&self) -> std::io::Result<NamedTempFile> {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let permissions = Permissions::from_mode(0o644);
        tempfile::Builder::new().prefix(".receipt-").permissions(permissions).tempfile_in(folder)
    }

    fn save(&self, text: &str) -> Result<()> {
        self.replace(text).map_err(|e| {
            let path = self.path.display();
            let message = format!("the image was written and verified, but the receipt {path} was not");
            Error::new(Code::OutputFailed, message).object(path).because(e).after_success()
        })
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        let mut temporary = self.temporary()?;
        writeln!(temporary, "{text}")?;
        temporary.as_file().sync_all()?;
        temporary.persist(&self.path)?;
        sync_name(&self.path)
    }
}

/// The same file, by whatever name; or the same name, where there is none yet.
fn is_same(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(x), Ok(y)) => (x.dev(), x.ino()) == (y.dev(), y.ino()) || (x.rdev() != 0 && x.rdev() == y.rdev()),
        (Err(_), Err(_)) => {
            let place = |p: &Path| {
                let absolute = std::path::absolute(p).ok()?;
                Some((absolute.parent()?.canonicalize().ok()?, absolute.file_name()?.to_owned()))
            };
            place(a).is_some_and(|x| Some(x) == place(b))
        }
        _ => false,
    }
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
