//! What is handed over, how the job is followed, and how its client ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::place::{Place, can_run, signal, stderr, stdout, until, wait};
use crate::kit::needs::needs;
use crate::kit::systemd::Answer;

/// A part of the error that an update in this process reports here, where there are no slots.
pub const BEGUN_HERE: &str = "/mnt/sysroot";

const INSTALLED: &str =
    r#"{"image":"a:1","image_id":"sha256:1","hostapp":"h","slot":"B","selected":true,"counter":5}"#;

pub const SUCCEEDS: &str = r#"#!/bin/sh
echo '{"event":"result","version":1,"ok":true,"update":{"image":"a:1","image_id":"sha256:1","hostapp":"h","slot":"B","selected":true,"counter":5}}'
"#;

/// Waits until it is let go, and ends as a signal asks.
const WAITS: &str = r#"#!/bin/sh
trap 'echo TERM >>/run/signals; echo "{\"event\":\"result\",\"version\":1,\"ok\":false,\"code\":\"interrupted\",\"message\":\"the update was ended\",\"object\":null,\"hint\":\"again\",\"effect\":\"written\"}"; exit 4' TERM
echo '{"event":"stage","version":1,"stage":"load","state":"begin","percent":0,"bytes_done":0,"bytes_total":100,"rate":null,"eta":null}'
touch /run/begun
while [ ! -e /run/go ]; do sleep 0.05; done
echo '{"event":"stage","version":1,"stage":"load","state":"end","percent":100,"bytes_done":100,"bytes_total":100,"rate":1,"eta":0}'
echo '{"event":"result","version":1,"ok":true,"update":{"image":"a:1","image_id":"sha256:1","hostapp":"h","slot":"B","selected":true,"counter":5}}'
touch /run/ended
while [ -e /run/reboots ]; do sleep 0.05; done
"#;

const UPDATE: [&str; 4] = ["copal", "update", "-i", "a:1"];

/// The service, and its end.
pub struct Daemon(Child);

impl Daemon {
    pub fn start(place: &Place) -> Daemon {
        let mut command = place.command(&["copal", "daemon"]);
        let daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
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
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            signal(&self.0, Signal::SIGKILL);
            // `nsenter` stops with the program behind it, and would never end.
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0.id().cast_signed()), Signal::SIGCONT)
                .unwrap();
            self.0.wait().unwrap();
        }
    }
}

fn begun(place: &Place) {
    until("the job", || place.at("run/begun").exists());
}

fn kills(place: &Place) -> usize {
    place.systemd.calls().iter().filter(|c| c.starts_with("kill")).count()
}

#[test]
fn all_that_was_requested_is_handed_over() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(SUCCEEDS);
    let requested = || -> Value { serde_json::from_str(&place.read("run/asked")).unwrap() };
    let mut command = place.command(&["sh", "-c", "cd /opt && exec hostapp-update -rx -f os.tar"]);
    let out = command.env("LD_PRELOAD", "").env("HTTPS_PROXY", "http://p:1").env("NOTIFY_SOCKET", "/n");
    let out = wait(out.env("COPAL_LOG", "debug").spawn().unwrap());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let first = requested();
    let source = json!({ "file": "/opt/os.tar" });
    let spec = json!({ "source": source, "hooks": true, "recover": false, "reboot": true, "force": false, "accept_loader_key": false });
    assert_eq!((&first["spec"]["update"], &first["program"]), (&spec, &"hostapp-update".into()));
    let value = |key: &str| first["environment"].get(key).and_then(Value::as_str);
    assert_eq!(
        ["HOME", "HTTPS_PROXY", "COPAL_LOG", "NOTIFY_SOCKET", "LD_PRELOAD", "PWD"].map(value),
        [Some("/root"), Some("http://p:1"), Some("debug"), None, None, None]
    );

    place.put("etc/login/config.json", "{\"auths\":{}}");
    let mut command =
        place.command(&["sh", "-c", "cd /etc && exec copal update -x --force --accept-loader-key -i a:1"]);
    let out = wait(command.env("DOCKER_CONFIG", "login").spawn().unwrap());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let second = requested();
    let source = json!({ "reference": "a:1" });
    let spec = json!({ "source": source, "hooks": true, "recover": false, "reboot": false, "force": true, "accept_loader_key": true });
    assert_eq!((&second["spec"]["update"], &second["program"]), (&spec, &"copal update".into()));
    assert!(second.get("credentials").is_none(), "{second}");
    assert_eq!(second["environment"]["DOCKER_CONFIG"], "/etc/login");
    assert_eq!(place.read("run/credentials"), "{\"auths\":{}}");
    assert!(!place.at("run/copal/job-2.auth").exists(), "the end of the unit removes what is secret");
}

