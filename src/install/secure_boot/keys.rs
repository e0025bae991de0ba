//! The folder `balena-keys` on the medium's boot partition: what is enrolled into the firmware.

use std::path::Path;
use std::time::SystemTime;

use super::programs::invalid;
use crate::config::paths::Paths;
use crate::error::Result;
use crate::uefi::{authenticated, signature_list};

const FOLDER: &str = "balena-keys";

/// Far above any.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// All that an installation needs, well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// Signed lists, as they are written.
    pub(super) pk_auth: Vec<u8>,
    pub(super) kek_auth: Vec<u8>,
    /// The lists in them.
    pub(super) pk: Vec<u8>,
    pub(super) kek: Vec<u8>,
    /// Allow the loader and the stage-2 kernel.
    pub(super) loader: Vec<u8>,
    pub(super) kernel: Vec<u8>,
    /// Of the newest file.
    pub(super) made: SystemTime,
}

impl Keys {
    pub(super) fn read(paths: &Paths) -> Result<Keys> {
        let folder = paths.boot().join(FOLDER);
        let (pk_auth, kek_auth) = (file(&folder, "PK.auth")?, file(&folder, "KEK.auth")?);
        let signed = |auth: &[u8], name: &str, list: &str| -> Result<Vec<u8>> {
            let payload = authenticated::payload(auth).map_err(|why| unfit(&folder, name, why))?;
            if payload != lists(&folder, list)? {
                return Err(unfit(&folder, name, &format!("it does not have the lists of {list}")));
            }
            Ok(payload.to_vec())
        };
        let (pk, kek) = (signed(&pk_auth, "PK.auth", "PK.esl")?, signed(&kek_auth, "KEK.auth", "KEK.esl")?);
        let (loader, kernel) = (lists(&folder, "db-loader.esl")?, lists(&folder, "db-kernel.esl")?);
        let times = ["PK.auth", "db-loader.esl"]
            .map(|name| std::fs::metadata(folder.join(name)).and_then(|meta| meta.modified()));
        let made = times.into_iter().flatten().max().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Keys { pk_auth, kek_auth, pk, kek, loader, kernel, made })
    }
}

fn file(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let size =
        std::fs::metadata(&path).map_err(|e| unfit(folder, name, "it cannot be read").because(e))?.len();
    if size > MAX_FILE_BYTES {
        return Err(unfit(folder, name, "it has more than 1 MiB"));
    }
    std::fs::read(&path).map_err(|e| unfit(folder, name, "it cannot be read").because(e))
}

/// A file of signature lists with an entry or more.
fn lists(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let bytes = file(folder, name)?;
    match signature_list::entries(&bytes) {
        Ok(entries) if entries.is_empty() => Err(unfit(folder, name, "it has no entry")),
        Ok(_) => Ok(bytes),
        Err(why) => Err(unfit(folder, name, why)),
    }
}

fn unfit(folder: &Path, name: &str, why: &str) -> crate::error::Error {
    invalid(folder.join(name).display(), why)
}
