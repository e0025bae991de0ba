use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::list::{Hook, Hooks, Phase, Phases};
use super::running::Shown;
use crate::config::config_json::{self, ConfigJson};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{self, Command, End, Ended, Script, Speaker, Start};
use crate::sys::notify;
use crate::sys::signal::{self, SignalGuard};

pub const HOOKS_FOLDER: &str = "/etc/hostapp-update-hooks.d";
/// Says to hooks whether a release is being installed (`1`) or undone (`0`).
pub const DURING_UPDATE: &str = "DURING_UPDATE";
/// Says to hooks where they are. copal does not read it.
const HOOKS_DIR: &str = "HOOKS_DIR";
/// In seconds, for each hook; without it there is no limit.
pub const HOOK_LIMIT_VARIABLE: &str = "COPAL_HOOK_TIMEOUT";

/// For all hooks of a run by another program together. They copy boot files and may write a bootloader: minutes at most. Hooks that hang
/// must not keep a device on a failed system, the engine from starting, or an update waiting.
pub const RUN_LIMIT: Duration = Duration::from_secs(3600);

/// Runs hooks that are not executable.
const SH: &str = "/bin/sh";

pub type Variables = &'static [(&'static str, &'static str)];

/// The runner of meta-balena sources `balena-config-defaults` before it runs hooks. If all of these files exist, that exports the variable
/// below.
const HELPERS: [&str; 3] =
    ["/usr/sbin/balena-config-defaults", "/usr/libexec/os-helpers-sb", "/usr/libexec/os-helpers-tpm2"];
const OF_HELPERS: (&str, &str) = ("TPM2TOOLS_TCTI", "device:/dev/tpmrm0");

/// What `balena-config-defaults` sets, and does not export: a caller's value does not reach hooks.
const OF_CONFIG: [(&str, &str); 2] =
    [("BALENA_BOOT_MOUNTPOINT", "/mnt/boot"), ("BOOT_MOUNTPOINT", "/mnt/boot")];

#[derive(Debug, Clone)]
pub struct Run {
    pub phases: Phases,
    pub dir: PathBuf,
    pub during_update: OsString,
    pub more: Variables,
    pub limit: Option<Duration>,
    pub signals: Signals,
}

/// The effect of a signal that ends the program, also of one that is deferred already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signals {
    /// The running hook is waited for; no further hook starts.
    StopBetweenHooks,
    /// All hooks run, for an undo: half an undo would be worse. The caller then obeys the signal.
    RunToTheEnd,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    pub hook: Hook,
    pub time: Duration,
}

impl Run {
    /// Hooks of the system's own directory, or of `dir`, with the settings of the environment.
    pub(crate) fn of_environment(paths: &Paths, phases: Phases, dir: Option<PathBuf>) -> Result<Run> {
        // An empty value counts as none, as in the script.
        let during_update = std::env::var_os(DURING_UPDATE).filter(|v| !v.is_empty());
        Ok(Run {
            phases,
            dir: dir.unwrap_or_else(|| paths.at(HOOKS_FOLDER)),
            during_update: during_update.unwrap_or_else(|| "0".into()),
            more: &[],
            limit: limit(std::env::var_os(HOOK_LIMIT_VARIABLE))?,
            signals: Signals::StopBetweenHooks,
        })
    }

    pub fn list(&self) -> Result<Vec<Hook>> {
        Ok(Hooks::in_dir(&self.dir)?.of_all(self.phases))
    }

    fn is_update(&self) -> bool {
        self.during_update == "1"
    }
}

/// Returns the hooks that ran, in order.
///
/// A failed forward hook stops the forward hooks; `after` hooks still run, then all clean-up hooks. Any other failed hook ends the run.
pub fn run(paths: &Paths, run: &Run) -> Result<Vec<Ran>> {
    let hooks = Hooks::in_dir(&run.dir)?;
    let selected = hooks.of_all(run.phases);
    if selected.is_empty() {
        let dir = run.dir.display();
        if run.dir.is_dir() {
            tracing::info!("no hooks to run in {dir}");
        } else {
            tracing::warn!("the hook directory {dir} does not exist: no hooks to run");
        }
        return Ok(Vec::new());
    }
    if run.is_update() {
        // Refused before any change. An undo goes as far as it can instead.
        selected.iter().try_for_each(|hook| check(hook).map_err(|e| failed(hook, "cannot run", e)))?;
    }
    let signal_guard = SignalGuard::begin()
        .map_err(|e| Error::new(Code::Io, "cannot defer signals while hooks run").because(e))?;
    let mut runner = Runner { paths, run, debug: is_debugging(paths), ran: Vec::new() };
    let result = runner.phases(&hooks);
    if result.is_ok() || signal::came().is_none() {
        signal_guard.release();
    }
    // Otherwise signals stay deferred: the program ends now, or undoes its changes, and must report that.
    match result {
        Ok(()) => Ok(runner.ran),
        Err(e) if runner.ran.is_empty() => Err(e),
        // Complete hooks have changed the device.
        Err(e) if e.code() == Code::Interrupted => Err(e.after_success()),
        Err(e) => Err(e.after_write()),
    }
}