#[test]
fn the_clients_output_is_that_of_an_update() {
    needs!(can_run);
    let place = Place::with_systemd();
    let line = |stage: &str, done: u32| {
        format!(
            "echo '{{\"event\":\"progress\",\"version\":1,\"stage\":\"{stage}\",\"percent\":0,\"bytes_done\":{done},\
             \"bytes_total\":1048576,\"rate\":1,\"eta\":1}}'; sleep 0.4\n"
        )
    };
    let lines = [("pull", 10), ("pull", 60), ("install", 0), ("unpack", 1 << 20)].map(|(s, d)| line(s, d));
    let says = SUCCEEDS.strip_prefix("#!/bin/sh\n").unwrap();
    place.worker(&format!("#!/bin/sh\n{}{says}", lines.concat()));
    let out = place.run(&["copal", "update", "--json", "-i", "a:1"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let stages: Vec<String> = lines
        .iter()
        .filter(|l| l["event"] == "stage")
        .map(|l| format!("{} {} {}", l["stage"], l["state"], l["percent"]).replace('"', ""))
        .collect();
    assert_eq!(stages, ["pull begin 0", "pull end 100", "unpack begin 0", "unpack end 100"], "{text}");
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "result");
    assert_eq!(last["update"], serde_json::from_str::<Value>(INSTALLED).unwrap());

    let out = place.run(&["hostapp-update", "-i", "a:1"]);
    // The script's callers archive it from there.
    let log = stdout(&out);
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(0), ""), "{log}");
    assert!(
        log.contains(
            "[hostapp-update][INFO] job 2 runs the update; its log is in the journal of copal-job@2.service"
        ),
        "{log}"
    );
    assert!(log.contains("[hostapp-update][INFO] pull: done, 1.0 MiB in"), "{log}");
    assert!(log.contains("[hostapp-update][INFO] unpack: done, 1.0 MiB in"), "{log}");
    assert!(log.contains("[hostapp-update][INFO] a:1 is installed; slot B boots next, on trial"), "{log}");
}

#[test]
fn it_ends_as_the_update_itself_would_have() {
    needs!(can_run);
    let place = Place::with_systemd();
    for (code, effect, exit) in [
        ("update-refused", "refused", 3),
        ("slot-full", "written", 4),
        ("hook-failed", "written", 4),
        ("reboot-failed", "completed", 1),
        ("interrupted", "written", 4),
    ] {
        let result = format!(
            r#"{{"event":"result","version":1,"ok":false,"code":"{code}","message":"cannot do x","object":"/x","hint":"do y","effect":"{effect}"}}"#
        );
        place.worker(&format!("#!/bin/sh\necho '{result}'\nexit {exit}\n"));
        let out = place.run(&UPDATE);
        let line = format!("cannot do x [{code}]; do y\n");
        assert_eq!((out.status.code(), stderr(&out)), (Some(exit), format!("copal: {line}")), "{code}");
        let out = place.run(&["copal", "update", "--json", "-i", "a:1"]);
        let last: Value = serde_json::from_str(stdout(&out).lines().last().unwrap()).unwrap();
        assert_eq!(
            (&last["code"], &last["effect"], &last["object"]),
            (&code.into(), &effect.into(), &"/x".into())
        );
        let out = place.run(&["hostapp-update", "-i", "a:1"]);
        assert_eq!(out.status.code(), Some(1), "{code}");
        assert!(stderr(&out).ends_with(&format!("[hostapp-update][ERROR] {line}")), "{}", stderr(&out));
        assert_eq!(stderr(&out).matches("cannot do x").count(), 1, "reported once");
    }
}

#[test]
fn a_refusal_is_the_same_as_a_job_and_in_the_clients_process() {
    needs!(can_run);
    // With copal as the program of the job.
    let place = Place::with_systemd();
    let both = |argv: &[&str]| {
        let here = place.run(&[argv, &["--no-daemon"]].concat());
        let there = place.run(argv);
        assert_eq!(there.status.code(), here.status.code(), "{}{}", stderr(&there), place.read("run/stderr"));
        (here, there)
    };
    let (here, there) = both(&UPDATE);
    assert_eq!((here.status.code(), stderr(&here)), (Some(3), stderr(&there)));
    assert!(stderr(&here).contains(BEGUN_HERE));
    let (here, there) = both(&["copal", "update", "--json", "-i", "a:1"]);
    assert_eq!(stdout(&here), stdout(&there));
    let (here, there) = both(&["hostapp-update", "-i", "a:1"]);
    let last = |text: String| text.lines().last().unwrap().to_owned();
    assert_eq!((here.status.code(), last(stderr(&here))), (Some(1), last(stderr(&there))));
    // Not carried out here after all.
    assert!(stdout(&there).contains("job 3 runs the update"), "{}", stderr(&there));
}

