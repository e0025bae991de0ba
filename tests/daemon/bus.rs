//! A bus with our policy, a device, the service, and those who call it.
#![allow(unreachable_pub)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::needs;
use crate::kit::systemd::{Systemd, Units};

pub const NAME: &str = "io.balena.Copal1";
pub const TOP: &str = "/io/balena/Copal1";
pub const MANAGER: &str = "io.balena.Copal1.Manager";
pub const JOB: &str = "io.balena.Copal1.Job";

/// Longer than anything takes that is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Stands in for the process of a job. It gets program and specification of the request; what it says, and when, is in files beside it.
const WORKER: &str = r#"#!/bin/bash
here=$(dirname "$0")
printf '%s\n' "$1" >>"$here/requests"
env >"$here/environment"
[ -z "$DOCKER_CONFIG" ] || cp "$DOCKER_CONFIG/config.json" "$here/credentials"
trap 'echo TERM >>"$here/signals"; [ -e "$here/deaf" ] || { cat "$here/interrupted"; exit 4; }' TERM
n=0
while :; do
    # One line of the script a go; the file "go" says how many may be said.
    while go=$(cat "$here/go" 2>/dev/null) || exit 9; [ "$n" -ge "$go" ]; do sleep 0.02; done
    n=$((n + 1))
    line=$(sed -n "${n}p" "$here/says")
    case $line in
        exit*) exit "${line#exit }" ;;
        kill) kill -KILL $$ ;;
        '') exit 8 ;;
        *) printf '%s\n' "$line" ;;
    esac
done
"#;

pub const INTERRUPTED: &str = r#"{"event":"result","version":1,"ok":false,"code":"interrupted","message":"the update was ended by SIGTERM","object":null,"hint":"run it again","effect":"written"}"#;
pub const DONE: &str = r#"{"event":"result","version":1,"ok":true,"update":{"image":"a/b:1","slot":"B"}}"#;

pub fn progress(stage: &str, percent: u32) -> String {
    format!(
        r#"{{"event":"progress","version":1,"stage":"{stage}","percent":{percent},"bytes_done":{percent}0,"bytes_total":1000,"rate":10,"eta":7}}"#
    )
}

/// Ends a process with the test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Whether the programs are installed; says so where they are not.
pub fn has(test: &str, programs: &[&str]) -> bool {
    programs.iter().all(|program| needs::has(test, program))
}

/// A folder with a bus in it, and a device below `root`.
pub struct Place {
    pub systemd: Systemd,
    pub dir: tempfile::TempDir,
    bus: Option<Ended>,
}

/// Runs `copal job`, or the worker in its place.
struct Workers(PathBuf);

