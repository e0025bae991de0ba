//! The manager's object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, Variant, interface};

use super::ask::{Asked, Options};
use super::core::Core;
use super::fault::Fault;
use super::job::Job;
use super::output::{self, Output};
use super::shown::Failure;
use super::snapshot::Snapshot;
use super::{job_path, work};
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Code, Error};
use crate::rollback::by_hand::mark_good;

/// The driver of the bus.
const BUS: &str = "org.freedesktop.DBus";

/// From one look at the process of a plan to the next.
const LOOK: Duration = Duration::from_millis(50);

/// `/io/balena/Copal1`
pub(super) struct Manager {
    core: Arc<Core>,
}

/// Whether the caller is root, or whoever runs this service. The bus's policy says the same; it may be missing.
pub(super) async fn check_root(
    connection: &Connection,
    header: &Header<'_>,
    what: &str,
) -> Result<(), Fault> {
    let sender = header.sender().ok_or_else(|| Fault::denied(what))?;
    let path = "/org/freedesktop/DBus";
    let answer =
        connection.call_method(Some(BUS), path, Some(BUS), "GetConnectionUnixUser", &sender.as_str()).await?;
    let user: u32 = answer.body().deserialize()?;
    if user == 0 || user == nix::unistd::geteuid().as_raw() { Ok(()) } else { Err(Fault::denied(what)) }
}

impl Manager {
    pub(super) fn new(core: Arc<Core>) -> Manager {
        Manager { core }
    }

    /// Starts a job, and puts its object in the place of the last one's.
    async fn begin(&self, connection: &Connection, asked: &Asked) -> Result<OwnedObjectPath, Fault> {
        if let Some(id) = self.core.asked_before(asked) {
            return Ok(OwnedObjectPath::try_from(job_path(id))?);
        }
        let (id, before) = self.core.start(asked)?;
        let server = connection.object_server();
        if let Some(before) = before {
            // A service that took over a damaged record may have none.
            drop(server.remove::<Job, _>(job_path(before)).await);
        }
        let path = job_path(id);
        server.at(path.as_str(), Job::new(self.core.clone(), id)).await?;
        let path = OwnedObjectPath::try_from(path)?;
        let emitter = SignalEmitter::new(connection, super::MANAGER)?;
        Self::job_new(&emitter, id, path.as_ref()).await?;
        Ok(path)
    }

    /// Only a medium that is made for it installs.
    fn check_flasher(&self) -> Result<(), Fault> {
        let flag = self.core.paths.flasher_flag();
        if flag.exists() {
            return Ok(());
        }
        let text = "cannot flash from this system, which is no flasher medium";
        Err(Error::new(Code::NotAFlasher, text).object(flag.display()).into())
    }

    /// What `copal flash --plan` says.
    async fn run_plan(&self, asked: &Asked) -> Result<String, Fault> {
        let Some(_call) = self.core.begin_call() else {
            return Err(Error::new(Code::Busy, "cannot plan: another plan is being made").into());
        };
        let failed = |e: std::io::Error| Fault::from(Error::new(Code::Io, "cannot plan").because(e));
        let folder = self.core.paths.run_files();
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let place = folder.join("plan.jsonl");
        let out = output::make(&place).map_err(failed)?;
        let mut process = work::start(&self.core.paths, self.core.worker(), 0, asked, out).map_err(failed)?;
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
        Err(Fault::told(&error))
    }
}

/// The properties in which `now` differs from `before`; the second of each is the last error.
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
    /// Installs a release of the host OS.
    #[zbus(out_args("job"))]
    async fn update(
        &self,
        source: &str,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, Fault> {
        check_root(connection, &header, "update").await?;
        self.begin(connection, &Asked::update(source, options)?).await
    }

    /// Installs from a flasher medium.
    #[zbus(out_args("job"))]
    async fn flash(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, Fault> {
        check_root(connection, &header, "flash").await?;
        self.check_flasher()?;
        self.begin(connection, &Asked::flash(options, false)?).await
    }

    /// What a flash would write. With options it opens files that the caller names, as root.
    #[zbus(out_args("plan"))]
    async fn plan(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Fault> {
        if !options.is_empty() {
            check_root(connection, &header, "plan with options").await?;
        }
        self.check_flasher()?;
        self.run_plan(&Asked::flash(options, true)?).await
    }

    /// Commits the running system.
    async fn mark_good(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Fault> {
        check_root(connection, &header, "commit").await?;
        // The service does not end meanwhile.
        let Some(_call) = self.core.begin_call() else {
            return Err(Error::new(Code::Busy, "cannot commit: a plan is being made").into());
        };
        let paths = self.core.paths.clone();
        match tokio::task::spawn_blocking(move || mark_good(&paths, &RollbackConf::on_trial(&paths, &[])))
            .await
        {
            Ok(result) => Ok(result?),
            Err(e) => Err(Error::new(Code::Io, "cannot commit").because(e).into()),
        }
    }

    /// Goes back to the other slot.
    #[zbus(out_args("job"))]
    async fn rollback(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, Fault> {
        check_root(connection, &header, "roll back").await?;
        self.begin(connection, &Asked::rollback()).await
    }

    /// Where the device stands. The lines of the journal in it are for those who may read the journal.
    #[zbus(out_args("status"))]
    async fn status(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Fault> {
        let mut status = self.core.status().await;
        if check_root(connection, &header, "read the journal").await.is_err() {
            let records = status.iter_mut().flat_map(|s| [&mut s.last_update, &mut s.last_rollback]);
            records.flatten().for_each(|record| record.journal.clear());
        }
        let text = status.and_then(|s| serde_json::to_string(&s).ok());
        text.ok_or_else(|| Error::new(Code::Io, "cannot read where the device stands").into())
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
