//! Which system is in an image, by the files of its boot partition.

use std::io;

use serde::{Deserialize, Serialize};

use super::headers::Headers;
use super::{BOOT_LABEL, Format, Image};
use crate::config::os_release::OsRelease;
use crate::disk::partition::{Flaw, Partition, ReadAt, Table, file_in_fat, inside};
use crate::disk::select::FLASHER_BOOT_LABEL;
use crate::error::Result;

/// Each has less than 4 KiB in balenaOS.
const MAX_FILE_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct System {
    /// Of the OS.
    pub version: Option<String>,
    /// The board's device type, such as `raspberrypi4-64`.
    pub board: Option<String>,
    pub board_name: Option<String>,
    /// Whether it only installs the system to the board's internal disk.
    pub is_flasher: bool,
}

impl System {
    /// What an `os-release` says.
    #[must_use]
    pub fn of_release(release: &OsRelease) -> System {
        let board = release.get("SLUG").or_else(|| release.get("MACHINE"));
        System {
            version: release.version().map(str::to_owned),
            board: board.map(str::to_owned),
            ..System::default()
        }
    }

    /// The system of an image with this table; empty where it has no boot partition of balenaOS.
    pub(super) fn of(image: &Image, table: &Table) -> Result<System> {
        let labelled = |label: &str| table.partitions.iter().find(|p| p.label.as_deref() == Some(label));
        let flasher = labelled(FLASHER_BOOT_LABEL);
        let Some(boot) = flasher.or_else(|| labelled(BOOT_LABEL)) else { return Ok(System::default()) };
        let mut files = BootFiles::default();
        if image.format == Format::Raw {
            files =
                BootFiles::read(&mut |offset, buf| image.read_stored(offset, buf), boot).unwrap_or_default();
        } else {
            let mut headers = Headers::new(Box::new(|read_at, _| match BootFiles::read(read_at, boot) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => (Err(Flaw::Pending), false),
                other => (other.map_err(Flaw::Read), true),
            }));
            headers.finish(image)?;
            if let Ok(found) = headers.result {
                files = found;
            }
        }
        Ok(System { is_flasher: flasher.is_some(), ..files.system() })
    }
}

/// The files that say it. balena-cli reads them from there, too, when it configures an image.
#[derive(Default)]
struct BootFiles {
    os_release: Option<Vec<u8>>,
    device_type: Option<Vec<u8>>,
}

/// `device-type.json`.
#[derive(Default, Deserialize)]
struct DeviceType {
    #[serde(default)]
    slug: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

impl BootFiles {
    fn read(read_at: &mut ReadAt<'_>, boot: &Partition) -> io::Result<BootFiles> {
        let mut boot = inside(read_at, boot);
        let mut file = |name| file_in_fat(&mut boot, name, MAX_FILE_BYTES);
        let (os_release, device_type) = (file("os-release"), file("device-type.json"));
        Ok(BootFiles { os_release: os_release?, device_type: device_type? })
    }

    fn system(self) -> System {
        let release = String::from_utf8(self.os_release.unwrap_or_default()).unwrap_or_default();
        let system = System::of_release(&OsRelease::parse(&release));
        let device = serde_json::from_slice(&self.device_type.unwrap_or_default());
        let DeviceType { slug, name } = device.unwrap_or_default();
        System { board: slug.or(system.board), board_name: name, ..system }
    }
}
