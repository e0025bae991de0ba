//! Runs the hooks of the running system, by that system's own programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{
    DURING_UPDATE, HOOK_LIMIT_VARIABLE, HOOKS_FOLDER, Phases, RUN_LIMIT, Run, Signals, Variables, limit, run,
};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{Command, Speaker};

/// Restores the running system. Boards replace this program, so it is found by name.
const RESTORE: &str = "hostapp-update-hooks";
const COMMIT: &str = "hostapp-update-hooks-v2";

/// Runs them with `DURING_UPDATE=0`: they restore the boot files and bootloaders of the running system. `more` is added to their
/// environment.
pub fn restore(paths: &Paths, more: Variables) -> Result<()> {
    tracing::info!("running the hooks of the running system");
    let Some(program) = installed(paths, RESTORE) else {
        let run = own(paths, RESTORE, Phases::FORWARD, more)?;
        if super::run(paths, &run)?.is_empty() {
            let text = format!("cannot run the hooks of the running system: {} has none", run.dir.display());
            return Err(Error::new(Code::HookFailed, text).object(run.dir.display()));
        }
        return Ok(());
    };
    start(&program, RESTORE, &[], more)
}

pub fn commit(paths: &Paths) -> Result<()> {
    tracing::info!("running the commit hooks of the running system");
    match installed(paths, COMMIT) {
        Some(program) => start(&program, COMMIT, &["--commit"], &[]),
        None => run(paths, &own(paths, COMMIT, Phases::COMMIT, &[])?).map(drop),
    }
}

fn start(program: &Path, name: &'static str, args: &[&str], more: Variables) -> Result<()> {
    let failed = |why: std::io::Error| {
        Error::new(Code::HookFailed, "cannot run the hooks of the running system")
            .object(program.display())
            .because(why)
    };
    let command =
        Command::script(program).map_err(failed)?.with_default_signals().args(args).limit(Some(RUN_LIMIT));
    let command = command.envs(more.iter().copied()).envs([(DURING_UPDATE, "0")]);
    let speaker = Speaker { name, full: name, hook: None, levels: true };
    let ended = command.run_logged(speaker, |_| {}).map_err(failed)?;
    if ended.end.is_success() { Ok(()) } else { Err(failed(ended.because())) }
}

fn own(paths: &Paths, missing: &str, phases: Phases, more: Variables) -> Result<Run> {
    tracing::warn!("{missing} is not installed; running the hooks of the running system without it");
    Ok(Run {
        phases,
        dir: paths.at(HOOKS_FOLDER),
        during_update: "0".into(),
        more,
        limit: limit(std::env::var_os(HOOK_LIMIT_VARIABLE))?,
        signals: Signals::RunToTheEnd,
    })
}

/// On the search path, below the root of this system.
fn installed(paths: &Paths, name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let usual = OsStr::new("/usr/bin:/usr/sbin:/bin:/sbin");
    let folders = std::env::split_paths(&search).chain(std::env::split_paths(usual));
    let mut places = folders.filter(|f| f.is_absolute()).map(|folder| paths.at(folder).join(name));
    places.find(|place| place.is_file())
}
