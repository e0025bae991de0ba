//! Secure-boot plug-ins: shell files of the board that take part in every installation.
//!
//! A plug-in that defines `secureboot_setup` is always called, and decides whether the installation is encrypted. Any failure of a plug-in
//! refuses, because the failed part may be the one that locks the device.

use std::ffi::OsStr;
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

/// Read again once an installation is encrypted: they then name the non-encrypted boot partition.
const DEFAULTS: &str = "/usr/sbin/balena-config-defaults";

const SETUP: &str = "secureboot_setup";
const DISKENC_SETUP: &str = "diskenc_setup";
const DISKENC_DMSETUP: &str = "diskenc_dmsetup";
const BOOTPART_SPLIT: &str = "bootpart_split";
const BOOTLOADER_SETUP: &str = "secureboot_bootloader_setup";
const BOOTLOADER_POSTSETUP: &str = "secureboot_bootloader_postsetup";

const BOOT_ENTRY_LABEL: &str = "balenaOS";

const NON_ENCRYPTED_LABEL: &str = "BALENA_NONENC_BOOT_LABEL";

const PLUGIN_NAME: &str = "secure-boot plug-in";

/// The board's plug-ins, in a bash of their own; empty for boards without.
pub struct Plugin {
    shell: Option<Shell>,
    environment: Environment,
    /// Of each function; none by default.
    limit: Option<Duration>,
}

/// Whether the board has plug-ins.
pub(super) fn is_present(environment: &Environment) -> bool {
    !present(environment, &PLUGINS).is_empty()
}

impl Plugin {
    /// Starts the plug-ins below the root of `environment`, which must have the target; `conf` is the board's configuration.
    /// Without plug-ins there is no bash, and all other functions do nothing.
    /// `silence`: how long they may write nothing until that is logged.
    pub fn start(environment: &Environment, conf: Option<&Path>, silence: Duration) -> Result<Self> {
        let plugins = present(environment, &PLUGINS);
        let environment_of = || environment.clone();
        let Some(first) = plugins.first() else {
            return Ok(Plugin { shell: None, environment: environment_of(), limit: None });
        };
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
        Ok(Plugin { shell: Some(shell), environment: environment_of(), limit: None })
    }

    /// Ends a function, and its shell, that takes longer than this.
    #[must_use]
    pub fn limited(self, limit: Option<Duration>) -> Self {
        Plugin { limit, ..self }
    }

    /// Refuses early: `opted_in`, the owner's request for secure boot, on a board without a plug-in.
    pub fn check(environment: &Environment, opted_in: bool) -> Result<()> {
        if opted_in && !is_present(environment) { Err(nothing_encrypts()) } else { Ok(()) }
    }

    /// Lets a plug-in that defines `secureboot_setup` decide whether the installation is encrypted. `opted_in`: `config.json` asks for secure boot.
    pub fn secureboot_setup(&mut self, opted_in: bool) -> Result<bool> {
        match self.call(SETUP, &[])? {
            None if opted_in => Err(nothing_encrypts()),
            None => Ok(false),
            Some(0) => {
                tracing::info!("the {PLUGIN_NAME} chose an encrypted installation");
                Ok(true)
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
                Ok(false)
            }
        }
    }

    /// Sets what the plug-ins expect in an encrypted installation. Returns the label of the non-encrypted boot partition.
    pub fn encrypt(&mut self) -> Result<String> {
        self.set("CRYPT", OsStr::new("1"))?;
        for file in present(&self.environment, &[DEFAULTS]) {
            let answer = self.shell.as_mut().map(|shell| shell.source(&file)).transpose();
            let failed = |e: std::io::Error| {
                let file = file.display();
                Error::new(Code::PluginFailed, format!("cannot read {file}")).object(file).because(e)
            };
            match answer.map_err(failed)? {
                Some(Answer::Gone(end, last)) => return Err(failed(command::because(end, &last))),
                Some(Answer::Status(_)) | None => {}
            }
        }
        let label = self.must_get(NON_ENCRYPTED_LABEL)?;
        match why_no_label(&label) {
            None => Ok(label),
            Some(why) => {
                let message = format!(
                    "the {PLUGIN_NAME} names the non-encrypted boot partition `{label}`, which {why}"
                );
                Err(Error::new(Code::PluginIncomplete, message).object(NON_ENCRYPTED_LABEL))
            }
        }
    }

    /// Refuses a plug-in that lacks a function.
    pub(super) fn need(&mut self, function: &str) -> Result<()> {
        match self.has(function)? {
            true => Ok(()),
            false => {
                let message =
                    format!("cannot install encrypted: the {PLUGIN_NAME} has no function {function}");
                Err(Error::new(Code::PluginIncomplete, message).object(function))
            }
        }
    }

    /// `diskenc_setup`, where defined: makes the keys.
    pub fn diskenc_setup(&mut self) -> Result<()> {
        self.must_succeed(DISKENC_SETUP, &[])
    }

    /// `diskenc_dmsetup`: makes the mapping `name` of a partition, where the board does not use LUKS.
    pub(super) fn diskenc_dmsetup(&mut self, partition: &Path, name: &str) -> Result<()> {
        self.must_succeed(DISKENC_DMSETUP, &[partition.as_os_str(), OsStr::new(name)])
            .map_err(Error::after_write)
    }

