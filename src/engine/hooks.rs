//! Runs the new host OS's hooks in a container.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bollard::errors::Error as Bollard;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions, WaitContainerOptions,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::failure::{Failure, Why};
use super::{Engine, Image, REMOVAL, SOON, WORK, watch};
use crate::error::Result;
use crate::sys::command::Splitter;

/// Bound recursively and privately: what the hooks mount stays in the container.
const BINDS: [&str; 4] = ["/dev:/dev", "/mnt:/mnt", "/sys:/sys", "/run:/run"];

/// For the last output after the hooks have ended.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Tries to remove the container from an engine that went away, and the pause between them.
const REMOVE_ATTEMPTS: u32 = 5;
const REMOVE_INTERVAL: Duration = Duration::from_secs(2);

enum Event {
    Said(Bytes),
    /// The output stream has ended.
    Deaf(Failure),
    Ended(i64),
}

impl Engine {
    /// Runs `hostapp-update-hooks` in a privileged container of `image`, without a time limit. `more`: variables of its environment. `said` gets each output line. Returns the exit
    /// status. The container is removed in any case, and its processes are ended.
    pub fn run_hooks(&self, image: &Image, more: &[&str], said: &mut dyn FnMut(&str)) -> Result<i64> {
        let what = format!("cannot run the hooks of the image {} in a container", image.reference);
        let texts = |list: &[&str]| Some(list.iter().map(|&s| s.to_owned()).collect());
        let body = || ContainerCreateBody {
            cmd: texts(&["hostapp-update-hooks"]),
            env: texts(&[&["DURING_UPDATE=1"], more].concat()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            host_config: Some(HostConfig {
                privileged: Some(true),
                binds: texts(&BINDS),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let (id, _) = self.create(image, &body).map_err(|e| e.during(&what))?;
        let status = self.runtime.block_on(self.follow(&id, said));
        let removed = self.remove_for_good(&id);
        match (status, removed) {
            (Ok(status), Ok(())) => Ok(status),
            (Ok(status), Err(e)) => {
                tracing::warn!("cannot remove the hooks' container {id}: {}", e.text);
                Ok(status)
            }
            (Err(e), Ok(())) => Err(e.during(&what)),
            (Err(e), Err(still)) => {
                tracing::warn!(
                    "cannot remove the hooks' container {id}, and hooks may still run in it: {}",
                    still.text
                );
                self.left.store(true, Ordering::Relaxed);
                Err(e.during(&what))
            }
        }
    }

    /// Whether hooks may still run, in a container that [`run_hooks`](Engine::run_hooks) could not remove.
    #[must_use]
    pub fn has_left_hooks(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    async fn follow(&self, id: &str, said: &mut dyn FnMut(&str)) -> Result<i64, Failure> {
        let all = AttachContainerOptionsBuilder::new().stream(true).stdout(true).stderr(true).build();
        // Before the start, so that no output is lost.
        let attached = watch::within(SOON, self.docker.attach_container(id, Some(all))).await?;
        watch::within(WORK, self.docker.start_container(id, None::<StartContainerOptions>)).await?;

        let output = attached.output.map(|o| {
            Ok::<_, Bollard>(match o {
                Ok(piece) => Event::Said(piece.into_bytes()),
                Err(e) => Event::Deaf(Failure::from(e)),
            })
        });
        let end = self.docker.wait_container(id, None::<WaitContainerOptions>).map(status).take(1);
        let mut events = Box::pin(stream::select(output, end.map(|e| e.map(Event::Ended))));
        let mut lines = Splitter::default();
        let mut ended = None;
        loop {
            let event = match ended {
                None => watch::next(&self.docker, self.timeouts, None, &mut events, || false).await?,
                // A process that the hooks left running dies with the container; do not wait for its output.
                Some(_) => match timeout(LAST_OUTPUT_TIMEOUT, events.next()).await {
                    Ok(Some(Ok(event))) => Some(event),
                    _ => None,
                },
            };
            match event {
                Some(Event::Said(piece)) => lines.feed(&piece, |line| said(&line)),
                Some(Event::Deaf(e)) => tracing::warn!("the rest of the hooks' output is lost: {}", e.text),
                Some(Event::Ended(status)) => ended = Some(status),
                None => break,
            }
        }
        if let Some(line) = lines.end() {
            said(&line);
        }
        ended.ok_or_else(|| Failure::garbled("it does not report their exit status"))
    }

    /// Removes a container with its volumes; waits for an engine that restarts.
    pub(super) fn remove_for_good(&self, id: &str) -> Result<(), Failure> {
        for again in 1.. {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            match self.within(REMOVAL, self.docker.remove_container(id, Some(options))) {
                Err(e) if e.is_gone() => break,
                Err(e) if matches!(e.why, Why::Lost) && again < REMOVE_ATTEMPTS => {
                    thread::sleep(REMOVE_INTERVAL);
                }
                Err(e) => return Err(e),
                Ok(()) => break,
            }
        }
        Ok(())
    }
}

/// An exit status other than 0 does not make the call fail.
fn status(answer: Result<bollard::models::ContainerWaitResponse, Bollard>) -> Result<i64, Bollard> {
    match answer {
        Ok(end) => match end.error.and_then(|e| e.message).filter(|m| !m.is_empty()) {
            Some(error) => Err(Bollard::DockerStreamError { error }),
            None => Ok(end.status_code),
        },
        Err(Bollard::DockerContainerWaitError { error, code }) if error.is_empty() => Ok(code),
        Err(Bollard::DockerContainerWaitError { error, .. }) => Err(Bollard::DockerStreamError { error }),
        Err(e) => Err(e),
    }
}
