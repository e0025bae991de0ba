//! What `copal doctor` shows of an encrypted device besides its keys: the encryption of each partition, and whether the loader takes the files in place.

use std::path::Path;

use super::check::{encrypted_partitions, path_in_slot};
use super::next_start::{MAX_FILE_BYTES, PROGRAMS};
use super::release::{LOADER_KEYS, signature_of};
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::luks::{header, mapping};
use crate::signature::openpgp;
use crate::slot::Root;
use crate::sys::file::read_bytes;

/// Of the loader, on the partition that the firmware reads.
const CONFIG: &str = "EFI/BOOT/grub.cfg";

/// A line for each encrypted partition: cipher, key slots, and both headers. Before any other check: cryptsetup repairs a header by itself.
pub(crate) fn encryption(facts: &Facts, active: &Root) -> Result<Vec<Result<String>>> {
    if !active.encrypted {
        return Ok(Vec::new());
    }
    let partitions = encrypted_partitions(facts, active)?;
    Ok(partitions.iter().map(|(device, node)| of_partition(&device.name, node)).collect())
}

fn of_partition(name: &str, node: &Path) -> Result<String> {
    let shown = node.display();
    let damaged = |what: &str| {
        let message = format!("{shown} ({name}): {what}");
        Error::new(Code::EncryptionFailed, message).object(node.display()).with_hint(
            "keep a copy of its first 16 MiB elsewhere, then restart: cryptsetup repairs one of two headers when it opens the partition",
        )
    };
    let headers = header::Headers::read(node).map_err(|e| damaged("its header cannot be read").because(e))?;
    let copy = match headers {
        header::Headers::None => return Ok(format!("{shown} ({name}): no header of LUKS")),
        header::Headers::Luks1 => "LUKS1, without a copy of its header".to_owned(),
        header::Headers::Luks2 { primary: Some(first), secondary: Some(copy) } if first == copy => {
            format!("LUKS2, header and copy are whole (number {first})")
        }
        header::Headers::Luks2 { primary: Some(first), secondary: Some(copy) } => {
            return Err(damaged(&format!("its header has the number {first}, and the copy has {copy}")));
        }
        header::Headers::Luks2 { primary: Some(_), secondary: None } => {
            return Err(damaged("the copy of its header is damaged"));
        }
        header::Headers::Luks2 { primary: None, secondary: Some(_) } => {
            return Err(damaged("its header is damaged, and the copy is whole"));
        }
        header::Headers::Luks2 { primary: None, secondary: None } => {
            return Err(damaged("its header and the copy are damaged"));
        }
    };
    if !mapping::can_be_tried() {
        return Ok(format!("{shown} ({name}): {copy}"));
    }
    let (cipher, slots) = mapping::cipher_and_slots(node)?;
    let slots: Vec<String> = slots.iter().map(u8::to_string).collect();
    Ok(format!("{shown} ({name}): {cipher}, key slots {}; {copy}", slots.join(" ")))
}

/// Whether the loader in place takes the stage-2 kernel and the configuration in place. An update puts them right.
pub(crate) fn signatures(paths: &Paths, slot: &Path) -> Result<String> {
    let Some(keys) = path_in_slot(slot, LOADER_KEYS) else {
        return Ok("the running release names no key of its loader: the signatures in place are not checked"
            .to_owned());
    };
    let plain = paths.plain_boot();
    let read = |path: &Path| {
        read_bytes(path, MAX_FILE_BYTES)
            .map_err(|e| not_taken(&path.display().to_string(), "it cannot be read").because(e))
    };
    let keys = openpgp::keys(&read(&keys)?).map_err(|why| not_taken(LOADER_KEYS, why))?;
    let [_, kernel] = PROGRAMS;
    for name in [kernel, CONFIG] {
        let (file, signature) = (plain.join(name), plain.join(signature_of(name)));
        let shown = file.display().to_string();
        match openpgp::is_signed(&keys, &read(&file)?, &read(&signature)?) {
            Ok(true) => {}
            Ok(false) => {
                return Err(not_taken(
                    &shown,
                    "its signature is not by the key of the running release's loader",
                ));
            }
            Err(why) => return Err(not_taken(&shown, why)),
        }
    }
    Ok("the loader in place takes the signatures of its configuration and of the stage-2 kernel".to_owned())
}

fn not_taken(name: &str, why: &str) -> Error {
    Error::new(Code::ReleaseNotAllowed, format!("the loader in place would not take {name}: {why}"))
        .object(name)
        .with_hint(
            "do not restart the device before another update, which puts the files of its release in place",
        )
}