#[test]
fn a_signal_cancels_the_job_once_and_a_lost_terminal_does_not() {
    needs!(can_run);
    for sent in [Signal::SIGINT, Signal::SIGTERM] {
        let place = Place::with_systemd();
        place.worker(WAITS);
        let child = place.start(&["copal", "update", "--json", "-i", "a:1"]);
        begun(&place);
        signal(&child, sent);
        signal(&child, sent);
        let out = wait(child);
        assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
        assert!(stderr(&out).contains("cancelling the update"), "{}", stderr(&out));
        let last: Value = serde_json::from_str(stdout(&out).lines().last().unwrap()).unwrap();
        assert_eq!((&last["code"], &last["effect"]), (&"interrupted".into(), &"written".into()));
        assert!(!place.at("run/ended").exists());
        assert_eq!((place.read("run/signals").as_str(), kills(&place)), ("TERM\n", 1));
    }
    let place = Place::with_systemd();
    place.worker(WAITS);
    let child = place.start(&UPDATE);
    begun(&place);
    signal(&child, Signal::SIGHUP);
    std::thread::sleep(Duration::from_millis(500));
    // As the end of a session goes on.
    signal(&child, Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(500));
    place.put("run/go", "");
    assert_eq!(wait(child).status.code(), Some(0));
    assert_eq!(kills(&place), 0);
}

#[test]
fn a_job_that_could_not_be_cancelled_is_cancelled_later() {
    needs!(can_run);
    let mut place = Place::with_systemd();
    place.worker(WAITS);
    let mut child = place.start(&UPDATE);
    begun(&place);
    place.stop_bus();
    signal(&child, Signal::SIGINT);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("cannot cancel the job")));
    assert_eq!(place.read("run/signals"), "");
    place.start_bus();
    place.start_systemd();
    until("the job is cancelled", || place.read("run/signals") == "TERM\n");
    assert_eq!(wait(child).status.code(), Some(4));
    assert_eq!(kills(&place), 1);
}

#[test]
fn a_killed_client_ends_nothing_and_a_second_one_is_refused() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(WAITS);
    let mut child = place.start(&["hostapp-update", "-r", "-f", "/opt/os.tar"]);
    begun(&place);
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    let out = place.run(&UPDATE);
    let refused = "copal: cannot begin: the update of job 1 is under way [busy]; wait until that job is over, or cancel it\n";
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(5), refused));
    place.put("run/go", "");
    until("the end of the job", || place.at("run/ended").exists());
    until("its end is recorded", || place.at("run/copal/job-1.end").exists());
    // The next one finds nothing in its way.
    assert_eq!(place.run(&UPDATE).status.code(), Some(0));
}

#[test]
fn a_lost_bus_costs_neither_the_job_nor_its_result() {
    needs!(can_run);
    let mut place = Place::with_systemd();
    place.worker(WAITS);
    let child = place.start(&UPDATE);
    begun(&place);
    place.stop_bus();
    std::thread::sleep(Duration::from_millis(500));
    place.put("run/go", "");
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("is installed in slot B"), "{}", stdout(&out));
}

#[test]
fn a_start_without_an_answer_is_followed_where_the_job_has_begun() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(WAITS);
    place.put("run/go", "");
    for (answer, calls) in [(Answer::Lost, 1), (Answer::Gone, 2)] {
        place.systemd.answer(answer);
        let out = place.run(&UPDATE);
        assert_eq!(out.status.code(), Some(0), "{answer:?}: {}", stderr(&out));
        assert!(!stderr(&out).contains(BEGUN_HERE), "{answer:?}: {}", stderr(&out));
        assert_eq!(place.systemd.calls().len(), calls, "{answer:?}");
    }
}

/// The bus may end before this program, and the shutdown waits for both.
#[test]
fn an_installed_update_is_not_waited_for_while_the_system_ends() {
    needs!(can_run);
    let mut place = Place::with_systemd();
    place.worker(WAITS);
    place.put("run/reboots", "");
    place.put("run/go", "");
    let mut child = place.start(&["copal", "update", "-i", "a:1", "-r"]);
    until("it is installed", || place.at("run/ended").exists());
    std::thread::sleep(Duration::from_millis(1500));
    place.stop_bus();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none(), "the reboot has not come yet");
    signal(&child, Signal::SIGTERM);
    // A shutdown gives it a minute and a half; this one would not end by itself.
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("is installed in slot B"), "{}", stdout(&out));
}

