use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;

use super::StepTime;
use super::device_trees::Carried;
use super::encryption;
use crate::boot_files::Deployed;
use crate::bootloader::Written;
use crate::error::{Code, Error, Result};
use crate::flash;
use crate::sys::log::printable_json;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootPartitionRecord {
    #[serde(serialize_with = "crate::sys::path_text::path")]
    pub device: PathBuf,
    #[serde(flatten)]
    pub deployed: Deployed,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    #[serde(flatten)]
    pub flash: flash::receipt::Receipt,
    pub bootloaders: Vec<Written>,
    pub boot_partition: Option<BootPartitionRecord>,
    /// Named by the owner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_trees: Vec<Carried>,
    /// Of an encrypted installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<encryption::Record>,
    pub timeline: Vec<StepTime>,
}

impl From<flash::receipt::Receipt> for Receipt {
    fn from(flash: flash::receipt::Receipt) -> Self {
        Receipt {
            flash,
            bootloaders: Vec::new(),
            boot_partition: None,
            device_trees: Vec::new(),
            encryption: None,
            timeline: Vec::new(),
        }
    }
}

impl Receipt {
    #[must_use]
    pub fn finished(mut self, timeline: Vec<StepTime>) -> Self {
        self.flash.finished = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Receipt { timeline, ..self }
    }

    pub(crate) fn to_text(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(self).map_err(|e| {
            let message = "the image was written and verified, but its receipt cannot be written as JSON";
            Error::new(Code::OutputFailed, message)
                .because(e)
                .with_hint("report this as a defect of copal")
                .after_success()
        })?;
        Ok(printable_json(&json).into_owned() + "\n")
    }
}
