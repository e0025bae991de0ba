//! Requests: an update of a client, or source and options of a call, as the command line of the process that does the job.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

use zbus::OwnedVariant;

use super::dbus_error::DbusError;
use super::job_state::JobKind;
use crate::config::paths::Paths;
use crate::engine::credentials;
use crate::sys::log;
use crate::update::{Request, Source};

pub(super) type Options = HashMap<String, OwnedVariant>;

const LONGEST_TOKEN: usize = 64; // bytes

/// The program of a request that names none.
const DAEMON: &str = "copal daemon";

/// Variables of the client's process, its terminal, its parent or its service manager, and those that the job gets from its unit.
const NOT_PASSED_ON: [&str; 14] = [
    "_",
    "COLUMNS",
    super::IN_DAEMON,
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
const KINDS_NOT_PASSED_ON: [&str; 5] = ["LD_", "LISTEN_", "WATCHDOG_", "DBUS_SESSION_", "DBUS_STARTER_"];

/// The configuration folder of the engine's client, if not in the home folder.
const CONFIG: &str = "DOCKER_CONFIG";

/// For a job whose client has passed no search path.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobRequest {
    pub kind: JobKind,
    pub args: Vec<String>,
    /// The client's; `None` for the unit's own.
    pub environment: Option<HashMap<String, String>>,
    pub credentials: Option<String>,
    pub program: String,
    pub reboot: bool,
    /// By which the service recognizes a repeated request.
    pub token: Option<String>,
}

/// Options are taken out one by one; the rest is unknown.
struct Given(Options);

impl Given {
    fn take<T: TryFrom<OwnedVariant>>(&mut self, key: &str) -> Result<Option<T>, DbusError> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        T::try_from(value)
            .map(Some)
            .map_err(|_| DbusError::usage(format!("the option {key} has the wrong type")))
    }

    fn flag(&mut self, key: &str, default: bool) -> Result<bool, DbusError> {
        Ok(self.take(key)?.unwrap_or(default))
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, DbusError> {
        let text: Option<String> = self.take(key)?;
        match &text {
            Some(t) if t.is_empty() => Err(DbusError::usage(format!("the option {key} is empty"))),
            _ => Ok(text),
        }
    }

    fn path(&mut self, key: &str) -> Result<Option<String>, DbusError> {
        match self.text(key)? {
            Some(path) if !path.starts_with('/') => {
                Err(DbusError::usage(format!("the option {key} is no absolute path: {path}")))
            }
            path => Ok(path),
        }
    }

    fn environment(&mut self) -> Result<Option<HashMap<String, String>>, DbusError> {
        let Some(mut given) = self.take::<HashMap<String, String>>("environment")? else { return Ok(None) };
        if let Some(name) = given.keys().find(|n| n.is_empty() || n.contains('=')) {
            return Err(DbusError::usage(format!("the environment has a variable named '{name}'")));
        }
        given.retain(|name, _| is_passed_on(name));
        given.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        Ok(Some(given))
    }

    fn end(self) -> Result<(), DbusError> {
        match self.0.into_keys().min() {
            Some(key) => Err(DbusError::usage(format!("unknown option {key}"))),
            None => Ok(()),
        }
    }
}

impl JobRequest {
    pub(super) fn update(source: &str, options: Options) -> Result<JobRequest, DbusError> {
        let mut given = Given(options);
        let kind = given.text("type")?;
        let is_file = match kind.as_deref() {
            None => source.starts_with('/'),
            Some("file") => true,
            Some("image") => false,
            Some(other) => {
                return Err(DbusError::usage(format!("the option type must be file or image, not {other}")));
            }
        };
        if source.is_empty() || (is_file && !source.starts_with('/')) {
            return Err(DbusError::usage(format!("the source is no absolute path: '{source}'")));
        }
        let request = Request {
            paths: Paths::default(),
            program: given.text("program")?.unwrap_or_else(|| DAEMON.to_owned()),
            source: if is_file { Source::File(source.into()) } else { Source::Reference(source.to_owned()) },
            hooks: given.flag("hooks", true)?,
            recover: given.flag("recover", true)?,
            reboot: given.flag("reboot", false)?,
            force: given.flag("force", false)?,
        };
        let credentials: Option<String> = given.take("credentials")?;
        let environment = given.environment()?;
        let token = given.text("token")?;
        if token.as_ref().is_some_and(|t| t.len() > LONGEST_TOKEN) {
            return Err(DbusError::usage("the option token is too long"));
        }
        given.end()?;
        let Some(asked) = JobRequest::of(&request) else {
            return Err(DbusError::usage("the source has a zero byte"));
        };
        Ok(JobRequest { environment, credentials, token, ..asked })
    }

