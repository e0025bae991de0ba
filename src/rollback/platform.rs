//! The machine beyond the device's files: time, programs, reboot. Tests replace it, so that a trial of fifteen minutes takes no time.

use std::time::Duration;

use super::{checks, chroot};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::hooks;
use crate::state::history::Check;
use crate::update::safe_reboot;

pub(super) type Act<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// [`Platform::of`] returns the real device's platform.
pub struct Platform<'a> {
    pub wait: Box<dyn Fn(Duration) + 'a>,
    pub checks: Box<dyn Fn() -> Vec<Check> + 'a>,
    pub previous_is_new_enough: Box<dyn Fn() -> bool + 'a>,
    /// Runs the old system's hooks in its own root, with `DURING_UPDATE=1`.
    pub old_hooks: Act<'a>,
    /// Deploys the old system's boot files without its hooks.
    pub old_boot_files: Act<'a>,
    /// Runs the running system's hooks, with `DURING_UPDATE=0`.
    pub current_hooks: Act<'a>,
    pub commit_hooks: Act<'a>,
    /// Ends hooks that a killed update of this boot has left running.
    pub end_hooks: Act<'a>,
    /// Whether signals are deferred during a verdict: not in a program with other threads that need them.
    pub hold_signals: bool,
    /// Whether the old system can be mounted.
    pub old_is_there: Box<dyn Fn() -> bool + 'a>,
    /// Returns only on failure.
    pub reboot: Box<dyn Fn() -> Error + 'a>,
}

impl<'a> Platform<'a> {
    #[must_use]
    pub fn of(paths: &'a Paths, conf: &'a RollbackConf) -> Platform<'a> {
        Platform {
            wait: Box::new(std::thread::sleep),
            checks: Box::new(move || checks::run(paths, conf)),
            previous_is_new_enough: Box::new(move || super::check_version::is_new_enough(paths)),
            old_hooks: Box::new(move || chroot::run_old_hooks(paths)),
            old_boot_files: Box::new(move || chroot::deploy_old_boot_files(paths)),
            current_hooks: Box::new(move || hooks::current::restore(paths, &[])),
            commit_hooks: Box::new(move || hooks::current::commit(paths)),
            end_hooks: Box::new(move || Engine::end_hooks_of_the_dead(paths)),
            hold_signals: true,
            old_is_there: Box::new(move || chroot::is_there(paths)),
            reboot: Box::new(move || safe_reboot::at_once(paths)),
        }
    }
}
