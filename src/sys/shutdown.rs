//! Shuts the system down by several methods, one after the other.
//!
//! Each method has failed on some device: a power-off returned and did nothing, a kernel hung in a driver. The gentlest method
//! comes first. A method that accepts gets time to act before the next one is tried.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::power::Shutdown;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShutdownRefusal {
    /// This system does not have it.
    NotHere,
    Failed(String),
}

impl From<io::Error> for ShutdownRefusal {
    fn from(e: io::Error) -> Self {
        ShutdownRefusal::Failed(e.to_string())
    }
}

pub struct ShutdownMethod<'a> {
    pub name: &'static str,
    /// How long it may take to act after it has accepted.
    pub timeout: Duration,
    /// `Ok`: the method has accepted.
    pub act: Box<dyn FnMut() -> Result<(), ShutdownRefusal> + 'a>,
}

impl<'a> ShutdownMethod<'a> {
    pub fn new(
        name: &'static str,
        timeout: Duration,
        act: impl FnMut() -> Result<(), ShutdownRefusal> + 'a,
    ) -> Self {
        ShutdownMethod { name, timeout, act: Box::new(act) }
    }
}

/// For each method in order: flushes, calls it, and waits. `flush` must return, even where a disk hangs. On success the system
/// ends during a wait, so a return is a failure; the texts are the results of the methods that this system has.
#[must_use]
pub(crate) fn shut_down(
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

/// Calls a function that may never return, and waits for it up to `timeout`.
pub fn apart(
    job: &std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
    timeout: Duration,
) -> Result<(), ShutdownRefusal> {
    let (done, waiting) = mpsc::channel();
    let job = job.clone();
    thread::Builder::new().name("ending".to_owned()).spawn(move || {
        // A late result has no receiver.
        drop(done.send(job()));
    })?;
    match waiting.recv_timeout(timeout) {
        Ok(result) => Ok(result?),
        Err(_) => Ok(()),
    }
}
