//! Follows an update in the daemon from the request to the result, over as many connections as it takes.

use std::thread;
use std::time::{Duration, Instant};

use super::bus::{self, Bus, GLANCE, MANAGER, Object, SOON, STARTING, Trouble};
use super::is_unwanted;
use super::job::{Job, JobStatus, View, refusal};
use super::order::Order;
use crate::config::paths::Paths;
use crate::daemon::JOB_INTERFACE;
use crate::daemon::job_process::JobProcess;
use crate::daemon::record::Record;
use crate::error::{Code, Error, Result};
use crate::progress::Progress;
use crate::update::Installed;
use crate::update::lock::Holder;

/// Between two readings of the job; signals of the bus come sooner.
const LOOK: Duration = Duration::from_secs(1);
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3)];
/// How long to look for a lost daemon while no process holds the lock of updates.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to look for a job that the daemon does not know.
const NO_JOB: Duration = Duration::from_secs(10);

pub(super) enum Followed {
    Ended(Result<()>),
    /// The daemon has not taken the update; the reason.
    NotTaken(String),
}

enum Standing {
    Unasked,
    /// The request was sent, without an answer.
    Unclear,
    Taken(String),
}

pub(super) struct Follower<'a> {
    paths: &'a Paths,
    order: &'a Order,
    installed: &'a dyn Fn(&Installed),
    view: View<'a>,
    standing: Standing,
    reported: bool,
    cancelled: bool,
    lost: Option<Instant>,
    /// Since when the daemon does not know the job.
    gone: Option<Instant>,
}

impl<'a> Follower<'a> {
    pub(super) fn new(
        paths: &'a Paths,
        order: &'a Order,
        progress: &'a dyn Progress,
        installed: &'a dyn Fn(&Installed),
    ) -> Self {
        Follower {
            paths,
            order,
            installed,
            view: View::new(progress),
            standing: Standing::Unasked,
            reported: false,
            cancelled: false,
            lost: None,
            gone: None,
        }
    }

    pub(super) fn follow(mut self) -> Followed {
        let mut pauses = PAUSES.iter();
        loop {
            let trouble = match bus::session(async |bus| self.attend(&bus).await) {
                Ok(result) => return Followed::Ended(result),
                Err(trouble) => trouble,
            };
            if matches!(self.standing, Standing::Unasked) {
                return Followed::NotTaken(trouble.to_string());
            }
            let since = match self.lost {
                Some(since) => since,
                None => {
                    if self.reported {
                        tracing::info!("the daemon is gone ({trouble}); the update is installed");
                    } else {
                        tracing::warn!(
                            "the connection to the daemon is lost ({trouble}); the update goes on, trying to reach it again"
                        );
                    }
                    pauses = PAUSES.iter();
                    *self.lost.insert(Instant::now())
                }
            };
            if let Some(result) = self.on_record(false) {
                return Followed::Ended(result);
            }
            if self.reported && is_unwanted() {
                // The update is installed, and the reboot has stopped the bus. It ends this program, too.
                return Followed::Ended(Ok(()));
            }
            // Counted separately: before that the daemon may only have been unreachable.
            let (since, timeout) = if matches!(trouble, Trouble::NoObject(_)) {
                (*self.gone.get_or_insert_with(Instant::now), NO_JOB)
            } else {
                self.gone = None;
                (since, TIMEOUT)
            };
            if since.elapsed() > timeout && !self.is_updating() {
                let result = self.on_record(true);
                return Followed::Ended(result.unwrap_or_else(|| Err(self.lost(&trouble))));
            }
            let [.., last] = PAUSES;
            thread::sleep(*pauses.next().unwrap_or(&last));
        }
    }

    async fn attend(&mut self, bus: &Bus) -> Result<Result<()>, Trouble> {
        if let Standing::Unasked = self.standing {
            bus.is_there(is_unwanted).await?;
        }
        if !matches!(self.standing, Standing::Taken(_)) {
            match self.ask(bus).await {
                Err(Trouble::Refused(code, answer)) => return Ok(Err(refusal(&code, &answer))),
                other => other?,
            }
        }
        let Standing::Taken(path) = &self.standing else {
            return Err(Trouble::Unclear("the daemon names no job".to_owned()));
        };
        let path = path.clone();
        self.watch(bus, &path).await
    }

    /// Sends the request; again where the answer was lost: the daemon recognizes its token.
    async fn ask(&mut self, bus: &Bus) -> Result<(), Trouble> {
        let first = matches!(self.standing, Standing::Unasked);
        self.standing = Standing::Unclear;
        let answer = bus.call(MANAGER, "Update", &self.order.arguments(), STARTING).await;
        if first && let Err(Trouble::NotTaken(_) | Trouble::NoObject(_)) = &answer {
            self.standing = Standing::Unasked;
        }
        let path: zbus::wire::OwnedObjectPath = answer?
            .body()
            .deserialize()
            .map_err(|e| Trouble::Unclear(format!("the daemon's answer cannot be parsed: {e}")))?;
        tracing::info!(
            "the daemon runs the update as {}; its log is in the journal of copal.service",
            path.as_str()
        );
        self.standing = Standing::Taken(path.as_str().to_owned());
        Ok(())
    }

