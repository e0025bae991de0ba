//! The request for the daemon: the update, and the environment of its caller.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

use zbus::wire::Variant;

use crate::engine::credentials;
use crate::error::Result;
use crate::state::files;
use crate::sys::log;
use crate::update::{Request, Source};

type Options<'a> = HashMap<&'static str, Variant<'a>>;

/// Variables of this process, its terminal, or its parent.
const OWN: [&str; 13] = [
    "_",
    "COLUMNS",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "MAINPID",
    "MANAGERPID",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SYSTEMD_EXEC_PID",
    "TERM",
];
/// Prefixes of variables that would change another program, or name sockets that it does not have.
const OWN_KINDS: [&str; 5] = ["LD_", "LISTEN_", "WATCHDOG_", "DBUS_SESSION_", "DBUS_STARTER_"];

/// The configuration folder of the engine's client, if not in the home folder.
const CONFIG: &str = "DOCKER_CONFIG";

pub(super) struct Order {
    source: String,
    kind: &'static str,
    flags: [(&'static str, bool); 4],
    program: String,
    environment: HashMap<String, String>,
    credentials: Option<String>,
    token: String,
}

impl Order {
    /// `None` where D-Bus cannot carry it.
    pub(super) fn of(request: &Request) -> Result<Option<Order>> {
        let (source, kind) = match &request.source {
            Source::File(file) => match file.to_str() {
                Some(file) if file.starts_with('/') => (file.to_owned(), "file"),
                _ => return Ok(None),
            },
            Source::Reference(image) => (image.clone(), "image"),
        };
        if source.contains('\0') {
            return Ok(None);
        }
        // An archive needs none. For an image they are read now: the caller's folder may be gone when they are needed.
        let credentials = if kind == "image" { credentials::configuration() } else { None };
        Ok(Some(Order {
            source,
            kind,
            flags: [
                ("hooks", request.hooks),
                ("recover", request.recover),
                ("reboot", request.reboot),
                ("force", request.force),
            ],
            program: request.program.clone(),
            environment: environment(std::env::vars_os(), log::level()),
            credentials,
            token: files::new_transaction()?.replace('-', ""),
        }))
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn arguments(&self) -> (&str, Options<'_>) {
        let mut options: Options<'_> =
            self.flags.iter().map(|&(name, value)| (name, Variant::from(value))).collect();
        options.insert("type", Variant::from(self.kind));
        options.insert("program", Variant::from(self.program.as_str()));
        options.insert("environment", Variant::from(self.environment.clone()));
        options.insert("token", Variant::from(self.token.as_str()));
        if let Some(credentials) = &self.credentials {
            options.insert("credentials", Variant::from(credentials.as_str()));
        }
        (&self.source, options)
    }
}

/// The variables to pass on. The job logs at the same level.
fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
    level: &'static str,
) -> HashMap<String, String> {
    let texts = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut kept: HashMap<String, String> = texts.filter(|(name, _)| travels(name)).collect();
    if let Some(folder) = kept.get_mut(CONFIG).filter(|f| !f.is_empty() && Path::new(f).is_relative())
        && let Some(whole) =
            absolute(PathBuf::from(&*folder)).ok().and_then(|p| p.into_os_string().into_string().ok())
    {
        *folder = whole;
    }
    kept.insert(log::LEVEL_VARIABLE.to_owned(), level.to_owned());
    kept
}

fn travels(name: &str) -> bool {
    !OWN.contains(&name) && !OWN_KINDS.iter().any(|kind| name.starts_with(kind))
}

#[cfg(test)]
pub(super) fn with_token(token: &str) -> Order {
    Order {
        source: "a:1".to_owned(),
        kind: "image",
        flags: [("hooks", true), ("recover", true), ("reboot", false), ("force", false)],
        program: "copal update".to_owned(),
        environment: HashMap::new(),
        credentials: None,
        token: token.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let all = all.iter().map(|(n, v)| (OsString::from(n), OsString::from(v)));
        let mut sent: Vec<_> = environment(all, "info").into_iter().collect();
        sent.sort();
        sent
    }

    #[test]
    fn what_belongs_to_this_process_stays() {
        let own = [
            ("LD_PRELOAD", "/x.so"),
            ("NOTIFY_SOCKET", "/run/systemd/notify"),
            ("JOURNAL_STREAM", "8:1"),
            ("LISTEN_FDS", "1"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x"),
            ("TERM", "xterm"),
            ("PWD", "/root"),
        ];
        assert_eq!(sent(&own), [("COPAL_LOG".into(), "info".into())]);
    }

    #[test]
    fn the_rest_travels_and_says_where_it_was() {
        let own =
            [("HOME", "/root"), ("HTTPS_PROXY", "http://a:1"), ("DOCKER_CONFIG", "sub"), ("COPAL_LOG", "x")];
        let here = std::env::current_dir().unwrap().join("sub").to_str().unwrap().to_owned();
        let expected = [
            ("COPAL_LOG".to_owned(), "info".to_owned()),
            ("DOCKER_CONFIG".into(), here),
            ("HOME".into(), "/root".into()),
            ("HTTPS_PROXY".into(), "http://a:1".into()),
        ];
        assert_eq!(sent(&own), expected);
    }
}
