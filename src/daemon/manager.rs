use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, Variant, interface};

use super::callers::Callers;
use super::core::{Core, LongCall};
use super::dbus_error::DbusError;
use super::job::Job;
use super::job_state::Failure;
use super::output::{self, Output};
use super::request::{JobRequest, Options};
use super::snapshot::Snapshot;
use super::{job_path, job_process};
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Code, Error};
use crate::rollback::manual::mark_good;

const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Manager {
    core: Arc<Core>,
    callers: Arc<Mutex<Callers>>,
}

/// Refuses callers other than root and the user who runs this service. The bus's policy does the same, but may be missing.
pub(super) fn check_root(callers: &Mutex<Callers>, header: &Header<'_>, what: &str) -> Result<(), DbusError> {
    let callers = callers.lock().unwrap_or_else(PoisonError::into_inner);
    match header.sender() {
        Some(sender) if callers.is_root(sender) => Ok(()),
        _ => Err(DbusError::denied(what)),
    }
}

impl Manager {
    pub(super) fn new(core: Arc<Core>, callers: Arc<Mutex<Callers>>) -> Manager {
        Manager { core, callers }
    }

    fn check_root(&self, header: &Header<'_>, what: &str) -> Result<(), DbusError> {
        check_root(&self.callers, header, what)
    }

    async fn begin(&self, connection: &Connection, asked: &JobRequest) -> Result<OwnedObjectPath, DbusError> {
        if let Some(id) = self.core.asked_before(asked) {
            return Ok(OwnedObjectPath::try_from(job_path(id))?);
        }
        let (id, before) = self.core.start(asked)?;
        let server = connection.object_server();
        if let Some(before) = before {
            // After a damaged record there may be none.
            drop(server.remove::<Job, _>(job_path(before)).await);
        }
        let path = job_path(id);
        server.at(path.as_str(), Job::new(self.core.clone(), self.callers.clone(), id)).await?;
        let path = OwnedObjectPath::try_from(path)?;
        let emitter = SignalEmitter::new(connection, super::MANAGER)?;
        Self::job_new(&emitter, id, path.as_ref()).await?;
        Ok(path)
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

/// The output of `copal flash --plan`.
async fn run_plan(core: &Core, asked: &JobRequest) -> Result<String, DbusError> {
    let failed = |e: std::io::Error| DbusError::from(Error::new(Code::Io, "cannot plan").because(e));
    let folder = core.paths.run_files();
    std::fs::create_dir_all(&folder).map_err(failed)?;
    // No `await` until the file is removed: no other task opens it.
    let place = folder.join("plan.jsonl");
    let out = output::make(&place).map_err(failed)?;
    let mut process = job_process::start(&core.paths, core.worker(), 0, asked, out).map_err(failed)?;
    let mut said = Output::open(&place).map_err(failed)?;
    drop(std::fs::remove_file(&place));
    while process.ended().is_none() {
        tokio::time::sleep(LOOK).await;
    }
    let lines = said.lines().map_err(failed)?;
    let last = lines.last().and_then(|line| serde_json::from_str::<Value>(line).ok()).unwrap_or_default();
    if let Some(plan) = last.get("plan") {
        return Ok(plan.to_string());
    }
    let error: Failure = serde_json::from_value(last).unwrap_or_default();
    if error.code.is_empty() {
        return Err(Error::new(Code::JobLost, "the process that plans ended without a result").into());
    }
    Err(DbusError::from_failure(&error))
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
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_root(&header, "update")?;
        self.begin(connection, &JobRequest::update(source, options)?).await
    }

    #[zbus(out_args("job"))]
    async fn flash(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_root(&header, "flash")?;
        self.check_flasher()?;
        self.begin(connection, &JobRequest::flash(options, false)?).await
    }

    /// With options it opens files that the caller names, as root.
    #[zbus(out_args("plan"))]
    async fn plan(&self, options: Options, #[zbus(header)] header: Header<'_>) -> Result<String, DbusError> {
        if options.is_empty() {
            self.check_flasher()?;
            let _call = self.core.begin_call(LongCall::Plan);
            let (core, asked) = (self.core.clone(), Arc::new(JobRequest::flash(options, true)?));
            let plan = move || {
                let (core, asked) = (core.clone(), asked.clone());
                async move { run_plan(&core, &asked).await }
            };
            return self.core.plans.run(plan).await.unwrap_or_else(|| {
                Err(Error::new(Code::JobLost, "the process that plans ended without a result").into())
            });
        }
        self.check_root(&header, "plan with options")?;
        self.check_flasher()?;
        let Some(_call) = self.core.begin_call(LongCall::PlanWithOptions) else {
            let busy = Error::new(Code::Busy, "cannot plan: the service is making another plan with options");
            return Err(busy.with_hint("wait until that plan is made, then call again").into());
        };
        run_plan(&self.core, &JobRequest::flash(options, true)?).await
    }

    async fn mark_good(&self, #[zbus(header)] header: Header<'_>) -> Result<(), DbusError> {
        self.check_root(&header, "commit")?;
        // The service does not exit meanwhile.
        let Some(_call) = self.core.begin_call(LongCall::MarkGood) else {
            let busy = Error::new(Code::Busy, "cannot commit: the service is committing already");
            return Err(busy.with_hint("wait until that call is over").into());
        };
        let paths = self.core.paths.clone();
        match tokio::task::spawn_blocking(move || mark_good(&paths, &RollbackConf::on_trial(&paths, &[])))
            .await
        {
            Ok(result) => Ok(result?),
            Err(e) => Err(Error::new(Code::Io, "cannot commit").because(e).into()),
        }
    }

    #[zbus(out_args("job"))]
    async fn rollback(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, DbusError> {
        self.check_root(&header, "roll back")?;
        self.begin(connection, &JobRequest::rollback()).await
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
    async fn job_new(emitter: &SignalEmitter<'_>, id: u32, job: ObjectPath<'_>) -> zbus::Result<()>;

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