    /// `bootpart_split`: moves boot files between the two boot partitions.
    pub(super) fn bootpart_split(&mut self) -> Result<()> {
        self.must_succeed(BOOTPART_SPLIT, &[]).map_err(Error::after_write)
    }

    /// `secureboot_bootloader_setup`, where defined: after the boot files, before `config.json`.
    pub fn bootloader_setup(&mut self) -> Result<()> {
        self.must_succeed(BOOTLOADER_SETUP, &[]).map_err(Error::after_write)
    }

    /// Whether it makes the entry in the firmware's boot menu by itself.
    pub(super) fn has_postsetup(&mut self) -> Result<bool> {
        self.has(BOOTLOADER_POSTSETUP)
    }

    /// `secureboot_bootloader_postsetup`, where defined: after the internal boot partition was unmounted.
    pub fn bootloader_postsetup(&mut self) -> Result<()> {
        self.must_succeed(BOOTLOADER_POSTSETUP, &[]).map_err(Error::after_write)
    }

    fn must_succeed(&mut self, function: &str, arguments: &[&OsStr]) -> Result<()> {
        match self.call(function, arguments)? {
            None | Some(0) => Ok(()),
            Some(status) => {
                let message = format!("the {PLUGIN_NAME} failed: {function} returned {status}");
                Err(Error::new(Code::PluginFailed, message).object(function))
            }
        }
    }

    fn has(&mut self, function: &str) -> Result<bool> {
        let Some(shell) = &mut self.shell else { return Ok(false) };
        Ok(status(function, shell.has(function))? == 0)
    }

    /// `None` if there is no such function.
    fn call(&mut self, function: &str, arguments: &[&OsStr]) -> Result<Option<i32>> {
        if !self.has(function)? {
            return Ok(None);
        }
        tracing::info!("calling {function} of the {PLUGIN_NAME}");
        let Some(shell) = &mut self.shell else { return Ok(None) };
        shell.limit(self.limit);
        let answer = shell.call(function, arguments);
        shell.limit(None);
        status(function, answer).map(Some)
    }

    /// Sets a variable of the plug-ins' shell.
    pub(super) fn set(&mut self, variable: &str, value: &OsStr) -> Result<()> {
        let Some(shell) = &mut self.shell else { return Ok(()) };
        match status(variable, shell.set(variable, value))? {
            0 => Ok(()),
            _ => {
                let message = format!("the {PLUGIN_NAME} does not let {variable} be set");
                Err(Error::new(Code::PluginIncomplete, message).object(variable))
            }
        }
    }

    /// A variable of the plug-ins' shell; `None` if it is unset.
    pub fn get(&mut self, variable: &str) -> Result<Option<String>> {
        let Some(shell) = &mut self.shell else { return Ok(None) };
        let (answer, value) = match shell.get(variable) {
            Ok((answer, value)) => (Ok(answer), value),
            Err(e) => (Err(e), None),
        };
        match status(variable, answer)? {
            0 => Ok(value),
            _ => {
                let message = format!(
                    "the value of {variable}, set by the {PLUGIN_NAME}, is too long: copal reads 8190 bytes"
                );
                Err(Error::new(Code::PluginIncomplete, message).object(variable))
            }
        }
    }

    /// Refuses a plug-in that has not set the variable.
    pub(super) fn must_get(&mut self, variable: &str) -> Result<String> {
        let value = self.get(variable)?.filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            let message = format!("cannot install encrypted: the {PLUGIN_NAME} has not set {variable}");
            Error::new(Code::PluginIncomplete, message).object(variable)
        })
    }
}

/// An error if the shell has gone, or cannot be reached.
fn status(what: &str, answer: std::io::Result<Answer>) -> Result<i32> {
    let failed = |cause: std::io::Error| {
        let message = format!("the {PLUGIN_NAME} failed in {what}");
        Error::new(Code::PluginFailed, message).object(what).because(cause)
    };
    match answer.map_err(failed)? {
        Answer::Status(status) => Ok(status),
        Answer::Gone(end, last) => Err(failed(command::because(end, &last))
            .and_also("if it has started a reboot, the reboot continues; the installation stops here")),
    }
}

/// What is wrong with the label of a FAT file system that stands beside `resin-boot`.
fn why_no_label(label: &str) -> Option<&'static str> {
    // Microsoft's FAT specification, "short names"; Linux' tools and balenaOS use lower case.
    let allowed = |c: char| c.is_ascii_graphic() && !r#""*+,./:;<=>?[\]|"#.contains(c);
    if label == crate::image::BOOT_LABEL {
        Some("is that of the encrypted one")
    } else if label.len() > 11 {
        Some("has more than 11 characters")
    } else if !label.chars().all(allowed) {
        Some("has characters that a FAT label cannot have")
    } else {
        None
    }
}

/// An installation without the requested protection is worse than none.
pub(super) fn nothing_encrypts() -> Error {
    let message = "cannot install with secure boot, as config.json asks (installer.secureboot): the medium has no \
                   plug-in for it, and its configuration no KERNEL_IMAGETYPE, with which copal does it on boards with UEFI and TPM 2";
    Error::new(Code::EncryptionNotAvailable, message).object("installer.secureboot")
}
