//! The plan of an installation: the writes of the image and all later steps, as a value made before the first write.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::boot_files::install::{Contents, Install};
use crate::bootloader::{self, Coming, Prepared, StorageKind};
use crate::config::config_json::ConfigJson;
use crate::config::flasher_conf::{BootloaderWrite, FlasherConf};
use crate::config::paths::Paths;
use crate::disk::partition::Table;
use crate::error::{Code, Error, Result};
use crate::flash;
use crate::image::BOOT_LABEL;
use crate::install::board::{self, Board};
use crate::install::device_trees::{self, Tree};
use crate::install::encryption;
use crate::sys::log::shown;
use crate::sys::power::Shutdown;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    #[serde(flatten)]
    pub flash: flash::plan::Plan,
    /// Later steps; `None` where the image is written alone.
    pub installation: Option<Installation>,
}

impl From<flash::plan::Plan> for Plan {
    fn from(flash: flash::plan::Plan) -> Self {
        Plan { flash, installation: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedBootloader {
    pub kind: StorageKind,
    /// As the configuration names it.
    pub device: String,
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub image: PathBuf,
    /// Its start on the device, in bytes.
    pub offset: u64,
    pub length: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installation {
    pub bootloaders: Vec<PlannedBootloader>,
    pub boot_partition: Contents,
    /// Named by the owner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_trees: Vec<Tree>,
    #[serde(serialize_with = "crate::sys::path_text::option")]
    pub board_program: Option<PathBuf>,
    pub ending: Shutdown,
    /// On a board with secure-boot plug-ins that could encrypt: they decide, and only an installation asks them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<encryption::Planned>,
    /// On a board with secure-boot plug-ins: what refuses the installation if they decide to encrypt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption_refused: Option<String>,
}

impl Installation {
    /// Plans the steps after the writes of `plan`, and checks whether they are possible. Writes nothing.
    pub(super) fn new(
        paths: &Paths,
        conf: &FlasherConf,
        config: &ConfigJson,
        board: &Board,
        plan: &flash::plan::Plan,
    ) -> Result<Installation> {
        board.check()?;
        let boot = paths.boot();
        let mut boot_partition = Contents::gather(&boot, conf, config.path(), Install::Plain)?;
        let table = plan.image.table.as_ref();
        let device_trees = device_trees::plan(paths, &mut boot_partition, table)?;
        let internal =
            table.into_iter().flat_map(|t| &t.partitions).find(|p| p.label.as_deref() == Some(BOOT_LABEL));
        if let Some(internal) = internal {
            boot_partition.check_size(internal.size)?;
        }
        Ok(Installation {
            bootloaders: bootloaders(paths, conf, plan)?,
            boot_partition,
            device_trees,
            board_program: board.has_flasher_program().then(|| PathBuf::from(board::FLASHER)),
            ending: if conf.postinstall_reboot { Shutdown::Reboot } else { Shutdown::PowerOff },
            encryption: None,
            encryption_refused: None,
        })
    }
}

/// Refuses bootloaders that cannot be written onto a disk with this table.
pub(super) fn check_bootloaders(
    paths: &Paths,
    conf: &FlasherConf,
    plan: &flash::plan::Plan,
    table: Table,
) -> Result<()> {
    let mut coming = plan.clone();
    coming.image.table = Some(table);
    bootloaders(paths, conf, &coming).map(drop)
}

fn bootloaders(
    paths: &Paths,
    conf: &FlasherConf,
    plan: &flash::plan::Plan,
) -> Result<Vec<PlannedBootloader>> {
    let mut planned: Vec<(PlannedBootloader, Prepared)> = Vec::new();
    for write in &conf.bootloader_writes {
        let (next, prepared) = PlannedBootloader::new(paths, write, plan)?;
        // Each would pass its own read-back, the first one before the second overwrites it.
        if let Some((first, _)) = planned.iter().find(|(_, other)| other.overlaps(&prepared)) {
            let (a, b) = (first.image.display(), next.image.display());
            let message = format!("cannot write bootloaders: {a} and {b} overlap on {}", next.device);
            let hint = "correct the block sizes and the blocks to skip in the board's recipe";
            return Err(Error::new(Code::ConfInvalid, message).object(&next.device).with_hint(hint));
        }
        planned.push((next, prepared));
    }
    Ok(planned.into_iter().map(|(planned, _)| planned).collect())
}

/// The target disk with this table.
pub(super) fn coming<'a>(plan: &'a flash::plan::Plan, table: Option<&'a Table>) -> Option<Coming<'a>> {
    let of_disk = plan.target.dev.zip(plan.target.node.file_name());
    of_disk.map(|(dev, kernel_name)| Coming { dev, kernel_name, table })
}

impl PlannedBootloader {
    /// The target disk is judged by the image's table, any other device as it is now.
    fn new(paths: &Paths, write: &BootloaderWrite, plan: &flash::plan::Plan) -> Result<(Self, Prepared)> {
        let offset = write.offset().ok_or_else(|| {
            let message =
                format!("{}: block size times skipped blocks is past the end of any device", write.device);
            Error::new(Code::ConfInvalid, message).object(&write.device)
        })?;
        let write = bootloader::Write {
            device: write.device.clone(),
            image: paths.boot().join(&write.image),
            offset,
        };
        let coming = coming(plan, plan.image.table.as_ref());
        let prepared = bootloader::prepare(&write, paths, coming.as_ref()).map_err(|e| match e.code() {
            Code::ImageMissing | Code::ImageNotRegular | Code::ImageEmpty | Code::BootloaderTooLarge => e.with_hint(
                "put the bootloader on the medium's boot partition, or correct its name in the board's recipe",
            ),
            _ => e,
        })?;
        prepared.ensure_writable()?;
        let planned = PlannedBootloader {
            kind: prepared.kind(),
            length: prepared.length(),
            device: write.device,
            image: write.image,
            offset,
        };
        Ok((planned, prepared))
    }

    #[must_use]
    pub fn write(&self) -> bootloader::Write {
        bootloader::Write { device: self.device.clone(), image: self.image.clone(), offset: self.offset }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.flash)?;
        self.installation.as_ref().map_or(Ok(()), |installation| write!(f, "then\n{installation}"))
    }
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in &self.bootloaders {
            let (image, end) = (shown(&b.image), b.offset.saturating_add(b.length));
            writeln!(
                f,
                "        write {image} to bytes {}..{end} of {}, where it differs",
                b.offset, b.device
            )?;
        }
        for tree in &self.device_trees {
            writeln!(f, "        {tree}")?;
        }
        write!(f, "{}", self.boot_partition)?;
        if let Some(program) = &self.board_program {
            writeln!(f, "        run {}", shown(program))?;
        }
        if let Some(encryption) = &self.encryption {
            write!(f, "{encryption}")?;
        }
        if let Some(why) = &self.encryption_refused {
            writeln!(f, "        refused if the secure-boot plug-in decides to encrypt: {why}")?;
        }
        let ending = match self.ending {
            Shutdown::PowerOff => "power off",
            Shutdown::Reboot => "reboot",
        };
        writeln!(f, "        {ending}")
    }
}
