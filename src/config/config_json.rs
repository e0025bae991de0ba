//! The owner's `config.json`.
//!
//! The device registers itself while the flasher works, and other programs rewrite the file meanwhile. So it is loaded at the
//! start, to check it, and again right before it is copied. [`ConfigJson::for_internal_disk`] copies every unknown member
//! unchanged.
//!
//! Of a repeated key the last value counts, as for `jq` and JavaScript; all of them are copied.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::confirm::{self, Confirm};
use super::paths::Paths;
use super::read;
use crate::error::{Code, Error, Result};

/// A large one, with certificates, SSH keys and network settings, has less than 100 kB. Memory holds it twice, on devices
/// with 256 MiB, and it must fit the boot partition.
pub const MAX_BYTES: u64 = 1 << 20;

/// A file that is being rewritten is complete again after some milliseconds.
const READ_ATTEMPTS: u32 = 5;
const READ_INTERVAL: Duration = Duration::from_millis(50);

const INSTALLER: &str = "installer";
const DEVELOPMENT_MODE: &str = "developmentMode";

/// `CONFIG_PATH` of the environment, unless empty; else the copy in memory when a flasher medium is mounted; else the boot
/// partition. All below the root of `paths`.
#[must_use]
pub fn locate(config_path: Option<&Path>, paths: &Paths) -> PathBuf {
    match config_path {
        Some(path) if !path.as_os_str().is_empty() => paths.at(path),
        _ if paths.flasher_flag().exists() => paths.flasher_config_json(),
        _ => paths.config_json(),
    }
}

#[derive(Debug, Clone)]
pub struct ConfigJson {
    path: PathBuf,
    object: serde_json::Map<String, Value>,
    members: Members,
}

/// Members in their order, repeated keys included; values as they are in the text.
#[derive(Debug, Clone)]
struct Members(Vec<(String, Box<RawValue>)>);