#[test]
fn a_job_whose_unit_is_gone_is_an_error_that_says_so() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.put("run/no-end", "");
    place.worker(&WAITS.replace("touch /run/begun", "touch /run/begun; kill -9 $$"));
    let out = place.run(&UPDATE);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(4), "{log}");
    assert!(log.contains("[job-lost]"), "{log}");
    assert!(!log.contains(BEGUN_HERE), "{log}");
}

/// Of job 1, as the service shows it; empty where it shows none.
fn property(place: &Place, name: &str) -> String {
    property_of(place, 1, name)
}

fn property_of(place: &Place, job: u32, name: &str) -> String {
    let out = std::process::Command::new("busctl")
        .arg(format!("--address={}", place.address()))
        .args(["get-property", "io.balena.Copal1", &format!("/io/balena/Copal1/job/{job}")])
        .args(["io.balena.Copal1.Job", name])
        .output()
        .unwrap();
    stdout(&out).trim().to_owned()
}

#[test]
fn a_job_of_a_client_is_shown_by_the_daemon() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(WAITS);
    let _daemon = Daemon::start(&place);
    let child = place.start(&UPDATE);
    begun(&place);
    until("it is on the bus", || property(&place, "State") == r#"s "running""#);
    assert_eq!(property(&place, "Stage"), r#"s "load""#);
    // From there it can be cancelled, too, and its client learns of it.
    let out = std::process::Command::new("busctl")
        .arg(format!("--address={}", place.address()))
        .args(["call", "io.balena.Copal1", "/io/balena/Copal1/job/1", "io.balena.Copal1.Job", "Cancel"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(wait(child).status.code(), Some(4));
    until("its end", || property(&place, "State") == r#"s "cancelled""#);
}

/// The next one may begin before a follower of the first has looked.
#[test]
fn a_job_has_its_result_also_after_the_next_one_has_begun() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(WAITS);
    let daemon = Daemon::start(&place);
    let mut commit = std::process::Command::new("busctl");
    commit.arg(format!("--address={}", place.address())).args(["call", "io.balena.Copal1"]);
    commit.args(["/io/balena/Copal1", "io.balena.Copal1.Manager", "MarkGood"]);
    let commit = commit.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    begun(&place);
    // A service that is still starting the job holds a lock, and must not be stopped then.
    until("the job's object", || property(&place, "State") == "s \"running\"");
    let update = |place: &Place, next: u32| {
        let out = place.run(&UPDATE);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        assert!(place.at(&format!("run/copal/job-{next}.end")).exists());
    };
    signal(&daemon.0, Signal::SIGSTOP);
    // `nsenter` stops with the program behind it, and lets that go on with itself.
    let stat = format!("/proc/{}/stat", daemon.0.id());
    until("it stands", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    place.put("run/go", "");
    until("its end", || place.at("run/copal/job-1.end").exists());
    update(&place, 2);
    assert!(place.at("run/copal/job-1.end").exists() && place.at("run/copal/job-1.jsonl").exists());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon.0.id().cast_signed()), Signal::SIGCONT).unwrap();
    let out = wait(commit);
    assert!(out.status.success(), "{}", stderr(&out));
    update(&place, 3);
    assert!(!place.at("run/copal/job-1.end").exists() && !place.at("run/copal/job-1.jsonl").exists());
}

#[test]
fn a_job_that_systemd_does_not_start_is_not_shown_by_the_daemon() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(WAITS);
    let _daemon = Daemon::start(&place);
    place.systemd.answer(Answer::Silence);
    let mut child = place.start(&UPDATE);
    // Each call makes the service look for a new job, while the client waits for systemd and after it.
    until("the update in the process of the client", || {
        assert_eq!(property(&place, "State"), "");
        child.try_wait().unwrap().is_some()
    });
    let out = wait(child);
    assert!(stderr(&out).contains(BEGUN_HERE), "{}", stderr(&out));
    assert_eq!(property(&place, "State"), "");
    // The next one has another number, and is shown.
    place.systemd.answer(Answer::Given);
    let child = place.start(&UPDATE);
    begun(&place);
    until("it is on the bus", || property_of(&place, 2, "State") == r#"s "running""#);
    place.put("run/go", "");
    assert_eq!(wait(child).status.code(), Some(0));
    until("its end", || property_of(&place, 2, "State") == r#"s "succeeded""#);
}

#[test]
fn a_unit_that_is_started_again_runs_nothing() {
    needs!(can_run);
    let place = Place::with_systemd();
    let out = place.run(&UPDATE);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    for job in ["1", "7"] {
        let out = place.run(&["copal", "job", job]);
        assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
        assert!(
            stderr(&out).contains(&format!("cannot run job {job}: cannot take its request")),
            "{}",
            stderr(&out)
        );
    }
}