impl Units for Workers {
    fn start(&self, instance: &str) -> Child {
        let at = |kind: &str| self.0.join(format!("root/run/copal/job-{instance}.{kind}"));
        let append = |path: &Path| fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        if !self.0.join("worker").exists() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
            command.args(["job", instance, "--root"]).arg(self.0.join("root"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(append(&self.0.join("stderr")));
            return command.spawn().unwrap();
        }
        let request: Value = serde_json::from_slice(&fs::read(at("request")).unwrap()).unwrap();
        fs::remove_file(at("request")).unwrap();
        let mut command = Command::new(self.0.join("worker"));
        command.arg(json!([request["program"], request["spec"]]).to_string());
        if let Some(environment) = request["environment"].as_object() {
            command.env_clear().envs(environment.iter().map(|(k, v)| (k, v.as_str().unwrap())));
        }
        if at("auth").exists() {
            command.env("DOCKER_CONFIG", at("auth"));
        }
        command.stdin(Stdio::null()).stdout(append(&at("jsonl"))).stderr(append(&self.0.join("stderr")));
        command.spawn().unwrap()
    }

    fn main_process(&self, child: u32) -> Option<Pid> {
        Some(Pid::from_raw(child.cast_signed()))
    }

    fn ended(&self, instance: &str, code: &str, status: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command.args(["job", instance, "--ended", "--root"]).arg(self.0.join("root"));
        drop(command.env("EXIT_CODE", code).env("EXIT_STATUS", status).status());
    }
}

impl Place {
    /// `None` where there is no bus or nobody to call.
    pub fn new(test: &str) -> Option<Place> {
        if !has(test, &["dbus-daemon", "busctl", "gdbus", "bash"]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        // Others come in, too.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let systemd = Systemd::new(Workers(dir.path().to_owned()));
        let mut place = Place { systemd, dir, bus: None };
        fs::create_dir_all(place.root().join("mnt/boot")).unwrap();
        place.put("worker", WORKER);
        fs::set_permissions(place.at("worker"), fs::Permissions::from_mode(0o755)).unwrap();
        place.put("interrupted", &format!("{INTERRUPTED}\n"));
        place.says(&[DONE, "exit 0"]);
        place.go(99);
        place.start_bus();
        Some(place)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn root(&self) -> PathBuf {
        self.at("root")
    }

    /// At once: nobody reads half of it.
    pub fn put(&self, name: &str, text: &str) {
        let new = self.at(&format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.at(name)).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// What the process of the next job says, and how it ends.
    pub fn says(&self, lines: &[&str]) {
        self.put("says", &format!("{}\n", lines.join("\n")));
    }

    /// Program and specification of each request that the worker got.
    pub fn requests(&self) -> Vec<Value> {
        self.read("requests").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// From now on jobs are copal's.
    pub fn run_copal(&self) {
        fs::remove_file(self.at("worker")).unwrap();
    }

    /// How many lines it may say.
    pub fn go(&self, lines: usize) {
        self.put("go", &lines.to_string());
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.at("bus").display())
    }

    /// With the policy that is shipped.
    pub fn start_bus(&mut self) {
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/io.balena.Copal1.conf");
        self.start_bus_with(&format!("<include>{}</include>", policy.display()));
    }

    /// With none.
    pub fn start_open_bus(&mut self) {
        self.start_bus_with(
            r#"<policy context="default"><allow own="*"/><allow send_type="method_call"/></policy>"#,
        );
    }

    /// The service's file names a program here instead of a unit.
    fn start_bus_with(&mut self, policy: &str) {
        let services = self.at("services");
        fs::create_dir_all(&services).unwrap();
        let service = format!("[D-BUS Service]\nName={NAME}\nExec={}\n", self.at("activated").display());
        fs::write(services.join(format!("{NAME}.service")), service).unwrap();
        let start =
            format!("#!/bin/sh\necho x >>{}\nexec {}\n", self.at("starts").display(), self.shell_line());
        fs::write(self.at("activated"), start).unwrap();
        fs::set_permissions(self.at("activated"), fs::Permissions::from_mode(0o755)).unwrap();
        let conf = format!(
            r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
            "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
            <busconfig><listen>{}</listen><auth>EXTERNAL</auth><servicedir>{}</servicedir>
            <policy context="default"><allow user="*"/><deny own="*"/><deny send_type="method_call"/>
            <allow send_type="signal"/><allow send_requested_reply="true" send_type="method_return"/>
            <allow send_requested_reply="true" send_type="error"/><allow receive_type="method_call"/>
            <allow receive_type="method_return"/><allow receive_type="error"/><allow receive_type="signal"/>
            <allow send_destination="org.freedesktop.DBus"/><allow own="org.freedesktop.systemd1"/>
            <allow send_destination="org.freedesktop.systemd1"/></policy>
            {policy}</busconfig>"#,
            self.address(),
            services.display()
        );
        fs::write(self.at("conf"), conf).unwrap();
        let mut process = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", self.at("conf").display()))
            .args(["--nofork", "--nopidfile", "--print-address=1"])
            .env_remove("NOTIFY_SOCKET")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "dbus-daemon did not start");
        self.bus = Some(Ended(process));
        let address = self.address();
        self.systemd.serve(&address);
    }

    pub fn stop_bus(&mut self) {
        self.systemd.leave();
        self.bus = None;
        drop(fs::remove_file(self.at("bus")));
    }

    fn shell_line(&self) -> String {
        format!(
            "env DBUS_SYSTEM_BUS_ADDRESS={} {} daemon --root {} --idle 1",
            self.address(),
            env!("CARGO_BIN_EXE_copal"),
            self.root().display()
        )
    }

    /// The service, by hand.
    pub fn service(&self, args: &[&str]) -> Ended {
        self.service_of(Command::new(env!("CARGO_BIN_EXE_copal")), args)
    }

    /// The same, by a command that becomes another copal.
    pub fn service_of(&self, mut command: Command, args: &[&str]) -> Ended {
        command.arg("daemon").arg("--root").arg(self.root()).args(args);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", self.address());
        let said = fs::OpenOptions::new().create(true).append(true).open(self.at("stderr")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn().unwrap();
        let service = Ended(child);
        until("the service has its name", || self.owner().is_some());
        service
    }

    /// Who has the name. Starts nobody.
    pub fn owner(&self) -> Option<String> {
        let out = self
            .busctl(&[
                "call",
                "org.freedesktop.DBus",
                "/org/freedesktop/DBus",
                "org.freedesktop.DBus",
                "GetNameOwner",
                "s",
                NAME,
            ])
            .output()
            .unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }

    pub fn busctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("busctl");
        command.arg(format!("--address={}", self.address())).args(args).stdin(Stdio::null());
        command
    }

    /// Calls by busctl: its answer, or its error.
    pub fn call(&self, path: &str, interface: &str, method: &str, args: &[&str]) -> Result<String, String> {
        answer(self.busctl(&[&["call", NAME, path, interface, method], args].concat()).output().unwrap())
    }

    /// An update; the path of its job.
    pub fn update(&self, args: &[&str]) -> Result<String, String> {
        let said = self.call(TOP, MANAGER, "Update", args)?;
        Ok(said.strip_prefix("o \"").unwrap().trim_end_matches('"').to_owned())
    }

    /// A property, as busctl prints it, without its type.
    pub fn property(&self, path: &str, interface: &str, name: &str) -> String {
        let said = answer(self.busctl(&["get-property", NAME, path, interface, name]).output().unwrap());
        let said = said.unwrap_or_else(|e| panic!("{path} {name}: {e}"));
        let value = said.split_once(' ').map_or("", |(_, value)| value);
        value.trim_matches('"').to_owned()
    }

    pub fn wait_for_state(&self, job: &str, state: &str) {
        until(state, || self.property(job, JOB, "State") == state);
    }

    /// Everything that is sent from now on, by gdbus.
    pub fn watch(&self) -> Watch {
        let mut child = Command::new("gdbus")
            .args(["monitor", "--address", &self.address(), "--dest", NAME])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let reader = BufReader::new(child.stdout.take().unwrap());
        let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let shared = lines.clone();
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                shared.lock().unwrap().push(line);
            }
        });
        let watch = Watch { _process: Ended(child), lines };
        until("gdbus listens", || watch.lines().iter().any(|l| l.contains("is owned by")));
        watch
    }
}

/// What gdbus has seen.
pub struct Watch {
    _process: Ended,
    lines: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Watch {
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub fn wait_for(&self, text: &str) -> String {
        let find = || self.lines().into_iter().find(|l| l.contains(text));
        until(text, || find().is_some());
        find().unwrap()
    }
}

pub fn answer(out: Output) -> Result<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
    if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
