//! Waits for a unit to be active.
//!
//! It subscribes to the signals first and reads the states then, so that it misses no change. After that it reads a unit again only
//! when systemd reports a change.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Structure};
use zbus::{MatchRule, MessageStream, message};

use super::bus::{Calls, Object, SYSTEMD, within};
use super::{Bus, SystemdError, Waited};
use crate::sys::signal;

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Between two looks for a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
const UNIT: &str = "org.freedesktop.systemd1.Unit";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// No such unit can be started.
    Unknown,
    Coming,
    /// It does not change by itself.
    AtRest,
    Active,
}

struct Watched {
    name: String,
    path: OwnedObjectPath,
    changes: MessageStream,
    standing: Standing,
}

impl Bus {
    #[must_use]
    pub fn wait_for_active(&self, units: &[&str], timeout: Duration) -> Waited {
        let deadline = Instant::now() + timeout;
        let wait = async |calls: Calls| {
            let mut waiting = pin!(wait(&calls, units));
            // At any point: the caller gets its answer within this time, and goes on soon after a signal.
            loop {
                let limit = deadline.min(Instant::now() + SIGNAL_INTERVAL);
                match tokio::time::timeout_at(limit.into(), waiting.as_mut()).await {
                    Ok(waited) => return waited,
                    Err(_) if Instant::now() >= deadline || signal::came().is_some() => {
                        return Ok(Waited::TimedOut);
                    }
                    Err(_) => {}
                }
            }
        };
        let within_timeout = self.clone().with_limit(self.limit().min(timeout));
        within_timeout.run(wait).unwrap_or_else(|e| Waited::NoBus(e.to_string()))
    }
}

async fn wait(calls: &Calls, units: &[&str]) -> Result<Waited, SystemdError> {
    let mut watched = Vec::new();
    for unit in units {
        watched.extend(watch(calls, unit).await?);
    }
    // Without it systemd sends no signals about units. It refuses a second subscription in the same name.
    match calls.call(SYSTEMD, "Subscribe", &()).await {
        Ok(_) => {}
        Err(SystemdError::Refused(name, _)) => tracing::debug!("systemd's signals: {name}"),
        Err(e) => return Err(e),
    }
    for unit in &mut watched {
        unit.standing = standing(calls, &unit.path).await?;
    }
    loop {
        let standings: Vec<_> = watched.iter().map(|w| (w.name.as_str(), w.standing)).collect();
        if let Some(waited) = verdict(&standings) {
            return Ok(waited);
        }
        let Some(unit) = next_change(&mut watched).await else {
            return Err(SystemdError::Unreachable("the bus went away".into()));
        };
        unit.standing = standing(calls, &unit.path).await?;
    }
}

/// The result, once it is certain.
fn verdict(units: &[(&str, Standing)]) -> Option<Waited> {
    if let Some((name, _)) = units.iter().find(|(_, s)| *s == Standing::Active) {
        return Some(Waited::Active((*name).to_owned()));
    }
    if units.iter().all(|(_, s)| *s == Standing::Unknown) {
        return Some(Waited::NoneKnown);
    }
    units.iter().all(|(_, s)| *s != Standing::Coming).then_some(Waited::NoneComing)
}

