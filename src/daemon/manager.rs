use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, Variant, interface};

use super::apart::apart;
use super::core::{self, Core, ShownJob};
use super::dbus_error::DbusError;
use super::job_object::JobObject;
use super::options::{self, CallOptions};
use super::snapshot::Snapshot;
use crate::error::{Code, Error};
use crate::job::record::{OBJECT_PATH, object_path};
use crate::job::{Event, JobFiles, JobRequest, Output, Spec};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Between two questions to systemd whether the unit of a pending call still runs.
const UNIT_CHECK_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct Manager {
    core: Arc<Core>,
}

impl Manager {
    pub(super) fn new(core: Arc<Core>) -> Manager {
        Manager { core }
    }

    /// Starts a job, and puts it on the bus before the caller learns its path.
    async fn start_job(
        &self,
        connection: &Connection,
        request: JobRequest,
    ) -> Result<OwnedObjectPath, DbusError> {
        // The service must not exit between the start of the job and its announcement.
        let _call = self.core.begin_call();
        let job = self.core.start(request).await?;
        announce(&self.core, connection).await?;
        Ok(OwnedObjectPath::try_from(object_path(job.record.id))?)
    }

    fn check_flasher(&self) -> Result<(), DbusError> {
        let flag = self.core.paths.flasher_flag();
        if flag.exists() {
            return Ok(());
        }
        let text = "cannot flash from this system: it is not a flasher medium";
        Err(Error::new(Code::NotAFlasher, text).object(flag.display()).into())
    }
}

/// Puts the present job on the bus, removes the object of the job before it, and sends `JobNew`. Does nothing if the job is there already.
pub(super) async fn announce(core: &Arc<Core>, connection: &Connection) -> zbus::Result<()> {
    let Some(ShownJob { id, .. }) = core.job().filter(|j| !core.is_on_bus(j.id)) else { return Ok(()) };
    let server = connection.object_server();
    let path = object_path(id);
    // Another call has put it there meanwhile, and sends the signal.
    if server.at(path.as_str(), JobObject::new(core.clone(), id)).await?.is_some() {
        return Ok(());
    }
    if let Some(before) = core.replace_job_on_bus(Some(id)) {
        drop(server.remove::<JobObject, _>(object_path(before)).await);
    }
    let emitter = SignalEmitter::new(connection, OBJECT_PATH)?;
    Manager::job_new(&emitter, id, ObjectPath::try_from(path)?).await
}

/// Plans in `copal-job@plan.service`. Unlike a job, a plan changes nothing, has no number, and no object on the bus.
async fn run_plan(core: &Core, request: JobRequest) -> Result<String, DbusError> {
    let failed = |e: std::io::Error| DbusError::from(Error::new(Code::Io, "cannot plan").because(e));
    crate::sys::file::make_private(&core.paths.run_files()).map_err(failed)?;
    let files = JobFiles::new(&core.paths, &"plan");
    let starting = files.clone();
    apart(move || starting.start(&request)).await.map_err(failed)?.map_err(Error::from)?;
    until_over(&files, || files.end()).await;
    let lines = Output::open(&files.output()).and_then(|mut o| o.lines()).map_err(failed);
    files.remove();
    match lines?.last().and_then(|line| Event::of_line(line)) {
        Some(Event::Result(Ok(Some((_, plan))))) => Ok(plan.to_string()),
        Some(Event::Result(Err(e))) => Err(e.into()),
        _ => Err(Error::new(Code::JobLost, "the process that plans ended without a result").into()),
    }
}

/// Waits for the result of a call's unit.
async fn until_over<T>(files: &JobFiles, mut result: impl FnMut() -> Option<T>) -> T {
    let mut checked = Instant::now();
    loop {
        if let Some(result) = result() {
            return result;
        }
        // The service's loop does the same until the service exits. The exit waits for this call.
        if checked.elapsed() > UNIT_CHECK_INTERVAL {
            core::settle(files.clone()).await;
            checked = Instant::now();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The changed properties; the second of each pair is the last error.
pub(super) fn changes(
    before: (&Snapshot, &str),
    now: (&Snapshot, &str),
) -> HashMap<&'static str, Variant<'static>> {
    let mut changed = HashMap::new();
    let mut put = |name, before: &str, now: &str| {
        if before != now {
            changed.insert(name, now.to_owned().into());
        }
    };
    put("Phase", &before.0.phase, &now.0.phase);
    put("BootSlot", &before.0.running, &now.0.running);
    put("NextSlot", &before.0.next, &now.0.next);
    put("LastError", before.1, now.1);
    changed
}

#[interface(name = "io.balena.Copal1.Manager", introspection_docs = false)]
impl Manager {
    #[zbus(out_args("job"))]
    async fn update(
        &self,
        source: &str,
        options: CallOptions,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.start_job(connection, options::update(source, options)?).await
    }

    #[zbus(out_args("job"))]
    async fn flash(
        &self,
        options: CallOptions,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_flasher()?;
        self.start_job(connection, options::flash(options)?).await
    }

    #[zbus(out_args("plan"))]
    async fn plan(&self, options: CallOptions) -> Result<String, DbusError> {
        let _call = self.core.begin_call();
        self.check_flasher()?;
        let Ok(_one_at_a_time) = self.core.planning.try_lock() else {
            let busy = Error::new(Code::Busy, "cannot plan: the service is making another plan");
            return Err(busy.with_hint("wait until that plan is made, then call again").into());
        };
        run_plan(&self.core, options::plan(options)?).await
    }

    /// Returns when the job has ended.
    async fn mark_good(&self, #[zbus(connection)] connection: &Connection) -> Result<(), DbusError> {
        let _call = self.core.begin_call();
        let mut job = self.core.start(options::without(Spec::MarkGood)).await?;
        announce(&self.core, connection).await?;
        let files = job.files().clone();
        let outcome = until_over(&files, || {
            job.poll();
            job.state.outcome()
        });
        Ok(outcome.await?)
    }

    #[zbus(out_args("job"))]
    async fn rollback(
        &self,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.start_job(connection, options::without(Spec::Rollback)).await
    }

    #[zbus(out_args("status"))]
    async fn status(&self) -> Result<String, DbusError> {
        match self.core.read().await {
            Some(reading) => Ok(String::from(&*reading.json)),
            None => Err(Error::new(Code::Io, "cannot read the state of the device").into()),
        }
    }

    #[zbus(signal)]
    pub(super) async fn job_new(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    pub(super) async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        result: i32,
        error: &str,
    ) -> zbus::Result<()>;

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    #[zbus(property)]
    async fn phase(&self) -> String {
        self.core.look().await.phase
    }

    #[zbus(property)]
    async fn boot_slot(&self) -> String {
        self.core.look().await.running
    }

    #[zbus(property)]
    async fn next_slot(&self) -> String {
        self.core.look().await.next
    }

    #[zbus(property)]
    fn last_error(&self) -> String {
        self.core.last_error()
    }
}
