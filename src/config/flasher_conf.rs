//! The board's flasher configuration, `resin-init-flasher.conf`, as typed values.
//!
//! The text is a [shell fragment](super::shell_conf). An empty value counts as unset, because the recipe writes every key. Of
//! a repeated key the last value counts. Unknown keys are kept for [`FlasherConf::raw`] and have no effect.
//!
//! Paths have no leading `/`: all of them are below a mount point, and joining an absolute path would replace it.

use std::path::{Component, Path, PathBuf};

use super::confirm::{self, Confirm};
use super::read::shown;
pub use super::shell_conf::{Assignment, RawConf};
use crate::error::{Code, Error, Result};

const INTERNAL_DEVICE: &str = "INTERNAL_DEVICE_KERNEL";
const BOOTLOADER_CONFIG: &str = "INTERNAL_DEVICE_BOOTLOADER_CONFIG";
const CONFIG_PATH: &str = "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH";
const LEGACY_PATH: &str = "INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH";
const CONFIG_LUKS: &str = "INTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS";
const IMAGE: &str = "BALENA_IMAGE";
const SPLASH: &str = "BALENA_SPLASH_CONFIG";
const UENV: &str = "BALENA_BOOTLOADER_CONFIG";
const CONNECTIONS: &str = "BALENA_NM_CONFIG";
const DISPATCHER: &str = "BALENA_NM_DISPATCHER";
const PROXY: &str = "BALENA_PROXY_CONFIG";
const REBOOT: &str = "POSTINSTALL_REBOOT";
const LUKS: &str = "USE_LUKS";

/// Of meta-balena's build; copal's recipe writes it into this file for the boards on which copal itself provides secure boot.
const KERNEL: &str = "KERNEL_IMAGETYPE";
const CONFIRM: &str = "INSTALLER_CONFIRM";

struct WriteKeys {
    device: &'static str,
    image: &'static str,
    block_size: &'static str,
    skip_blocks: &'static str,
}

/// In the order of the writes: the first-stage bootloader, then what it loads.
const WRITES: [WriteKeys; 2] = [
    WriteKeys {
        device: "BOOTLOADER_FLASH_DEVICE",
        image: "BOOTLOADER_IMAGE",
        block_size: "BOOTLOADER_BLOCK_SIZE_OFFSET",
        skip_blocks: "BOOTLOADER_SKIP_OUTPUT_BLOCKS",
    },
    WriteKeys {
        device: "BOOTLOADER_FLASH_DEVICE_1",
        image: "BOOTLOADER_IMAGE_1",
        block_size: "BOOTLOADER_BLOCK_SIZE_OFFSET_1",
        skip_blocks: "BOOTLOADER_SKIP_OUTPUT_BLOCKS_1",
    },
];

