//! Requests: source and options of a call, as the command line of the process that does the job.

use std::collections::HashMap;

use zbus::OwnedVariant;

use super::dbus_error::DbusError;
use super::job_state::JobKind;

pub(super) type Options = HashMap<String, OwnedVariant>;

const LONGEST_TOKEN: usize = 64; // bytes

/// Variables of the client that belong to its own service manager, or that the service sets.
const NOT_PASSED_ON: &[&str] = &[
    super::IN_DAEMON,
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "INVOCATION_ID",
    "MAINPID",
    "SYSTEMD_EXEC_PID",
];

/// For a job whose client has passed no search path.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobRequest {
    pub kind: JobKind,
    pub args: Vec<String>,
    /// The client's; `None` for the service's own.
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
        given.retain(|name, _| !NOT_PASSED_ON.contains(&name.as_str()));
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
        let kind: Option<String> = given.text("type")?;
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
        // As one word: a source may begin with a dash.
        let mut args = vec!["update".to_owned(), "--json".to_owned()];
        args.push(format!("--{}={source}", if is_file { "file" } else { "image" }));
        let reboot = given.flag("reboot", false)?;
        let flags = [
            (!given.flag("hooks", true)?, "--no-hooks"),
            (!given.flag("recover", true)?, "--no-recovery"),
            (reboot, "--reboot"),
            (given.flag("force", false)?, "--force"),
        ];
        args.extend(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()));
        let credentials: Option<String> = given.take("credentials")?;
        let environment = given.environment()?;
        let program = given.text("program")?.unwrap_or_else(|| "copal daemon".to_owned());
        let token = given.text("token")?;
        if token.as_ref().is_some_and(|t| t.len() > LONGEST_TOKEN) {
            return Err(DbusError::usage("the option token is too long"));
        }
        given.end()?;
        Ok(JobRequest { kind: JobKind::Update, args, environment, credentials, program, reboot, token })
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
        let program = given.text("program")?.unwrap_or_else(|| "copal daemon".to_owned());
        given.end()?;
        Ok(JobRequest {
            kind: JobKind::Flash,
            args,
            environment,
            credentials: None,
            program,
            reboot: false,
            token: None,
        })
    }

    pub(super) fn rollback() -> JobRequest {
        JobRequest {
            kind: JobKind::Rollback,
            args: ["rollback", "now", "--json"].map(str::to_owned).to_vec(),
            environment: None,
            credentials: None,
            program: "copal daemon".to_owned(),
            reboot: false,
            token: None,
        }
    }
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
}
