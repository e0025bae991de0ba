//! The specification of a job.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::event::Stage;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spec {
    Update(UpdateSpec),
    Flash(FlashSpec),
    /// The plan of a flash. It changes nothing.
    Plan(FlashSpec),
    Rollback,
    MarkGood,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateSpec {
    pub source: Source,
    /// Run the hooks of the new release, the last of which selects it. Without them it is installed and not selected.
    pub hooks: bool,
    /// After a failed hook, run the hooks of the running system to restore its boot files.
    pub recover: bool,
    /// Reboot after the update as soon as applications allow it.
    pub reboot: bool,
    /// Update even if the running system is on trial, if the bootloader has fallen back to it, or if the new system lacks files that the
    /// owner named.
    pub force: bool,
    /// Update to a release whose loader has another key: a power cut meanwhile leaves a device that does not start.
    #[serde(default)]
    pub accept_loader_key: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The absolute path of an image archive.
    File(PathBuf),
    /// An image in a registry.
    Reference(String),
}

/// The flags of `copal flash`. `None` selects the value of the board's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashSpec {
    pub conf: Option<PathBuf>,
    pub image: Option<PathBuf>,
    pub target: Option<PathBuf>,
    pub force_raw: bool,
    pub single_pass: bool,
    pub image_only: bool,
    pub power_off: bool,
}

impl Spec {
    #[must_use]
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Spec::Update(_) => "update",
            Spec::Flash(_) => "flash",
            Spec::Plan(_) => "plan",
            Spec::Rollback => "rollback",
            Spec::MarkGood => "mark-good",
        }
    }

    #[must_use]
    pub(crate) fn reboots(&self) -> bool {
        matches!(self, Spec::Update(update) if update.reboot)
    }

    /// First and last percent of a stage. The rest of an update belongs to the hooks, which report no progress.
    #[must_use]
    pub(super) fn span(&self, stage: Stage) -> (u32, u32) {
        match (self, stage) {
            (Spec::Update(_), Stage::Load | Stage::Pull) => (0, 60),
            (Spec::Update(_), Stage::Unpack) => (60, 80),
            (Spec::Flash(_), Stage::Check) => (0, 20),
            (Spec::Flash(_), Stage::Write) => (20, 60),
            (Spec::Flash(_), Stage::Verify) => (60, 95),
            _ => (0, 0),
        }
    }
}

impl UpdateSpec {
    /// An update with hooks and recovery, without reboot and force.
    #[must_use]
    pub fn new(source: Source) -> UpdateSpec {
        UpdateSpec {
            source,
            hooks: true,
            recover: true,
            reboot: false,
            force: false,
            accept_loader_key: false,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Reference(name) => f.write_str(name),
        }
    }
}