    /// `None` where the source is no text.
    fn of(request: &Request) -> Option<JobRequest> {
        // As one word: a source may begin with a dash.
        let source = match &request.source {
            Source::File(file) => format!("--file={}", file.to_str()?),
            Source::Reference(image) => format!("--image={image}"),
        };
        let mut args = vec!["update".to_owned(), "--json".to_owned(), source];
        let flags = [
            (!request.hooks, "--no-hooks"),
            (!request.recover, "--no-recovery"),
            (request.reboot, "--reboot"),
            (request.force, "--force"),
        ];
        args.extend(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()));
        Some(JobRequest {
            reboot: request.reboot,
            program: request.program.clone(),
            ..new(JobKind::Update, args)
        })
        .filter(|r| r.args.iter().all(|a| !a.contains('\0')))
    }

    /// With environment and credentials of this process.
    pub(super) fn of_client(request: &Request) -> Option<JobRequest> {
        let credentials = match request.source {
            // An archive needs none. For an image they are read now: the caller's folder may be gone when they are needed.
            Source::File(_) => None,
            Source::Reference(_) => credentials::configuration(),
        };
        let environment = Some(environment(std::env::vars_os(), log::level()));
        Some(JobRequest { environment, credentials, ..JobRequest::of(request)? })
    }

    pub(super) fn flash(options: Options, plan: bool) -> Result<JobRequest, DbusError> {
        let mut given = Given(options);
        let mut args = vec!["flash".to_owned(), "--json".to_owned()];
        for key in ["conf", "image", "target"] {
            args.extend(given.path(key)?.map(|path| format!("--{key}={path}")));
        }
        for (key, flag) in
            [("force_raw", "--force-raw"), ("single_pass", "--single-pass"), ("image_only", "--image-only")]
        {
            args.extend(given.flag(key, false)?.then(|| flag.to_owned()));
        }
        if plan {
            args.push("--plan".to_owned());
        } else if !given.flag("power_off", true)? {
            args.push("--no-power-off".to_owned());
        }
        let environment = given.environment()?;
        let program = given.text("program")?.unwrap_or_else(|| DAEMON.to_owned());
        given.end()?;
        Ok(JobRequest { environment, program, ..new(JobKind::Flash, args) })
    }

    pub(super) fn rollback() -> JobRequest {
        new(JobKind::Rollback, ["rollback", "now", "--json"].map(str::to_owned).to_vec())
    }

    pub(super) fn mark_good() -> JobRequest {
        new(JobKind::MarkGood, ["rollback", "mark-good", "--json"].map(str::to_owned).to_vec())
    }
}

fn new(kind: JobKind, args: Vec<String>) -> JobRequest {
    let program = DAEMON.to_owned();
    JobRequest { kind, args, environment: None, credentials: None, program, reboot: false, token: None }
}

/// The variables to pass on. The job logs at the same level.
fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
    level: &'static str,
) -> HashMap<String, String> {
    let texts = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut kept: HashMap<String, String> = texts.filter(|(name, _)| is_passed_on(name)).collect();
    if let Some(folder) = kept.get_mut(CONFIG).filter(|f| !f.is_empty() && Path::new(f).is_relative())
        && let Some(whole) =
            absolute(PathBuf::from(&*folder)).ok().and_then(|p| p.into_os_string().into_string().ok())
    {
        *folder = whole;
    }
    kept.insert(log::LEVEL_VARIABLE.to_owned(), level.to_owned());
    kept
}

