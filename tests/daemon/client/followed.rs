//! What is handed over, how it is followed, and how the client ends.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::place::{Place, can_run, signal, stderr, stdout, wait};
use super::stand_in::{INSTALLED, Job, StandIn};

/// Of what an update in this process says here, where there are no slots.
pub const BEGUN_HERE: &str = "/mnt/sysroot";

#[test]
fn all_that_was_asked_is_handed_over() {
    if !can_run("all_that_was_asked_is_handed_over") {
        return;
    }
    let place = Place::with_bus();
    let daemon = StandIn::on(&place);
    daemon.show(Job::succeeded());
    let mut command = place.command(&["sh", "-c", "cd /opt && exec hostapp-update -rx -f os.tar"]);
    let out = command.env("LD_PRELOAD", "").env("HTTPS_PROXY", "http://p:1").env("NOTIFY_SOCKET", "/n");
    let out = wait(out.env("COPAL_LOG", "debug").spawn().unwrap());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let asked = daemon.asked().pop().unwrap();
    assert_eq!((asked.source.as_str(), asked.text("type")), ("/opt/os.tar", Some("file")));
    assert_eq!(asked.text("program"), Some("hostapp-update"));
    assert_eq!(["hooks", "recover", "reboot", "force"].map(|k| asked.flag(k)), [true, false, true, false]);
    assert_eq!(asked.text("credentials"), None, "an archive needs none");
    let environment = asked.environment();
    let value = |key: &str| environment.get(key).map(String::as_str);
    assert_eq!(
        ["HOME", "HTTPS_PROXY", "COPAL_LOG", "NOTIFY_SOCKET", "LD_PRELOAD", "PWD"].map(value),
        [Some("/root"), Some("http://p:1"), Some("debug"), None, None, None]
    );

    place.put("etc/login/config.json", "{\"auths\":{}}");
    let mut command = place.command(&["sh", "-c", "cd /etc && exec copal update -x --force -i a:1"]);
    let out = wait(command.env("DOCKER_CONFIG", "login").spawn().unwrap());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let asked = daemon.asked().pop().unwrap();
    assert_eq!((asked.source.as_str(), asked.text("type")), ("a:1", Some("image")));
    assert_eq!(asked.text("program"), Some("copal update"));
    assert_eq!(["hooks", "recover", "reboot", "force"].map(|k| asked.flag(k)), [true, false, false, true]);
    assert_eq!(asked.text("credentials"), Some("{\"auths\":{}}"));
    assert_eq!(asked.environment()["DOCKER_CONFIG"], "/etc/login");
}

#[test]
fn the_clients_output_is_that_of_an_update() {
    if !can_run("the_clients_output_is_that_of_an_update") {
        return;
    }
    let place = Place::with_bus();
    for json in [false, true] {
        let daemon = StandIn::on(&place);
        let program = if json {
            &["copal", "update", "--json", "-i", "a:1"][..]
        } else {
            &["hostapp-update", "-i", "a:1"]
        };
        let child = place.start(program);
        daemon.wait_for("Update", 1);
        for (stage, done) in [("pull", 10), ("pull", 60), ("install", 0), ("unpack", 1 << 20)] {
            daemon.show(Job::running(stage, done, 1 << 20));
            std::thread::sleep(Duration::from_millis(400));
        }
        daemon.show(Job::succeeded());
        let out = wait(child);
        let log = stderr(&out);
        assert_eq!(out.status.code(), Some(0), "{log}");
        if json {
            let text = stdout(&out);
            let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
            let stages: Vec<String> = lines
                .iter()
                .filter(|l| l["event"] == "stage")
                .map(|l| format!("{} {} {}", l["stage"], l["state"], l["percent"]).replace('"', ""))
                .collect();
            assert_eq!(
                stages,
                ["pull begin 0", "pull end 100", "unpack begin 0", "unpack end 100"],
                "{text}"
            );
            let last = lines.last().unwrap();
            assert_eq!(last["event"], "result");
            assert_eq!(last["update"], serde_json::from_str::<Value>(INSTALLED).unwrap());
        } else {
            assert!(log.contains("[hostapp-update][INFO] pull: done, 1.0 MiB in"), "{log}");
            assert!(log.contains("[hostapp-update][INFO] unpack: done, 1.0 MiB in"), "{log}");
            assert!(
                log.contains("[hostapp-update][INFO] a:1 is installed; slot B boots next, on trial"),
                "{log}"
            );
        }
        drop(daemon);
    }
}

#[test]
fn it_ends_as_the_update_itself_would_have() {
    if !can_run("it_ends_as_the_update_itself_would_have") {
        return;
    }
    let place = Place::with_bus();
    for (code, effect, exit) in [
        ("update-refused", "refused", 3),
        ("slot-full", "written", 4),
        ("hook-failed", "written", 1),
        ("reboot-failed", "completed", 1),
        ("interrupted", "written", 4),
    ] {
        let daemon = StandIn::on(&place);
        daemon.show(Job::failed(code, effect));
        let out = place.run(&["copal", "update", "-i", "a:1"]);
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
        assert_eq!(stderr(&out).matches("cannot do x").count(), 1, "told once");
        drop(daemon);
    }
    let refusal = ["Busy", "cannot begin: job 1 is under way [busy] (/j); wait"];
    let daemon = StandIn::on(&place).refusing(refusal);
    let out = place.run(&["copal", "update", "-i", "a:1"]);
    let line = "cannot begin: job 1 is under way [busy]; wait\n".to_owned();
    assert_eq!((out.status.code(), stderr(&out)), (Some(5), format!("copal: {line}")));
    assert_eq!(place.run(&["hostapp-update", "-i", "a:1"]).status.code(), Some(1));
    assert_eq!(daemon.count("GetAll"), 0);
}

