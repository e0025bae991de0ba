//! The life of the service: connection, name, signals, and exit.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo::{self, RequestNameFlags};

use super::core::Core;
use super::manager::{self, Manager};
use super::root_only::{Refusals, RootOnly};
use super::signals::Signals;
use super::slot_object::{self, SlotObject};
use super::{BUS_NAME, OBJECT_PATH};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::slot::Slot;
use crate::sys::notify::{self, ServiceState};
use crate::sys::signal::{self, SignalGuard};

/// Between two checks of a running job, and so at least between two signals about it.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum age of the reported state of the device without a caller.
const MAX_SHOWN_AGE: Duration = Duration::from_secs(5);
/// Limit of one reading of the device before the service continues.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// Limit of the reading before the objects are registered. A medium that does not answer must not keep callers from their jobs: after this
/// time the properties are unknown until the reading ends.
const FIRST_READ_LIMIT: Duration = Duration::from_secs(5);
/// For an answer of the bus, on the slowest board under full load.
const BUS_ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// For the calls that came before a stop. A shutdown does not wait for a plan, which may read the whole image.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// After this time without a message, no more calls arrive for a released name.
const DRAIN_SILENCE: Duration = Duration::from_millis(100);
/// Between two questions to systemd whether the job's unit is still there.
const UNIT_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(8);

#[derive(Debug, Clone)]
pub struct ServiceOptions {
    pub paths: Paths,
    /// The service exits after this time without a call and a job. The next call starts it again.
    pub idle: Duration,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        ServiceOptions { paths: Paths::default(), idle: Duration::from_secs(60) }
    }
}

enum Left {
    Ended,
    BusLost,
}

pub fn run(options: &ServiceOptions) -> Result<()> {
    let deferred = |e| Error::new(Code::Io, "cannot defer signals that end the service").because(e);
    // SIGTERM stops it: the calls that came before are answered.
    let guard = SignalGuard::begin().map_err(deferred)?;
    let wake = signal::wake().map_err(deferred)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|e| Error::new(Code::Io, "cannot start the service").because(e))?;
    let result =
        runtime.block_on(async { serve(options, &Receiver::from_owned_fd(wake).map_err(deferred)?).await });
    guard.end();
    runtime.shutdown_background();
    result
}

async fn serve(options: &ServiceOptions, stop: &Receiver) -> Result<()> {
    let core = Core::new(options.paths.clone());
    let mut pause = Duration::ZERO;
    loop {
        match connect(&core).await {
            Ok(bus) => {
                pause = Duration::ZERO;
                notify::state(ServiceState::Ready);
                let mut service = Service { core: &core, bus, stop, idle: options.idle };
                match service.attend().await {
                    Left::Ended => return Ok(()),
                    Left::BusLost => tracing::info!("the bus is gone"),
                }
                if !core.is_working() {
                    return Ok(());
                }
            }
            Err(e) if !core.is_working() => return Err(e),
            Err(e) => tracing::info!("{}", e.message()),
        }
        // The job continues, and its clients also connect to the bus again.
        pause = (pause * 2).clamp(POLL_INTERVAL, MAX_RECONNECT_PAUSE);
        let until = Instant::now() + pause;
        while Instant::now() < until {
            // The job goes on in its own unit.
            drop(timeout(POLL_INTERVAL, stop.readable()).await);
            if signal::came().is_some() {
                return Ok(());
            }
            core.poll();
            notify::state(ServiceState::Alive);
        }
    }
}

struct Bus {
    connection: Connection,
    /// For calls of the service itself: their replies never wait for callers.
    own: Connection,
    refusals: Refusals,
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.refusals.set(None);
    }
}

/// Registers all objects before the name.
async fn connect(core: &Arc<Core>) -> Result<Bus> {
    // The registration reads every property, and the bus waits for the service meanwhile. A slow medium must not count towards that limit.
    drop(timeout(FIRST_READ_LIMIT, core.read()).await);
    let _no_reading = core.hold_reading();
    let error = |why: String| {
        Error::new(Code::BusUnreachable, format!("cannot serve {BUS_NAME}: {why}")).object(BUS_NAME)
    };
    let connect = async {
        let own = Builder::system().build().await?;
        let refusals = Refusals::default();
        let socket = RootOnly::connect(core.clone(), own.clone(), refusals.clone()).await?;
        let mut builder = Builder::socket(socket)
            .serve_at(OBJECT_PATH, fdo::ObjectManager)
            .serve_at(OBJECT_PATH, Manager::new(core.clone()));
        for slot in [Slot::A, Slot::B] {
            builder = builder.serve_at(slot_object::path(slot), SlotObject::new(core.clone(), slot));
        }
        // By default the builder would queue for a name that another process has.
        let connection = builder.build().await?;
        // Before a client can ask for it.
        core.replace_job_on_bus(None);
        manager::announce(core, &connection).await?;
        connection.request_name_with_flags(BUS_NAME, RequestNameFlags::DO_NOT_QUEUE).await?;
        refusals.set(Some(connection.clone()));
        Ok(Bus { connection, own, refusals })
    };
    match timeout(BUS_ANSWER_LIMIT, connect).await {
        Ok(Ok(bus)) => Ok(bus),
        Ok(Err(zbus::Error::NameTaken)) => Err(error("another program has that name".to_owned())),
        Ok(Err(e)) => Err(error(e.to_string())),
        Err(_) => Err(error(format!("no answer in {BUS_ANSWER_LIMIT:?}"))),
    }
}

