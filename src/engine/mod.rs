//! The container engine of the host OS, over the Engine API on its socket. `docs/engine.md` lists the calls.
//!
//! All calls block. Short calls have a limit; long ones (load, pull, hooks) continue while the engine shows that it is alive.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bollard::models::SystemVersion;
use bollard::{ClientVersion, Docker};
use tokio::runtime::Runtime;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::job::Stage;

pub mod archive;
mod clean;
pub mod credentials;
mod distribution;
mod failure;
mod hooks;
mod hostapp;
mod layers;
mod load;
mod lost_layers;
mod pull;
mod reference;
mod watch;

pub use hostapp::Hostapp;
pub use reference::{HUB, Reference};
pub use watch::Timeouts;

use failure::{Failure, Why};

/// Of the host OS's engine (balena-host.service), not of the applications' engine.
const SOCKET: &str = "/var/run/balena-host.sock";

/// For the engine's client: the updater of meta-balena exports this to every program that it starts.
pub const HOST_VARIABLE: (&str, &str) = ("DOCKER_HOST", "unix:///var/run/balena-host.sock");

/// That of moby 19.03, the oldest that was tested.
const OLDEST_API: ClientVersion = ClientVersion { major_version: 1, minor_version: 40 };

/// For an answer that the engine has ready.
const SOON: Duration = Duration::from_secs(60);

/// For removing an image, or a container with its volumes, from a slow eMMC: gigabytes are unlinked.
const REMOVAL: Duration = Duration::from_secs(600);

/// For the HTTP client to close a connection.
const CLOSING: Duration = Duration::from_millis(20);

/// For creating and starting a container, on a slow eMMC under load.
const WORK: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The name in the archive, or the ID; of a pull the caller's reference, unchanged.
    pub reference: String,
    /// `sha256:…`; a name can move to another image.
    pub id: String,
    pub size: u64, // bytes, unpacked
}

/// Within a stage neither number decreases; `total` can grow when the engine reports more layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    pub done: u64,          // bytes
    pub total: Option<u64>, // bytes
}

/// For a load or a pull that lost its connection.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub tries: u32,
    /// Each further pause is twice as long, up to `longest`.
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { tries: 6, first: Duration::from_secs(1), longest: Duration::from_secs(30) }
    }
}

/// Each call opens its own connection, so that the engine may restart between two calls.
#[derive(Debug)]
pub struct Engine {
    socket: PathBuf,
    docker: Docker,
    runtime: Runtime,
    retry: Retry,
    timeouts: Timeouts,
    credentials: Option<PathBuf>,
    /// Whether hooks may still run in a container of this process.
    left: AtomicBool,
}

impl Engine {
    pub fn connect(paths: &Paths) -> Result<Engine> {
        let engine = Engine::dial(&paths.at(SOCKET))?;
        engine.check_version(engine.unless_signal(SOON, engine.docker.version()))?;
        Ok(engine)
    }

    /// Also after a signal, to undo an update.
    pub fn at(socket: &Path) -> Result<Engine> {
        let engine = Engine::dial(socket)?;
        engine.check_version(engine.soon(engine.docker.version()))?;
        Ok(engine)
    }

