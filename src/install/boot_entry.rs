//! The entry of the installed system in the firmware's boot menu.
//!
//! Names and program are those of meta-balena v8.0.2 (`secureboot_bootloader_postsetup` of `balena-init-flasher-efi`).

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::config::paths::Paths;
use crate::disk::select::Target;
use crate::error::{Code, Error, Result};
use crate::uefi::boot_menu::GptPartition;
use crate::uefi::variables::Firmware;

/// The first is written; the others are those of older systems.
const NAMES: [&str; 2] = ["balenaOS", "resinOS"];

/// Below the boot partition.
pub(super) const LOADER: &str = "EFI/BOOT/bootx64.efi";

const FIRMWARE_PATH: &str = "\\EFI\\BOOT\\bootx64.efi";

/// Makes the firmware start the boot partition, which begins at this byte of the disk, before anything else. A failure is a warning: the
/// loader's name is the one that firmware looks for on its own.
pub(super) fn set(paths: &Paths, target: &Target, start: u64) {
    if let Err(e) = try_set(paths, target, start) {
        tracing::warn!("no entry in the firmware's boot menu: {}", e.message());
    }
}

fn try_set(paths: &Paths, target: &Target, start: u64) -> Result<()> {
    let Some(firmware) = Firmware::find(paths)? else { return Ok(()) };
    let name = target.name.display();
    let failed = |e| {
        Error::new(Code::Io, format!("cannot read the partition table of {name}")).object(&name).because(e)
    };
    let partition = partition(&target.node, target.block_size, start).map_err(failed)?;
    let Some(partition) = partition else {
        // An entry names a partition by its GUID.
        tracing::info!("{name} has no GPT: the firmware's boot menu stays as it is");
        return Ok(());
    };
    tracing::info!("firmware: the boot menu begins with {} on partition {}", NAMES[0], partition.number);
    firmware.start_first(&NAMES, &partition, FIRMWARE_PATH)
}

fn partition(node: &Path, sector: u32, start: u64) -> std::io::Result<Option<GptPartition>> {
    let disk = File::open(node)?;
    GptPartition::find(&mut |at, out| disk.read_exact_at(out, at), sector, start)
}
