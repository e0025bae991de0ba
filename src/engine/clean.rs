use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListImagesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveImageOptionsBuilder,
};

use super::failure::{Failure, Why};
use super::{Engine, REMOVAL, SOCKET};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

/// Between two looks at what the engine still does for another process, and how many.
pub(super) const WORK_INTERVAL: Duration = Duration::from_millis(500);
pub(super) const WORK_CHECKS: u32 = 240;

/// How long to wait for an engine that may be restarting, and the pause between two attempts.
const RESTART_TIMEOUT: Duration = Duration::from_secs(120);
const RESTART_INTERVAL: Duration = Duration::from_secs(2);

impl Engine {
    pub fn remove_containers(&self) -> Result<()> {
        self.remove_of("container", true)
    }

    /// Keeps the host OS's container, which is never started.
    pub(crate) fn remove_running(&self) -> Result<()> {
        self.remove_of("running container", false)
    }

    /// Ends hooks that still run because the engine went away; waits for an engine that restarts.
    pub fn end_hooks(paths: &Paths) -> Result<()> {
        Engine::end_running(&paths.at(SOCKET), RESTART_TIMEOUT)
    }

    /// Ends the hooks of a killed update. Without a socket there is nothing to end: an engine that stops ends its containers and removes its
    /// socket.
    pub fn end_hooks_of_the_dead(paths: &Paths) -> Result<()> {
        if paths.at(SOCKET).try_exists().is_ok_and(|there| !there) {
            return Ok(());
        }
        Engine::end_hooks(paths)
    }

    /// [`remove_running`](Engine::remove_running) with the engine at `socket`, repeated until `limit`.
    pub fn end_running(socket: &Path, limit: Duration) -> Result<()> {
        let began = Instant::now();
        let mut reported = false;
        loop {
            match Engine::at(socket).and_then(|engine| engine.remove_running()) {
                Err(e) if began.elapsed() < limit => {
                    if !reported {
                        let rest = limit.as_secs();
                        tracing::warn!(
                            "{}; trying again for {rest} s, since hooks may still run",
                            e.message()
                        );
                        reported = true;
                    }
                    thread::sleep(RESTART_INTERVAL.min(limit));
                }
                ended => return ended,
            }
        }
    }

    fn remove_of(&self, kind: &str, idle: bool) -> Result<()> {
        let all = || ListContainersOptionsBuilder::new().all(idle).build();
        let remove = || RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        self.empty(
            kind,
            || {
                let list = self.soon(self.docker.list_containers(Some(all())))?;
                Ok(list.into_iter().filter_map(|c| c.id).collect())
            },
            |id| self.within(REMOVAL, self.docker.remove_container(id, Some(remove()))),
        )
    }

    pub fn remove_images(&self) -> Result<()> {
        let all = || ListImagesOptionsBuilder::new().all(true).build();
        let remove = || RemoveImageOptionsBuilder::new().force(true).build();
        self.empty(
            "image",
            || Ok(self.soon(self.docker.list_images(Some(all())))?.into_iter().map(|i| i.id).collect()),
            |id| self.within(REMOVAL, self.docker.remove_image(id, Some(remove()), None)).map(drop),
        )
    }

    /// Repeats while the list gets shorter: an image can be removed only after those made from it.
    fn empty(
        &self,
        kind: &str,
        list: impl Fn() -> Result<Vec<String>, Failure>,
        remove: impl Fn(&str) -> Result<(), Failure>,
    ) -> Result<()> {
        let mut left = usize::MAX;
        let mut looks = 0;
        loop {
            let ids = list()
                .map_err(|e| e.during(&format!("cannot list the {kind}s of the other slot's engine")))?;
            if ids.is_empty() {
                return Ok(());
            }
            let mut failure: Option<(String, Failure)> = None;
            let mut under_way = false;
            for id in &ids {
                match remove(id) {
                    Ok(()) => tracing::info!("removed the {kind} {id}"),
                    Err(e) if e.is_gone() => tracing::debug!("the {kind} {id} is gone already"),
                    Err(e) if is_under_way(&e) => under_way = true,
                    Err(e) => {
                        let hopeless = matches!(e.why, Why::Lost | Why::Silent);
                        failure.get_or_insert((id.clone(), e));
                        if hopeless {
                            break;
                        }
                    }
                }
            }
            let less = ids.len() < left;
            left = ids.len();
            let patient = less || (under_way && looks < WORK_CHECKS);
            match failure {
                Some((id, e)) if !patient || matches!(e.why, Why::Lost | Why::Silent) => {
                    return Err(e.during(&format!("cannot remove the {kind} {id}")).object(id));
                }
                None if !less && looks >= WORK_CHECKS => {
                    let text = format!(
                        "cannot remove the {kind}s: {left} remain, although the engine reports no failure"
                    );
                    return Err(Error::new(Code::EngineFailed, text));
                }
                _ => {}
            }
            if !less {
                looks += 1;
                thread::sleep(WORK_INTERVAL);
            }
        }
    }
}

/// moby, daemon/delete.go: another removal is in progress.
fn is_under_way(failure: &Failure) -> bool {
    failure.why == Why::Refused(409) && failure.text.contains("already in progress")
}
