//! Waiting for a unit to be active.
//!
//! First the signals are subscribed to, then the states are read, so that no change falls between the two. After that a
//! unit is read again only when systemd says that it changed.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Structure};
use zbus::{MatchRule, MessageStream, message};

use super::bus::{Calls, Object, SYSTEMD, within};
use super::{Bus, SystemdError, Waited};

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const UNIT: &str = "org.freedesktop.systemd1.Unit";

/// How near a unit is to being active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// There is no such unit that could be started.
    Unknown,
    /// It is on its way, or there is a job for it.
    Coming,
    /// It stays as it is unless somebody acts.
    AtRest,
    Active,
}

/// A unit of which every change is told.
struct Watched {
    name: String,
    path: OwnedObjectPath,
    changes: MessageStream,
    standing: Standing,
}

impl Bus {
    /// Waits until one of `units` is active, at most `timeout`.
    #[must_use]
    pub fn wait_for_active(&self, units: &[&str], timeout: Duration) -> Waited {
        let deadline = Instant::now() + timeout;
        let wait = async |calls: Calls| {
            let limit = tokio::time::Instant::from_std(deadline);
            // In the middle of whatever it is doing: the caller was promised no more than this time.
            match tokio::time::timeout_at(limit, wait(&calls, units)).await {
                Ok(waited) => waited,
                Err(_) => Ok(Waited::TimedOut),
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
    // Without it systemd sends no signals about units at all. Refused where another has subscribed in our name.
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

/// What is known for sure by now, if anything.
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
    // Loading reads the unit's file where nobody asked for it before, and starts nothing.
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

/// The first unit of which a change is told; all that was told about it so far is taken. `None`: the bus is gone.
async fn next_change(watched: &mut [Watched]) -> Option<&mut Watched> {
    let found = poll_fn(|context| {
        for (i, unit) in watched.iter_mut().enumerate() {
            let mut told = false;
            loop {
                match Pin::new(&mut unit.changes).poll_next(context) {
                    Poll::Ready(Some(Ok(_))) => told = true,
                    Poll::Ready(_) => return Poll::Ready(None),
                    Poll::Pending => break,
                }
            }
            if told {
                return Poll::Ready(Some(i));
            }
        }
        Poll::Pending
    })
    .await?;
    watched.get_mut(found)
}

/// Reads the properties of a unit, all at one moment.
async fn standing(calls: &Calls, path: &OwnedObjectPath) -> Result<Standing, SystemdError> {
    let object = Object { path: path.as_str(), interface: PROPERTIES, ..SYSTEMD };
    let answer = calls.call(object, "GetAll", &(UNIT,)).await?;
    let all: HashMap<String, OwnedVariant> = answer.body().deserialize()?;
    let text = |key: &str| all.get(key).and_then(|v| v.downcast_ref::<&str>().ok()).unwrap_or_default();
    let job = all.get("Job").and_then(|v| v.downcast_ref::<Structure<'_>>().ok());
    let job = job.and_then(|j| j.fields().first().and_then(|id| id.downcast_ref::<u32>().ok())).unwrap_or(0);
    Ok(judge(text("LoadState"), text("ActiveState"), text("SubState"), job != 0))
}

/// A unit that has failed or stopped, with no job, becomes active only when something new asks for it: a device that
/// is offline must not wait for that. One that systemd will restart by itself is not at rest: `activating`, with the
/// sub-state `auto-restart`; for a moment before (systemd 254) `failed-before-auto-restart`.
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
