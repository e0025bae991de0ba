//! The ways to end the system, one after the other.
//!
//! There are several ways, and each has failed on some device: a power-off that returned and did nothing, a kernel that
//! got stuck in a driver. So they are the rungs of a ladder, gentlest first. A rung that accepted has time to act before
//! the next one is tried; one that refused has not.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::power::Ending;

/// Why a rung was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missed {
    /// This system has none.
    NotHere,
    /// It refused.
    Failed(String),
}

impl From<io::Error> for Missed {
    fn from(e: io::Error) -> Self {
        Missed::Failed(e.to_string())
    }
}

/// One way to end.
pub struct Rung<'a> {
    /// For the log.
    pub name: &'static str,
    /// How long it may take to act once it has accepted.
    pub patience: Duration,
    /// Asks it; `Ok` means that it has accepted.
    pub act: Box<dyn FnMut() -> Result<(), Missed> + 'a>,
}

impl<'a> Rung<'a> {
    /// A rung.
    pub fn new(name: &'static str, patience: Duration, act: impl FnMut() -> Result<(), Missed> + 'a) -> Self {
        Rung { name, patience, act: Box::new(act) }
    }
}

/// Goes down the ladder: flushes, asks, waits, and so on. `flush` must come back, even where a disk hangs. On success the
/// system ends while this waits; a return is a failure, with what came of each rung that is there.
#[must_use]
pub fn descend(
    ending: Ending,
    rungs: Vec<Rung<'_>>,
    mut flush: impl FnMut(),
    mut wait: impl FnMut(Duration),
) -> Vec<String> {
    let verb = ending.verb();
    let mut reasons = Vec::new();
    for mut rung in rungs {
        let name = rung.name;
        flush();
        match (rung.act)() {
            Ok(()) => {
                tracing::info!("{name} was asked to {verb}");
                wait(rung.patience);
                tracing::warn!("{name} was asked to {verb}, and nothing happened");
                reasons.push(format!("{name}: nothing happened"));
            }
            Err(Missed::NotHere) => tracing::debug!("{name}: not on this system"),
            Err(Missed::Failed(why)) => {
                tracing::warn!("{name} does not {verb}: {why}");
                reasons.push(format!("{name}: {why}"));
            }
        }
    }
    reasons
}

/// Calls what may never come back, and waits for `patience` whether it does.
///
/// # Errors
/// Those of `job`, if it comes back in time.
pub fn apart(
    job: &std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
    patience: Duration,
) -> Result<(), Missed> {
    let (done, waiting) = mpsc::channel();
    let job = job.clone();
    thread::Builder::new().name("ending".to_owned()).spawn(move || {
        // Nobody waits any more, if it is late.
        drop(done.send(job()));
    })?;
    match waiting.recv_timeout(patience) {
        Ok(result) => Ok(result?),
        Err(_) => Ok(()),
    }
}
