//! `copal bootloader`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use serde_json::json;

use super::{Ui, refuse_without_root};
use crate::bootloader::mmcboot::{self, BootPartition};
use crate::bootloader::mtd::{self, Chip};
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
  copal bootloader show --device mmcblk0boot0 --image imx-boot \\
    --block-size 1024 --seek 33";

const WRITE_EXAMPLES: &str = "\
Examples:
  copal bootloader write --device mmcblk0 --image u-boot.imx \\
    --block-size 1024 --seek 33 --dry-run
  copal bootloader write --device mmcblk0boot0 --image tiboot3.bin
  copal bootloader write --device mtdblock0 --image u-boot.imx \\
    --block-size 1K --seek 1
  copal bootloader write --device mtd:u-boot --image u-boot.bin --json";

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
    /// A disk, eMMC boot partition, mtdN or mtd:NAME
    #[arg(long, value_name = "DEV", value_hint = ValueHint::AnyPath, requires = "image")]
    device: Option<String>,

    /// The bootloader to compare with
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "device")]
    image: Option<PathBuf>,

    #[command(flatten)]
    location: Location,

    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Args)]
pub(super) struct WriteArgs {
    /// A disk, eMMC boot partition, mtdN or mtd:NAME
    #[arg(long, value_name = "DEV", value_hint = ValueHint::AnyPath)]
    device: String,

    /// The bootloader, as it is to stand on the device
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    image: PathBuf,

    #[command(flatten)]
    location: Location,

    /// Check everything and compare; write nothing
    #[arg(long)]
    dry_run: bool,

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
    if let (Some(device), Some(image)) = (&args.device, &args.image) {
        let compared = prepare(&request(device, image, &args.location)?, &paths, None)?.compare()?;
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
    let prepared = prepare(&request(&args.device, &args.image, &args.location)?, &paths, None)?;
    if args.dry_run {
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

fn request(device: &str, image: &std::path::Path, location: &Location) -> Result<Write> {
    let offset = location.block_size.unwrap_or(1).checked_mul(location.seek.unwrap_or(0));
    let offset = offset.filter(|o| i64::try_from(*o).is_ok());
    let offset = offset.ok_or_else(|| {
        Error::new(Code::Usage, "--seek leads past the end of any device")
            .object("--seek")
            .with_hint("run `copal help bootloader write`")
    })?;
    Ok(Write { device: device.to_owned(), image: image.to_owned(), offset })
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