fn is_passed_on(name: &str) -> bool {
    !NOT_PASSED_ON.contains(&name) && !KINDS_NOT_PASSED_ON.iter().any(|kind| name.starts_with(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::{DBusError as _, Variant};

    fn options<const N: usize>(all: [(&str, Variant<'static>); N]) -> Options {
        all.into_iter().map(|(k, v)| (k.to_owned(), v.try_into().unwrap())).collect()
    }

    #[test]
    fn the_source_shows_what_it_is_unless_the_type_is_given() {
        let args = |source: &str, o| JobRequest::update(source, o).unwrap().args;
        assert_eq!(args("/a/b", options([])), ["update", "--json", "--file=/a/b"]);
        assert_eq!(args("a/b:1", options([])), ["update", "--json", "--image=a/b:1"]);
        assert_eq!(args("-x", options([("type", "image".into())])), ["update", "--json", "--image=-x"]);
        for (source, kind) in [("a", "file"), ("/a", "folder"), ("", "image")] {
            let e = JobRequest::update(source, options([("type", kind.into())])).unwrap_err();
            assert_eq!(e.name().as_str(), "io.balena.Copal1.Error.Usage", "{source}");
        }
    }

    #[test]
    fn options_become_flags() {
        let environment = HashMap::from([("A", "b"), ("NOTIFY_SOCKET", "x"), ("COPAL_IN_DAEMON", "x")]);
        let asked = JobRequest::update(
            "a",
            options([
                ("hooks", false.into()),
                ("recover", false.into()),
                ("reboot", true.into()),
                ("force", true.into()),
                ("environment", environment.into()),
                ("credentials", "{}".into()),
                ("program", "hostapp-update".into()),
                ("token", "abc".into()),
            ]),
        )
        .unwrap();
        let expected =
            ["update", "--json", "--image=a", "--no-hooks", "--no-recovery", "--reboot", "--force"];
        assert_eq!(asked.args, expected);
        assert!(asked.reboot);
        assert_eq!(asked.token.as_deref(), Some("abc"));
        assert_eq!((asked.program.as_str(), asked.credentials.as_deref()), ("hostapp-update", Some("{}")));
        let environment = asked.environment.unwrap();
        assert_eq!(environment.len(), 2);
        assert_eq!((environment["A"].as_str(), environment["PATH"].as_str()), ("b", PATH));

        let asked =
            JobRequest::flash(options([("image", "/i".into()), ("power_off", false.into())]), false).unwrap();
        assert_eq!(asked.args, ["flash", "--json", "--image=/i", "--no-power-off"]);
        assert_eq!(JobRequest::flash(options([]), true).unwrap().args, ["flash", "--json", "--plan"]);
    }

    #[test]
    fn what_is_unknown_or_of_another_type_is_refused() {
        for (key, value) in [
            ("hook", Variant::from(true)),
            ("hooks", "no".into()),
            ("program", "".into()),
            ("token", "a".repeat(65).into()),
        ] {
            assert!(JobRequest::update("a", options([(key, value)])).is_err(), "{key}");
        }
        assert!(
            JobRequest::update("a", options([("environment", HashMap::from([("A=B", "c")]).into())]))
                .is_err()
        );
        assert!(JobRequest::flash(options([("image", "relative".into())]), false).is_err());
        assert!(JobRequest::flash(options([("power_off", true.into())]), true).is_err());
    }

    fn passed_on(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let all = all.iter().map(|(n, v)| (OsString::from(n), OsString::from(v)));
        let mut kept: Vec<_> = environment(all, "info").into_iter().collect();
        kept.sort();
        kept
    }

    #[test]
    fn what_belongs_to_the_client_is_not_passed_on() {
        let own = [
            ("LD_PRELOAD", "/x.so"),
            ("NOTIFY_SOCKET", "/run/systemd/notify"),
            ("JOURNAL_STREAM", "8:1"),
            ("LISTEN_FDS", "1"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x"),
            ("TERM", "xterm"),
            ("PWD", "/root"),
        ];
        assert_eq!(passed_on(&own), [("COPAL_LOG".into(), "info".into())]);
    }

    #[test]
    fn the_rest_is_passed_on_with_absolute_paths() {
        let own =
            [("HOME", "/root"), ("HTTPS_PROXY", "http://a:1"), ("DOCKER_CONFIG", "sub"), ("COPAL_LOG", "x")];
        let here = std::env::current_dir().unwrap().join("sub").to_str().unwrap().to_owned();
        let expected = [
            ("COPAL_LOG".to_owned(), "info".to_owned()),
            ("DOCKER_CONFIG".into(), here),
            ("HOME".into(), "/root".into()),
            ("HTTPS_PROXY".into(), "http://a:1".into()),
        ];
        assert_eq!(passed_on(&own), expected);
    }
}
