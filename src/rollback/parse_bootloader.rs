//! `rollback-parse-bootloader`: prints variables for a shell that sources it.
//!
//! Names and formats are as in the script of meta-balena, so that boards can compare `resin_root_part` with `current_part_idx` and
//! `current_part_name`: an index in hex, as U-Boot has it, or a letter.

use std::fmt::Write as _;
use std::path::Path;

use crate::boot_state::{self, Named};
use crate::config::paths::Paths;
use crate::disk::{Device, Facts, Role};
use crate::error::{Code, Error, Result};
use crate::slot::Roots;

pub fn assignments(paths: &Paths) -> Result<String> {
    let backend = boot_state::detect(paths)?;
    let file = backend.file();
    if !file.exists() {
        return Err(unusable(file, "it is not there: no update has written it yet"));
    }
    if !backend.counts() {
        return Err(unusable(file, "it has no upgrade_available: this bootloader knows no rollback"));
    }
    let state = backend.read()?;
    let facts = Facts::gather(paths)?;
    let active = Roots::of(&facts)?.active;
    let selected = match state.root {
        Named::Index(index) => format!("{index:x}"),
        Named::Slot(slot) => slot.letter().to_owned(),
        Named::Other(text) if text.is_empty() => return Err(unusable(file, "it has no resin_root_part")),
        Named::Other(text) => text,
    };
    let variables = [
        ("BOOTLOADER_FILE", file.to_str().unwrap_or_default().to_owned()),
        ("upgrade_available", u8::from(state.upgrade_available).to_string()),
        ("resin_root_part", selected),
        ("current_part", facts.device(active.dev).map(node).unwrap_or_default()),
        ("current_part_idx", format!("{:x}", active.index)),
        ("current_part_name", active.slot.letter().to_owned()),
    ];
    let mut text = String::new();
    for (name, value) in variables {
        writeln!(text, "{name}={}", quoted(&value)).map_err(|e| unusable(file, e))?;
    }
    Ok(text)
}

/// As `findmnt --canonicalize` prints it.
fn node(device: &Device) -> String {
    match device.role {
        Role::Crypt | Role::Lvm | Role::Mapped => format!("/dev/mapper/{}", device.name),
        _ => format!("/dev/{}", device.kernel_name.replace('!', "/")),
    }
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

fn unusable(file: &Path, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let text =
        format!("cannot determine from {} which root boots, and whether it is on trial", file.display());
    Error::new(Code::BootStateInvalid, text).object(file.display()).because(why)
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn no_value_gets_out_of_its_quotes() {
        assert_eq!(quoted("/mnt/boot/a b"), "'/mnt/boot/a b'");
        assert_eq!(quoted("';reboot;'"), r"''\'';reboot;'\'''");
        assert_eq!(quoted(""), "''");
    }
}
