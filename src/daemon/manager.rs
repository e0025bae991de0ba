use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, Variant, interface};

use super::apart::apart;
use super::callers::{self, Callers};
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
    callers: Arc<Mutex<Callers>>,
    /// Held while a plan with options is made: all of them use the same instance of the unit, and its files.
    planning: tokio::sync::Mutex<()>,
}

impl Manager {
    pub(super) fn new(core: Arc<Core>, callers: Arc<Mutex<Callers>>) -> Manager {
        Manager { core, callers, planning: tokio::sync::Mutex::default() }
    }

    fn check_root(&self, header: &Header<'_>, what: &str) -> Result<(), DbusError> {
        callers::check_root(&self.callers, header, what)
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
        announce(&self.core, &self.callers, connection).await?;
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
pub(super) async fn announce(
    core: &Arc<Core>,
    callers: &Arc<Mutex<Callers>>,
    connection: &Connection,
) -> zbus::Result<()> {
    let Some(ShownJob { id, .. }) = core.job().filter(|j| !core.is_on_bus(j.id)) else { return Ok(()) };
    let server = connection.object_server();
    let path = object_path(id);
    // Another call has put it there meanwhile, and sends the signal.
    if server.at(path.as_str(), JobObject::new(core.clone(), callers.clone(), id)).await?.is_some() {
        return Ok(());
    }
    if let Some(before) = core.replace_job_on_bus(Some(id)) {
        drop(server.remove::<JobObject, _>(object_path(before)).await);
    }
    let emitter = SignalEmitter::new(connection, OBJECT_PATH)?;
    Manager::job_new(&emitter, id, ObjectPath::try_from(path)?).await
}

/// Plans in `copal-job@{instance}.service`. Unlike a job, a plan changes nothing, has no number, and no object on the bus.
async fn run_plan(core: &Core, instance: &str, request: JobRequest) -> Result<String, DbusError> {
    let failed = |e: std::io::Error| DbusError::from(Error::new(Code::Io, "cannot plan").because(e));
    crate::sys::file::make_private(&core.paths.run_files()).map_err(failed)?;
    let files = JobFiles::new(&core.paths, &instance);
    let starting = files.clone();
    apart(move || starting.start(&request)).await.map_err(failed)?.map_err(Error::from)?;
    let mut checked = Instant::now();
    while files.end().is_none() {
        if checked.elapsed() > UNIT_CHECK_INTERVAL {
            core::settle(files.clone()).await;
            checked = Instant::now();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let lines = Output::open(&files.output()).and_then(|mut o| o.lines()).map_err(failed);
    files.remove();
    match lines?.last().and_then(|line| Event::of_line(line)) {
        Some(Event::Result(Ok(Some((_, plan))))) => Ok(plan.to_string()),
        Some(Event::Result(Err(e))) => Err(e.into()),
        _ => Err(lost_plan().into()),
    }
}

fn lost_plan() -> Error {
    Error::new(Code::JobLost, "the process that plans ended without a result")
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
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_root(&header, "update")?;
        self.start_job(connection, options::update(source, options)?).await
    }

    #[zbus(out_args("job"))]
    async fn flash(
        &self,
        options: CallOptions,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_root(&header, "flash")?;
        self.check_flasher()?;
        self.start_job(connection, options::flash(options)?).await
    }

    /// Everyone may plan without options; callers at the same time share one plan. Only root may give options: the plan opens, as root, the
    /// files that they name.
    #[zbus(out_args("plan"))]
    async fn plan(
        &self,
        options: CallOptions,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, DbusError> {
        let _call = self.core.begin_call();
        if options.is_empty() {
            self.check_flasher()?;
            let core = self.core.clone();
            let plan = move || {
                let core = core.clone();
                async move { run_plan(&core, "plan", options::plan(CallOptions::new())?).await }
            };
            return self.core.plans.run(plan).await.unwrap_or_else(|| Err(lost_plan().into()));
        }
        self.check_root(&header, "plan with options")?;
        self.check_flasher()?;
        let Ok(_one_at_a_time) = self.planning.try_lock() else {
            let busy = Error::new(Code::Busy, "cannot plan: the service is making another plan with options");
            return Err(busy.with_hint("wait until that plan is made, then call again").into());
        };
        run_plan(&self.core, "plan-with-options", options::plan(options)?).await
    }

    /// Returns when the job has ended.
    async fn mark_good(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), DbusError> {
        self.check_root(&header, "commit")?;
        let _call = self.core.begin_call();
        let mut job = self.core.start(options::without(Spec::MarkGood)).await?;
        announce(&self.core, &self.callers, connection).await?;
        let mut checked = Instant::now();
        loop {
            if let Some(outcome) = job.state.outcome() {
                return Ok(outcome?);
            }
            // The service's loop does the same until the service exits. The exit waits for this call.
            if checked.elapsed() > UNIT_CHECK_INTERVAL {
                core::settle(job.files().clone()).await;
                checked = Instant::now();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            job.poll();
        }
    }

    #[zbus(out_args("job"))]
    async fn rollback(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_root(&header, "roll back")?;
        self.start_job(connection, options::without(Spec::Rollback)).await
    }

    /// The journal lines in it are only for users who may read the journal.
    #[zbus(out_args("status"))]
    async fn status(&self, #[zbus(header)] header: Header<'_>) -> Result<String, DbusError> {
        let Some(reading) = self.core.read().await else {
            return Err(Error::new(Code::Io, "cannot read the state of the device").into());
        };
        let is_root = self.check_root(&header, "read the journal").is_ok();
        Ok(String::from(&*if is_root { reading.full } else { reading.public }))
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
