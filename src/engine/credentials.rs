//! Registry credentials of `balena login` and `docker login`. This process reads them, since the engine has none; they are never logged.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use nix::fcntl::OFlag;
use serde::Deserialize;

use super::HUB;
use crate::error::{Code, Error, Result};
use crate::sys::command::{Command, End, Event, Stream};
use crate::sys::signal;

/// The key of Docker Hub since the first protocol.
const HUB_KEY: &str = "https://index.docker.io/v1/";

const MAX_BYTES: u64 = 1 << 20;

/// For a credential helper, which may contact a server.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two checks for a signal while a helper runs.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Limit of a helper's answer, in bytes.
const MOST_SAID: usize = 1 << 20;

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    server: String,
    user: String,
    secret: Secret,
}

#[derive(Clone, PartialEq, Eq)]
enum Secret {
    Password(String),
    Identity(String),
    Registry(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Credentials {
    pub(super) fn for_engine(&self) -> DockerCredentials {
        let mut sent =
            DockerCredentials { serveraddress: Some(self.server.clone()), ..DockerCredentials::default() };
        match self.secret.clone() {
            Secret::Password(password) => {
                (sent.username, sent.password) = (Some(self.user.clone()), Some(password));
            }
            Secret::Identity(token) => {
                (sent.username, sent.identitytoken) = (Some(self.user.clone()), Some(token));
            }
            Secret::Registry(token) => sent.registrytoken = Some(token),
        }
        sent
    }
}

/// `config.json` of the engine's client; other keys are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    auths: BTreeMap<String, AuthEntry>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// `registry`: a host, and its port if there is one.
pub fn find(registry: &str) -> Result<Option<Credentials>> {
    match folder() {
        Some(folder) => below(&folder, registry),
        None => Ok(None),
    }
}

/// From `folder`/config.json; `None` where the file is missing.
pub fn below(folder: &Path, registry: &str) -> Result<Option<Credentials>> {
    let path = folder.join("config.json");
    let unusable = |why: &str| {
        let text = format!("cannot use the registry credentials in {}: {why}", path.display());
        Error::new(Code::RegistryRefused, text).object(path.display())
    };
    let text = match read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unusable(&e.to_string())),
    };
    // serde's message may repeat a value: print only the position.
    let config: Config = serde_json::from_slice(&text)
        .map_err(|e| unusable(&format!("it is not valid, line {} column {}", e.line(), e.column())))?;
    let key = if registry == HUB { HUB_KEY } else { registry };
    let helper = config.helpers.get(key).or(config.store.as_ref()).filter(|h| !h.is_empty());
    match helper {
        Some(helper) => ask(helper, key).map_err(|why| unusable(&why)),
        None => entry(&config.auths, key).map_or(Ok(None), |e| open(e, key).map_err(unusable)),
    }
}

/// The configuration text, for another process; `None` where it cannot be read.
#[must_use]
pub fn configuration() -> Option<String> {
    let path = folder()?.join("config.json");
    match read(&path) {
        Ok(text) => String::from_utf8(text).ok(),
        Err(e) => {
            // The process that needs it reports why it cannot be read.
            tracing::debug!("{}: {e}", path.display());
            None
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // O_NONBLOCK: opening a FIFO in the file's place would block until a process writes to it.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    match file.take(MAX_BYTES + 1).read_to_end(&mut text)? as u64 {
        ..=MAX_BYTES => Ok(text),
        _ => Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes"))),
    }
}

/// `$DOCKER_CONFIG`, or `.balena-engine` in the home folder, by the password database where `HOME` is not set, as in a systemd service.
fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || {
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid());
        user.ok().flatten().map(|u| u.dir)
    };
    variable("DOCKER_CONFIG").or_else(|| Some(variable("HOME").or_else(home)?.join(".balena-engine")))
}

/// The entry of `key`, also where it names the same host in another form.
fn entry<'a>(auths: &'a BTreeMap<String, AuthEntry>, key: &str) -> Option<&'a AuthEntry> {
    let registry = host(key);
    auths.get(key).or_else(|| auths.iter().find(|(k, _)| host(k) == registry).map(|(_, e)| e))
}

fn host(key: &str) -> &str {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    match bare.split('/').next().unwrap_or(bare) {
        HUB | "registry-1.docker.io" => "index.docker.io",
        other => other,
    }
}

fn open(entry: &AuthEntry, server: &str) -> Result<Option<Credentials>, &'static str> {
    let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let (mut user, mut password) = (filled(&entry.username), filled(&entry.password));
    if let Some(auth) = filled(&entry.auth) {
        let bytes = STANDARD.decode(auth.trim()).map_err(|_| "an `auth` is not base64")?;
        let text = String::from_utf8(bytes).map_err(|_| "an `auth` is not text")?;
        let (name, word) = text.split_once(':').ok_or("an `auth` holds no user and password")?;
        // Docker's client pads with zero bytes.
        (user, password) = (Some(name.to_owned()), Some(word.trim_end_matches('\0').to_owned()));
    }
    let secret = match (filled(&entry.identitytoken), filled(&entry.registrytoken), password) {
        (Some(token), ..) => Secret::Identity(token),
        (None, Some(token), _) => Secret::Registry(token),
        (None, None, Some(password)) => Secret::Password(password),
        (None, None, None) => return Ok(None),
    };
    Ok(Some(Credentials { server: server.to_owned(), user: user.unwrap_or_default(), secret }))
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// Runs `docker-credential-<helper>` (docker-credential-helpers, README: "Development").
fn ask(helper: &str, server: &str) -> Result<Option<Credentials>, String> {
    if !helper.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return Err(format!("{helper:?} is not a valid name of a credential helper"));
    }
    let program = format!("docker-credential-{helper}");
    let failed = |why: &dyn std::fmt::Display| format!("{program}: {why}");
    let command = Command::new(&program).arg("get").with_input().apart().limit(Some(HELPER_TIMEOUT));
    let mut running = command.start().map_err(|e| failed(&e))?;
    running.say(server).map_err(|e| failed(&e))?;
    running.hang_up();
    let mut said = String::new();
    let end = loop {
        match running.next(Some(Instant::now() + SIGNAL_INTERVAL)).map_err(|e| failed(&e))? {
            Event::Line(Stream::Out, line) if said.len() + line.len() <= MOST_SAID => said.push_str(&line),
            Event::Ended(end) => break end,
            Event::Line(..) | Event::Silent(_) => {}
            // Dropping the helper kills it.
            Event::Waited => {
                if let Some(signal) = signal::came() {
                    return Err(failed(&format!("it was killed: {signal}")));
                }
            }
        }
    };
    match end {
        End::Status(0) => {
            let answer: Answer =
                serde_json::from_str(&said).map_err(|_| failed(&"its answer cannot be parsed"))?;
            // A user of this name marks the secret as a token.
            let secret = match answer.user.as_str() {
                "<token>" => Secret::Identity(answer.secret),
                _ => Secret::Password(answer.secret),
            };
            let user = if answer.user == "<token>" { String::new() } else { answer.user };
            Ok(Some(Credentials { server: server.to_owned(), user, secret }))
        }
        End::Status(_) if said.contains("credentials not found") => Ok(None),
        end => Err(failed(&end)),
    }
}
