//! A system of its own, in namespaces of mounts and processes: a root folder with the host's programs, and a bus.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::kit::process::runs;
pub use crate::kit::process::wait;

pub use crate::kit::needs::can_run;

use crate::kit::systemd::{Systemd, Units};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Makes the root, and waits in it; `$1`: the folder, `$2`: the program.
const START: &str = r#"set -e
r=$1
mount -t tmpfs tmpfs $r
cd $r
mkdir usr dev sys proc tmp run var etc old opt root
for n in bin sbin lib lib64; do ln -s usr/$n $n; done
mount --rbind /usr usr
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
if [ -e proc/sysrq-trigger ]; then mount --bind /dev/null proc/sysrq-trigger; fi
for t in tmp run var; do mount -t tmpfs tmpfs $t; done
ln -s ../run var/run
touch opt/copal; mount --bind $2 opt/copal; ln -s copal opt/hostapp-update
echo root:x:0:0:root:/root:/bin/sh > etc/passwd
echo root:x:0: > etc/group
pivot_root . old; umount -l /old
exec env -i PATH=/usr/bin:/usr/sbin chroot . sh -c 'touch /run/up; while :; do sleep 1000; done'
"#;

const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>"#;

/// The system.
pub struct Place {
    pub systemd: Systemd,
    _dir: tempfile::TempDir,
    holder: Child,
    first: u32,
    bus: Option<Child>,
}

/// The units run in the system: copal, or `/opt/worker` in its place.
struct InSystem(u32);

impl InSystem {
    fn append(&self, path: &str) -> fs::File {
        fs::OpenOptions::new().create(true).append(true).open(at(self.0, path)).unwrap()
    }
}

impl Units for InSystem {
    fn start(&self, instance: &str) -> Child {
        let request = at(self.0, &format!("run/copal/job-{instance}.request"));
        let text = fs::read_to_string(&request).unwrap();
        fs::write(at(self.0, "run/asked"), &text).unwrap();
        drop(fs::copy(
            at(self.0, &format!("run/copal/job-{instance}.auth/config.json")),
            at(self.0, "run/credentials"),
        ));
        let mut command = if at(self.0, "opt/worker").exists() {
            fs::remove_file(request).unwrap();
            let request: serde_json::Value = serde_json::from_str(&text).unwrap();
            let mut command = enter(self.0, &["/opt/worker"]);
            let environment = request["environment"].as_object().into_iter().flatten();
            command.envs(environment.map(|(k, v)| (k, v.as_str().unwrap())));
            command.stdout(self.append(&format!("run/copal/job-{instance}.jsonl")));
            command
        } else {
            let mut command = enter(self.0, &["copal", "job", instance]);
            command.stdout(Stdio::null());
            command
        };
        command.stderr(self.append("run/stderr")).spawn().unwrap()
    }

    fn main_process(&self, child: u32) -> Option<nix::unistd::Pid> {
        inside(child)
    }

    fn ended(&self, instance: &str, code: &str, status: &str) {
        if at(self.0, "run/no-end").exists() {
            return;
        }
        let mut command = enter(self.0, &["copal", "job", instance, "--ended"]);
        drop(command.env("EXIT_CODE", code).env("EXIT_STATUS", status).output());
    }
}

/// A path of the system of this process, as the test sees it.
fn at(first: u32, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{first}/root")).join(path)
}

fn enter(first: u32, argv: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &first.to_string(), "-m", "-p", "-r", "-w", "--"]).args(argv);
    command.env_clear().env("PATH", "/opt:/usr/bin:/usr/sbin").env("HOME", "/root");
    command.stdin(Stdio::null());
    command
}

impl Place {
    /// Without a bus.
    pub fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("place-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let holder = Command::new("unshare")
            .args(["-m", "-p", "-f", "--kill-child", "--propagation", "private", "sh", "-c", START, "sh"])
            .args([&root, Path::new(env!("CARGO_BIN_EXE_copal"))])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let id = holder.id();
        let children = format!("/proc/{id}/task/{id}/children");
        let mut first = 0;
        until("the namespaces", || {
            let text = fs::read_to_string(&children).unwrap_or_default();
            first = text.split_whitespace().next().and_then(|t| t.parse().ok()).unwrap_or(0);
            first != 0 && Path::new(&format!("/proc/{first}/root/run/up")).exists()
        });
        Place { systemd: Systemd::new(InSystem(first)), _dir: dir, holder, first, bus: None }
    }

    /// With systemd on a bus.
    pub fn with_systemd() -> Place {
        let mut place = Place::new();
        place.start_bus();
        place.start_systemd();
        place
    }

    pub fn start_systemd(&mut self) {
        fs::create_dir_all(self.at("run/systemd/system")).unwrap();
        let address = self.address();
        self.systemd.serve(&address);
    }

    /// This script is what jobs run.
    pub fn worker(&self, script: &str) {
        self.put("opt/worker", script);
        assert!(self.run(&["chmod", "755", "/opt/worker"]).status.success());
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_default()
    }

    pub fn start_bus(&mut self) {
        let socket = self.at("run/dbus/system_bus_socket");
        drop(fs::remove_file(&socket));
        self.put("run/dbus/conf", BUS);
        let mut command =
            self.command(&["dbus-daemon", "--config-file=/run/dbus/conf", "--nofork", "--nopidfile"]);
        self.bus = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("the bus", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    }

    pub fn stop_bus(&mut self) {
        self.systemd.leave();
        if let Some(mut bus) = self.bus.take() {
            signal(&bus, nix::sys::signal::Signal::SIGKILL);
            bus.wait().unwrap();
        }
    }

    /// The bus, for this process.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.at("run/dbus/system_bus_socket").display())
    }

    /// A path of the system, as the test sees it.
    pub fn at(&self, path: &str) -> PathBuf {
        at(self.first, path)
    }

    pub fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A command in the system.
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = enter(self.first, argv);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn start(&self, argv: &[&str]) -> Child {
        self.command(argv).spawn().unwrap()
    }

    pub fn run(&self, argv: &[&str]) -> Output {
        wait(self.start(argv))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop_bus();
        // With the first process of the namespace goes every other.
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// The process that `nsenter` has started: it stays beside it, where a new namespace of processes is entered. `None` where `nsenter` has ended,
/// which it does with that process.
fn inside(id: u32) -> Option<nix::unistd::Pid> {
    let children = format!("/proc/{id}/task/{id}/children");
    let mut found = None;
    until("the program behind nsenter", || {
        // Asked first: where it had ended, its children cannot change any more.
        let ended = !runs(&id.to_string());
        let text = fs::read_to_string(&children).unwrap_or_default();
        found = text.split_whitespace().next().and_then(|t| t.parse().ok());
        found.is_some() || ended
    });
    found.map(nix::unistd::Pid::from_raw)
}

/// Sends a signal to the program behind `nsenter`, which has not ended.
pub fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(inside(child.id()).unwrap(), signal).unwrap();
}