/// Runs another release's runner, a script or copal, with its output in the log and the limit [`RUN_LIMIT`]:
/// `<root>/usr/bin/hostapp-update-hooks-v2 --before --dir …`.
pub fn run_program(program: &Path, args: &[&OsStr], during_update: &OsStr) -> Result<()> {
    let shown = program.display().to_string();
    let wrong = |what: &str, e: io::Error| {
        Error::new(Code::HookFailed, format!("{what} {shown}")).object(&shown).because(e)
    };
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    tracing::info!("running {shown}");
    let speaker = Speaker { name: &name, full: &shown, hook: None, levels: true };
    let command = Command::script(program).map_err(|e| wrong("cannot run", e))?;
    let command = command
        .with_default_signals()
        .args(args)
        .envs([(DURING_UPDATE, during_update)])
        .limit(Some(RUN_LIMIT));
    let ended = command.run_logged(speaker, |_| ());
    let ended = ended.map_err(|e| wrong("cannot run", e))?;
    if ended.end.is_success() { Ok(()) } else { Err(wrong("hooks failed:", ended.because()).after_write()) }
}

pub fn limit(variable: Option<OsString>) -> Result<Option<Duration>> {
    command::seconds(variable).map_err(|found| {
        Error::new(Code::Usage, format!("{HOOK_LIMIT_VARIABLE}={found} is not a number of seconds"))
            .object(HOOK_LIMIT_VARIABLE)
            .with_hint("write whole seconds, 1 or more")
    })
}

/// Whether the owner set debugging. Not without a readable `config.json`.
fn is_debugging(paths: &Paths) -> bool {
    let named = std::env::var_os("CONFIG_PATH").map(PathBuf::from);
    let path = config_json::locate(named.as_deref(), paths);
    if !path.exists() {
        return false;
    }
    match ConfigJson::load(&path) {
        Ok(config) => config.is_debug(),
        Err(e) => {
            tracing::debug!("hooks run without debugging: {e}");
            false
        }
    }
}

struct Runner<'a> {
    paths: &'a Paths,
    run: &'a Run,
    debug: bool,
    ran: Vec<Ran>,
}

impl Runner<'_> {
    fn phases(&mut self, hooks: &Hooks) -> Result<()> {
        let requested = self.run.phases;
        let of = |phase, requested: bool| if requested { hooks.of(phase) } else { Vec::new() };
        self.all(&of(Phase::Before, requested.before))?;
        let forward = self.all(&of(Phase::Forward, requested.forward));
        if forward.as_ref().is_err_and(|e| e.code() == Code::Interrupted) {
            return forward;
        }
        let after = self.all(&of(Phase::After, requested.after));
        let Err(mut e) = forward else {
            after?;
            return self.all(&of(Phase::Commit, requested.commit));
        };
        if let Err(after) = after {
            e = e.and_also(&after.message());
        }
        if requested.commit {
            tracing::warn!("commit hooks do not run, since a forward hook failed");
        }
        self.clean_up(&hooks.of(Phase::Cleanup));
        Err(e)
    }

    /// Stops at the first failure. Skips hooks that an earlier phase has run.
    fn all(&mut self, hooks: &[Hook]) -> Result<()> {
        for hook in hooks {
            if self.ran.iter().any(|ran| ran.hook.path == hook.path) {
                continue;
            }
            self.heed_signals(hook)?;
            self.one(hook)?;
        }
        Ok(())
    }

    /// Runs each of them, whether others fail or have run before in another phase.
    fn clean_up(&mut self, hooks: &[Hook]) {
        for hook in hooks {
            if let Err(e) = self.one(hook) {
                tracing::error!("{}", e.message());
            }
        }
    }

    fn heed_signals(&self, next: &Hook) -> Result<()> {
        match signal::came() {
            Some(signal) if self.run.signals == Signals::StopBetweenHooks => {
                let text = format!("hooks were interrupted by {signal} before {}", next.name);
                Err(Error::new(Code::Interrupted, text).object(&next.name).with_hint("run the hooks again"))
            }
            _ => Ok(()),
        }
    }

    fn one(&mut self, hook: &Hook) -> Result<()> {
        let (name, phase) = (&hook.name, hook.phase.word());
        tracing::info!(COPAL_HOOK = name, COPAL_PHASE = phase, "running {phase} hook {name}");
        notify::status(&format!("{phase} hook {name}"));
        let ended = self.start(hook).map_err(|e| failed(hook, "cannot run", e))?;
        self.ran.push(Ran { hook: hook.clone(), time: ended.time });
        log_end(hook, &ended);
        match ended.end {
            End::Status(0) => Ok(()),
            End::TooLong(_) => Err(failed(hook, "failed:", ended.because())
                .with_hint(format!("repair the hook, or raise its limit {HOOK_LIMIT_VARIABLE}"))),
            _ => Err(failed(hook, "failed:", ended.because())),
        }
    }

    fn start(&self, hook: &Hook) -> io::Result<Ended> {
        let mut shown = None;
        let speaker = Speaker { name: &hook.name, full: &hook.name, hook: Some(&hook.name), levels: true };
        let helpers = HELPERS.iter().all(|name| self.paths.at(name).is_file());
        command(hook, self.debug)?
            .with_default_signals()
            .envs(helpers.then_some(OF_HELPERS))
            .envs(OF_CONFIG.into_iter().filter(|(name, _)| std::env::var_os(name).is_some()))
            .envs(self.run.more.iter().copied())
            .envs([(DURING_UPDATE, &self.run.during_update), (HOOKS_DIR, &with_slash(&self.run.dir))])
            .limit(self.run.limit)
            .run_logged(speaker, |pid| shown = Some(Shown::begin(self.paths, hook, pid)))
    }
}

