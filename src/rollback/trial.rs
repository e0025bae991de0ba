//! The trial of the running system: is it as healthy as the previous one?

use super::commit::{Proof, commit};
use super::health_results::HealthResults;
use super::roll_back::{Reason, roll_back};
use super::{BootStateGuard, Context, checks};
use crate::boot_state::Backend;
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Code, Error, Result};
use crate::state::files::Trial;
use crate::state::history::{CheckResult, announce};
use crate::state::phase::{Observation, Phase};
use crate::sys::notify;

/// How often a system on trial resets the boot count. A power cut after userspace was reached is not a failed boot, but the bootloader
/// must give up a system that restarts without end.
const MAX_RESETS: u32 = 3;

pub(super) fn run(context: &Context<'_>, conf: &RollbackConf) -> Result<()> {
    if !(context.platform.previous_is_new_enough)() {
        return unsupported(context);
    }
    let slot = context.running().slot;
    announce::trial_started(slot, context.version_of(slot).as_deref());
    reset_count(context);
    let mut results = HealthResults::default();
    for attempt in 1..=conf.count {
        notify::status(&format!("health checks {attempt} of {} in {} s", conf.count, conf.timeout.as_secs()));
        (context.platform.wait)(conf.timeout);
        notify::status(&format!("health checks {attempt} of {}", conf.count));
        results.add((context.platform.checks)());
        if checks::passed(&results.checks) {
            return verdict(context, |guard, observed| {
                commit(context, guard, observed, &Proof::Healthy(&results))
            });
        }
        for check in results.checks.iter().filter(|c| c.required && c.result == CheckResult::Failed) {
            announce::health_check_failed(slot, check, attempt, conf.count);
        }
    }
    verdict(context, |guard, observed| Err(roll_back(context, guard, observed, &Reason::Unhealthy(&results))))
}

/// Without a possible rollback there is no trial; fails as the script did, so that an operator notices.
fn unsupported(context: &Context<'_>) -> Result<()> {
    verdict(context, |guard, observed| commit(context, guard, observed, &Proof::PreviousTooOld))?;
    Err(Error::new(Code::PreviousTooOld, "cannot roll back to the system in the other slot: it is too old")
        .object(context.roots.inactive_slot().letter())
        .after_success())
}

/// Observes under the lock: an operator or another program may have ended the trial during the checks.
fn verdict(
    context: &Context<'_>,
    carry_out: impl FnOnce(BootStateGuard, &Observation) -> Result<()>,
) -> Result<()> {
    let mut guard = BootStateGuard::wait_for(context, "rollback-health")?;
    let observed = context.observe()?;
    if observed.phase == Phase::Trial {
        guard.hold_shutdown(context, "rollback-health");
        return carry_out(guard, &observed);
    }
    tracing::info!("the trial has ended meanwhile: {}", observed.phase.meaning());
    guard.release();
    Ok(())
}

/// To be called when userspace is up. A failure favours the old system: without the record, the boot count stays.
fn reset_count(context: &Context<'_>) {
    let reset = || -> Result<()> {
        let guard = BootStateGuard::wait_for(context, "rollback-health")?;
        let observed = context.observe()?;
        let trial = match Trial::read(context.paths) {
            Ok(Some(trial)) if trial.slot == context.running().slot => trial,
            Ok(_) => Trial { transaction: context.transaction()?, slot: context.running().slot, resets: 0 },
            // A damaged record may have been at its limit.
            Err(e) => return Err(e),
        };
        if observed.phase == Phase::Trial {
            count_anew(context, &*observed.backend, observed.state.bootcount, trial)?;
        }
        guard.release();
        Ok(())
    };
    if let Err(e) = reset() {
        tracing::warn!("{}; keeping the boot count", e.message());
    }
}

fn count_anew(context: &Context<'_>, backend: &dyn Backend, bootcount: u32, mut trial: Trial) -> Result<()> {
    if trial.resets >= MAX_RESETS {
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
        "userspace is up: boot count reset from {bootcount} to 0 ({} of {MAX_RESETS})",
        trial.resets
    );
    backend.clear_bootcount()
}