    /// Subscribes first, then reads the job: no change is lost between the two.
    async fn watch(&mut self, bus: &Bus, path: &str) -> Result<Result<()>, Trouble> {
        let mut changes = bus.changes(path).await?;
        loop {
            let job = Job::of(&bus.job(path).await?);
            self.gone = None;
            if self.lost.take().is_some() {
                tracing::warn!("the daemon is reachable again");
            }
            self.show(&job);
            match job.state {
                JobStatus::Running => {}
                JobStatus::Succeeded => return Ok(Ok(())),
                JobStatus::Failed => return Ok(Err(job.failure())),
            }
            let read = Instant::now();
            loop {
                self.cancel(bus, path).await?;
                if bus::changed(&mut changes, GLANCE).await? || read.elapsed() > LOOK {
                    break;
                }
            }
        }
    }

    fn show(&mut self, job: &Job) {
        self.view.show(job);
        if self.reported || job.state == JobStatus::Failed {
            return;
        }
        match job.installed() {
            Some(installed) => {
                self.reported = true;
                (self.installed)(&installed);
            }
            None if job.state == JobStatus::Succeeded => {
                self.reported = true;
                tracing::warn!("the update has succeeded, but the daemon does not report what it installed");
            }
            None => {}
        }
    }

    async fn cancel(&mut self, bus: &Bus, path: &str) -> Result<(), Trouble> {
        if self.cancelled || !is_unwanted() {
            return Ok(());
        }
        match bus.call(Object { path, interface: JOB_INTERFACE }, "Cancel", &(), SOON).await {
            Ok(_) => {
                tracing::warn!("cancelling the update; waiting until its present step is done, and undone");
            }
            Err(e @ Trouble::Unclear(_)) => return Err(e),
            Err(e) => tracing::warn!("cannot cancel the update: {e}"),
        }
        self.cancelled = true;
        Ok(())
    }

    /// Reads the service's record of the job, without the bus. `itself`: also reads the output of the job's process, where no service does.
    fn on_record(&mut self, itself: bool) -> Option<Result<()>> {
        let record = Record::read(self.paths).filter(|r| r.token.as_deref() == Some(self.order.token()))?;
        let shown = match record.over.clone() {
            Some(shown) => shown,
            None if itself => JobProcess::adopt(self.paths, record).shown,
            None => return None,
        };
        let job = Job::recorded(&shown);
        self.show(&job);
        match job.state {
            JobStatus::Running => None,
            JobStatus::Succeeded => Some(Ok(())),
            JobStatus::Failed => Some(Err(job.failure())),
        }
    }

    /// `false` where the lock cannot be read: do not wait then.
    fn is_updating(&self) -> bool {
        matches!(Holder::of(self.paths), Ok(Some(_)))
    }

    fn lost(&self, trouble: &Trouble) -> Error {
        let message = match &self.standing {
            Standing::Taken(path) => {
                format!("cannot determine how the update ended, which the daemon ran as {path}")
            }
            _ => "cannot determine whether the daemon has taken the update".to_owned(),
        };
        let error = Error::new(Code::DaemonLost, format!("{message}: {trouble}")).after_write();
        error.and_also("no update is running now")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use super::*;
    use crate::daemon::client::order::with_token;
    use crate::progress::Silent;

    const DONE: &str = r#"{"event":"result","version":1,"ok":true,"update":{"image":"a:1","image_id":"i","hostapp":"h","slot":"B","selected":true,"counter":5}}"#;
    const FAILED: &str = r#"{"event":"result","version":1,"ok":false,"code":"slot-full","message":"m","object":null,"hint":"h","effect":"written"}"#;

    fn found(token: &str, said: &str) -> (Option<Result<()>>, Option<u64>) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        fs::create_dir_all(paths.run_files()).unwrap();
        let record = format!(
            r#"{{"id":3,"kind":"update","token":"{token}","reboot":false,"process":{{"pid":1,"began":1}},"cancelled":false,"over":null}}"#
        );
        fs::write(paths.run_files().join("job.json"), record).unwrap();
        fs::write(paths.run_files().join("job-3.jsonl"), format!("{said}\n")).unwrap();
        let counter = RefCell::new(None);
        let installed = |done: &Installed| *counter.borrow_mut() = Some(done.counter);
        let order = with_token("abc");
        let mut follower = Follower::new(&paths, &order, &Silent, &installed);
        assert!(follower.on_record(false).is_none(), "a service may still put it down");
        let result = follower.on_record(true);
        (result, *counter.borrow())
    }

    #[test]
    fn the_result_is_had_without_bus_and_service() {
        let (result, counter) = found("abc", DONE);
        assert_eq!((result.unwrap().is_ok(), counter), (true, Some(5)));
        let (result, counter) = found("abc", FAILED);
        let e = result.unwrap().unwrap_err();
        assert_eq!((e.to_string().as_str(), counter), ("m [slot-full]; h", None));
        assert_eq!(e.effect(), crate::error::Effect::Written);
        let (result, _) = found("abc", "");
        assert_eq!(result.unwrap().unwrap_err().code(), Code::JobLost);
    }

    #[test]
    fn another_jobs_result_is_not_ours() {
        assert!(found("abd", DONE).0.is_none());
    }
}