fn log_end(hook: &Hook, ended: &Ended) {
    let (name, phase, end) = (&hook.name, hook.phase.word(), ended.end);
    let seconds = format!("{:.3}", ended.time.as_secs_f64());
    let status = match end {
        End::Status(status) => Some(status),
        End::Signal(_) | End::TooLong(_) => None,
    };
    let text = format!("{phase} hook {name}: {end} after {seconds} s");
    if end.is_success() {
        tracing::info!(
            COPAL_HOOK = name,
            COPAL_PHASE = phase,
            COPAL_DURATION = seconds,
            COPAL_STATUS = status,
            "{text}"
        );
    } else {
        tracing::error!(
            COPAL_HOOK = name,
            COPAL_PHASE = phase,
            COPAL_DURATION = seconds,
            COPAL_STATUS = status,
            "{text}"
        );
    }
}

fn failed(hook: &Hook, what: &str, cause: io::Error) -> Error {
    let text = match what {
        "failed:" => format!("the {} hook {} failed", hook.phase.word(), hook.name),
        _ => format!("{what} the {} hook {}", hook.phase.word(), hook.name),
    };
    Error::new(Code::HookFailed, text).object(&hook.name).because(cause)
}

fn with_slash(dir: &Path) -> OsString {
    // An empty last part appends a slash where there is none.
    dir.join("").into_os_string()
}

fn check(hook: &Hook) -> io::Result<()> {
    command_of(hook, false).map(drop)
}

fn command(hook: &Hook, trace: bool) -> io::Result<Command> {
    let (command, odd) = command_of(hook, trace)?;
    if odd {
        tracing::warn!(COPAL_HOOK = hook.name, "{} is not executable (chmod +x); {SH} runs it", hook.name);
    }
    Ok(command)
}

/// The command, and whether the hook lacks the mode to be executed.
fn command_of(hook: &Hook, trace: bool) -> io::Result<(Command, bool)> {
    let path = &hook.path;
    let script = Script::of(path)?;
    let trace = if trace && script.is_for_shell() { &["-x"][..] } else { &[] };
    if !script.executable {
        if script.is_for_shell() {
            return Ok((Command::new(SH).args(trace).arg(path), true));
        }
        let why = "it is not executable (chmod +x), and no shell could run it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    script.check_interpreter()?;
    let command = match script.start {
        Start::Text => {
            let missing = || {
                io::Error::new(io::ErrorKind::NotFound, "it names no interpreter, and bash is not installed")
            };
            Command::new(command::bash().ok_or_else(missing)?).args(trace).arg(path)
        }
        // As the kernel does, with one more argument.
        Start::Named(interpreter, argument) if !trace.is_empty() => {
            Command::new(interpreter).args(argument).args(trace).arg(path)
        }
        Start::Named(..) | Start::Binary => Command::new(path),
    };
    Ok((command, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_ends_with_one_slash() {
        assert_eq!(with_slash(Path::new("/a/b")), "/a/b/");
        assert_eq!(with_slash(Path::new("/a/b/")), "/a/b/");
    }
}
