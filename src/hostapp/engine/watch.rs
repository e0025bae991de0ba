//! Waiting for an engine that may be busy for long, and for one that hangs not for ever.

use std::time::Duration;

use bollard::Docker;
use futures_util::{Stream, StreamExt as _};
use tokio::time::{Instant, timeout};

use super::failure::Failure;

/// How long silence is taken for work.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// After so much silence, and each time as much again, the engine is asked whether it is alive.
    pub look: Duration,
    /// For its answer to that.
    pub answer: Duration,
    /// So many such questions without an answer, one after the other, and it is given up.
    pub deaf: u32,
    /// A pull of which nothing has been heard for so long is given up, though the engine is alive: a registry that takes the
    /// connection and says no more keeps moby waiting for ever. Flushing a large layer takes minutes on a slow eMMC.
    pub stall: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            look: Duration::from_secs(60),
            answer: Duration::from_secs(30),
            deaf: 3,
            stall: Duration::from_secs(900),
        }
    }
}

/// How often who waits gets to do something in between.
const TICK: Duration = Duration::from_millis(250);

/// The next item of `stream`, however long it takes while the engine is alive, or `stall`. `tick` is called now and then; what it says
/// is whether something went on that does not show in the stream.
pub(super) async fn next<T>(
    docker: &Docker,
    patience: Patience,
    stall: Option<Duration>,
    stream: &mut (impl Stream<Item = Result<T, bollard::errors::Error>> + Unpin),
    mut tick: impl FnMut() -> bool,
) -> Result<Option<T>, Failure> {
    let began = Instant::now();
    let mut heard = began;
    let mut deaf = 0;
    loop {
        match timeout(TICK, stream.next()).await {
            Ok(item) => return item.transpose().map_err(Failure::from),
            Err(_) if tick() => (heard, deaf) = (Instant::now(), 0),
            Err(_) if stall.is_some_and(|limit| began.elapsed() >= limit) => {
                return Err(Failure::stalled(began.elapsed()));
            }
            Err(_) if heard.elapsed() < patience.look => {}
            Err(_) => {
                deaf = if matches!(timeout(patience.answer, docker.ping()).await, Ok(Ok(_))) {
                    0
                } else {
                    deaf + 1
                };
                if deaf >= patience.deaf {
                    return Err(Failure::silent(patience.look.saturating_mul(patience.deaf)));
                }
                heard = Instant::now();
            }
        }
    }
}