/// Subscribes to the changes of a unit; `None` where systemd does not know the name.
async fn watch(calls: &Calls, unit: &str) -> Result<Option<Watched>, SystemdError> {
    // LoadUnit reads the unit's file if necessary, and starts nothing.
    let path: OwnedObjectPath = match calls.call(SYSTEMD, "LoadUnit", &(unit,)).await {
        Ok(answer) => answer.body().deserialize()?,
        Err(SystemdError::Refused(name, text)) if is_about_the_unit(&name) => {
            tracing::debug!("{unit}: {text} ({name})");
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    let rule = MatchRule::builder()
        .msg_type(message::Type::Signal)
        .sender(SYSTEMD.service)
        .interface(PROPERTIES)
        .member("PropertiesChanged")
        .path(path.clone())
        .add_arg(UNIT)
        .build()?
        .to_owned();
    let changes = within(calls.limit, MessageStream::for_match_rule(rule, &calls.connection, None)).await?;
    Ok(Some(Watched { name: unit.to_owned(), path, changes, standing: Standing::Unknown }))
}

fn is_about_the_unit(error: &str) -> bool {
    error.starts_with("org.freedesktop.systemd1.") || error == "org.freedesktop.DBus.Error.InvalidArgs"
}

/// The first unit with a reported change; consumes all its reports so far. `None`: the bus is gone.
async fn next_change(watched: &mut [Watched]) -> Option<&mut Watched> {
    let found = poll_fn(|context| {
        for (i, unit) in watched.iter_mut().enumerate() {
            let mut changed = false;
            loop {
                match Pin::new(&mut unit.changes).poll_next(context) {
                    Poll::Ready(Some(Ok(_))) => changed = true,
                    Poll::Ready(_) => return Poll::Ready(None),
                    Poll::Pending => break,
                }
            }
            if changed {
                return Poll::Ready(Some(i));
            }
        }
        Poll::Pending
    })
    .await?;
    watched.get_mut(found)
}

async fn standing(calls: &Calls, path: &OwnedObjectPath) -> Result<Standing, SystemdError> {
    let object = Object { path: path.as_str(), interface: PROPERTIES, ..SYSTEMD };
    let answer = calls.call(object, "GetAll", &(UNIT,)).await?;
    let all: HashMap<String, OwnedVariant> = answer.body().deserialize()?;
    let text = |key: &str| all.get(key).and_then(|v| v.downcast_ref::<&str>().ok()).unwrap_or_default();
    let job = all.get("Job").and_then(|v| v.downcast_ref::<Structure<'_>>().ok());
    let job = job.and_then(|j| j.fields().first().and_then(|id| id.downcast_ref::<u32>().ok())).unwrap_or(0);
    Ok(judge(text("LoadState"), text("ActiveState"), text("SubState"), job != 0))
}

/// A unit that has failed or stopped, without a job, becomes active only by a new request: an offline device must not wait for that.
/// A unit that systemd restarts by itself is coming: `activating`, with the sub-state `auto-restart`; shortly before (systemd 254)
/// `failed-before-auto-restart`.
fn judge(load: &str, active: &str, sub: &str, has_job: bool) -> Standing {
    match (load, active) {
        ("loaded", "active") => Standing::Active,
        ("loaded", "inactive" | "failed") if !has_job && !sub.ends_with("auto-restart") => Standing::AtRest,
        ("loaded", _) => Standing::Coming,
        _ => Standing::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_waited_for_while_it_can_come_by_itself() {
        use Standing::{Active, AtRest, Coming, Unknown};
        for (load, active, sub, job, expected) in [
            ("loaded", "active", "running", false, Active),
            ("loaded", "active", "exited", true, Active),
            ("loaded", "reloading", "reload", true, Coming),
            ("loaded", "activating", "start", true, Coming),
            ("loaded", "activating", "auto-restart", false, Coming),
            ("loaded", "failed", "failed-before-auto-restart", false, Coming),
            ("loaded", "inactive", "dead", true, Coming),
            ("loaded", "failed", "failed", true, Coming),
            ("loaded", "deactivating", "stop", false, Coming),
            ("loaded", "inactive", "dead", false, AtRest),
            ("loaded", "failed", "failed", false, AtRest),
            ("not-found", "inactive", "dead", false, Unknown),
            ("masked", "inactive", "dead", true, Unknown),
            ("bad-setting", "inactive", "dead", false, Unknown),
        ] {
            assert_eq!(judge(load, active, sub, job), expected, "{load} {active} {sub} {job}");
        }
    }

    #[test]
    fn one_that_is_coming_is_enough_to_wait() {
        use Standing::{Active, AtRest, Coming, Unknown};
        let verdict = |a, b| verdict(&[("a", a), ("b", b)]);
        assert_eq!(verdict(AtRest, Active), Some(Waited::Active("b".into())));
        assert_eq!(verdict(Unknown, Unknown), Some(Waited::NoneKnown));
        assert_eq!(verdict(Unknown, AtRest), Some(Waited::NoneComing));
        assert_eq!(verdict(AtRest, Coming), None);
        assert_eq!(verdict(Coming, Unknown), None);
    }
}
