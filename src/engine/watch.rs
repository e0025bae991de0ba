//! Waits for an engine that may be busy for long, but not for one that hangs.

use std::pin::Pin;
use std::time::Duration;

use bollard::Docker;
use futures_util::future::{Either, select};
use futures_util::{Stream, StreamExt as _};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, timeout};

use super::failure::Failure;
use crate::sys::signal;

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Silence before each question whether the engine is alive.
    pub look: Duration,
    pub answer: Duration,
    /// Unanswered questions in a row after which the engine counts as dead.
    pub deaf: u32,
    /// For a pull without progress, though the engine is alive: moby waits for ever for a registry that accepts the connection and sends
    /// nothing. Flushing a large layer to a slow eMMC takes minutes.
    pub stall: Duration,
    /// For the registry's answer before a pull; it counts as unreachable after that.
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

const REPORT_INTERVAL: Duration = Duration::from_millis(250);

const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Boxed: each kind of work would otherwise get a state machine of its own, and the program would be larger.
pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 'a>>;

/// A signal drops `work` and with it its connection, so that the engine stops.
pub(super) async fn until_signal<T>(work: Work<'_, T>) -> Result<T, Failure> {
    match select(work, Box::pin(signal())).await {
        Either::Left((done, _)) => done,
        Either::Right((signal, _)) => Err(Failure::interrupted(signal)),
    }
}

async fn signal() -> Signal {
    loop {
        if let Some(signal) = signal::came() {
            return signal;
        }
        sleep(SIGNAL_INTERVAL).await;
    }
}

pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, bollard::errors::Error>>,
) -> Result<T, Failure> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::silent(limit)),
    }
}

/// The next item of `stream`, without a limit while the engine is alive, except `stall`. `tick` is called regularly, and returns whether
/// there was progress that the stream does not show.
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
        match timeout(REPORT_INTERVAL, stream.next()).await {
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
