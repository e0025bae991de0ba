//! A program that plays the daemon.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_core::Stream as _;
use tokio::runtime::Handle;
use zbus::wire::{ObjectPath, OwnedVariant, Variant};
use zbus::{Connection, Message, MessageStream, message};

use super::place::{Place, until};

pub const JOB: &str = "/io/balena/Copal1/job/1";
const JOB_INTERFACE: &str = "io.balena.Copal1.Job";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// What `Update` was called with.
pub struct Asked {
    pub source: String,
    pub options: HashMap<String, OwnedVariant>,
}

impl Asked {
    pub fn text(&self, key: &str) -> Option<&str> {
        self.options.get(key).and_then(|v| v.downcast_ref::<&str>().ok())
    }

    pub fn flag(&self, key: &str) -> bool {
        self.options[key].downcast_ref::<bool>().unwrap()
    }

    pub fn environment(&self) -> HashMap<String, String> {
        self.options["environment"].try_clone().unwrap().try_into().unwrap()
    }
}

/// A job's properties.
#[derive(Clone, Default)]
pub struct Job {
    pub state: &'static str,
    pub stage: &'static str,
    pub done: u64,
    pub total: u64,
    pub result: String,
    pub error: HashMap<String, String>,
}

impl Job {
    pub fn running(stage: &'static str, done: u64, total: u64) -> Job {
        Job { state: "running", stage, done, total, ..Job::default() }
    }

    pub fn succeeded() -> Job {
        Job { state: "succeeded", stage: "done", result: INSTALLED.into(), ..Job::default() }
    }

    pub fn failed(code: &str, effect: &str) -> Job {
        let pairs = [
            ("code", code),
            ("message", "cannot do x"),
            ("object", "/x"),
            ("hint", "do y"),
            ("effect", effect),
        ];
        let error = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        Job { state: "failed", stage: "done", error, ..Job::default() }
    }
}

pub const INSTALLED: &str =
    r#"{"image":"a:1","image_id":"sha256:1","hostapp":"h","slot":"B","selected":true,"counter":5}"#;

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    calls: Vec<String>,
    job: Option<Job>,
    /// So many calls of `Update` get no answer.
    silent: usize,
    /// The error that `Update` is answered with: code in CamelCase, text.
    refusal: Option<[&'static str; 2]>,
}

/// The daemon.
pub struct StandIn {
    state: Arc<Mutex<State>>,
    served: Option<(Connection, Handle)>,
}

impl StandIn {
    pub fn new() -> StandIn {
        let state = Arc::new(Mutex::new(State::default()));
        StandIn { state, served: None }
    }

    /// On the bus of a place, with a job that runs once it is asked for.
    pub fn on(place: &Place) -> StandIn {
        let mut daemon = StandIn::new();
        daemon.serve(place);
        daemon
    }

    pub fn refusing(self, refusal: [&'static str; 2]) -> StandIn {
        self.state.lock().unwrap().refusal = Some(refusal);
        self
    }

    pub fn silent(self, times: usize) -> StandIn {
        self.state.lock().unwrap().silent = times;
        self
    }

    /// Connects to the bus, and takes the name.
    pub fn serve(&mut self, place: &Place) {
        let (address, shared) = (place.address(), self.state.clone());
        let (started, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let handle = runtime.handle().clone();
            runtime.block_on(async {
                let builder = zbus::connection::Builder::address(address.as_str());
                let connection = builder.build().await.unwrap();
                // Before it has the name: a call that nobody listens for has no answer.
                let mut calls = MessageStream::from(&connection);
                connection.request_name("io.balena.Copal1").await.unwrap();
                started.send((connection.clone(), handle)).unwrap();
                while let Some(Ok(call)) = poll_fn(|cx| Pin::new(&mut calls).poll_next(cx)).await {
                    if call.message_type() == message::Type::MethodCall {
                        answer(&connection, &shared, &call).await;
                    }
                }
            });
        });
        self.served = Some(ready.recv_timeout(Duration::from_secs(60)).unwrap());
    }

    /// Leaves the bus, as one that was killed; what it knows it keeps.
    pub fn leave(&mut self) {
        if let Some((connection, runtime)) = self.served.take() {
            runtime.block_on(connection.close()).unwrap();
        }
    }

    /// Changes the job; with a signal, where the bus is there.
    pub fn show(&self, job: Job) {
        let changed = HashMap::from([("Stage", Variant::from(job.stage))]);
        self.state.lock().unwrap().job = Some(job);
        if let Some((connection, runtime)) = &self.served {
            let body = (JOB_INTERFACE, changed, Vec::<String>::new());
            runtime
                .block_on(connection.emit_signal(None::<&str>, JOB, PROPERTIES, "PropertiesChanged", &body))
                .unwrap();
        }
    }

    /// The job is over with the service it belonged to.
    pub fn forget(&self) {
        self.state.lock().unwrap().job = None;
    }

    pub fn count(&self, method: &str) -> usize {
        self.state.lock().unwrap().calls.iter().filter(|c| *c == method).count()
    }

    /// Waits until a method has been called so often.
    pub fn wait_for(&self, method: &str, times: usize) {
        until(method, || self.count(method) >= times);
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.leave();
    }
}

async fn answer(connection: &Connection, state: &Mutex<State>, call: &Message) {
    let header = call.header();
    let method = header.member().unwrap().as_str().to_owned();
    state.lock().unwrap().calls.push(method.clone());
    match method.as_str() {
        "Get" => connection.reply(&header, &Variant::from("0")).await.unwrap(),
        "Update" => {
            let (source, options) = call.body().deserialize().unwrap();
            let (silent, refusal) = {
                let mut state = state.lock().unwrap();
                state.asked.push(Asked { source, options });
                state.job.get_or_insert(Job::running("start", 0, 0));
                let silent = state.silent > 0;
                state.silent = state.silent.saturating_sub(1);
                (silent, state.refusal)
            };
            if let Some([code, text]) = refusal {
                let name = format!("io.balena.Copal1.Error.{code}");
                connection.reply_error(&header, name.as_str(), &text).await.unwrap();
            } else if !silent {
                connection.reply(&header, &ObjectPath::try_from(JOB).unwrap()).await.unwrap();
            }
        }
        "GetAll" => {
            let job = state.lock().unwrap().job.clone();
            let Some(job) = job else {
                let name = "org.freedesktop.DBus.Error.UnknownObject";
                connection.reply_error(&header, name, &"no such object").await.unwrap();
                return;
            };
            let properties = HashMap::from([
                ("Id", Variant::from(1_u32)),
                ("State", Variant::from(job.state)),
                ("Stage", Variant::from(job.stage)),
                ("BytesDone", Variant::from(job.done)),
                ("BytesTotal", Variant::from(job.total)),
                ("Result", Variant::from(job.result)),
                ("Error", Variant::from(job.error)),
            ]);
            connection.reply(&header, &properties).await.unwrap();
        }
        _ => connection.reply(&header, &()).await.unwrap(),
    }
}
