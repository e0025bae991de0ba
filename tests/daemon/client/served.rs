//! With the real daemon: the job is a process of its own, and ends only with itself.

use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::followed::BEGUN_HERE;
use super::place::{Place, can_run, signal, stderr, stdout, until, wait};

/// What does the daemon's jobs: it waits to be let go, and ends as asked.
const WORKER: &str = r#"#!/bin/sh
trap 'echo "{\"event\":\"result\",\"version\":1,\"ok\":false,\"code\":\"interrupted\",\"message\":\"the update was ended\",\"object\":null,\"hint\":\"again\",\"effect\":\"written\"}"; exit 4' TERM
echo "$COPAL_IN_DAEMON $COPAL_LOG $*" > /run/called
echo '{"event":"stage","version":1,"stage":"load","state":"begin","percent":0,"bytes_done":0,"bytes_total":100,"rate":null,"eta":null}'
touch /run/begun
while [ ! -e /run/go ]; do sleep 0.05; done
echo '{"event":"stage","version":1,"stage":"load","state":"end","percent":100,"bytes_done":100,"bytes_total":100,"rate":1,"eta":0}'
echo '{"event":"result","version":1,"ok":true,"update":{"image":"a:1","image_id":"sha256:1","hostapp":"h","slot":"B","selected":true,"counter":5}}'
touch /run/ended
"#;

/// A daemon, and its end.
pub struct Daemon(Child);

impl Daemon {
    pub fn start(place: &Place, more: &[&str]) -> Daemon {
        let mut command = place.command(&[&["copal", "daemon"], more].concat());
        let daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        is_there(place);
        daemon
    }

    fn with_worker(place: &Place) -> Daemon {
        place.put("opt/worker", WORKER);
        assert!(place.run(&["chmod", "755", "/opt/worker"]).status.success());
        Daemon::start(place, &["--worker", "/opt/worker"])
    }

    fn kill(mut self) {
        signal(&self.0, Signal::SIGKILL);
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            signal(&self.0, Signal::SIGKILL);
            self.0.wait().unwrap();
        }
    }
}

/// Waits until somebody has the daemon's name.
fn is_there(place: &Place) {
    let ask = [
        "dbus-send",
        "--system",
        "--print-reply",
        "--dest=org.freedesktop.DBus",
        "/org/freedesktop/DBus",
        "org.freedesktop.DBus.GetNameOwner",
        "string:io.balena.Copal1",
    ];
    until("the daemon", || place.run(&ask).status.success());
}

fn begun(place: &Place) {
    until("the job", || place.at("run/begun").exists());
}

#[test]
fn the_job_and_its_result_are_the_updates() {
    if !can_run("the_job_and_its_result_are_the_updates") {
        return;
    }
    let place = Place::with_bus();
    let _daemon = Daemon::with_worker(&place);
    let child = place.start(&["hostapp-update", "-r", "-f", "/opt/os.tar"]);
    begun(&place);
    std::thread::sleep(Duration::from_millis(600));
    place.put("run/go", "");
    let out = wait(child);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(0), "{log}");
    let called = std::fs::read_to_string(place.at("run/called")).unwrap();
    assert_eq!(called, "hostapp-update info update --json --file=/opt/os.tar --reboot\n");
    assert!(log.contains("the daemon runs the update as /io/balena/Copal1/job/1"), "{log}");
    assert!(log.contains("load: done, 100 B"), "{log}");
    assert!(log.contains("/opt/os.tar is installed; slot B boots next, on trial"), "{log}");
}

