//! Reboots when no service holds its update lock, and makes sure that the device does reboot.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

mod locks;
mod work;

use locks::{Look, Services};

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::progress::dashboard::Dashboard;
use crate::sys::command::{Command, End, Said};
use crate::sys::log::events;
use crate::sys::power::{self, Shutdown};
use crate::sys::shutdown::{self, ShutdownMethod, ShutdownRefusal, apart};
use crate::sys::systemd::{self, SystemdError};
use crate::sys::{signal, watch::Watch};

/// At 100 %, while a lock is held. Dashboards know these two texts of the script.
pub const WAITING: &str = "Reboot waiting on application lock";
const REBOOTING: &str = "Reboot in progress";

/// The reboot does not wait longer for a server.
const LAST_REPORT: Duration = Duration::from_secs(15);
/// For data of other programs; copal has flushed its own.
const FLUSH_LIMIT: Duration = Duration::from_secs(30);
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(30);
/// For an update or a verdict, in all: the shutdown gives its unit five minutes.
const WORK_LIMIT: Duration = Duration::from_secs(330);
const WORK_LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Longest time between two looks at the locks: a release may cause no event.
    pub look: Duration,
    /// Shortest time between two looks: services may cause events without end.
    pub pause: Duration,
    /// Time for each way to reboot, once it was accepted, in the order of [`Ways`]. The script had 120, 300 and 600 s from the beginning.
    pub timeouts: [Duration; 4],
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Times {
            look: seconds(5),
            pause: Duration::from_millis(500),
            timeouts: [seconds(120), seconds(180), seconds(300), seconds(10)],
        }
    }
}

/// The ways to reboot, gentlest first.
pub struct Ways<'a> {
    /// systemd stops every service; [`ShutdownRefusal::NotHere`] where it does not run.
    pub systemd: Box<dyn FnMut() -> Result<(), ShutdownRefusal> + 'a>,
    pub forced: Box<dyn FnMut() -> Result<(), ShutdownRefusal> + 'a>,
    /// `reboot(2)`. Returns only on failure.
    pub kernel: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    pub sysrq: Box<dyn FnMut() -> io::Result<()> + 'a>,
}

impl<'a> Ways<'a> {
    #[must_use]
    pub fn of(paths: &'a Paths) -> Self {
        let root = paths.root();
        // A test's root folder is no machine: the machine of the test must not reboot.
        let machine = root == Path::new("/");
        let managed = machine && systemd::is_running(root);
        let by_systemd = move |ask: fn() -> Result<(), SystemdError>, args: &[&str]| {
            if managed { by_systemd(paths, ask, args) } else { Err(ShutdownRefusal::NotHere) }
        };
        Ways {
            systemd: Box::new(move || by_systemd(systemd::reboot, &["reboot"])),
            forced: Box::new(move || by_systemd(systemd::reboot_by_force, &["reboot", "--force"])),
            kernel: Box::new(move || match machine {
                true => match power::kernel(Shutdown::Reboot)? {},
                false => Err(io::Error::other("this root folder is not that of a machine")),
            }),
            sysrq: Box::new(move || power::sysrq(Shutdown::Reboot, root)),
        }
    }
}

pub fn safe_reboot(args: &[OsString]) -> Result<()> {
    if let Some(arg) = args.first() {
        let message =
            format!("unexpected argument '{}': this program takes none, and reboots", arg.to_string_lossy());
        return Err(Error::new(Code::Usage, message).with_hint("run it without arguments to reboot"));
    }
    match run(&Paths::default())? {}
}

/// The shutdown ends this process.
pub fn run(paths: &Paths) -> Result<Infallible> {
    let times = Times::default();
    let dashboard = Dashboard::if_installed(paths);
    wait(paths, &times, &dashboard);
    tracing::info!("{REBOOTING}");
    dashboard.report(100, REBOOTING);
    dashboard.finish(LAST_REPORT);
    // systemd stops this process, too, during the shutdown. That is no failure.
    if systemd::is_running(paths.root())
        && let Err(e) = signal::term_is_success()
    {
        tracing::debug!("SIGTERM will look like a failure: {e}");
    }
    Err(by_unit(paths))
}

