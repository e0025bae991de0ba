//! `copal bootloader`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::json;

use super::image_and_target::both;
use super::{Ui, refuse_without_root};
use crate::bootloader::mmcboot::{self, BootPartition};
use crate::bootloader::mtd::{self, BY_NAME, Chip};
use crate::bootloader::{Compared, Write, Written, prepare};
use crate::config::flasher_conf::number;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::log::shown;

const EXIT_CODES: &str = "\
Exit codes:
  0  done: the bootloader is there, by reading it back
  1  that is done, but an eMMC boot partition is not protected again
  2  wrong arguments
  3  refused: nothing was written
  4  failed after writing had begun: the bootloader at that place is incomplete
  5  busy: another program writes the device; nothing was written";

const SHOW_EXAMPLES: &str = "\
Examples:
  copal bootloader show
  copal bootloader show imx-boot mmcblk0boot0 --block-size 1024 --seek 33";

const WRITE_EXAMPLES: &str = "\
Examples:
  copal bootloader write u-boot.imx mmcblk0 --block-size 1024 --seek 33 --plan
  copal bootloader write tiboot3.bin /dev/mmcblk0boot0
  copal bootloader write u-boot.imx mtdblock0 --block-size 1K --seek 1
  copal bootloader write u-boot.bin mtd:u-boot --json";

/// Write a bootloader outside file systems, or show where one can go
#[derive(Debug, Subcommand)]
pub(super) enum BootloaderVerb {
    /// List raw flash and eMMC boot partitions, or compare with an image
    #[command(after_help = format!("{SHOW_EXAMPLES}\n\n{EXIT_CODES}"))]
    Show(ShowArgs),
    /// Write an image where it differs, its beginning last, and read it back
    #[command(after_help = format!("{WRITE_EXAMPLES}\n\n{EXIT_CODES}"))]
    Write(WriteArgs),
    /// Make all eMMC boot partitions refuse writes
    #[command(after_help = EXIT_CODES)]
    Protect(ProtectArgs),
}

#[derive(Debug, Clone, Args)]
struct Location {
    /// As --image
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    plain_image: Option<PathBuf>,

    /// As --target
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    plain_target: Option<PathBuf>,

    /// The bootloader, as it is to stand on the device
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    image: Option<PathBuf>,

    /// A disk, eMMC boot partition, mtdN or mtd:NAME
    #[arg(long, value_name = "DEV", value_hint = ValueHint::AnyPath)]
    target: Option<PathBuf>,

    /// Bytes of a block of --seek; suffixes as in dd
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    block_size: Option<u64>,

