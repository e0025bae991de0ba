//! The container engine of the host OS, through the Engine API on its socket.
//!
//! Blocking calls. Whatever the engine answers at once has a limit; what takes as long as it takes (loading, pulling, the
//! new system's hooks) goes on for as long as the engine shows that it is alive. `docs/engine.md` lists the calls.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bollard::{ClientVersion, Docker};
use tokio::runtime::Runtime;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

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

/// Where the engine of the host OS listens (balena-host.service); not the one of the applications.
const SOCKET: &str = "/var/run/balena-host.sock";

/// By which the engine's client finds it: the updater of meta-balena exports this to all that it starts.
pub const HOST_VARIABLE: (&str, &str) = ("DOCKER_HOST", "unix:///var/run/balena-host.sock");

/// The oldest API this client was tried with: that of moby 19.03.
const OLDEST_API: ClientVersion = ClientVersion { major_version: 1, minor_version: 40 };

/// For an answer that the engine has at hand.
const SOON: Duration = Duration::from_secs(60);

/// For removing a container with its volumes or an image, on a slow eMMC: gigabytes are unlinked.
const REMOVAL: Duration = Duration::from_secs(600);

/// For the HTTP client to close a connection that is no longer wanted.
const CLOSING: Duration = Duration::from_millis(20);

/// For creating and starting a container, on a slow eMMC under load.
const WORK: Duration = Duration::from_secs(300);

/// An image in the engine's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The name it was loaded by, the ID where it has none, or the name it was asked for in a registry, as it was written.
    pub reference: String,
    /// `sha256:…`: which image it is, since a name can be moved.
    pub id: String,
    /// Bytes of its layers, unpacked.
    pub size: u64,
}

/// What is being done with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The archive goes to the engine.
    Load,
    /// Layers come from the registry.
    Pull,
    /// Layers are unpacked.
    Extract,
}

/// How far it has come. Within a stage neither number goes back, except that a `total` can grow as layers become known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes done.
    pub done: u64,
    /// Bytes to do, once they are known.
    pub total: Option<u64>,
}

/// How often, and with which pauses, a load or a pull is tried again after a lost connection.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// How often at most, the first time included.
    pub tries: u32,
    /// The first pause; each further one is twice as long…
    pub first: Duration,
    /// …but no longer than this.
    pub longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { tries: 6, first: Duration::from_secs(1), longest: Duration::from_secs(30) }
    }
}

/// A connection to the engine; each call makes its own, so that a restart of the engine between two is not felt.
#[derive(Debug)]
pub struct Engine {
    socket: PathBuf,
    docker: Docker,
    runtime: Runtime,
    retry: Retry,
    timeouts: Timeouts,
    credentials: Option<PathBuf>,
    /// Hooks may still run in a container of this process.
    left: AtomicBool,
}

impl Engine {
    /// The engine of the host OS.
    ///
    /// # Errors
    /// [`EngineUnreachable`](Code::EngineUnreachable): it is not there, does not answer, or is older than API 1.40.
    pub fn connect(paths: &Paths) -> Result<Engine> {
        Engine::at(&paths.at(SOCKET))
    }

    /// The engine that listens at `socket`.
    ///
    /// # Errors
    /// As [`connect`](Engine::connect).
    pub fn at(socket: &Path) -> Result<Engine> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::new(Code::Io, "cannot prepare to talk to the container engine").because(e))?;
        let docker = dial(socket).map_err(|e| e.during(&cannot_reach(socket)))?;
        let engine = Engine {
            socket: socket.to_owned(),
            docker,
            runtime,
            retry: Retry::default(),
            timeouts: Timeouts::default(),
            credentials: None,
            left: AtomicBool::new(false),
        };
        engine.check_version()?;
        Ok(engine)
    }

    /// Tries loads and pulls as `retry` says.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Engine {
        self.retry = retry;
        self
    }

    /// Waits for a silent engine as `timeouts` says.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Engine {
        self.timeouts = timeouts;
        self
    }

    /// Takes registry credentials from `folder`/config.json, not from where the process's environment says.
    #[must_use]
    pub fn with_credentials(mut self, folder: impl Into<PathBuf>) -> Engine {
        self.credentials = Some(folder.into());
        self
    }

    /// The folder below which the engine keeps everything.
    ///
    /// # Errors
    /// The engine does not answer, or does not say.
    pub fn data_root(&self) -> Result<PathBuf> {
        let what = "cannot ask the container engine for its data folder";
        let info = self.soon(self.docker.info()).map_err(|e| e.during(what))?;
        match info.docker_root_dir.filter(|d| d.starts_with('/')) {
            Some(folder) => Ok(PathBuf::from(folder)),
            None => Err(Error::new(Code::EngineFailed, format!("{what}: it does not say"))),
        }
    }

    fn check_version(&self) -> Result<()> {
        let version = self.soon(self.docker.version()).map_err(|e| e.during(&cannot_reach(&self.socket)))?;
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
                    "the container engine at {} speaks API {api}, which is older than {OLDEST_API}",
                    self.socket.display()
                ),
            )
            .object(self.socket.display())
            .with_hint("update the container engine")),
            None => Err(Error::new(
                Code::EngineUnreachable,
                format!(
                    "what answers at {} is no container engine: its API version is {api:?}",
                    self.socket.display()
                ),
            )
            .object(self.socket.display())),
        }
    }

    /// Waits for a call that the engine answers at once.
    fn soon<T>(&self, call: impl Future<Output = Result<T, bollard::errors::Error>>) -> Result<T, Failure> {
        self.within(SOON, call)
    }

    /// Waits for a call that takes as long as it takes. A signal that asks the program to end, ends it.
    fn long<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let done = self.runtime.block_on(watch::until_signal(Box::pin(work)));
        if done.as_ref().is_err_and(|e| e.why == Why::Interrupted) {
            self.close_dropped();
        }
        done
    }

    /// Closes the connections of calls that were dropped: a task of the HTTP client does it, which runs only while this thread waits.
    fn close_dropped(&self) {
        self.runtime.block_on(async { tokio::time::sleep(CLOSING).await });
    }

    /// Does `once`, and again after a pause as long as it fails with what may pass (`true`) and there are tries left.
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
    // bollard's own limit ends a request whose answer has not begun; what is waited for how long is decided here, call by
    // call, so that one is a year.
    const NEVER: u64 = 365 * 24 * 3600;
    Ok(Docker::connect_with_unix(&socket.to_string_lossy(), NEVER, &OLDEST_API)?
        .with_request_modifier(pull::url_safe_credentials))
}
