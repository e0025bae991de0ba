//! Shuts the system down by several methods, one after the other.
//!
//! Each method has failed on some device: a power-off returned and did nothing, a kernel hung in a driver. The gentlest method
//! comes first. A method that accepts has time to act before the next one is tried; one that refuses has not.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::power::Shutdown;

/// Why a method was not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShutdownRefusal {
    /// This system has none.
    NotHere,
    /// It refused.
    Failed(String),
}

impl From<io::Error> for ShutdownRefusal {
    fn from(e: io::Error) -> Self {
        ShutdownRefusal::Failed(e.to_string())
    }
}

/// One method.
pub struct ShutdownMethod<'a> {
    /// For the log.
    pub name: &'static str,
    /// How long it may take to act once it has accepted.
    pub timeout: Duration,
    /// Asks it; `Ok` means that it has accepted.
    pub act: Box<dyn FnMut() -> Result<(), ShutdownRefusal> + 'a>,
}

impl<'a> ShutdownMethod<'a> {
    /// A method.
    pub fn new(
        name: &'static str,
        timeout: Duration,
        act: impl FnMut() -> Result<(), ShutdownRefusal> + 'a,
    ) -> Self {
        ShutdownMethod { name, timeout, act: Box::new(act) }
    }
}

/// Flushes, calls a method and waits, for each method in order. `flush` must return, even where a disk hangs. On success the
/// system ends during a wait. A return is a failure: the texts say what came of each method that this system has.
#[must_use]
pub fn shut_down(
    ending: Shutdown,
    methods: Vec<ShutdownMethod<'_>>,
    mut flush: impl FnMut(),
    mut wait: impl FnMut(Duration),
) -> Vec<String> {
    let verb = ending.verb();
    let mut reasons = Vec::new();
    for mut method in methods {
        let name = method.name;
        flush();
        match (method.act)() {
            Ok(()) => {
                tracing::info!("{name} was asked to {verb}");
                wait(method.timeout);
                tracing::warn!("{name} was asked to {verb}, and nothing happened");
                reasons.push(format!("{name}: nothing happened"));
            }
            Err(ShutdownRefusal::NotHere) => tracing::debug!("{name}: not on this system"),
            Err(ShutdownRefusal::Failed(why)) => {
                tracing::warn!("{name} does not {verb}: {why}");
                reasons.push(format!("{name}: {why}"));
            }
        }
    }
    reasons
}

/// Calls what may never come back, and waits for `timeout` whether it does.
///
/// # Errors
/// Those of `job`, if it comes back in time.
pub fn apart(
    job: &std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
    timeout: Duration,
) -> Result<(), ShutdownRefusal> {
    let (done, waiting) = mpsc::channel();
    let job = job.clone();
    thread::Builder::new().name("ending".to_owned()).spawn(move || {
        // Nobody waits any more, if it is late.
        drop(done.send(job()));
    })?;
    match waiting.recv_timeout(timeout) {
        Ok(result) => Ok(result?),
        Err(_) => Ok(()),
    }
}