    /// Blocks of the device before the image [default: 0]
    #[arg(long, value_name = "BLOCKS", value_parser = any_number, requires = "block_size")]
    seek: Option<u64>,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    location: Location,

    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct WriteArgs {
    #[command(flatten)]
    location: Location,

    /// Check everything and compare; write nothing
    #[arg(long)]
    plan: bool,

    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct ProtectArgs {
    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

pub(super) fn run_bootloader(what: &BootloaderVerb, ui: &Ui) -> Result<()> {
    match what {
        BootloaderVerb::Show(args) => show(args, ui),
        BootloaderVerb::Write(args) => write(args, ui),
        BootloaderVerb::Protect(args) => protect(args, ui),
    }
}

fn show(args: &ShowArgs, ui: &Ui) -> Result<()> {
    let paths = Paths::new(&args.location.root);
    let Location { image, target, plain_image, .. } = &args.location;
    if image.is_some() || target.is_some() || plain_image.is_some() {
        let compared = prepare(&request("bootloader show", &args.location)?, &paths, None)?.compare()?;
        ui.result("bootloader", &compared, &compared_text(&compared, "differs from"));
        return Ok(());
    }
    let (chips, boots) = (mtd::list(&paths), mmcboot::list(&paths));
    let lines: Vec<String> = chips.iter().map(chip_text).chain(boots.iter().map(boot_text)).collect();
    let text =
        if lines.is_empty() { "no raw flash and no eMMC boot partition".into() } else { lines.join("\n") };
    ui.result("bootloader", &json!({ "mtd": chips, "mmc_boot": boots }), &text);
    Ok(())
}

fn write(args: &WriteArgs, ui: &Ui) -> Result<()> {
    let paths = Paths::new(&args.location.root);
    let prepared = prepare(&request("bootloader write", &args.location)?, &paths, None)?;
    if args.plan {
        let compared = prepared.compare()?;
        ui.result("bootloader", &compared, &compared_text(&compared, "would be replaced by"));
        return Ok(());
    }
    let written = prepared.run()?;
    ui.result("bootloader", &written, &written_text(&written));
    Ok(())
}

fn protect(args: &ProtectArgs, ui: &Ui) -> Result<()> {
    refuse_without_root("copal bootloader protect", &args.root)?;
    let names = mmcboot::protect(&Paths::new(&args.root))?;
    let text = if names.is_empty() {
        "no eMMC boot partition".into()
    } else {
        format!("{} protected", names.join(", "))
    };
    ui.result("bootloader", &json!({ "protected": names }), &text);
    Ok(())
}

fn request(verb: &str, location: &Location) -> Result<Write> {
    let Location { image, target, plain_image, plain_target, .. } = location.clone();
    let (image, target) = both(verb, [image, target], [plain_image, plain_target])?;
    let offset = location.block_size.unwrap_or(1).checked_mul(location.seek.unwrap_or(0));
    let offset = offset.filter(|o| i64::try_from(*o).is_ok());
    let offset = offset.ok_or_else(|| {
        Error::new(Code::Usage, "--seek leads past the end of any device")
            .object("--seek")
            .with_hint(format!("run `copal help {verb}`"))
    })?;
    Ok(Write { device: device(&target, &location.root)?, image, offset })
}

/// The name of a device as it is, and a path with its links resolved.
fn device(target: &Path, root: &Path) -> Result<String> {
    let name = target.to_str().map(str::to_owned);
    let is_path = name.as_ref().is_none_or(|name| name.contains('/') && !name.starts_with(BY_NAME));
    let name = if is_path && root == Path::new("/") {
        std::fs::canonicalize(target).ok().and_then(|real| real.into_os_string().into_string().ok())
    } else {
        name
    };
    name.ok_or_else(|| {
        let name = shown(target);
        Error::new(Code::FlashDeviceMissing, format!("device {name} does not exist")).object(name)
    })
}

fn any_number(text: &str) -> Result<u64, String> {
    number(text).map_err(|why| format!("it {why}"))
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match any_number(text)? {
        0 => Err("a block has at least 1 byte".into()),
        n => Ok(n),
    }
}

fn compared_text(c: &Compared, verb: &str) -> String {
    let (device, length, offset) = (shown(&c.device), c.length, c.offset);
    if c.identical {
        return format!("{device}: up to date, {length} bytes from byte {offset}; SHA-256 {}", c.sha256);
    }
    format!(
        "{device}: {length} bytes from byte {offset}, SHA-256 {}: {verb} the image, SHA-256 {}; {} bytes to write",
        c.device_sha256, c.sha256, c.would_write
    )
}

fn written_text(w: &Written) -> String {
    let (device, length, offset) = (shown(&w.device), w.length, w.offset);
    if !w.changed {
        return format!("{device}: up to date, {length} bytes from byte {offset}; SHA-256 {}", w.sha256);
    }
    let erased = match w.blocks_erased {
        0 => String::new(),
        1 => ", 1 erase block erased".into(),
        n => format!(", {n} erase blocks erased"),
    };
    format!(
        "{device}: {length} bytes from byte {offset} written and read back ({} written{erased}); SHA-256 {}",
        w.bytes_written, w.sha256
    )
}

fn chip_text(c: &Chip) -> String {
    let protected = if c.writeable { "" } else { ", write-protected" };
    format!(
        "mtd{} `{}`: {}, {} bytes in erase blocks of {}{protected}",
        c.index, c.name, c.kind, c.size, c.erase_size
    )
}

fn boot_text(b: &BootPartition) -> String {
    let size = b.size.map_or("size unknown".into(), |s| format!("{s} bytes"));
    let protected = match b.force_ro {
        Some(true) => ", protected (lifted for the time of a write)",
        Some(false) => ", not protected",
        None => "",
    };
    let active = match b.active {
        Some(true) => ", active",
        Some(false) => ", not active",
        None => "",
    };
    format!("{}: eMMC boot partition, {size}{protected}{active}", b.name)
}