    fn dial(socket: &Path) -> Result<Engine> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::new(Code::Io, "cannot prepare to talk to the container engine").because(e))?;
        let docker = dial(socket).map_err(|e| e.during(&cannot_reach(socket)))?;
        Ok(Engine {
            socket: socket.to_owned(),
            docker,
            runtime,
            retry: Retry::default(),
            timeouts: Timeouts::default(),
            credentials: None,
            left: AtomicBool::new(false),
        })
    }

    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Engine {
        self.retry = retry;
        self
    }

    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Engine {
        self.timeouts = timeouts;
        self
    }

    /// From `folder`/config.json instead of the place that the environment names.
    #[must_use]
    pub fn with_credentials(mut self, folder: impl Into<PathBuf>) -> Engine {
        self.credentials = Some(folder.into());
        self
    }

    pub fn data_root(&self) -> Result<PathBuf> {
        let what = "cannot ask the container engine for its data folder";
        let info = self.unless_signal(SOON, self.docker.info()).map_err(|e| e.during(what))?;
        match info.docker_root_dir.filter(|d| d.starts_with('/')) {
            Some(folder) => Ok(PathBuf::from(folder)),
            None => Err(Error::new(Code::EngineFailed, format!("{what}: it does not say"))),
        }
    }

    fn check_version(&self, version: Result<SystemVersion, Failure>) -> Result<()> {
        let version = version.map_err(|e| e.during(&cannot_reach(&self.socket)))?;
        let api = version.api_version.unwrap_or_default();
        let parsed = api.split_once('.').and_then(|(major, minor)| {
            Some(ClientVersion { major_version: major.parse().ok()?, minor_version: minor.parse().ok()? })
        });
        match parsed {
            Some(v) if v >= OLDEST_API => {
                tracing::debug!(
                    API = api,
                    ENGINE = version.version.unwrap_or_default(),
                    "the container engine answers"
                );
                Ok(())
            }
            Some(_) => Err(Error::new(
                Code::EngineUnreachable,
                format!(
                    "the container engine at {} has API {api}, which is older than {OLDEST_API}",
                    self.socket.display()
                ),
            )
            .object(self.socket.display())
            .with_hint("update the container engine")),
            None => Err(Error::new(
                Code::EngineUnreachable,
                format!(
                    "the server at {} is not a container engine: its API version is {api:?}",
                    self.socket.display()
                ),
            )
            .object(self.socket.display())),
        }
    }

    fn soon<T>(&self, call: impl Future<Output = Result<T, bollard::errors::Error>>) -> Result<T, Failure> {
        self.within(SOON, call)
    }

    /// For a call without a limit. A signal ends it.
    fn long<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let done = self.runtime.block_on(watch::until_signal(Box::pin(work)));
        if done.as_ref().is_err_and(|e| e.why == Why::Interrupted) {
            self.close_dropped();
        }
        done
    }

    /// Closes the connections of dropped calls: a task of the HTTP client does it, and runs only while this thread waits.
    fn close_dropped(&self) {
        self.runtime.block_on(async { tokio::time::sleep(CLOSING).await });
    }

    /// Repeats `once` after a pause, while its failure is temporary (`true`) and tries remain.
    fn again<T>(&self, mut once: impl FnMut() -> Result<T, (Box<Error>, bool)>) -> Result<T> {
        let (mut tried, mut pause) = (1, self.retry.first);
        loop {
            let error = match once() {
                Ok(done) => return Ok(done),
                Err((error, true)) if tried < self.retry.tries => error,
                Err((error, _)) => return Err(*error),
            };
            tracing::warn!(
                "{}; trying again in {:.1} s ({tried} of {})",
                error.message(),
                pause.as_secs_f32(),
                self.retry.tries
            );
            let paused = async {
                tokio::time::sleep(pause).await;
                Ok(())
            };
            self.long(paused)
                .map_err(|e| e.during("cannot wait for the container engine or the registry"))?;
            tried += 1;
            pause = pause.saturating_mul(2).min(self.retry.longest);
        }
    }

    /// [`Engine::within`] for a question before the first change: a signal ends the wait.
    fn unless_signal<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, Failure> {
        self.long(watch::within(limit, call))
    }

    fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, Failure> {
        let work: watch::Work<'_, T> = Box::pin(watch::within(limit, call));
        self.runtime.block_on(work)
    }
}

fn cannot_reach(socket: &Path) -> String {
    format!("cannot reach the container engine at {}", socket.display())
}

fn dial(socket: &Path) -> Result<Docker, Failure> {
    // bollard's limit ends a request whose answer has not begun. copal has its own limits for each call, so bollard's is a year.
    const NEVER: u64 = 365 * 24 * 3600;
    Ok(Docker::connect_with_unix(&socket.to_string_lossy(), NEVER, &OLDEST_API)?
        .with_request_modifier(pull::url_safe_credentials))
}
