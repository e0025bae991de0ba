//! Whether this device would start a new release: its firmware the loader and the stage-2 kernel, its loader the configuration and the kernel.

use std::io;

use crate::error::{Code, Error, Result};
use crate::measurements::Measured;
use crate::signature::openpgp;
use crate::uefi::authenticode::Program;
use crate::uefi::{authenticated, signature_list};

/// Where a release has them (meta-balena v8.0.2, `0-signed-update`).
const LOADER: &str = "resin-boot/EFI/BOOT/bootx64.efi.secureboot";
const CONFIG: &str = "resin-boot/EFI/BOOT/grub-luks.cfg";
const KERNEL: &str = "boot/bzImage";
const LOADER_KEYS: &str = "resin-boot/balena-keys/grub.gpg";
const ADDED: &str = "resin-boot/balena-keys/db.esl";
const ADDED_SIGNED: &str = "resin-boot/balena-keys/db.auth";

/// Reads a file of the release; `None` where it has none.
pub type Read<'a> = &'a dyn Fn(&str) -> io::Result<Option<Vec<u8>>>;

/// Refuses a release that would not start. `now`: the variables of the firmware.
pub fn check(now: &Measured, read: Read<'_>) -> Result<()> {
    let optional = |name: &str| read(name).map_err(|e| unfit(name, "it cannot be read").because(e));
    let must = |name: &str| {
        optional(name)?.ok_or_else(|| unfit(name, "the release does not have it: it is not signed"))
    };
    let (loader, kernel, config) = (must(LOADER)?, must(KERNEL)?, must(CONFIG)?);
    let signatures = [KERNEL, CONFIG].map(|name| must(&format!("{name}.sig")));
    let [kernel_signature, config_signature] = signatures;
    let signed = [(KERNEL, &kernel, kernel_signature?), (CONFIG, &config, config_signature?)];

    let added = optional(ADDED)?.unwrap_or_default();
    let db = signature_list::append(&now.db, &added).map_err(|why| unfit(ADDED, why))?;
    if db != now.db {
        let auth = optional(ADDED_SIGNED)?.ok_or_else(|| {
            unfit(ADDED_SIGNED, "the release does not have it, and the firmware takes no other")
        })?;
        match authenticated::payload(&auth) {
            Ok(payload) if payload == added => {}
            Ok(_) => return Err(unfit(ADDED_SIGNED, "it does not have the entries of db.esl")),
            Err(why) => return Err(unfit(ADDED_SIGNED, why)),
        }
    }
    let later = Measured { db, ..now.clone() };
    for (name, file) in [(LOADER, &loader), (KERNEL, &kernel)] {
        let program =
            Program::parse(file).ok_or_else(|| unfit(name, "it is no program of UEFI, or damaged"))?;
        if !program.is_aligned {
            return Err(unfit(
                name,
                "its length is no multiple of 8: tools and firmware would know it by different hashes",
            ));
        }
        if !later.starts(&program) {
            return Err(unfit(
                name,
                "the firmware would not start it: neither its db nor the release's db.esl allows it, or dbx forbids it",
            ));
        }
    }
    let Some(keys) = optional(LOADER_KEYS)? else {
        tracing::warn!("the new release has no {LOADER_KEYS}: what its loader checks is not checked");
        return Ok(());
    };
    let keys = openpgp::keys(&keys).map_err(|why| unfit(LOADER_KEYS, why))?;
    for (name, file, signature) in &signed {
        match openpgp::is_signed(&keys, file, signature) {
            Ok(true) => {}
            Ok(false) => {
                return Err(unfit(
                    name,
                    "its signature is not by the key in the release's balena-keys/grub.gpg",
                ));
            }
            Err(why) => return Err(unfit(&format!("{name}.sig"), why)),
        }
    }
    Ok(())
}

fn unfit(name: &str, why: &str) -> Error {
    let message =
        format!("this device starts signed systems only, and would not start the new release: {name}: {why}");
    Error::new(Code::ReleaseNotAllowed, message).object(name)
}