const OTHER_KEYS: [&str; 15] = [
    INTERNAL_DEVICE,
    BOOTLOADER_CONFIG,
    CONFIG_PATH,
    LEGACY_PATH,
    CONFIG_LUKS,
    IMAGE,
    SPLASH,
    UENV,
    CONNECTIONS,
    DISPATCHER,
    PROXY,
    REBOOT,
    LUKS,
    KERNEL,
    CONFIRM,
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlasherConf {
    raw: RawConf,
    /// Device patterns, see [`super::pattern::expand`]. Not checked here, because `config.json` may replace them.
    pub internal_device: Option<String>,
    /// The medium's bootloader configuration for the internal disk.
    pub bootloader_config: Option<PathBuf>,
    pub bootloader_config_path: Option<PathBuf>,
    pub bootloader_legacy_config_path: Option<PathBuf>,
    /// Replaces `bootloader_config` on encrypted installations, if the file exists.
    pub bootloader_config_luks: Option<PathBuf>,
    pub balena_image: Option<String>,
    /// Raw writes of bootloaders, in their order; at most two.
    pub bootloader_writes: Vec<BootloaderWrite>,
    pub names: BootNames,
    pub postinstall_reboot: bool,
    /// LUKS and not another disk encryption; secure boot only.
    pub use_luks: Option<bool>,
    /// File name of the stage-2 kernel on the medium, which unlocks the disk; secure boot of copal itself only.
    pub kernel_image: Option<String>,
    /// Unless `config.json` says otherwise.
    pub confirm: Confirm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootNames {
    pub splash: String,
    pub bootloader_config: String,
    pub nm_config: String,
    pub nm_dispatcher: String,
    pub proxy_config: String,
}

impl Default for BootNames {
    fn default() -> Self {
        BootNames {
            splash: "splash".into(),
            bootloader_config: "resinOS_uEnv.txt".into(),
            nm_config: "system-connections".into(),
            nm_dispatcher: "dispatcher.d".into(),
            proxy_config: "system-proxy".into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootloaderWrite {
    pub device: String,
    /// Relative to the medium's boot partition.
    pub image: PathBuf,
    pub block_size: u64,
    pub skip_blocks: u64,
}

impl BootloaderWrite {
    /// Start on the device, in bytes; `None` past what the kernel can address (2^63 - 1).
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.block_size.checked_mul(self.skip_blocks).filter(|&o| i64::try_from(o).is_ok())
    }
}

impl FlasherConf {
    pub fn load(path: &Path) -> Result<Self> {
        Self::from_raw(RawConf::load(path)?)
    }

    pub fn from_raw(raw: RawConf) -> Result<Self> {
        report_unknown(&raw);
        let keys = Keys(&raw);
        let mut bootloader_writes = Vec::new();
        for names in &WRITES {
            bootloader_writes.extend(keys.bootloader_write(names)?);
        }
        let default = BootNames::default();
        Ok(FlasherConf {
            internal_device: keys.get(INTERNAL_DEVICE).map(str::to_owned),
            bootloader_config: keys.below(BOOTLOADER_CONFIG)?,
            bootloader_config_path: keys.below(CONFIG_PATH)?,
            bootloader_legacy_config_path: keys.below(LEGACY_PATH)?,
            bootloader_config_luks: keys.below(CONFIG_LUKS)?,
            balena_image: keys.file_name(IMAGE)?,
            bootloader_writes,
            names: BootNames {
                splash: keys.file_name(SPLASH)?.unwrap_or(default.splash),
                bootloader_config: keys.file_name(UENV)?.unwrap_or(default.bootloader_config),
                nm_config: keys.file_name(CONNECTIONS)?.unwrap_or(default.nm_config),
                nm_dispatcher: keys.file_name(DISPATCHER)?.unwrap_or(default.nm_dispatcher),
                proxy_config: keys.file_name(PROXY)?.unwrap_or(default.proxy_config),
            },
            postinstall_reboot: keys.reboot(),
            use_luks: keys.luks()?,
            kernel_image: keys.file_name(KERNEL)?,
            confirm: keys.confirm()?,
            raw,
        })
    }

    #[must_use]
    pub fn raw(&self) -> &RawConf {
        &self.raw
    }

    /// Takes another bootloader configuration, which a plug-in has named. Returns whether it is another one.
    pub(crate) fn choose_bootloader_config(&mut self, name: String) -> Result<bool> {
        let entry = Assignment { key: BOOTLOADER_CONFIG.into(), value: name, line: 0 };
        let raw = RawConf { file: self.raw.file.clone(), entries: vec![entry] };
        let chosen = Keys(&raw).below(BOOTLOADER_CONFIG)?;
        let is_other = chosen != self.bootloader_config;
        self.bootloader_config = chosen;
        Ok(is_other)
    }

    /// A bootloader configuration on the medium (`boot`) needs a destination. Without the file, the destination is ignored: many
    /// boards inherit it from a common recipe.
    pub fn check_medium(&self, boot: &Path) -> Result<()> {
        let Some(config) = &self.bootloader_config else { return Ok(()) };
        if self.bootloader_config_path.is_some() {
            return Ok(());
        }
        let replacement = self.bootloader_config_luks.as_ref();
        match std::iter::once(config).chain(replacement).find(|file| boot.join(file).is_file()) {
            None => Ok(()),
            Some(file) => Err(Keys(&self.raw).invalid(
                BOOTLOADER_CONFIG,
                format!(
                    "`{}` is on the medium, but {CONFIG_PATH} does not say where it goes",
                    file.display()
                ),
            )),
        }
    }
}

/// Unknown keys have no effect. One that looks like an unresolved override of a recipe gives a warning.
fn report_unknown(raw: &RawConf) {
    let known = || {
        let writes = WRITES.iter().flat_map(|w| [w.device, w.image, w.block_size, w.skip_blocks]);
        OTHER_KEYS.into_iter().chain(writes)
    };
    for Assignment { key, line, .. } in &raw.entries {
        if known().any(|k| k == key) {
            continue;
        }
        let file = raw.file.display();
        // `BOOTLOADER_IMAGE_1_mymachine` belongs to the longer of two keys.
        let begins = |k: &&str| key.strip_prefix(k).is_some_and(|rest| rest.starts_with('_'));
        if let Some(k) = known().filter(begins).max_by_key(|k| k.len()) {
            tracing::warn!("{file}:{line}: {key} is ignored; an override of {k} belongs in the recipe");
        } else {
            tracing::debug!("{file}:{line}: unknown key {key} is ignored");
        }
    }
}

struct Keys<'a>(&'a RawConf);

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).filter(|v| !v.is_empty())
    }

    /// `file:line` of the key, as far as known.
    fn place(&self, key: &str) -> String {
        let file = self.0.file.display();
        self.0.entry(key).map_or_else(|| file.to_string(), |e| format!("{file}:{}", e.line))
    }

    fn invalid(&self, key: &str, what: impl std::fmt::Display) -> Error {
        Error::new(Code::ConfInvalid, format!("{}: {key}: {what}", self.place(key))).object(key)
    }

    fn below(&self, key: &str) -> Result<Option<PathBuf>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let refuse = |what| Err(self.invalid(key, format!("`{}` {what}", shown(value))));
        if value.contains(char::is_control) {
            return refuse("has control characters");
        }
        let path: PathBuf = Path::new(value).components().filter(|c| !is_here(*c)).collect();
        if path.components().any(|c| c == Component::ParentDir) {
            return refuse("leads out of the boot partition; remove the `..`");
        }
        if path.as_os_str().is_empty() || value.ends_with('/') || value.ends_with("/.") {
            return refuse("is a folder; name the file");
        }
        Ok(Some(path))
    }

    /// One name without `/`: copal looks for it by name, or removes it with its content.
    fn file_name(&self, key: &str) -> Result<Option<String>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) if v.contains('/') || v.contains(char::is_control) || v == "." || v == ".." => Err(self
                .invalid(key, format!("`{}` is not a file name; write the name without a folder", shown(v)))),
            Some(v) => Ok(Some(v.to_owned())),
        }
    }

    fn bootloader_write(&self, keys: &WriteKeys) -> Result<Option<BootloaderWrite>> {
        let Some(device) = self.get(keys.device) else {
            // Boards inherit these from a common recipe, and leave the device empty to disable the write.
            if let Some(key) = [keys.image, keys.block_size].into_iter().find(|k| self.get(k).is_some()) {
                tracing::warn!("{}: {key} is ignored, since {} is not set", self.place(key), keys.device);
            }
            return Ok(None);
        };
        let missing = |key| self.invalid(keys.device, format!("`{}` needs {key} as well", shown(device)));
        let block_size = self.number(keys.block_size)?.ok_or_else(|| missing(keys.block_size))?;
        if block_size == 0 {
            return Err(self.invalid(keys.block_size, "a block has at least 1 byte"));
        }
        let write = BootloaderWrite {
            device: self.device(keys.device, device)?,
            image: self.below(keys.image)?.ok_or_else(|| missing(keys.image))?,
            block_size,
            skip_blocks: self.number(keys.skip_blocks)?.unwrap_or(0),
        };
        match write.offset() {
            Some(_) => Ok(Some(write)),
            None => Err(self.invalid(
                keys.skip_blocks,
                format!("{} blocks of {block_size} bytes lie past the end of any device", write.skip_blocks),
            )),
        }
    }

    fn device(&self, key: &str, value: &str) -> Result<String> {
        let name = value.strip_prefix("/dev/").unwrap_or(value);
        let outside = name.starts_with('/') || name.split('/').any(|part| matches!(part, "" | "." | ".."));
        if outside || name.contains(char::is_control) {
            return Err(
                self.invalid(key, format!("`{}` is not the name of a device below /dev", shown(value)))
            );
        }
        Ok(name.to_owned())
    }

    fn number(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match number(value) {
            Ok(n) => Ok(Some(n)),
            Err(why) => Err(self.invalid(key, format!("`{}` {why}", shown(value)))),
        }
    }

    /// As the shell compared it: exactly `1`.
    fn reboot(&self) -> bool {
        let value = self.get(REBOOT);
        if let Some(odd) = value.filter(|v| !matches!(*v, "0" | "1")) {
            tracing::warn!(
                "{}: {REBOOT}: `{}` is neither 0 nor 1, so the device will power off",
                self.place(REBOOT),
                shown(odd)
            );
        }
        value == Some("1")
    }

    /// Stricter than the shell: with `yes` a disk would silently be without LUKS.
    fn luks(&self) -> Result<Option<bool>> {
        match self.get(LUKS) {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(odd) => Err(self.invalid(LUKS, format!("`{}` is neither 0 nor 1", shown(odd)))),
        }
    }

    fn confirm(&self) -> Result<Confirm> {
        let Some(text) = self.get(CONFIRM) else { return Ok(Confirm::default()) };
        let wrong = || self.invalid(CONFIRM, format!("`{}` is not one of {}", shown(text), confirm::VALUES));
        Confirm::parse(text).ok_or_else(wrong)
    }
}

fn is_here(part: Component<'_>) -> bool {
    matches!(part, Component::RootDir | Component::CurDir)
}

/// A number as `dd` reads it for `bs=` and `seek=`, which got these values: decimal, with one of dd's multiplicative suffixes
/// (GNU coreutils manual, "dd invocation").
pub fn number(text: &str) -> Result<u64, &'static str> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (digits, suffix) = text.split_at_checked(digits).unwrap_or((text, ""));
    let unit: u64 = match suffix {
        "" | "c" => 1,
        "w" => 2,
        "b" => 512,
        "kB" | "KB" => 1000,
        "k" | "K" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        _ => return Err("is not a number"),
    };
    if digits.is_empty() {
        return Err("is not a number");
    }
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or("is too large a number")
}
