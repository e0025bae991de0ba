//! The trial of the running system: is it as healthy as the previous one?

use std::collections::BTreeMap;

use super::commit::{Proof, commit};
use super::roll_back::{Reason, roll_back};
use super::{BootStateGuard, Context, checks};
use crate::boot_state::Backend;
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Code, Error, Result};
use crate::state::files::Trial;
use crate::state::history::{Check, CheckResult, announce};
use crate::state::phase::Phase;
use crate::sys::notify;

/// How often a system on trial resets the boot count: power cuts after userspace was reached are no failed boots, but a system that
/// restarts without end must be given up.
const MOST_RESETS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Tried {
    pub attempts: u32,
    pub checks: Vec<Check>,
    failures: BTreeMap<String, u32>,
}

impl Tried {
    fn add(&mut self, checks: Vec<Check>) {
        self.attempts = self.attempts.saturating_add(1);
        for check in checks.iter().filter(|c| c.result == CheckResult::Failed) {
            *self.failures.entry(check.name.clone()).or_default() += 1;
        }
        self.checks = checks;
    }

    pub(super) fn summary(&self) -> Vec<Check> {
        let mut summary = self.checks.clone();
        for check in &mut summary {
            let Some(failures) = self.failures.get(&check.name) else { continue };
            let often = format!("failed {failures} of {} times", self.attempts);
            check.reason = if check.reason.is_empty() { often } else { format!("{often}: {}", check.reason) };
        }
        summary
    }

    pub(super) fn missed(&self) -> String {
        let missed = self.checks.iter().filter(|c| c.required && c.result == CheckResult::Failed);
        missed.map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

pub(super) fn run(context: &Context<'_>, conf: &RollbackConf) -> Result<()> {
    if !(context.platform.previous_is_new_enough)() {
        return unsupported(context);
    }
    let slot = context.running().slot;
    announce::trial_started(slot, context.version_of(slot).as_deref());
    reset_count(context);
    let mut tried = Tried::default();
    for attempt in 1..=conf.count {
        notify::status(&format!("health checks {attempt} of {} in {} s", conf.count, conf.timeout.as_secs()));
        (context.platform.wait)(conf.timeout);
        notify::status(&format!("health checks {attempt} of {}", conf.count));
        tried.add((context.platform.checks)());
        if checks::passed(&tried.checks) {
            return verdict(context, |context, guard| commit(context, guard, &Proof::Healthy(&tried)));
        }
        for check in tried.checks.iter().filter(|c| c.required && c.result == CheckResult::Failed) {
            announce::health_check_failed(slot, check, attempt, conf.count);
        }
    }
    verdict(context, |context, guard| Err(roll_back(context, guard, &Reason::Unhealthy(&tried))))
}

/// Without a possible rollback there is no trial; fails as the script did, so that an operator notices.
fn unsupported(context: &Context<'_>) -> Result<()> {
    verdict(context, |context, guard| commit(context, guard, &Proof::NoWayBack))?;
    Err(Error::new(Code::PreviousTooOld, "cannot roll back to the system in the other slot: it is too old")
        .object(context.running().slot.other().letter())
        .after_success())
}

/// Observes again: an operator or another program may have ended the trial during the checks.
fn verdict<'g>(
    context: &Context<'g>,
    carry_out: impl FnOnce(&Context<'g>, BootStateGuard) -> Result<()>,
) -> Result<()> {
    let mut guard = BootStateGuard::wait_for(context, "rollback-health")?;
    let now = context.observe()?;
    if now.phase == Phase::Trial {
        guard.hold_shutdown(context, "rollback-health");
        return carry_out(context, guard);
    }
    tracing::info!("the trial has ended meanwhile: {}", now.phase.meaning());
    guard.release();
    Ok(())
}

/// To be called when userspace is up. A failure favours the old system: without the record, the boot count stays.
fn reset_count(context: &Context<'_>) {
    let reset = || -> Result<()> {
        let guard = BootStateGuard::wait_for(context, "rollback-health")?;
        let seen = context.observe()?;
        let trial = match Trial::read(context.paths) {
            Ok(Some(trial)) if trial.slot == context.running().slot => trial,
            Ok(_) => Trial { transaction: context.transaction()?, slot: context.running().slot, resets: 0 },
            // A damaged record may have been at its limit.
            Err(e) => return Err(e),
        };
        if seen.phase == Phase::Trial {
            count_anew(context, &*seen.backend, seen.state.bootcount, trial)?;
        }
        guard.release();
        Ok(())
    };
    if let Err(e) = reset() {
        tracing::warn!("{}; keeping the boot count", e.message());
    }
}

fn count_anew(context: &Context<'_>, backend: &dyn Backend, bootcount: u32, mut trial: Trial) -> Result<()> {
    if trial.resets >= MOST_RESETS {
        tracing::warn!(
            "this system has started {} times without a verdict: from now on the boot count is kept",
            trial.resets.saturating_add(1)
        );
        return Ok(());
    }
    // Also where the count is 0 already: otherwise a loop of restarts would never end.
    trial.resets += 1;
    trial.write(context.paths)?;
    tracing::info!(
        "userspace is up: boot count reset from {bootcount} to 0 ({} of {MOST_RESETS})",
        trial.resets
    );
    backend.clear_bootcount()
}
