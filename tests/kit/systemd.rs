//! A stand-in for systemd's manager on a bus of the tests' own: it runs the units of jobs.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zbus::OwnedObjectPath;
use zbus::fdo;

/// How the test runs an instance of `copal-job@.service`.
pub trait Units: Send + Sync + 'static {
    /// `ExecStart=`
    fn start(&self, instance: &str) -> Child;
    /// The process that systemd would call the main one, of the child with this number; `None` where it has ended.
    fn main_process(&self, child: u32) -> Option<Pid>;
    /// `ExecStopPost=`, with `EXIT_CODE` and `EXIT_STATUS`.
    fn ended(&self, instance: &str, code: &str, status: &str);
}

/// What systemd does with a request to start a unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Answer {
    #[default]
    Given,
    /// It starts the unit, and does not answer.
    Lost,
    /// It starts the unit, and leaves the bus, which answers in its place.
    Gone,
    /// It neither starts the unit nor answers.
    Silence,
    NoSuchUnit,
    /// As during a shutdown.
    Destructive,
}

#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
pub enum Refusal {
    #[zbus(error)]
    Other(zbus::Error),
    TransactionIsDestructive(String),
}

impl From<fdo::Error> for Refusal {
    fn from(e: fdo::Error) -> Self {
        Refusal::Other(e.into())
    }
}

#[derive(Default)]
struct State {
    answer: Answer,
    /// The child of each unit that runs.
    running: HashMap<String, u32>,
    calls: Vec<String>,
}

struct Manager {
    units: Arc<dyn Units>,
    state: Arc<Mutex<State>>,
}

fn instance(unit: &str) -> fdo::Result<String> {
    let instance = unit.strip_prefix("copal-job@").and_then(|u| u.strip_suffix(".service"));
    instance.map(str::to_owned).ok_or_else(|| fdo::Error::Failed(format!("Unit {unit} not found.")))
}

/// A row of `ListUnitsByNames`: name, description, three states, followed unit, path, and job.
type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    async fn start_unit(&self, unit: &str, _mode: &str) -> Result<OwnedObjectPath, Refusal> {
        let answer = {
            let mut state = self.state.lock().unwrap();
            state.calls.push(format!("start {unit}"));
            state.answer
        };
        match answer {
            Answer::Silence => std::future::pending().await,
            Answer::NoSuchUnit => return Err(fdo::Error::Failed(format!("Unit {unit} not found.")).into()),
            Answer::Destructive => return Err(Refusal::TransactionIsDestructive(unit.to_owned())),
            Answer::Given | Answer::Lost | Answer::Gone => {}
        }
        let instance = instance(unit)?;
        let mut child = self.units.start(&instance);
        self.state.lock().unwrap().running.insert(unit.to_owned(), child.id());
        let (units, state, unit) = (self.units.clone(), self.state.clone(), unit.to_owned());
        std::thread::spawn(move || {
            let status = child.wait().unwrap();
            match (status.code(), status.signal()) {
                (Some(code), _) => units.ended(&instance, "exited", &code.to_string()),
                (None, signal) => {
                    let signal = Signal::try_from(signal.unwrap()).unwrap();
                    units.ended(&instance, "killed", signal.as_str().trim_start_matches("SIG"));
                }
            }
            state.lock().unwrap().running.remove(&unit);
        });
        match answer {
            Answer::Lost => std::future::pending().await,
            Answer::Gone => {
                return Err(fdo::Error::NoReply("Message recipient disconnected".to_owned()).into());
            }
            _ => {}
        }
        Ok(OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/1").unwrap())
    }

    fn kill_unit(&self, unit: &str, who: &str, signal: i32) -> fdo::Result<()> {
        assert_eq!(who, "main", "the program ends its own children");
        let mut state = self.state.lock().unwrap();
        state.calls.push(format!("kill {unit} {signal}"));
        match state.running.get(unit) {
            Some(&child) => {
                if let Some(process) = self.units.main_process(child) {
                    // It may end just now.
                    let _ended = kill(process, Signal::try_from(signal).unwrap());
                }
                Ok(())
            }
            None => Err(fdo::Error::Failed(format!("Unit {unit} not loaded."))),
        }
    }

    fn list_units_by_names(&self, units: Vec<String>) -> Vec<Row> {
        let state = self.state.lock().unwrap();
        let path = || OwnedObjectPath::try_from("/").unwrap();
        let none = String::new;
        let row = |unit: String| {
            let active = if state.running.contains_key(&unit) { "active" } else { "inactive" };
            (unit, none(), "loaded".into(), active.into(), none(), none(), path(), 0, none(), path())
        };
        units.into_iter().map(row).collect()
    }
}

pub struct Systemd {
    state: Arc<Mutex<State>>,
    units: Arc<dyn Units>,
    serving: Option<(tokio::sync::oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Systemd {
    pub fn new(units: impl Units) -> Systemd {
        Systemd { state: Arc::default(), units: Arc::new(units), serving: None }
    }

    /// Takes its name on this bus. Units that run go on meanwhile.
    pub fn serve(&mut self, address: &str) {
        self.leave();
        let manager = Manager { units: self.units.clone(), state: self.state.clone() };
        let address = address.to_owned();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let connection = zbus::connection::Builder::address(address.as_str())
                    .serve_at("/org/freedesktop/systemd1", manager)
                    .name("org.freedesktop.systemd1")
                    .build()
                    .await
                    .unwrap();
                ready.send(()).unwrap();
                drop(stopped.await);
                drop(connection);
            });
        });
        is_ready.recv().unwrap();
        self.serving = Some((stop, thread));
    }

    pub fn leave(&mut self) {
        if let Some((stop, thread)) = self.serving.take() {
            drop(stop);
            thread.join().unwrap();
        }
    }

    pub fn answer(&self, answer: Answer) {
        self.state.lock().unwrap().answer = answer;
    }

    /// The calls that it received, in order.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        self.leave();
        // No unit outlives its test. It may have ended with the system that it ran in, and its end may not be noted yet.
        for child in self.state.lock().unwrap().running.values() {
            if let Some(process) = self.units.main_process(*child) {
                let _ended = kill(process, Signal::SIGKILL);
            }
        }
    }
}
