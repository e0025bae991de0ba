//! A bus of the tests' own, and on it a program that plays systemd and logind.
#![allow(dead_code)] // no test program uses all of it

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::io::{BufRead, BufReader, PipeReader};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use copal::sys::systemd::Bus;
use futures_core::Stream as _;
use tokio::runtime::Handle;
use zbus::wire::{ObjectPath, OwnedFd, OwnedObjectPath, Variant};
use zbus::{Connection, Message, MessageStream, message};

use super::needs::has;
use super::process::Ended;

const UNIT: &str = "org.freedesktop.systemd1.Unit";

/// What systemd says of a unit in a list.
type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// A `dbus-daemon` that lets everybody do everything.
pub struct Daemon {
    pub address: String,
    process: Ended,
    _dir: tempfile::TempDir,
}

impl Daemon {
    pub fn start(test: &str) -> Option<Daemon> {
        if !has(test, "dbus-daemon") {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("conf");
        let text = format!(
            r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
            "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
            <busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context="default">
            <allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
            </policy></busconfig>"#,
            dir.path().join("bus").display()
        );
        std::fs::write(&conf, text).unwrap();
        let mut process = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", conf.display()))
            .args(["--nofork", "--nopidfile", "--print-address=1"])
            .stdout(Stdio::piped())
            // It complains that it cannot raise its limits.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        assert!(!address.is_empty(), "dbus-daemon did not start");
        Some(Daemon { address: address.trim().to_owned(), process: Ended(process), _dir: dir })
    }

    pub fn stop(self) {
        drop(self.process);
    }

    pub fn bus(&self) -> Bus {
        Bus::at(&self.address)
    }
}

#[derive(Debug, Clone)]
pub struct Unit {
    pub load: &'static str,
    pub active: &'static str,
    pub sub: &'static str,
    pub job: u32,
}

pub const STARTING: Unit = Unit { load: "loaded", active: "activating", sub: "start", job: 7 };
pub const ACTIVE: Unit = Unit { load: "loaded", active: "active", sub: "running", job: 0 };
pub const FAILED: Unit = Unit { load: "loaded", active: "failed", sub: "failed", job: 0 };
pub const NOT_FOUND: Unit = Unit { load: "not-found", active: "inactive", sub: "dead", job: 0 };

#[derive(Default)]
struct State {
    units: HashMap<String, Unit>,
    calls: Vec<String>,
    silent: HashSet<&'static str>,
    refused: HashSet<&'static str>,
    /// Done once, while this method is being answered: before the answer is made, or after, but before it is sent.
    during: Option<(&'static str, bool, String, Unit)>,
    locks: Vec<PipeReader>,
}

/// The program that plays systemd and logind.
pub struct Fake {
    state: Arc<Mutex<State>>,
    connection: Connection,
    runtime: Handle,
}

impl Fake {
    pub fn start(daemon: &Daemon) -> Fake {
        let state = Arc::new(Mutex::new(State::default()));
        let (address, shared) = (daemon.address.clone(), state.clone());
        let (started, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let handle = runtime.handle().clone();
            runtime.block_on(async {
                let builder = zbus::connection::Builder::address(address.as_str());
                let names = ["org.freedesktop.systemd1", "org.freedesktop.login1"];
                let connection = names.iter().fold(builder, |b, n| b.name(*n)).build().await.unwrap();
                let mut calls = MessageStream::from(&connection);
                started.send((connection.clone(), handle)).unwrap();
                while let Some(Ok(call)) = poll_fn(|cx| Pin::new(&mut calls).poll_next(cx)).await {
                    if call.message_type() == message::Type::MethodCall {
                        answer(&connection, &shared, &call).await;
                    }
                }
            });
        });
        let (connection, runtime) = ready.recv_timeout(Duration::from_secs(300)).unwrap();
        Fake { state, connection, runtime }
    }

    pub fn with(self, name: &str, unit: Unit) -> Fake {
        self.state.lock().unwrap().units.insert(name.into(), unit);
        self
    }

    pub fn silent_on(self, method: &'static str) -> Fake {
        self.state.lock().unwrap().silent.insert(method);
        self
    }

    /// Refuses `call`: a method, or a method and its first argument.
    pub fn refusing(self, call: &'static str) -> Fake {
        self.state.lock().unwrap().refused.insert(call);
        self
    }

    /// Changes a unit while `method` is being answered, `late`: after what the answer says was decided.
    pub fn changing_during(self, method: &'static str, late: bool, name: &str, unit: Unit) -> Fake {
        self.state.lock().unwrap().during = Some((method, late, name.into(), unit));
        self
    }

    /// Changes a unit, and tells those who subscribed.
    pub fn change(&self, name: &str, unit: Unit) {
        self.runtime.block_on(change(&self.connection, &self.state, name, unit));
    }

    /// The calls so far, as `Method arguments`.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    pub fn count(&self, method: &str) -> usize {
        self.calls().iter().filter(|c| c.split(' ').next() == Some(method)).count()
    }