#[test]
fn a_refusal_is_the_same_in_the_daemon_and_without_it() {
    if !can_run("a_refusal_is_the_same_in_the_daemon_and_without_it") {
        return;
    }
    let place = Place::with_bus();
    let _daemon = Daemon::start(&place, &[]);
    let both = |argv: &[&str]| {
        let here = place.run(&[argv, &["--no-daemon"]].concat());
        let there = place.run(argv);
        assert_eq!(there.status.code(), here.status.code(), "{}", stderr(&there));
        (here, there)
    };
    let (here, there) = both(&["copal", "update", "-i", "a:1"]);
    assert_eq!((here.status.code(), stderr(&here)), (Some(3), stderr(&there)));
    assert!(stderr(&here).contains(BEGUN_HERE));
    let (here, there) = both(&["copal", "update", "--json", "-i", "a:1"]);
    assert_eq!(stdout(&here), stdout(&there));
    let (here, there) = both(&["hostapp-update", "-i", "a:1"]);
    let last = |text: String| text.lines().last().unwrap().to_owned();
    assert_eq!((here.status.code(), last(stderr(&here))), (Some(1), last(stderr(&there))));
    // Not carried out here after all.
    assert!(stderr(&there).contains("the daemon runs the update"), "{}", stderr(&there));
}

#[test]
fn a_cancelled_job_is_waited_for() {
    if !can_run("a_cancelled_job_is_waited_for") {
        return;
    }
    let place = Place::with_bus();
    let _daemon = Daemon::with_worker(&place);
    let child = place.start(&["copal", "update", "--json", "-i", "a:1"]);
    begun(&place);
    signal(&child, Signal::SIGINT);
    let out = wait(child);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    let last: Value = serde_json::from_str(stdout(&out).lines().last().unwrap()).unwrap();
    assert_eq!((&last["code"], &last["effect"]), (&"interrupted".into(), &"written".into()));
    assert!(!place.at("run/ended").exists());
}

#[test]
fn a_killed_client_ends_nothing_and_a_second_one_gets_the_result() {
    if !can_run("a_killed_client_ends_nothing_and_a_second_one_gets_the_result") {
        return;
    }
    let place = Place::with_bus();
    let _daemon = Daemon::with_worker(&place);
    let mut child = place.start(&["copal", "update", "-i", "a:1"]);
    begun(&place);
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    let out = place.run(&["copal", "update", "-i", "a:1"]);
    assert_eq!(out.status.code(), Some(5), "{}", stderr(&out));
    place.put("run/go", "");
    until("the end of the job", || place.at("run/ended").exists());
}

#[test]
fn a_bus_that_is_started_again_leads_back_to_the_job() {
    if !can_run("a_bus_that_is_started_again_leads_back_to_the_job") {
        return;
    }
    let mut place = Place::with_bus();
    let _daemon = Daemon::with_worker(&place);
    let mut child = place.start(&["copal", "update", "-i", "a:1"]);
    begun(&place);
    place.stop_bus();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none(), "the result is not known yet");
    place.start_bus();
    is_there(&place);
    signal(&child, Signal::SIGTERM);
    let out = wait(child);
    assert_eq!(out.status.code(), Some(4), "the job is told through the new bus: {}", stderr(&out));
}

#[test]
fn a_bus_that_does_not_return_costs_no_result() {
    if !can_run("a_bus_that_does_not_return_costs_no_result") {
        return;
    }
    let mut place = Place::with_bus();
    let _daemon = Daemon::with_worker(&place);
    let child = place.start(&["copal", "update", "-i", "a:1"]);
    begun(&place);
    place.stop_bus();
    place.put("run/go", "");
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("is installed in slot B"), "{}", stdout(&out));
}

#[test]
fn a_daemon_that_was_killed_is_replaced_and_has_the_result() {
    if !can_run("a_daemon_that_was_killed_is_replaced_and_has_the_result") {
        return;
    }
    let place = Place::with_bus();
    let daemon = Daemon::with_worker(&place);
    let child = place.start(&["copal", "update", "-i", "a:1"]);
    begun(&place);
    daemon.kill();
    std::thread::sleep(Duration::from_millis(1500));
    place.put("run/go", "");
    until("the end of the job", || place.at("run/ended").exists());
    let _daemon = Daemon::with_worker(&place);
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(!stderr(&out).contains(BEGUN_HERE), "{}", stderr(&out));
}
