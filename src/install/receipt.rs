//! The receipt: what a successful flash or installation did. Schema: `docs/receipt.md`. No secrets.

use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;

use super::StepTime;
use crate::boot_files::install::Deployed;
use crate::bootloader::Written;
use crate::flash;

/// What became of the internal boot partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootPartitionRecord {
    /// The partition.
    pub device: PathBuf,
    /// What was copied.
    #[serde(flatten)]
    pub deployed: Deployed,
}

/// Record of one successful installation, or of an image that was written alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    /// The image.
    #[serde(flatten)]
    pub flash: flash::receipt::Receipt,
    /// Loaders that were written outside the partitions, in order.
    pub bootloaders: Vec<Written>,
    /// The internal boot partition, where it was filled.
    pub boot_partition: Option<BootPartitionRecord>,
    /// The steps of an installation.
    pub timeline: Vec<StepTime>,
}

impl From<flash::receipt::Receipt> for Receipt {
    /// Of the image alone.
    fn from(flash: flash::receipt::Receipt) -> Self {
        Receipt { flash, bootloaders: Vec::new(), boot_partition: None, timeline: Vec::new() }
    }
}

impl Receipt {
    /// The receipt with the steps of the installation, which ends now.
    #[must_use]
    pub fn finished(mut self, timeline: Vec<StepTime>) -> Self {
        self.flash.finished = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Receipt { timeline, ..self }
    }

    /// As it is kept: indented, for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}
