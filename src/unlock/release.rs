//! Whether this device would start a new release: its firmware the loader and the stage-2 kernel, its loader the configuration and the kernel.

use std::io;

use crate::error::{Code, Error, Result};
use crate::measurements::Measured;
use crate::signature::openpgp;
use crate::uefi::authenticode::Program;
use crate::uefi::{authenticated, signature_list};

/// Where a release has them (meta-balena v8.0.2, `0-signed-update`).
pub(super) const LOADER: &str = "resin-boot/EFI/BOOT/bootx64.efi.secureboot";
const CONFIG: &str = "resin-boot/EFI/BOOT/grub-luks.cfg";
pub(super) const KERNEL: &str = "boot/bzImage";
pub(super) const LOADER_KEYS: &str = "resin-boot/balena-keys/grub.gpg";
pub(super) const ADDED: &str = "resin-boot/balena-keys/db.esl";
pub(super) const ADDED_SIGNED: &str = "resin-boot/balena-keys/db.auth";
pub(super) const FORBIDDEN: &str = "resin-boot/balena-keys/dbx.auth";

/// Reads a file of the release; `None` where it has none.
pub type Read<'a> = &'a dyn Fn(&str) -> io::Result<Option<Vec<u8>>>;

pub(super) fn signature_of(name: &str) -> String {
    format!("{name}.sig")
}

/// The files that [`reasons`] reads.
#[must_use]
pub fn files() -> Vec<String> {
    let signed = [KERNEL, CONFIG];
    let signatures = signed.map(signature_of);
    let others = [LOADER, LOADER_KEYS, ADDED, ADDED_SIGNED];
    signed.into_iter().chain(others).map(str::to_owned).chain(signatures).collect()
}

/// Refuses a release that would not start. `now`: the variables of the firmware. `running`: the keys that the running release's loader takes, in a file
/// of OpenPGP; `None` where another key is accepted.
pub fn check(now: &Measured, running: Option<&[u8]>, read: Read<'_>) -> Result<()> {
    reasons(now, running, read).into_iter().next().map_or(Ok(()), Err)
}

/// Each reason why a release would not start, in the order in which firmware and loader meet them.
#[must_use]
pub fn reasons(now: &Measured, running: Option<&[u8]>, read: Read<'_>) -> Vec<Error> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let mut optional = |name: &str| {
        read(name).unwrap_or_else(|e| {
            found.push(unfit(name, "it cannot be read").because(e));
            unreadable.push(name.to_owned());
            None
        })
    };
    let [loader, kernel, config, added, added_signed, keys] =
        [LOADER, KERNEL, CONFIG, ADDED, ADDED_SIGNED, LOADER_KEYS].map(&mut optional);
    let [kernel_signature, config_signature] = [KERNEL, CONFIG].map(|name| optional(&signature_of(name)));
    let is_there = [
        (LOADER.to_owned(), &loader),
        (KERNEL.to_owned(), &kernel),
        (CONFIG.to_owned(), &config),
        (signature_of(KERNEL), &kernel_signature),
        (signature_of(CONFIG), &config_signature),
    ];
    for (name, file) in &is_there {
        if file.is_none() && !unreadable.contains(name) {
            found.push(unfit(name, "the release does not have it: it is not signed"));
        }
    }

    let added = added.unwrap_or_default();
    let db = signature_list::append(&now.db, &added).unwrap_or_else(|why| {
        found.push(unfit(ADDED, why));
        now.db.clone()
    });
    if db != now.db {
        let why = match added_signed.as_deref().map(authenticated::payload) {
            None => Some("the release does not have it, and the firmware takes no other"),
            Some(Ok(payload)) if payload == added => None,
            Some(Ok(_)) => Some("it does not have the entries of db.esl"),
            Some(Err(why)) => Some(why),
        };
        found.extend(why.map(|why| unfit(ADDED_SIGNED, why)));
    }
    let later = Measured { db, ..now.clone() };
    for (name, file) in [(LOADER, &loader), (KERNEL, &kernel)] {
        found.extend(file.as_ref().and_then(|file| Some(unfit(name, &not_started(&later, file)?))));
    }
    let signed = [
        (KERNEL, kernel.as_deref(), kernel_signature.as_deref()),
        (CONFIG, config.as_deref(), config_signature.as_deref()),
    ];
    found.extend(not_taken(keys.as_deref(), &signed));
    if let (Some(running), Some(kernel), Some(signature)) = (running, &kernel, &kernel_signature) {
        let takes = openpgp::keys(running).map(|keys| openpgp::is_signed(&keys, kernel, signature));
        // A damaged signature has a reason already.
        if matches!(takes, Err(_) | Ok(Ok(false))) {
            found.push(other_key());
        }
    }
    found
}

/// No order of two replacements helps there: between loader, stage-2 kernel and configuration, one of them is not taken.
fn other_key() -> Error {
    let message = "the loader of the running release does not take the signature of the new stage-2 kernel: until loader, kernel and configuration are all replaced, a power cut leaves a device that does not start";
    Error::new(Code::LoaderKeyChanged, message).object(KERNEL)
}

/// Why the firmware does not start the program. `later`: with the release's entries in `db`.
fn not_started(later: &Measured, file: &[u8]) -> Option<String> {
    match Program::parse(file) {
        None => Some("it is not a UEFI program, or is damaged".to_owned()),
        Some(program) if !program.is_aligned => Some(
            "its length is not a multiple of 8, so tools and firmware would compute different hashes"
                .to_owned(),
        ),
        Some(program) => later
            .refusal(&program)
            .map(|why| format!("the firmware would not start it, also with the release's db.esl: {why}")),
    }
}

/// Name, content, signature.
type Signed<'a> = (&'a str, Option<&'a [u8]>, Option<&'a [u8]>);

/// Why the loader does not take files with their signatures. What is missing is a reason of its own.
fn not_taken(keys: Option<&[u8]>, signed: &[Signed<'_>]) -> Vec<Error> {
    let Some(keys) = keys else {
        tracing::warn!("the new release has no {LOADER_KEYS}: what its loader checks is not checked");
        return Vec::new();
    };
    let keys = match openpgp::keys(keys) {
        Ok(keys) => keys,
        Err(why) => return vec![unfit(LOADER_KEYS, why)],
    };
    let mut found = Vec::new();
    for (name, file, signature) in signed {
        let (Some(file), Some(signature)) = (file, signature) else { continue };
        match openpgp::is_signed(&keys, file, signature) {
            Ok(true) => {}
            Ok(false) => found
                .push(unfit(name, "its signature is not by the key in the release's balena-keys/grub.gpg")),
            Err(why) => found.push(unfit(&signature_of(name), why)),
        }
    }
    found
}

pub(super) fn unfit(name: &str, why: &str) -> Error {
    let message =
        format!("this device starts signed systems only, and would not start the new release: {name}: {why}");
    Error::new(Code::ReleaseNotAllowed, message).object(name)
}