/// The unit that reboots. Unlike this process it is not stopped by the shutdown that it begins, so it can end a shutdown that hangs.
const UNIT: &str = "copal-reboot.service";
const UNIT_LOOK: Duration = Duration::from_secs(10);

/// By the unit; in this process where systemd does not have it.
fn by_unit(paths: &Paths) -> Error {
    work::note_asker(paths);
    if paths.root() == Path::new("/") && systemd::is_running(paths.root()) {
        match systemd::Bus::system().start_unit(UNIT) {
            Ok(()) => {
                tracing::info!("{UNIT} reboots the device");
                attend(|| systemd::Bus::system().is_inactive(UNIT), thread::sleep);
                tracing::warn!("{UNIT} does not reboot the device");
            }
            Err(e) => tracing::debug!("{UNIT}: {e}; rebooting from this process"),
        }
    }
    in_this_process(paths)
}

/// Waits as long as the unit may take, or until systemd says that it has ended: its program may be missing, for instance.
fn attend(is_inactive: impl Fn() -> Result<bool, SystemdError>, wait: impl Fn(Duration)) {
    let mut left = Times::default().timeouts.iter().sum::<Duration>() + FLUSH_LIMIT * 4 + WORK_LIMIT;
    while !left.is_zero() {
        wait(UNIT_LOOK);
        left = left.saturating_sub(UNIT_LOOK);
        // Without an answer the system may be ending.
        if is_inactive().unwrap_or(false) {
            return;
        }
    }
}

/// Returns only on failure.
#[must_use]
pub(crate) fn in_this_process(paths: &Paths) -> Error {
    reboot(Ways::of(paths), &Times::default(), work::is_under_way(paths), flush, thread::sleep)
}

/// Does not wait for update locks: for a device that must not continue to run. Returns only on failure.
#[must_use]
pub(crate) fn at_once(paths: &Paths) -> Error {
    tracing::info!("{REBOOTING}");
    if let Some(signal) = signal::came()
        && systemd::is_running(paths.root())
    {
        // Either the system is shutting down and waits for this process, or an operator has stopped it. It must reboot in both cases.
        let asked = systemd::reboot().map_or_else(|e| e.to_string(), |()| "systemd was asked".to_owned());
        return Error::new(Code::RebootFailed, format!("not waiting for the reboot after {signal}: {asked}"))
            .after_success();
    }
    if systemd::is_running(paths.root())
        && let Err(e) = signal::term_is_success()
    {
        tracing::debug!("SIGTERM will look like a failure: {e}");
    }
    by_unit(paths)
}

/// Without a time limit.
pub fn wait(paths: &Paths, times: &Times, dashboard: &Dashboard) {
    tracing::info!("safe reboot: looking for the locks of services");
    let services = Services::new(paths);
    let watch = Watch::new().inspect_err(|e| tracing::debug!("inotify: {e}")).ok();
    loop {
        let began = Instant::now();
        if services.overridden(watch.as_ref()) {
            tracing::info!("the owner overrides the locks of services");
            return;
        }
        let held = match services.look(watch.as_ref()) {
            Look::Free => {
                tracing::info!("no service holds a lock");
                return;
            }
            Look::HeldLock(held) => held,
        };
        let path = held.path.display();
        // Logged each time: operators look for these words in the last lines of the log.
        tracing::warn!(
            MESSAGE_ID = events::LOCK_WAIT,
            COPAL_LOCK = %path,
            "{path} exists, busy waiting on unlocking for reboot."
        );
        if let Some(e) = &held.unknown {
            tracing::warn!("cannot determine whether {path} is held: {e}");
        }
        dashboard.report(100, WAITING);
        if let Some(watch) = &watch {
            // Drops events of our own closing of files. The lock may have been released meanwhile, too.
            watch.forget();
            if !held.is_free_now()
                && let Err(e) = watch.wait(began + times.look)
            {
                tracing::debug!("inotify: {e}");
            }
        }
        let least = if watch.is_some() { times.pause } else { times.look };
        thread::sleep(least.saturating_sub(began.elapsed()));
    }
}

