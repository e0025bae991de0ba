//! The end of an installation: the device powers off, or reboots from its internal disk.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::board::Environment;
use super::shell::{Answer, Shell, present};
use crate::error::{Code, Error};
use crate::sys::power::{self, Shutdown};
use crate::sys::shutdown::{self, apart};
pub use crate::sys::shutdown::{ShutdownMethod, ShutdownRefusal};
use crate::sys::{command, signal, systemd};

/// The board's own method, with the files that it uses.
const HELPER: &str = "/usr/libexec/os-helpers-power";
const USED_BY_HELPER: [&str; 2] = ["/usr/libexec/os-helpers-fs", "/usr/libexec/os-helpers-logging"];

/// For the board's function and the files that define it; what hangs is killed.
const HELPER_LIMIT: Duration = Duration::from_secs(60);
/// From a function's return until the power must be off.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
/// systemd stops every service, this one among the first. If this process still runs after that time, systemd has failed.
const SYSTEMD_TIMEOUT: Duration = Duration::from_secs(120);
/// The kernel shuts down every device, and does not return.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(30);
/// Some boards cut the power a moment after the request.
const SYSRQ_TIMEOUT: Duration = Duration::from_secs(10);

/// copal has flushed its own writes; this flushes the writes of other programs.
const FLUSH_LIMIT: Duration = Duration::from_secs(30);

const ADBD_VARIABLE: &str = "ADBD_PID";
const ADBD_PAUSE: Duration = Duration::from_secs(1);

fn function(ending: Shutdown) -> &'static str {
    match ending {
        Shutdown::PowerOff => "os_helpers_shutdown",
        Shutdown::Reboot => "os_helpers_reboot",
    }
}

/// Ends the system once no client is connected to a recovery system any more. `conf` is the board's configuration, for its
/// own method. Does not return on success. Without systemd it never does: its caller is PID 1's script, which would take a
/// return for a failure.
#[must_use]
pub fn now(ending: Shutdown, environment: &Environment, conf: Option<PathBuf>) -> Error {
    let root = environment.paths().root();
    let managed = systemd::is_running(root);
    await_adbd(std::env::var_os(ADBD_VARIABLE).as_deref(), thread::sleep);
    // systemd also stops this service, which is then not a failure.
    if managed && let Err(e) = signal::term_is_success() {
        tracing::debug!("SIGTERM will look like a failure: {e}");
    }
    let ways = Ways {
        systemd: Box::new(move || {
            if !managed {
                return Err(ShutdownRefusal::NotHere);
            }
            let requested = match ending {
                Shutdown::PowerOff => systemd::power_off(),
                Shutdown::Reboot => systemd::reboot(),
            };
            requested.map_err(|e| ShutdownRefusal::Failed(e.to_string()))
        }),
        kernel: Box::new(move || match power::kernel(ending)? {}),
        sysrq: Box::new(move || power::sysrq(ending, root)),
    };
    let flush = || {
        if !power::sync_within(FLUSH_LIMIT) {
            tracing::warn!("not everything could be flushed in {} s", FLUSH_LIMIT.as_secs());
        }
    };
    let error = end(ending, shutdown_methods(ending, environment, conf, ways), flush, thread::sleep);
    if !managed {
        tracing::error!("{error}");
        power::stay();
    }
    error
}

pub struct Ways<'a> {
    /// [`ShutdownRefusal::NotHere`] where systemd does not run.
    pub systemd: Box<dyn FnMut() -> Result<(), ShutdownRefusal> + 'a>,
    /// `reboot(2)`. Returns only on failure.
    pub kernel: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    pub sysrq: Box<dyn FnMut() -> io::Result<()> + 'a>,
}