    /// Waits until `method` has been called so often.
    pub fn wait_for(&self, method: &str, times: usize) {
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while self.count(method) < times {
            assert!(std::time::Instant::now() < end, "{method}: {:?}", self.calls());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The other end of the inhibitor lock that was given last.
    pub fn lock(&self) -> PipeReader {
        self.state.lock().unwrap().locks.pop().unwrap()
    }
}

fn path_of(unit: &str) -> String {
    let escaped: String = unit
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("_{b:02x}") })
        .collect();
    format!("/org/freedesktop/systemd1/unit/{escaped}")
}

async fn change(connection: &Connection, state: &Mutex<State>, name: &str, unit: Unit) {
    let subscribed = {
        let mut state = state.lock().unwrap();
        let known = state.units.insert(name.into(), unit.clone());
        assert!(known.is_some(), "{name}");
        state.calls.iter().any(|c| c == "Subscribe")
    };
    // As systemd does: nothing is told before somebody subscribes.
    if subscribed {
        let changed = HashMap::from([("ActiveState", Variant::from(unit.active))]);
        let body = (UNIT, changed, Vec::<String>::new());
        let member = ("org.freedesktop.DBus.Properties", "PropertiesChanged");
        connection.emit_signal(None::<&str>, path_of(name), member.0, member.1, &body).await.unwrap();
    }
}

async fn answer(connection: &Connection, state: &Mutex<State>, call: &Message) {
    let header = call.header();
    let method = header.member().unwrap().as_str().to_owned();
    let texts = |n: usize| -> Vec<String> {
        let body = call.body();
        match n {
            1 => vec![body.deserialize::<(String,)>().unwrap().0],
            2 => <[String; 2]>::from(body.deserialize::<(String, String)>().unwrap()).into(),
            _ => <[String; 4]>::from(body.deserialize::<(String, String, String, String)>().unwrap()).into(),
        }
    };
    let arguments = match method.as_str() {
        "LoadUnit" | "GetAll" => texts(1),
        "StartUnit" => texts(2),
        "Inhibit" => texts(4),
        "ListUnitsFiltered" => call.body().deserialize::<(Vec<String>,)>().unwrap().0,
        _ => Vec::new(),
    };
    let (silent, refused, during) = {
        let mut state = state.lock().unwrap();
        state.calls.push([vec![method.clone()], arguments.clone()].concat().join(" "));
        let during = state.during.take_if(|(m, ..)| *m == method);
        let with_first = arguments.first().map(|first| format!("{method} {first}"));
        let refused = [Some(&method), with_first.as_ref()];
        let refused = refused.into_iter().flatten().any(|call| state.refused.contains(call.as_str()));
        (state.silent.contains(method.as_str()), refused, during)
    };
    if silent {
        return;
    }
    if let Some((_, false, name, unit)) = &during {
        change(connection, state, name, unit.clone()).await;
    }
    if refused {
        connection
            .reply_error(&header, "org.freedesktop.systemd1.NoSuchUnit", &"no such unit")
            .await
            .unwrap();
        return;
    }
    match method.as_str() {
        "LoadUnit" => {
            let path = path_of(&arguments[0]);
            connection.reply(&header, &ObjectPath::try_from(path).unwrap()).await.unwrap();
        }
        "GetAll" => {
            let unit = {
                let state = state.lock().unwrap();
                let path = header.path().unwrap().as_str();
                state.units.iter().find(|(n, _)| path_of(n) == path).unwrap().1.clone()
            };
            let job = (unit.job, ObjectPath::try_from("/").unwrap());
            let properties = HashMap::from([
                ("LoadState", Variant::from(unit.load)),
                ("ActiveState", Variant::from(unit.active)),
                ("SubState", Variant::from(unit.sub)),
                ("Job", Variant::from(job)),
            ]);
            if let Some((_, true, name, unit)) = &during {
                change(connection, state, name, unit.clone()).await;
            }
            connection.reply(&header, &properties).await.unwrap();
        }
        "Inhibit" => {
            let (reader, writer) = std::io::pipe().unwrap();
            state.lock().unwrap().locks.push(reader);
            connection.reply(&header, &OwnedFd::from(std::os::fd::OwnedFd::from(writer))).await.unwrap();
        }
        "ListUnitsFiltered" => {
            let (path, none) = (|name: &str| path_of(name).try_into().unwrap(), "/".try_into().unwrap());
            let row = |name: &str, unit: &Unit| -> Row {
                let text = [name, "", unit.load, unit.active, unit.sub, ""].map(str::to_owned);
                let [name, about, load, active, sub, following] = text;
                let path: OwnedObjectPath = path(&name);
                (
                    name,
                    about,
                    load,
                    active,
                    sub,
                    following,
                    path,
                    0,
                    String::new(),
                    OwnedObjectPath::clone(&none),
                )
            };
            let rows: Vec<Row> = {
                let state = state.lock().unwrap();
                let named = state.units.iter().filter(|(_, unit)| arguments.iter().any(|a| a == unit.active));
                named.map(|(name, unit)| row(name, unit)).collect()
            };
            connection.reply(&header, &rows).await.unwrap();
        }
        "StartUnit" => {
            connection.reply(&header, &ObjectPath::try_from("/job/1").unwrap()).await.unwrap();
        }
        _ => connection.reply(&header, &()).await.unwrap(),
    }
}
