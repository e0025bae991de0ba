//! The environment of a job's process: that of its caller, or else that of its unit.

use crate::sys::command::SERVICE_PROTOCOL;

/// For a caller that has passed no search path.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The configuration folder of the engine's client, if not in the home folder.
pub(crate) const CREDENTIALS_VARIABLE: &str = "DOCKER_CONFIG";

/// Variables that say something about the caller's process, its terminal, its parent or its unit. A program that copal starts keeps them,
/// as it always had them ([`SERVICE_PROTOCOL`]); a job has another process, no terminal and a unit of its own.
const OF_THE_PROCESS: [&str; 12] = [
    "_",
    "COLUMNS",
    "INVOCATION_ID",
    // The job's is that of its unit.
    "JOURNAL_STREAM",
    "LINES",
    "MAINPID",
    "MANAGERPID",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SYSTEMD_EXEC_PID",
    "TERM",
];

/// Prefixes of variables that would change another program, or name sockets that it does not have.
const PREFIXES: [&str; 3] = ["LD_", "DBUS_SESSION_", "DBUS_STARTER_"];

/// The one filter, for variables of a caller and of the unit.
pub(super) fn is_passed_on(name: &str) -> bool {
    let is_listed = OF_THE_PROCESS.contains(&name) || SERVICE_PROTOCOL.contains(&name);
    !is_listed && !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