#[test]
fn a_signal_cancels_the_job_once_and_a_lost_terminal_does_not() {
    if !can_run("a_signal_cancels_the_job_once_and_a_lost_terminal_does_not") {
        return;
    }
    let place = Place::with_bus();
    for sent in [Signal::SIGINT, Signal::SIGTERM] {
        let daemon = StandIn::on(&place);
        let mut child = place.start(&["copal", "update", "-i", "a:1"]);
        daemon.wait_for("GetAll", 1);
        signal(&child, sent);
        daemon.wait_for("Cancel", 1);
        signal(&child, sent);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(child.try_wait().unwrap().is_none(), "it ends with the job");
        assert_eq!(daemon.count("Cancel"), 1);
        daemon.show(Job { state: "cancelled", ..Job::failed("interrupted", "written") });
        let out = wait(child);
        assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
        assert!(stderr(&out).contains("cancelling the update"), "{}", stderr(&out));
    }
    let daemon = StandIn::on(&place);
    let child = place.start(&["copal", "update", "-i", "a:1"]);
    daemon.wait_for("GetAll", 1);
    signal(&child, Signal::SIGHUP);
    std::thread::sleep(Duration::from_millis(500));
    // As the end of a session goes on.
    signal(&child, Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(500));
    daemon.show(Job::succeeded());
    assert_eq!(wait(child).status.code(), Some(0));
    assert_eq!(daemon.count("Cancel"), 0);
}

#[test]
fn a_lost_bus_is_connected_to_again() {
    if !can_run("a_lost_bus_is_connected_to_again") {
        return;
    }
    let mut place = Place::with_bus();
    let mut daemon = StandIn::on(&place);
    let mut child = place.start(&["copal", "update", "-i", "a:1"]);
    daemon.wait_for("GetAll", 1);
    place.stop_bus();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none());
    daemon.leave();
    place.start_bus();
    daemon.show(Job::succeeded());
    daemon.serve(&place);
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(daemon.count("Update"), 1);
    assert!(stdout(&out).contains("is installed in slot B"), "{}", stdout(&out));
    assert!(!stderr(&out).contains(BEGUN_HERE), "{}", stderr(&out));
}

/// The system goes down with the bus first, and would wait for this program.
#[test]
fn an_installed_update_is_not_waited_for_while_the_system_ends() {
    if !can_run("an_installed_update_is_not_waited_for_while_the_system_ends") {
        return;
    }
    let mut place = Place::with_bus();
    let mut daemon = StandIn::on(&place);
    let mut child = place.start(&["copal", "update", "-i", "a:1", "-r"]);
    daemon.wait_for("GetAll", 1);
    daemon.show(Job { result: INSTALLED.into(), ..Job::running("reboot", 1, 1) });
    std::thread::sleep(Duration::from_millis(1500));
    place.stop_bus();
    daemon.leave();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none(), "the bus alone may come back");
    signal(&child, Signal::SIGTERM);
    let told = Instant::now();
    let out = wait(child);
    // Where it is looked for, that is a minute.
    assert!(told.elapsed() < Duration::from_secs(40), "{:?}", told.elapsed());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("is installed in slot B"), "{}", stdout(&out));
}

#[test]
fn an_order_without_an_answer_is_given_again_and_never_carried_out_here() {
    if !can_run("an_order_without_an_answer_is_given_again_and_never_carried_out_here") {
        return;
    }
    let place = Place::with_bus();
    let mut daemon = StandIn::on(&place).silent(1);
    let child = place.start(&["copal", "update", "-i", "a:1"]);
    daemon.wait_for("Update", 1);
    // The bus tells the client that there will be none.
    daemon.leave();
    std::thread::sleep(Duration::from_millis(1500));
    daemon.serve(&place);
    daemon.wait_for("Update", 2);
    daemon.show(Job::succeeded());
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(!stderr(&out).contains(BEGUN_HERE), "{}", stderr(&out));
    let asked = daemon.asked();
    assert_eq!(asked.len(), 2);
    let token = asked[0].text("token").unwrap();
    assert_eq!((token.len(), Some(token)), (32, asked[1].text("token")), "the daemon knows it by that");
}

#[test]
fn a_job_that_is_gone_is_an_error_that_says_so() {
    if !can_run("a_job_that_is_gone_is_an_error_that_says_so") {
        return;
    }
    let place = Place::with_bus();
    let daemon = StandIn::on(&place);
    let child = place.start(&["copal", "update", "-i", "a:1"]);
    daemon.wait_for("GetAll", 1);
    daemon.forget();
    let out = wait(child);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(4), "{log}");
    assert!(log.lines().last().unwrap().contains("[daemon-lost]; run `copal status`"), "{log}");
    assert!(!log.contains(BEGUN_HERE), "{log}");
}
