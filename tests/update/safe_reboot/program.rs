//! The program itself, where it can end nothing but a process namespace of its own.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::libc;

use crate::kit::dbus::{Daemon, Fake};
use crate::kit::needs::{has, is_root, needs};
use crate::kit::process::Ended;
use crate::kit::process::{Root, soon};

/// In mount and process namespaces: `/tmp` and `/run` are the test's, `/proc` (with sysrq) is not there.
const RUN: &str = r#"set -e
mount -t tmpfs run /run
touch /run/copal && mount --bind "$COPAL" /run/copal
mkdir /run/bus && mount --bind "$BUS" /run/bus
[ -z "$MANAGED" ] || mkdir -p /run/systemd/system
[ ! -d "$ROOT/bin" ] || mount -t overlay -o "lowerdir=$ROOT/bin:/usr/bin" bin /usr/bin
cd "$ROOT" && mount --bind tmp /tmp
mount -t tmpfs proc /proc
exec $WITHOUT /run/copal $VERB"#;

fn program(root: &Root, bus: Option<&Path>) -> Command {
    std::fs::create_dir_all(root.at("tmp")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", RUN]);
    command.env("COPAL", env!("CARGO_BIN_EXE_copal")).env("ROOT", root.path()).env("WITHOUT", "");
    command.env("VERB", "safe_reboot");
    command.env("BUS", bus.unwrap_or(Path::new("/var/empty")).parent().unwrap());
    command
        .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/bus/bus")
        .env("MANAGED", bus.map_or("", |_| "yes"));
    command.env_remove("COPAL_LOG").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn can_run(test: &str) -> bool {
    is_root(test) && has(test, "unshare") && has(test, "setpriv")
}

#[test]
fn it_takes_no_arguments() {
    let out = Command::new(env!("CARGO_BIN_EXE_copal")).args(["safe_reboot", "--now"]).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(2) && text.contains("--now") && text.contains("[usage]"), "{text}");
}

#[test]
fn without_systemd_the_kernel_is_asked() {
    needs!(can_run);
    let root = Root::new();
    let out = program(&root, None).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    // reboot(2) in a process namespace ends its first process by this signal.
    assert_eq!(out.status.signal(), Some(libc::SIGHUP), "{text}");
    assert!(text.contains("[safe_reboot][INFO] Reboot in progress\n"), "{text}");
}

#[test]
fn when_every_way_fails_that_is_an_error() {
    needs!(can_run);
    let root = Root::new();
    let without = "setpriv --bounding-set=-sys_boot --inh-caps=-sys_boot";
    let out = program(&root, None).env("WITHOUT", without).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains("the kernel: Operation not permitted") && last.contains("sysrq: "), "{last}");
    assert!(last.contains("[reboot-failed]"), "{last}");
}

/// A device with a service that holds its update lock, the program on it, and the systemd that it asks.
struct Device {
    root: Root,
    fake: Fake,
    lock: Option<File>,
    process: Ended,
    _daemon: Daemon,
}

impl Device {
    /// `None` without what it takes.
    fn start(test: &str, verb: &str, systemd: impl FnOnce(Fake) -> Fake) -> Option<Device> {
        if !can_run(test) {
            return None;
        }
        let daemon = Daemon::start(test)?;
        let fake = systemd(Fake::start(&daemon));
        let bus = daemon.address.trim_start_matches("unix:path=").split(',').next().unwrap().to_owned();
        let root = Root::new();
        root.program("bin/resin-device-progress", "#!/bin/sh\necho \"$*\" >>/tmp/calls\n");
        let services = root.at("tmp/balena-supervisor/services/test");
        std::fs::create_dir_all(&services).unwrap();
        let lock = File::create(services.join("updates.lock")).unwrap();
        lock.lock().unwrap();
        let mut command = program(&root, Some(Path::new(&bus)));
        command.env("VERB", verb).env("COPAL_LOG", "info").stderr(File::create(root.at("log")).unwrap());
        let process = Ended(command.spawn().unwrap());
        Some(Device { root, fake, lock: Some(lock), process, _daemon: daemon })
    }

    fn unlock_when_waited_for(&mut self) {
        let busy = "[safe_reboot][WARN] /tmp/balena-supervisor/services/test/updates.lock exists, busy waiting on unlocking for reboot.\n";
        assert!(soon(|| self.root.read("log").contains(busy)), "{}", self.root.read("log"));
        assert!(soon(|| self.root.at("tmp/calls").exists()));
        assert_eq!(self.fake.calls(), Vec::<String>::new());
        self.lock = None;
    }

    /// The reboot is on its way; the program stays until it is ended.
    fn stays(&mut self, last: &str, calls: &[&str]) {
        assert!(soon(|| self.root.read("log").ends_with(last)), "{}", self.root.read("log"));
        std::thread::sleep(Duration::from_millis(500));
        assert!(self.process.0.try_wait().unwrap().is_none());
        assert!(self.root.read("log").ends_with(last), "{}", self.root.read("log"));
        assert_eq!(self.fake.calls(), calls);
    }
}

const BY_UNIT: &str = "StartUnit copal-reboot.service fail";
const BY_SYSTEMD: &str = "StartUnit reboot.target replace-irreversibly";

#[test]
fn a_held_lock_keeps_systemd_from_being_asked() {
    let Some(mut device) = Device::start("safe_reboot by its unit", "safe_reboot", |fake| fake) else {
        return;
    };
    device.unlock_when_waited_for();
    device.stays("copal-reboot.service reboots the device\n", &[BY_UNIT]);
    let wanted = "--percentage 100 --state Reboot waiting on application lock\n--percentage 100 --state Reboot in progress\n";
    assert_eq!(device.root.read("tmp/calls"), wanted);
}

#[test]
fn where_systemd_does_not_have_the_unit_the_program_asks_for_the_reboot() {
    let without = |fake: Fake| fake.refusing("StartUnit copal-reboot.service");
    let Some(mut device) = Device::start("safe_reboot by systemd", "safe_reboot", without) else { return };
    device.unlock_when_waited_for();
    device.stays("systemd was asked to reboot\n", &[BY_UNIT, BY_SYSTEMD]);
}

/// Its caller has waited for them.
#[test]
fn the_program_of_the_unit_reboots_whatever_is_locked() {
    let Some(mut device) = Device::start("copal reboot", "reboot", |fake| fake) else { return };
    device.stays("systemd was asked to reboot\n", &[BY_SYSTEMD]);
}
