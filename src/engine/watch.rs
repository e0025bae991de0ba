//! Waiting for an engine that may be busy for long, and for one that hangs not for ever.

use std::pin::Pin;
use std::time::Duration;

use bollard::Docker;
use futures_util::future::{Either, select};
use futures_util::{Stream, StreamExt as _};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, timeout};

use super::failure::Failure;
use crate::sys::signal;

/// How long silence is taken for work.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// After so much silence, and each time as much again, the engine is asked whether it is alive.
    pub look: Duration,
    /// For its answer to that.
    pub answer: Duration,
    /// So many such questions without an answer, one after the other, and it is given up.
    pub deaf: u32,
    /// A pull of which nothing has been heard for so long is given up, though the engine is alive: a registry that takes the
    /// connection and says no more keeps moby waiting for ever. Flushing a large layer takes minutes on a slow eMMC.
    pub stall: Duration,
    /// For the registry to answer before a pull: one that cannot be reached for so long is taken for unreachable.
    pub registry: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            look: Duration::from_secs(60),
            answer: Duration::from_secs(30),
            deaf: 3,
            stall: Duration::from_secs(900),
            registry: Duration::from_secs(10),
        }
    }
}

/// How often who waits gets to do something in between.
const TICK: Duration = Duration::from_millis(250);

/// How often it is looked whether a signal has come.
const LOOK: Duration = Duration::from_millis(100);

/// Work that takes as long as it takes. In a box: the program would be larger with each kind of it in a state machine of its own.
pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 'a>>;

/// Does `work`, but drops it when a signal asks the program to end: with it goes its connection, and the engine stops.
pub(super) async fn until_signal<T>(work: Work<'_, T>) -> Result<T, Failure> {
    match select(work, Box::pin(signal())).await {
        Either::Left((done, _)) => done,
        Either::Right((signal, _)) => Err(Failure::interrupted(signal)),
    }
}

/// The signal that asks the program to end, when it comes.
async fn signal() -> Signal {
    loop {
        if let Some(signal) = signal::came() {
            return signal;
        }
        sleep(LOOK).await;
    }
}

/// Waits for a call that has a limit.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, bollard::errors::Error>>,
) -> Result<T, Failure> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::silent(limit)),
    }
}

/// The next item of `stream`, however long it takes while the engine is alive, or `stall`. `tick` is called now and then; what it says
/// is whether something went on that does not show in the stream.
pub(super) async fn next<T>(
    docker: &Docker,
    timeouts: Timeouts,
    stall: Option<Duration>,
    stream: &mut (impl Stream<Item = Result<T, bollard::errors::Error>> + Unpin),
    mut tick: impl FnMut() -> bool,
) -> Result<Option<T>, Failure> {
    let began = Instant::now();
    let mut heard = began;
    let mut deaf = 0;
    loop {
        match timeout(TICK, stream.next()).await {
            Ok(item) => return item.transpose().map_err(|e| Failure::from(e).of_transfer()),
            Err(_) if tick() => (heard, deaf) = (Instant::now(), 0),
            Err(_) if stall.is_some_and(|limit| began.elapsed() >= limit) => {
                return Err(Failure::stalled(began.elapsed()));
            }
            Err(_) if heard.elapsed() < timeouts.look => {}
            Err(_) => {
                deaf = if matches!(timeout(timeouts.answer, docker.ping()).await, Ok(Ok(_))) {
                    0
                } else {
                    deaf + 1
                };
                if deaf >= timeouts.deaf {
                    return Err(Failure::silent(timeouts.look.saturating_mul(timeouts.deaf)));
                }
                heard = Instant::now();
            }
        }
    }
}
