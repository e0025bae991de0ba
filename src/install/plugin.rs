//! Secure-boot plug-ins: shell files of the board that take part in every installation.
//!
//! A plug-in that defines `secureboot_setup` is always called, and decides whether the installation is encrypted. This build
//! installs unencrypted only: it refuses a request for encryption before the first write. Any failure of a plug-in refuses
//! too, because the failed part may be the one that locks the device.

use std::path::Path;
use std::time::Duration;

use super::board::Environment;
use super::shell::{Answer, Shell, present};
use crate::error::{Code, Error, Result};
use crate::sys::command;

/// In the order of the script: helpers first, then plug-ins, then the board's configuration and this configuration.
const HELPERS: [&str; 3] =
    ["/usr/libexec/os-helpers-fs", "/usr/libexec/os-helpers-logging", "/usr/libexec/os-helpers-power"];
const PLUGINS: [&str; 2] =
    ["/usr/libexec/balena-init-flasher-secureboot", "/usr/libexec/balena-init-flasher-diskenc"];
const CONFIG_VARS: &str = "/usr/sbin/balena-config-vars";

const SETUP: &str = "secureboot_setup";
const BOOTLOADER_SETUP: &str = "secureboot_bootloader_setup";
const BOOTLOADER_POSTSETUP: &str = "secureboot_bootloader_postsetup";

const BOOT_ENTRY_LABEL: &str = "balenaOS";

const PLUGIN_NAME: &str = "secure-boot plug-in";

/// The board's plug-ins, in a bash of their own; empty for boards without.
pub struct Plugin {
    shell: Option<Shell>,
}

impl Plugin {
    /// Starts the plug-ins below the root of `environment`, which must have the target; `conf` is the board's configuration.
    /// Without plug-ins there is no bash, and all other functions do nothing.
    /// `silence`: how long they may write nothing until that is logged.
    pub fn start(environment: &Environment, conf: Option<&Path>, silence: Duration) -> Result<Self> {
        let plugins = present(environment, &PLUGINS);
        let Some(first) = plugins.first() else { return Ok(Plugin { shell: None }) };
        let cannot = |what: &Path| {
            let what = what.display();
            Error::new(Code::PluginFailed, format!("cannot use the secure-boot plug-ins: {what}"))
                .object(what)
        };
        let more = [("BOOT_ENTRY_LABEL", BOOT_ENTRY_LABEL)];
        let shell =
            Shell::start(PLUGIN_NAME, environment, &more, silence).map_err(|e| cannot(first).because(e))?;
        let Some(mut shell) = shell else {
            return Err(cannot(first).because(std::io::Error::other("bash is not installed")));
        };
        let mut files = present(environment, &HELPERS);
        files.extend(plugins);
        files.extend(conf.map(Path::to_owned));
        files.extend(present(environment, &[CONFIG_VARS]));
        for file in &files {
            match shell.source(file).map_err(|e| cannot(file).because(e))? {
                Answer::Status(_) => {}
                Answer::Gone(end, last) => return Err(cannot(file).because(command::because(end, &last))),
            }
        }
        Ok(Plugin { shell: Some(shell) })
    }

    /// Refuses early: `opted_in`, the owner's request for secure boot, on a board without a plug-in.
    pub fn check(environment: &Environment, opted_in: bool) -> Result<()> {
        if opted_in && present(environment, &PLUGINS).is_empty() { Err(nothing_encrypts()) } else { Ok(()) }
    }

    /// Lets a plug-in that defines `secureboot_setup` decide. `opted_in`: `config.json` asks for secure boot.
    pub fn secureboot_setup(&mut self, opted_in: bool) -> Result<()> {
        match self.call(SETUP)? {
            None if opted_in => Err(nothing_encrypts()),
            None => Ok(()),
            Some(0) => {
                let message = format!(
                    "cannot install encrypted, as the {PLUGIN_NAME} decided ({SETUP}): this build does not encrypt"
                );
                Err(Error::new(Code::EncryptionNotInThisBuild, message).object(SETUP))
            }
            Some(status) => {
                if opted_in {
                    tracing::warn!(
                        "config.json asks for secure boot, and the {PLUGIN_NAME} does not provide it"
                    );
                }
                tracing::info!(
                    "the {PLUGIN_NAME} chose an installation without encryption ({SETUP}: {status})"
                );
                Ok(())
            }
        }
    }

    /// `secureboot_bootloader_setup`, where defined: after the boot files, before `config.json`.
    pub fn bootloader_setup(&mut self) -> Result<()> {
        self.must_succeed(BOOTLOADER_SETUP)
    }

    /// `secureboot_bootloader_postsetup`, where defined: after the internal boot partition was unmounted.
    pub fn bootloader_postsetup(&mut self) -> Result<()> {
        self.must_succeed(BOOTLOADER_POSTSETUP)
    }

    fn must_succeed(&mut self, function: &str) -> Result<()> {
        match self.call(function).map_err(Error::after_write)? {
            None | Some(0) => Ok(()),
            Some(status) => {
                let message = format!("the {PLUGIN_NAME} failed: {function} returned {status}");
                Err(Error::new(Code::PluginFailed, message).object(function).after_write())
            }
        }
    }

    fn call(&mut self, function: &str) -> Result<Option<i32>> {
        let Some(shell) = &mut self.shell else { return Ok(None) };
        let failed = |cause: std::io::Error| {
            let message = format!("the {PLUGIN_NAME} failed in {function}");
            Error::new(Code::PluginFailed, message).object(function).because(cause)
        };
        let mut answer = shell.has(function).map_err(failed)?;
        match answer {
            Answer::Status(0) => {
                tracing::info!("calling {function} of the {PLUGIN_NAME}");
                answer = shell.call(function).map_err(failed)?;
            }
            Answer::Status(_) => return Ok(None),
            Answer::Gone(..) => {}
        }
        match answer {
            Answer::Status(status) => Ok(Some(status)),
            Answer::Gone(end, last) => Err(failed(command::because(end, &last))
                .and_also("if it has started a reboot, the reboot continues; the installation stops here")),
        }
    }
}

/// An installation without the requested protection is worse than none.
fn nothing_encrypts() -> Error {
    let message = "cannot install with secure boot, as config.json asks (installer.secureboot): no plug-in of this board \
                   provides it, and this build does not encrypt";
    let hint = "remove installer.secureboot from config.json, or use the script that this program replaces";
    Error::new(Code::EncryptionNotInThisBuild, message).object("installer.secureboot").with_hint(hint)
}
