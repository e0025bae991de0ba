//! The environment of a job's process: the caller's environment, or the unit's if the caller passes none.

use crate::sys::command::SERVICE_PROTOCOL;

/// For callers that pass no search path.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names the configuration folder of the engine's client. Default: in the home folder.
pub(crate) const CREDENTIALS_VARIABLE: &str = "DOCKER_CONFIG";

/// Variables that describe the caller's process, terminal, parent or unit. A job has its own process and unit, and no terminal. Hooks and
/// board programs keep these variables, as with the scripts: for them, only [`SERVICE_PROTOCOL`] is removed.
const OF_THE_PROCESS: [&str; 12] = [
    "_",
    "COLUMNS",
    "INVOCATION_ID",
    // The job gets its unit's value.
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

/// Prefixes of variables that change how another program runs, or that name sockets of the caller. Newer releases of systemd add variables
/// with the prefixes of their protocols.
const PREFIXES: [&str; 5] = ["LD_", "LISTEN_", "WATCHDOG_", "DBUS_SESSION_", "DBUS_STARTER_"];

/// The only filter. It applies to the caller's variables and to the unit's.
pub(super) fn is_passed_on(name: &str) -> bool {
    let is_listed = OF_THE_PROCESS.contains(&name) || SERVICE_PROTOCOL.contains(&name);
    !is_listed && !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
