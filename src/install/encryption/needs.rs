//! What an encrypted installation needs of the running system. Checked before a plug-in changes the device.

use std::io;

use super::layout::Layout;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::luks::mapping::{self, CONTROL, CRYPT, CRYPTSETUP, MKFS};
use crate::sys::command::{Command, Said};
use crate::sys::device_mapper::DeviceMapper;

/// The first that takes `--offset` for LUKS2 (its release notes).
const OLDEST: (u32, u32) = (2, 1);

pub(super) fn check(paths: &Paths, layout: &Layout) -> Result<()> {
    check_cryptsetup()?;
    say_version(MKFS, "-V").map_err(|e| unusable(MKFS, "it cannot run").because(e))?;
    check_kernel(paths)?;
    for name in layout.partitions.iter().filter(|p| p.encrypted).map(|p| &p.name) {
        let found = mapping::find(paths, name).map_err(|e| {
            let message = format!("cannot install encrypted: cannot ask the kernel for a mapping {name}");
            Error::new(Code::KernelLacksEncryption, message).object(name).because(e)
        })?;
        if found.is_some() || mapping::node(paths, name).exists() {
            let message = format!("cannot install encrypted: there is already a mapping {name}");
            let hint = format!("close it with `cryptsetup close {name}`, or restart the medium");
            return Err(Error::new(Code::MappingExists, message).object(name).with_hint(hint));
        }
    }
    Ok(())
}

fn check_cryptsetup() -> Result<()> {
    let said =
        say_version(CRYPTSETUP, "--version").map_err(|e| unusable(CRYPTSETUP, "it cannot run").because(e))?;
    match version(&said) {
        Some(version) if version >= OLDEST => Ok(()),
        _ => {
            let what = format!("it says `{}`, and {}.{} is needed", said.trim(), OLDEST.0, OLDEST.1);
            Err(unusable(CRYPTSETUP, &what))
        }
    }
}

/// Of `cryptsetup 2.6.1 flags: …`.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.strip_prefix("cryptsetup ")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn check_kernel(paths: &Paths) -> Result<()> {
    let kinds = || DeviceMapper::open(&paths.at(CONTROL)).and_then(|mapper| mapper.kinds());
    let has = |kinds: &io::Result<Vec<String>>| {
        kinds.as_ref().is_ok_and(|kinds| kinds.iter().any(|kind| kind == CRYPT))
    };
    let mut found = kinds();
    if !has(&found) {
        // A module loads itself only when a mapping is made.
        if let Err(e) = say_version("modprobe", "dm_crypt") {
            tracing::debug!("modprobe dm_crypt: {e}");
        }
        found = kinds();
    }
    if has(&found) {
        return Ok(());
    }
    let message = "cannot install encrypted: the running kernel has no dm-crypt";
    let e = Error::new(Code::KernelLacksEncryption, message).object("dm-crypt");
    Err(match found {
        Err(cause) => e.because(cause),
        Ok(_) => e,
    })
}

fn say_version(program: &str, argument: &str) -> io::Result<String> {
    let mut text = String::new();
    let end =
        Command::new(program).arg(argument).limit(Some(std::time::Duration::from_secs(60))).run(|said| {
            if let Said::Line(_, line) = said {
                text.push_str(line);
                text.push('\n');
            }
        })?;
    if end.is_success() { Ok(text) } else { Err(io::Error::other(end.to_string())) }
}

fn unusable(program: &str, what: &str) -> Error {
    let message = format!("cannot install encrypted with {program}: {what}");
    Error::new(Code::EncryptionToolUnusable, message).object(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("cryptsetup 2.6.1 flags: UDEV BLKID\n"), Some((2, 6)));
        assert_eq!(version("cryptsetup 2.10.0-git\n"), Some((2, 10)));
        assert_eq!(version("cryptsetup 1.7"), Some((1, 7)));
        for odd in ["", "cryptsetup", "cryptsetup x.y", "busybox 1.35.0", "cryptsetup 2"] {
            assert_eq!(version(odd), None, "{odd}");
        }
    }
}