impl ConfigJson {
    /// A missing, damaged or changing file is read again for a quarter of a second.
    pub fn load(path: &Path) -> Result<Self> {
        let mut attempt = 1;
        loop {
            let fault = match read::bounded(path, MAX_BYTES) {
                Ok(bytes) => match Self::parse(&bytes, path) {
                    Ok(config) => return Ok(config),
                    Err(e) => e,
                },
                Err(fault @ (read::Fault::NotRegular | read::Fault::TooLarge(_))) => {
                    return Err(unreadable(path, fault));
                }
                Err(fault) => unreadable(path, fault),
            };
            if attempt == READ_ATTEMPTS {
                return Err(fault);
            }
            tracing::debug!("attempt {attempt} of {READ_ATTEMPTS}: {fault}");
            attempt += 1;
            thread::sleep(READ_INTERVAL);
        }
    }

    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        // Editors on Windows put a byte order mark into files on the FAT partition; jq also skips it.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let wrong = |offset, what: &str| Err(invalid(path, read::position(bytes, offset), what));
        if let Some(nul) = bytes.iter().position(|&b| b == 0) {
            return wrong(nul, "a NUL byte");
        }
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => return wrong(e.valid_up_to(), "this is not UTF-8 text"),
        };
        // Refuses more than 128 levels of nesting, which would exhaust the stack.
        let value = serde_json::from_str(text).map_err(|e| syntax(path, bytes, &e))?;
        let Value::Object(object) = value else {
            return wrong(bytes.len() - text.trim_start().len(), "this is not a JSON object");
        };
        let members = serde_json::from_str(text).map_err(|e| syntax(path, bytes, &e))?;
        Ok(ConfigJson { path: path.to_owned(), object, members })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device patterns that replace the board's: a text with at least one word.
    pub fn installer_target_devices(&self) -> Result<Option<&str>> {
        match self.installer("target_devices")? {
            None => Ok(None),
            Some(Value::String(list)) if !list.trim().is_empty() => Ok(Some(list)),
            Some(_) => Err(self.wrong("installer.target_devices", "a text that names at least one device")),
        }
    }

    /// Whether the owner asks for secure boot. Only true and false are valid: the scripts disagreed whether 1 or a text means
    /// yes, and the answer can lock a device permanently.
    pub fn installer_secureboot(&self) -> Result<bool> {
        self.installer_flag("secureboot")
    }

    /// Whether the owner accepts only a signed image.
    pub fn installer_verify(&self) -> Result<bool> {
        self.installer_flag("verify")
    }

    pub fn installer_whitelist_pcr2(&self) -> Result<bool> {
        self.installer_flag("whitelist_pcr2")
    }

    /// SHA-256 fingerprints of certificates that `db` of the firmware may have besides those of the medium, in lower case.
    pub fn installer_db_certificates(&self) -> Result<Vec<String>> {
        let key = "db_certificates";
        let wrong = || {
            self.wrong(
                &format!("{INSTALLER}.{key}"),
                "a list of SHA-256 fingerprints, of 64 hexadecimal digits each",
            )
        };
        let listed = match self.installer(key)? {
            None => return Ok(Vec::new()),
            Some(value) => value.as_array().ok_or_else(wrong)?,
        };
        let fingerprint = |value: &Value| {
            // As `openssl x509 -fingerprint` prints it, too.
            let text = value.as_str()?.replace(':', "").to_ascii_lowercase();
            (text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
        };
        listed.iter().map(|value| fingerprint(value).ok_or_else(wrong)).collect()
    }

    /// The owner's public key, for a recovery passphrase of an encrypted disk.
    pub fn installer_recovery_key(&self) -> Result<Option<&str>> {
        let Some(value) = self.installer("recovery_key")? else { return Ok(None) };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| self.wrong("installer.recovery_key", "a text: a public key in PEM"))
    }

    /// Whether a person is asked, where the owner decides that and not the board.
    pub fn installer_confirm(&self) -> Result<Option<Confirm>> {
        let Some(value) = self.installer("confirm")? else { return Ok(None) };
        let confirm = value.as_str().and_then(Confirm::parse);
        confirm.map(Some).ok_or_else(|| self.wrong("installer.confirm", confirm::VALUES))
    }

    /// Address of the API, if the device belongs to a fleet; never empty.
    #[must_use]
    pub fn api_endpoint(&self) -> Option<&str> {
        self.object.get("apiEndpoint").and_then(Value::as_str).filter(|s| !s.is_empty())
    }

    /// Whether update hooks show what they do: 1 as a number or as a text, as the scripts compared the output of `jq`.
    #[must_use]
    pub(crate) fn is_debug(&self) -> bool {
        match self.object.get("debug") {
            Some(Value::String(text)) => text == "1",
            Some(Value::Number(number)) => number.as_f64() == Some(1.0),
            _ => false,
        }
    }

    /// Whether the device belongs to a fleet, whose dashboard gets progress reports.
    #[must_use]
    pub fn is_provisioned(&self) -> bool {
        self.api_endpoint().is_some()
    }

    #[must_use]
    pub fn for_internal_disk(&self) -> Vec<u8> {
        laid_out(&self.lines_without(INSTALLER))
    }

    #[must_use]
    pub(crate) fn lacks_development_mode(&self) -> bool {
        match self.object.get(DEVELOPMENT_MODE) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        }
    }

    /// The text with `developmentMode` true; all other values unchanged.
    #[must_use]
    pub(crate) fn with_development_mode(&self) -> Vec<u8> {
        let mut lines = self.lines_without(DEVELOPMENT_MODE);
        lines.push(format!("  \"{DEVELOPMENT_MODE}\": true"));
        laid_out(&lines)
    }

    fn lines_without(&self, left_out: &str) -> Vec<String> {
        let kept = self.members.0.iter().filter(|(key, _)| key != left_out);
        kept.map(|(key, value)| format!("  {}: {}", Value::from(key.as_str()), value.get())).collect()
    }

    fn installer(&self, key: &str) -> Result<Option<&Value>> {
        match self.object.get(INSTALLER) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(installer)) => Ok(installer.get(key).filter(|v| !v.is_null())),
            Some(_) => Err(self.wrong(INSTALLER, "an object")),
        }
    }

    fn installer_flag(&self, key: &str) -> Result<bool> {
        match self.installer(key)? {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(&format!("{INSTALLER}.{key}"), "true or false")),
        }
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::new(Code::ConfigJsonInvalid, format!("{}: {key} must be {expected}", self.path.display()))
            .object(key)
            .with_hint("correct it in config.json")
    }
}

fn laid_out(lines: &[String]) -> Vec<u8> {
    if lines.is_empty() { b"{}\n".to_vec() } else { format!("{{\n{}\n}}\n", lines.join(",\n")).into_bytes() }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The parser's message without its position, which counts bytes.
fn syntax(path: &Path, bytes: &[u8], e: &serde_json::Error) -> Error {
    let line_start = bytes
        .split_inclusive(|&b| b == b'\n')
        .take(e.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum::<usize>();
    let text = e.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    invalid(path, read::position(bytes, line_start + e.column().saturating_sub(1)), what)
}

fn invalid(path: &Path, (line, column): (usize, usize), what: &str) -> Error {
    let file = path.display();
    Error::new(Code::ConfigJsonInvalid, format!("{file}:{line}:{column}: {what}")).object(file)
}

fn unreadable(path: &Path, fault: read::Fault) -> Error {
    let file = path.display();
    let error = |code, what: String| Error::new(code, what).object(path.display());
    match fault {
        read::Fault::Missing(e) => error(Code::ConfigJsonMissing, format!("cannot read {file}")).because(e),
        read::Fault::Io(e) => error(read::io_code(&e), format!("cannot read {file}")).because(e),
        read::Fault::NotRegular => error(Code::ConfigJsonInvalid, format!("{file} is not a regular file")),
        read::Fault::TooLarge(limit) => {
            error(Code::ConfigJsonInvalid, format!("{file} has more than {limit} bytes"))
        }
        read::Fault::Changed => error(Code::Busy, format!("{file} is being written to"))
            .with_hint("run again when the other program has finished"),
    }
}
