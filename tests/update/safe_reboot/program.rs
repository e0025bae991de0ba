//! The program itself, where it can end nothing but a process namespace of its own.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::libc;

use crate::kit::dbus::{Daemon, Fake};
use crate::kit::needs::{has, is_root};
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
exec $WITHOUT /run/copal safe_reboot"#;

fn program(root: &Root, bus: Option<&Path>) -> Command {
    std::fs::create_dir_all(root.at("tmp")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", RUN]);
    command.env("COPAL", env!("CARGO_BIN_EXE_copal")).env("ROOT", root.path()).env("WITHOUT", "");
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
    if !can_run("safe_reboot by the kernel") {
        return;
    }
    let root = Root::new();
    let out = program(&root, None).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    // reboot(2) in a process namespace ends its first process by this signal.
    assert_eq!(out.status.signal(), Some(libc::SIGHUP), "{text}");
    assert!(text.contains("[safe_reboot][INFO] Reboot in progress\n"), "{text}");
}

#[test]
fn when_every_way_fails_that_is_an_error() {
    if !can_run("safe_reboot without any way") {
        return;
    }
    let root = Root::new();
    let without = "setpriv --bounding-set=-sys_boot --inh-caps=-sys_boot";
    let out = program(&root, None).env("WITHOUT", without).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains("the kernel: Operation not permitted") && last.contains("sysrq: "), "{last}");
    assert!(last.contains("[reboot-failed]"), "{last}");
}

#[test]
fn a_held_lock_keeps_systemd_from_being_asked() {
    let test = "safe_reboot by systemd";
    if !can_run(test) {
        return;
    }
    let Some(daemon) = Daemon::start(test) else { return };
    let fake = Fake::start(&daemon);
    let bus = daemon.address.trim_start_matches("unix:path=").split(',').next().unwrap().to_owned();

    let root = Root::new();
    let log = root.at("tmp/calls");
    root.program("bin/resin-device-progress", "#!/bin/sh\necho \"$*\" >>/tmp/calls\n");
    let services = root.at("tmp/balena-supervisor/services/test");
    std::fs::create_dir_all(&services).unwrap();
    let lock = File::create(services.join("updates.lock")).unwrap();
    lock.lock().unwrap();

    let mut process = Ended(
        program(&root, Some(Path::new(&bus))).stderr(File::create(root.at("log")).unwrap()).spawn().unwrap(),
    );
    let busy = "[safe_reboot][WARN] /tmp/balena-supervisor/services/test/updates.lock exists, busy waiting on unlocking for reboot.\n";
    assert!(soon(|| root.read("log").contains(busy)), "{}", root.read("log"));
    assert!(soon(|| log.exists()));
    assert_eq!(fake.calls(), Vec::<String>::new());
    drop(lock);
    fake.wait_for("StartUnit", 1);
    assert_eq!(fake.calls(), ["StartUnit reboot.target replace-irreversibly"]);
    let wanted = "--percentage 100 --state Reboot waiting on application lock\n--percentage 100 --state Reboot in progress\n";
    assert_eq!(root.read("tmp/calls"), wanted);
    // It is on its way; the program stays until it is ended.
    std::thread::sleep(Duration::from_millis(500));
    assert!(process.0.try_wait().unwrap().is_none());
    assert!(root.read("log").ends_with("systemd was asked to reboot\n"), "{}", root.read("log"));
}