/// Flushes, then tries each way and waits. The first way lets processes end; the others wait while `working`, within a limit. `flush` must
/// return even where a disk hangs. Returns only on failure.
#[must_use]
pub fn reboot(
    ways: Ways<'_>,
    times: &Times,
    mut working: impl FnMut() -> bool,
    mut flush: impl FnMut(),
    wait: impl Fn(Duration),
) -> Error {
    let Ways { systemd, forced, kernel, mut sysrq } = ways;
    let kernel: Arc<dyn Fn() -> io::Result<()> + Send + Sync> = kernel.into();
    let [gently, by_force, in_kernel, at_last] = times.timeouts;
    let methods = vec![
        ShutdownMethod { name: "systemd", timeout: gently, act: systemd },
        ShutdownMethod { name: "systemd by force", timeout: by_force, act: forced },
        ShutdownMethod::new("the kernel", Duration::ZERO, move || apart(&kernel, in_kernel)),
        ShutdownMethod::new("sysrq", at_last, move || Ok(sysrq()?)),
    ];
    let (mut begun, mut left) = (false, WORK_LIMIT);
    let prepare = || {
        while begun && !left.is_zero() && working() {
            wait(WORK_LOOK);
            left = left.saturating_sub(WORK_LOOK);
        }
        begun = true;
        flush();
    };
    let reasons = shutdown::shut_down(Shutdown::Reboot, methods, prepare, &wait);
    Error::new(Code::RebootFailed, "the device does not reboot")
        .because(io::Error::other(reasons.join("; ")))
        .after_success()
}

fn flush() {
    if !power::sync_within(FLUSH_LIMIT) {
        tracing::warn!("not all data was flushed within {} s", FLUSH_LIMIT.as_secs());
    }
}

/// Over D-Bus, or by `systemctl`, which can reach systemd without the bus. Without an answer systemd may be rebooting: it gets its time.
fn by_systemd(
    paths: &Paths,
    ask: impl Fn() -> Result<(), SystemdError>,
    args: &[&str],
) -> Result<(), ShutdownRefusal> {
    let refused = match ask() {
        Ok(()) => return Ok(()),
        Err(e @ SystemdError::Silent(_)) => {
            tracing::warn!("systemd: {e}");
            return Ok(());
        }
        Err(e) => e,
    };
    let systemctl = paths.at("/usr/bin/systemctl");
    if !systemctl.is_file() {
        return Err(ShutdownRefusal::Failed(refused.to_string()));
    }
    tracing::debug!("{refused}; asking systemctl");
    let end = Command::new(systemctl).args(args).limit(Some(SYSTEMCTL_LIMIT)).run(|said| {
        if let Said::Line(_, line) = said {
            tracing::info!("systemctl: {line}");
        }
    })?;
    match end {
        End::Status(0) => Ok(()),
        end => Err(ShutdownRefusal::Failed(format!("{refused}; systemctl: {end}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How long a unit is attended to, of which systemd says this after so many looks.
    fn attended(says: impl Fn(u32) -> Result<bool, SystemdError>) -> Duration {
        let (looks, time) = (Cell::new(0), Cell::new(Duration::ZERO));
        let is_inactive = || {
            looks.set(looks.get() + 1);
            says(looks.get())
        };
        attend(is_inactive, |wait| time.set(time.get() + wait));
        time.get()
    }

    #[test]
    fn a_unit_that_has_ended_is_not_waited_for() {
        let seconds = Duration::from_secs;
        assert_eq!(attended(|_| Ok(true)), seconds(10));
        assert_eq!(attended(|look| Ok(look >= 5)), seconds(50));
        // Its own times, flushes, and the work that it waits for.
        assert_eq!(attended(|_| Ok(false)), seconds(610 + 120 + 330));
        assert_eq!(attended(|_| Err(SystemdError::Silent(seconds(10)))), seconds(610 + 120 + 330));
    }
}
