//! The environment of a job's process: the caller's environment, or the unit's if the caller passes none.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::sys::command::SERVICE_PROTOCOL;

/// For callers that pass no search path.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names the configuration folder of the engine's client. Default: in the home folder.
pub(crate) const CREDENTIALS_VARIABLE: &str = "DOCKER_CONFIG";

/// systemd sets it if standard error is the journal. Only the unit's value is true for the job.
const JOURNAL: &str = "JOURNAL_STREAM";

/// Variables that describe the caller's process, terminal, parent or unit. A job has its own process and unit, and no terminal. Hooks and
/// board programs keep these variables, as with the scripts: for them, only [`SERVICE_PROTOCOL`] and `CRYPT` are removed.
const OF_THE_CALLER: [&str; 12] = [
    "_",
    "COLUMNS",
    "INVOCATION_ID",
    JOURNAL,
    "LINES",
    "MAINPID",
    "MANAGERPID",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SYSTEMD_EXEC_PID",
    "TERM",
];

/// Prefixes of variables that change how another program runs, or that name sockets of the caller. Newer releases of systemd add variables
/// with the prefixes of their protocols.
const PREFIXES: [&str; 5] = ["LD_", "LISTEN_", "WATCHDOG_", "DBUS_SESSION_", "DBUS_STARTER_"];

/// Variables that systemd sets for the process of the unit. Any other variable of the unit is from its configuration, for example from a
/// board's `Environment=`, and reaches hooks and board programs.
const OF_THE_UNITS_PROCESS: [&str; 6] =
    ["INVOCATION_ID", "MAINPID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// The only filter of the caller's variables.
pub(super) fn is_passed_on(name: &str) -> bool {
    let is_listed = OF_THE_CALLER.contains(&name) || SERVICE_PROTOCOL.contains(&name);
    !is_listed && !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `given`: the caller's variables. `of_unit`: those with which systemd starts the unit. `credentials`: a configuration folder of the
/// engine's client. The last value of a name counts.
pub(super) fn of_job(
    given: Option<&HashMap<String, String>>,
    of_unit: impl Iterator<Item = (OsString, OsString)>,
    credentials: Option<PathBuf>,
) -> Vec<(OsString, OsString)> {
    let is_of_process = |name: &OsStr| OF_THE_UNITS_PROCESS.iter().any(|listed| name == *listed);
    let from_unit = of_unit.filter(|(name, _)| match given {
        None => !is_of_process(name),
        Some(_) => name == JOURNAL,
    });
    let from_caller = given.into_iter().flatten().map(|(name, value)| (name.into(), value.into()));
    let folder = credentials.map(|folder| (CREDENTIALS_VARIABLE.into(), folder.into()));
    from_unit.chain(from_caller).chain(folder).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn job(given: Option<&[&str]>, of_unit: &[&str], credentials: bool) -> BTreeMap<OsString, OsString> {
        let given = given.map(|names| names.iter().map(|n| ((*n).into(), "caller".into())).collect());
        let of_unit = of_unit.iter().map(|name| ((*name).into(), "unit".into()));
        of_job(given.as_ref(), of_unit, credentials.then(|| "auth".into())).into_iter().collect()
    }

    fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<OsString, OsString> {
        pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn without_an_environment_all_that_configures_the_unit_is_kept() {
        let configured = ["LD_LIBRARY_PATH", "TERM", "COPAL_LOG", "JOURNAL_STREAM", "PATH"];
        let of_unit = [&OF_THE_UNITS_PROCESS[..], &configured].concat();
        assert_eq!(job(None, &of_unit, false), pairs(configured.map(|name| (name, "unit"))));
    }

    #[test]
    fn an_environment_replaces_that_of_the_unit_apart_from_the_journal() {
        let of_unit = ["COPAL_LOG", "HOME", "INVOCATION_ID", "JOURNAL_STREAM"];
        let expected = pairs([("HOME", "caller"), ("JOURNAL_STREAM", "unit")]);
        assert_eq!(job(Some(&["HOME"]), &of_unit, false), expected);
        assert_eq!(job(Some(&["HOME"]), &["COPAL_LOG"], false), pairs([("HOME", "caller")]));
    }

    #[test]
    fn the_folder_with_credentials_replaces_any_other() {
        let names = ["DOCKER_CONFIG", "HOME"];
        let expected = |home| pairs([("DOCKER_CONFIG", "auth"), ("HOME", home)]);
        assert_eq!(job(None, &names, true), expected("unit"));
        assert_eq!(job(Some(&names), &names, true), expected("caller"));
    }
}
