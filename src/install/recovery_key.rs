//! `installer.recovery_key`: the owner's key, to which the recovery passphrase of an encrypted disk is encrypted.

use crate::config::config_json::ConfigJson;
use crate::error::{Code, Error, Result};
use crate::signature::{self, PublicKey};

const KEY: &str = "installer.recovery_key";

/// Refuses what is not one public RSA key.
pub(super) fn of_owner(config: &ConfigJson) -> Result<Option<PublicKey>> {
    let key = config.installer_recovery_key()?.map(signature::public_key);
    key.transpose().map_err(unusable)
}

/// A plug-in has a passphrase of its own, which may be short or depend on the processor.
pub(super) fn not_by_plugin() -> Error {
    unusable("the board's secure-boot plug-in makes the key of the disk, and copal adds no recovery passphrase to it")
        .with_hint("remove installer.recovery_key from config.json")
}

fn unusable(why: &str) -> Error {
    Error::new(Code::RecoveryKeyUnusable, format!("cannot use {KEY} in config.json: {why}")).object(KEY)
}

pub(super) fn warn_of_no_use() {
    tracing::warn!("{KEY} in config.json has no use: this installation is not encrypted");
}
