//! What an encrypted installation will do, and what it has done.

use std::fmt;

use serde::Serialize;

use super::layout::Layout;
use super::needs;
use crate::boot_files::install::{Contents, Install};
use crate::config::config_json::ConfigJson;
use crate::config::flasher_conf::FlasherConf;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::flash;
use crate::install::secure_boot::Summary;
use crate::luks::recovery::SLOT;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    Luks2,
    /// Plain dm-crypt, with a cipher and a key of the plug-in's choice (`USE_LUKS=0`).
    DmCrypt,
}

/// What happens if the plug-in decides for encryption: made, and checked, before it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Planned {
    pub method: Method,
    #[serde(flatten)]
    pub layout: Layout,
    /// Where copal itself provides secure boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<Summary>,
    /// Whether the owner gets a recovery passphrase.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recovery_slot: bool,
    #[serde(skip)]
    pub(super) contents: Contents,
}

impl Planned {
    /// Refuses what would stop it later. Writes nothing.
    pub(in crate::install) fn new(
        paths: &Paths,
        conf: &FlasherConf,
        config: &ConfigJson,
        plan: &flash::plan::Plan,
    ) -> Result<Planned> {
        let method = if conf.use_luks == Some(false) { Method::DmCrypt } else { Method::Luks2 };
        let image = &plan.image.stored.path;
        let table = plan.image.table.as_ref().ok_or_else(|| {
            let image = image.display();
            let message = format!("cannot install {image} encrypted: it has no partition table");
            Error::new(Code::ImageLayoutUnfit, message).object(image)
        })?;
        let layout = Layout::new(image, table, &plan.target, method == Method::Luks2)?;
        needs::check(paths, &layout)?;
        let contents = Contents::gather(&paths.boot(), conf, config.path(), Install::Encrypted)?;
        if let Some(boot) = layout.partitions.first() {
            contents.check_size(boot.size)?;
        }
        Ok(Planned { method, layout, secure_boot: None, recovery_slot: false, contents })
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.method {
            Method::Luks2 => "LUKS2, aes-xts-plain64, 512-bit key",
            Method::DmCrypt => "dm-crypt by the plug-in",
        };
        if let Some(summary) = &self.secure_boot {
            writeln!(f, "{summary}        encrypted: {method}")?;
        } else {
            writeln!(f, "        if the secure-boot plug-in decides so, encrypted instead: {method}")?;
        }
        if self.recovery_slot {
            writeln!(
                f,
                "        with a recovery passphrase in key slot {SLOT}, for the owner of installer.recovery_key"
            )?;
        }
        for p in &self.layout.partitions {
            let name = if p.name.is_empty() { "(named by the plug-in)" } else { &p.name };
            let encrypted = if p.encrypted { ", encrypted" } else { "" };
            let mib = p.size as f64 / f64::from(1 << 20);
            writeln!(f, "        {:>3}  {name:<16} {mib:>9.1} MiB at {}{encrypted}", p.number, p.start)?;
        }
        Ok(())
    }
}

/// For the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    pub method: Method,
    #[serde(flatten)]
    pub layout: Layout,
    /// Whether the disk took a discard of all that it held before. Old plain text may be left otherwise.
    pub old_content_discarded: bool,
    /// The recovery passphrase, encrypted for its owner, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
}