struct Service<'a> {
    core: &'a Arc<Core>,
    bus: Bus,
    /// Can be read once a signal came that stops the service.
    stop: &'a Receiver,
    idle: Duration,
}

impl Service<'_> {
    async fn attend(&mut self) -> Left {
        let alive = notify::watchdog().map_or(MAX_SHOWN_AGE, |interval| interval / 3);
        let mut signals = Signals::new(self.core);
        let mut used = Instant::now();
        let mut checked = Instant::now();
        loop {
            // Before the check for work, so that no call is missed between the two.
            let activity = self.bus.connection.monitor_activity();
            self.core.poll();
            if self.core.age() >= MAX_SHOWN_AGE || signals.is_due(self.core) {
                // A medium that does not answer must not stop the rest of the service's work.
                drop(timeout(READ_LIMIT, self.core.read()).await);
            }
            let announced = manager::announce(self.core, &self.bus.connection).await;
            let signalled = signals.emit(self.core, &self.bus.connection).await;
            for e in [announced, signalled].into_iter().filter_map(Result::err) {
                if matches!(e, zbus::Error::InputOutput(_)) {
                    return Left::BusLost;
                }
                tracing::debug!("a signal was not sent: {e}");
            }
            notify::state(ServiceState::Alive);
            let working = self.core.is_working();
            if working && checked.elapsed() > UNIT_CHECK_INTERVAL {
                checked = Instant::now();
                self.core.settle().await;
            }
            if self.core.is_busy() {
                used = Instant::now();
            } else if used.elapsed() >= self.idle {
                self.leave(None).await;
                return Left::Ended;
            }
            if signal::came().is_some() {
                self.leave(Some(STOP_LIMIT)).await;
                return Left::Ended;
            }
            let wait = if working {
                POLL_INTERVAL
            } else {
                self.idle.saturating_sub(used.elapsed()).min(MAX_SHOWN_AGE)
            };
            let wait = wait.min(alive);
            let closed = (pin!(self.bus.connection.closed()), pin!(self.bus.own.closed()));
            let closed = select(closed.0, closed.1);
            let stopped = pin!(self.stop.readable());
            let over = if working {
                matches!(timeout(wait, select(closed, stopped)).await, Ok(Either::Left(_)))
            } else {
                // The first of the two wins if both are ready. A failed send also counts as activity.
                match timeout(wait, select(select(closed, activity), stopped)).await {
                    Ok(Either::Left((Either::Left(_), _))) => true,
                    Ok(Either::Left((Either::Right(_), _))) => {
                        used = Instant::now();
                        false
                    }
                    Ok(Either::Right(_)) | Err(_) => false,
                }
            };
            if over {
                return Left::BusLost;
            }
        }
    }

    /// Exits without losing a call. systemd first learns that the service exits: a call after the name is released makes the bus request a
    /// new service, which systemd starts after this one's end. Then the calls that came before are answered. `limit`: to a stop, no longer than that; a plan
    /// that takes longer gets no answer.
    async fn leave(&self, limit: Option<Duration>) {
        notify::state(ServiceState::Stopping);
        match timeout(BUS_ANSWER_LIMIT, self.bus.connection.release_name(BUS_NAME)).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) => tracing::debug!("cannot release {BUS_NAME}: {e}"),
            Err(_) => return,
        }
        let begun = Instant::now();
        while begun.elapsed() < BUS_ANSWER_LIMIT || self.core.is_calling() {
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                tracing::warn!("the service ends with a call that was not answered: it took too long");
                break;
            }
            let activity = self.bus.connection.monitor_activity();
            self.core.poll();
            if timeout(DRAIN_SILENCE, activity).await.is_err() && !self.core.is_calling() {
                break;
            }
        }
        if limit.is_none() && self.core.is_working() {
            // One of them began a job: the next service takes it over.
            let body = (BUS_NAME, 0_u32);
            let bus = "org.freedesktop.DBus";
            let call = self.bus.own.call_method(
                Some(bus),
                "/org/freedesktop/DBus",
                Some(bus),
                "StartServiceByName",
                &body,
            );
            drop(timeout(DRAIN_SILENCE, call).await);
        }
    }
}
