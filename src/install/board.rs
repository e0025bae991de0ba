//! The board's own programs: one before anything else, one on the freshly written disk.
//!
//! They are older than this program, in any language, with any output and duration. The contract is in
//! `docs/board-programs.md`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::boot_files::install::POINT;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{self, Command, End, Speaker};

/// Runs before anything is read or written.
const INIT: &str = "/usr/bin/resin-init-board";
/// Runs when the internal boot partition is complete.
pub const FLASHER: &str = "/usr/bin/resin-init-flasher-board";

/// Seconds that a board program may take; no limit by default.
pub const BOARD_LIMIT_VARIABLE: &str = "COPAL_BOARD_PROGRAM_TIMEOUT";

#[derive(Debug, Clone)]
pub struct Environment {
    paths: Paths,
    config_json: PathBuf,
    target: Option<PathBuf>,
}

impl Environment {
    /// Before a target was chosen.
    #[must_use]
    pub fn new(paths: &Paths, config_json: &Path) -> Self {
        Environment { paths: paths.clone(), config_json: config_json.to_owned(), target: None }
    }

    /// `name` is the one that matched: a link stays a link.
    #[must_use]
    pub fn with_target(mut self, name: &Path) -> Self {
        self.target = Some(name.to_owned());
        self
    }

    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let boot = OsString::from(self.paths.boot());
        let mut variables = vec![
            ("INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT", self.paths.at(POINT).into()),
            ("EXTERNAL_DEVICE_BOOT_PART_MOUNTPOINT", boot.clone()),
            ("BALENA_BOOT_MOUNTPOINT", boot),
            ("CONFIG_PATH", self.config_json.clone().into()),
        ];
        variables.extend(self.target.as_ref().map(|target| ("internal_dev", target.clone().into())));
        variables
    }
}

#[derive(Debug, Clone)]
pub struct Board {
    environment: Environment,
    limit: Option<Duration>,
    silence: Duration,
}

impl Board {
    /// The programs below the root of `environment`. A program is killed only after `limit`; see [`limit`].
    #[must_use]
    pub fn new(environment: Environment, limit: Option<Duration>) -> Self {
        Board { environment, limit, silence: command::SILENCE }
    }

    /// Warns after this much silence; the default is five minutes.
    #[must_use]
    pub fn warn_after(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Checks whether the installed programs can run at all; after the write it would be too late.
    pub fn check(&self) -> Result<()> {
        for name in [INIT, FLASHER] {
            if let Some(program) = self.installed(name) {
                command::check_script(&program).map_err(|e| failed(name, "cannot run", e))?;
            }
        }
        Ok(())
    }

    pub fn init_board(&self) -> Result<()> {
        self.run(INIT)
    }

    /// This program may also drive the LED.
    #[must_use]
    pub fn has_flasher_program(&self) -> bool {
        self.installed(FLASHER).is_some()
    }

    /// Runs `resin-init-flasher-board`, where it is installed. The caller has mounted the internal boot partition at [`POINT`]
    /// and holds the disk open nowhere.
    pub fn flasher_board(&self) -> Result<()> {
        self.run(FLASHER).map_err(Error::after_write)
    }

    fn installed(&self, name: &str) -> Option<PathBuf> {
        let path = self.environment.paths.at(name);
        // A dangling link is a program that cannot run, not a missing one.
        path.symlink_metadata().is_ok().then_some(path)
    }

    fn run(&self, name: &str) -> Result<()> {
        let Some(program) = self.installed(name) else {
            tracing::debug!("the board has no {name}");
            return Ok(());
        };
        let short = name.rsplit('/').next().unwrap_or(name);
        tracing::info!("running {name}");
        let command = Command::script(&program).map_err(|e| failed(name, "cannot run", e))?;
        let speaker = Speaker { name: short, full: name, hook: None, levels: false };
        let ended = command
            .envs(self.environment.variables())
            .limit(self.limit)
            .silence(self.silence)
            .run_logged(speaker, |_| ())
            .map_err(|e| failed(name, "cannot run", e))?;
        match ended.end {
            End::Status(0) => Ok(()),
            end => {
                let e = failed(name, "the board's program failed:", ended.because());
                Err(if matches!(end, End::TooLong(_)) {
                    e.with_hint(format!("fix the program, or give it more time with {BOARD_LIMIT_VARIABLE}"))
                } else {
                    e
                })
            }
        }
    }
}

pub fn limit(variable: Option<OsString>) -> Result<Option<Duration>> {
    command::seconds(variable).map_err(|found| {
        Error::new(Code::Usage, format!("{BOARD_LIMIT_VARIABLE}={found} is not a number of seconds"))
            .object(BOARD_LIMIT_VARIABLE)
            .with_hint("write whole seconds, 1 or more")
    })
}

fn failed(name: &str, what: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Code::BoardProgramFailed, format!("{what} {name}")).object(name).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_whole_seconds() {
        assert_eq!(limit(None).unwrap(), None);
        assert_eq!(limit(Some("".into())).unwrap(), None);
        assert_eq!(limit(Some("90".into())).unwrap(), Some(Duration::from_secs(90)));
        for wrong in ["0", "-1", "5m", "1.5", " 3"] {
            assert_eq!(limit(Some(wrong.into())).unwrap_err().code(), Code::Usage, "{wrong}");
        }
    }
}
