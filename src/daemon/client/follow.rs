//! From the order to the result, over as many connections as it takes.

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

/// From one look at the job to the next, at most: signals of the bus come sooner.
const LOOK: Duration = Duration::from_secs(1);
/// Pauses between two attempts to reach the daemon.
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3)];
/// How long a daemon is looked for that does not come back, while nobody holds the lock of updates.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a job is looked for that the daemon does not know.
const NO_JOB: Duration = Duration::from_secs(10);

/// What came of it.
pub(super) enum Followed {
    /// The daemon's answer.
    Ended(Result<()>),
    /// Nobody has taken it, and why.
    NotTaken(String),
}

/// How much is known.
enum Standing {
    /// Nobody was asked.
    Unasked,
    /// The daemon was asked, and did not answer.
    Unclear,
    /// The job is here.
    Taken(String),
}

/// One update on its way.
pub(super) struct Follower<'a> {
    paths: &'a Paths,
    order: &'a Order,
    installed: &'a dyn Fn(&Installed),
    view: View<'a>,
    standing: Standing,
    told: bool,
    cancelled: bool,
    /// Since when nothing was heard.
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
            told: false,
            cancelled: false,
            lost: None,
            gone: None,
        }
    }

    /// To the end.
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
                    if self.told {
                        tracing::info!("the daemon is gone ({trouble}); the update is installed");
                    } else {
                        tracing::warn!(
                            "the daemon is lost ({trouble}); the update goes on without, and is looked for"
                        );
                    }
                    pauses = PAUSES.iter();
                    *self.lost.insert(Instant::now())
                }
            };
            if let Some(result) = self.on_record(false) {
                return Followed::Ended(result);
            }
            if self.told && is_unwanted() {
                // The update is installed, and the bus has gone before us: it is the reboot that ends this program, too.
                return Followed::Ended(Ok(()));
            }
            // Counted by itself: before that it may only have been away.
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

    /// On one connection, for as long as it lasts.
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

    /// Gives the order; again, where it is not known whether it was taken: the daemon knows it by its token.
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
            .map_err(|e| Trouble::Unclear(format!("the daemon's answer is not understood: {e}")))?;
        tracing::info!("the update is {} of the daemon; its log is that of copal.service", path.as_str());
        self.standing = Standing::Taken(path.as_str().to_owned());
        Ok(())
    }

    /// Shows the job until it has ended. First its changes are subscribed to, then it is read: none falls between the two.
    async fn watch(&mut self, bus: &Bus, path: &str) -> Result<Result<()>, Trouble> {
        let mut changes = bus.changes(path).await?;
        loop {
            let job = Job::of(&bus.job(path).await?);
            self.gone = None;
            if self.lost.take().is_some() {
                tracing::warn!("the daemon is there again");
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
        if self.told || job.state == JobStatus::Failed {
            return;
        }
        match job.installed() {
            Some(installed) => {
                self.told = true;
                (self.installed)(&installed);
            }
            None if job.state == JobStatus::Succeeded => {
                self.told = true;
                tracing::warn!("the update has succeeded, but the daemon does not say what it installed");
            }
            None => {}
        }
    }

    /// Once, if somebody wants the update to end.
    async fn cancel(&mut self, bus: &Bus, path: &str) -> Result<(), Trouble> {
        if self.cancelled || !is_unwanted() {
            return Ok(());
        }
        match bus.call(Object { path, interface: JOB_INTERFACE }, "Cancel", &(), SOON).await {
            Ok(_) => tracing::warn!(
                "the update is asked to end; waiting until the step under way is done, and undone"
            ),
            Err(e @ Trouble::Unclear(_)) => return Err(e),
            Err(e) => tracing::warn!("the update cannot be asked to end: {e}"),
        }
        self.cancelled = true;
        Ok(())
    }

    /// What the service has put down of the job, which it can do without a bus; `itself`: it cannot any more, and what the job's own process
    /// has told is taken up here.
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

    /// Whether anybody holds the lock of updates; where that cannot be told, nobody is waited for.
    fn is_updating(&self) -> bool {
        matches!(Holder::of(self.paths), Ok(Some(_)))
    }

    /// What is known in the end.
    fn lost(&self, trouble: &Trouble) -> Error {
        let message = match &self.standing {
            Standing::Taken(path) => {
                format!("cannot tell how the update ended, which was {path} of the daemon")
            }
            _ => "cannot tell whether the daemon has taken the update".to_owned(),
        };
        let error = Error::new(Code::DaemonLost, format!("{message}: {trouble}")).after_write();
        error.and_also("nobody is updating now")
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

    /// What is found when bus and service are gone, and the job's process has ended after it told `said`.
    fn found(token: &str, said: &str) -> (Option<Result<()>>, Option<u64>) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        fs::create_dir_all(paths.run_files()).unwrap();
        // No process of this number began then.
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
