//! What a verdict needs beyond the files of the device: time, programs, the end of the system. A test puts its own in their
//! place, so that a trial of fifteen minutes takes no time, and no machine reboots.

use std::time::Duration;

use super::{checks, chroot};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::hooks;
use crate::state::history::Check;
use crate::update::safe_reboot;

/// Something to be done.
pub(super) type Act<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// Each part by itself; all of them are those of the device in [`Platform::of`].
pub struct Platform<'a> {
    /// Lets time pass.
    pub wait: Box<dyn Fn(Duration) + 'a>,
    /// Runs the health checks once.
    pub checks: Box<dyn Fn() -> Vec<Check> + 'a>,
    /// Whether the previous system is one that can be gone back to.
    pub previous_is_new_enough: Box<dyn Fn() -> bool + 'a>,
    /// Runs the old system's hooks in its own root, with `DURING_UPDATE=1`.
    pub old_hooks: Act<'a>,
    /// Deploys the boot files of the old system, without its hooks.
    pub old_boot_files: Act<'a>,
    /// Runs the running system's hooks, with `DURING_UPDATE=0`.
    pub current_hooks: Act<'a>,
    /// Runs the running system's commit hooks.
    pub commit_hooks: Act<'a>,
    /// Ends hooks that an update of this boot has left running when it was killed.
    pub end_hooks: Act<'a>,
    /// Whether signals to end the program are put off while a verdict is carried out: not in a program that has other threads which
    /// mind.
    pub hold_signals: bool,
    /// Whether the old system can be mounted at all.
    pub old_is_there: Box<dyn Fn() -> bool + 'a>,
    /// Reboots. Returns when it fails.
    pub reboot: Box<dyn Fn() -> Error + 'a>,
}

impl<'a> Platform<'a> {
    /// Those of the device.
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