/// All methods in order. `conf` is the board's configuration, for its own method.
#[must_use]
pub fn shutdown_methods<'a>(
    ending: Shutdown,
    environment: &'a Environment,
    conf: Option<PathBuf>,
    ways: Ways<'a>,
) -> Vec<ShutdownMethod<'a>> {
    let Ways { systemd, kernel, mut sysrq } = ways;
    let kernel: std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync> = kernel.into();
    vec![
        ShutdownMethod::new("the board's own way", HELPER_TIMEOUT, move || {
            helper(ending, environment, conf.as_ref(), HELPER_LIMIT)
        }),
        ShutdownMethod { name: "systemd", timeout: SYSTEMD_TIMEOUT, act: systemd },
        // This function waits by itself.
        ShutdownMethod::new("the kernel", Duration::ZERO, move || apart(&kernel, KERNEL_TIMEOUT)),
        ShutdownMethod::new("sysrq", SYSRQ_TIMEOUT, move || Ok(sysrq()?)),
    ]
}

/// For each method in order: flushes, calls it, and waits. `flush` must return, even where a disk hangs. On success the
/// system ends meanwhile, so a return is a failure, after an installation that succeeded. Without an init system that
/// continues, the caller must not return either.
#[must_use]
pub fn end(
    ending: Shutdown,
    methods: Vec<ShutdownMethod<'_>>,
    flush: impl FnMut(),
    wait: impl FnMut(Duration),
) -> Error {
    let reasons = shutdown::shut_down(ending, methods, flush, wait);
    let message = format!("the installation is complete, but the device does not {}", ending.verb());
    Error::new(Code::ShutdownFailed, message).because(io::Error::other(reasons.join("; "))).after_success()
}

/// The board's own method: a function of its power helper, if it has one. Killed after `limit`.
pub fn helper(
    ending: Shutdown,
    environment: &Environment,
    conf: Option<&PathBuf>,
    limit: Duration,
) -> Result<(), ShutdownRefusal> {
    if present(environment, &[HELPER]).is_empty() {
        return Err(ShutdownRefusal::NotHere);
    }
    let Some(mut shell) = Shell::start("os-helpers-power", environment, &[], command::SILENCE)? else {
        return Err(ShutdownRefusal::Failed("bash is not installed".to_owned()));
    };
    shell.limit(Some(limit));
    let mut files = present(environment, &USED_BY_HELPER);
    files.extend(present(environment, &[HELPER]));
    files.extend(conf.cloned());
    let gone = |end, last: &str| ShutdownRefusal::Failed(command::because(end, last).to_string());
    for file in files {
        if let Answer::Gone(end, last) = shell.source(&file)? {
            return Err(ShutdownRefusal::Failed(format!(
                "{}: {}",
                file.display(),
                command::because(end, &last)
            )));
        }
    }
    let function = function(ending);
    match shell.has(function)? {
        Answer::Status(0) => {}
        Answer::Status(_) => return Err(ShutdownRefusal::NotHere),
        Answer::Gone(end, last) => return Err(gone(end, &last)),
    }
    match shell.call(function, &[])? {
        Answer::Status(0) => Ok(()),
        Answer::Status(status) => Err(ShutdownRefusal::Failed(format!("{function} returned {status}"))),
        Answer::Gone(end, last) => Err(gone(end, &last)),
    }
}

/// Waits without limit until the debugging daemon of a recovery system has ended; `ADBD_PID` has its number. An operator may
/// be copying files through it. It is not a child of this process: the caller started it, and reaps it later.
pub fn await_adbd(value: Option<&OsStr>, mut wait: impl FnMut(Duration)) {
    let Some(value) = value.filter(|v| !v.is_empty()) else { return };
    let Some(pid) = value.to_str().and_then(|v| v.trim().parse().ok()).filter(|pid| *pid > 1) else {
        tracing::warn!("{ADBD_VARIABLE}={} is not the number of a process; ignored", value.to_string_lossy());
        return;
    };
    if command::is_running(pid) {
        tracing::info!("waiting for adbd, process {pid}, to end");
    }
    while command::is_running(pid) {
        wait(ADBD_PAUSE);
    }
}
