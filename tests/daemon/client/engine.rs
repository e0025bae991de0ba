//! Updates by the real daemon, and in the program's own process, with an engine that answers as recorded or not at all. An image is
//! built: nothing else of a device is needed.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::jobs::Daemon;
use super::place::{Place, can_run, signal, stderr, stdout, until, wait};
use crate::kit::image_archive::{Made, tar_of};
use crate::kit::needs::needs;
use crate::kit::process::HANG;
use crate::kit::stub_engine::{Kind, Script, Stub};

const PULL_FULL: &str = include_str!("../../kit/engine_streams/pull-full.txt");
const PULL_DELTA: &str = include_str!("../../kit/engine_streams/pull-delta.txt");
const LOAD_DELTA: &str = include_str!("../../kit/engine_streams/load-delta.txt");

const SLOT: &str = "mnt/sysroot/inactive";

/// More than an end takes on any machine; what is broken off would go on for a quarter of an hour.
const SOON: Duration = HANG;

/// An engine in this place, which does `kind` in one call of this name, or always (0).
fn engine(place: &Place, call: &str, times: u32, kind: Kind) -> Stub {
    place.put("boot/init", "#!/bin/sh\n");
    let engine = format!("{SLOT}/balena");
    let script = Script {
        seen: format!("/{engine}").into(),
        boot: place.at("boot"),
        archive: "127.0.0.1:5000/os:delta".to_owned(),
        ..Script::new(place.at(&engine))
    };
    Stub::start(&place.at("run/balena-host.sock"), script.fault(call, times, kind))
}

/// A recording that takes `times` as long.
fn slower(recorded: &str, times: f64) -> Kind {
    let lines = recorded.lines().map(|line| {
        let (time, rest) = line.split_once(' ').unwrap();
        format!("{:.2} {rest}\n", time.parse::<f64>().unwrap() * times)
    });
    Kind::Recorded(lines.collect())
}

/// Calls the daemon.
fn call(place: &Place, path: &str, rest: &[&str]) -> String {
    let mut command = Command::new("busctl");
    command.arg(format!("--address={}", place.address())).args(["call", "io.balena.Copal1", path]).args(rest);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{rest:?}: {}", stderr(&out));
    stdout(&out).trim().to_owned()
}

/// A property of the first job.
fn property(place: &Place, name: &str) -> String {
    let value = call(
        place,
        "/io/balena/Copal1/job/1",
        &["org.freedesktop.DBus.Properties", "Get", "ss", "io.balena.Copal1.Job", name],
    );
    value.rsplit(' ').next().unwrap().trim_matches('"').to_owned()
}

fn begin(place: &Place) {
    let more = ["sa{sv}", "127.0.0.1:5000/os:full", "2", "hooks", "b", "false"];
    let more = [&more[..], &["program", "s", "hostapp-update"]].concat();
    let job =
        call(place, "/io/balena/Copal1", &[&["io.balena.Copal1.Manager", "Update"], &more[..]].concat());
    assert_eq!(job, r#"o "/io/balena/Copal1/job/1""#);
}

#[test]
fn percent_on_the_bus_follows_a_pull_of_balena_engine() {
    needs!(can_run);
    for recorded in [PULL_FULL, PULL_DELTA] {
        let place = Place::with_systemd();
        let _engine = engine(&place, "pull", 1, slower(recorded, 8.0));
        let _daemon = Daemon::start(&place);
        begin(&place);
        let mut seen: Vec<(String, u32)> = Vec::new();
        let mut holder = String::new();
        until("the end", || {
            let state = property(&place, "State");
            if state == "running" {
                holder.push_str(&place.read("run/copal/update.lock"));
            }
            let now = (property(&place, "Stage"), property(&place, "Percent").parse().unwrap());
            if seen.last() != Some(&now) {
                seen.push(now);
            }
            state != "running"
        });
        assert_eq!(
            (property(&place, "State"), property(&place, "Percent")),
            ("succeeded".into(), "100".into())
        );
        assert!(seen.is_sorted_by_key(|(_, percent)| *percent), "{seen:?}");
        // The job locks and logs with the name of the program that requested it.
        assert!(holder.contains(r#""program":"hostapp-update""#), "{holder}");
        let log = place.read("run/stderr");
        assert!(log.contains("[hostapp-update][INFO] updating the root of an image"), "{log}");
        let of_pull: Vec<u32> = seen.iter().filter(|(s, _)| s == "pull").map(|(_, p)| *p).collect();
        // A pull is the first 60 of 100, and nothing is unpacked afterwards.
        assert!(of_pull.first().is_some_and(|p| *p <= 6), "{seen:?}");
        assert!(of_pull.iter().any(|p| (1..59).contains(p)), "{seen:?}");
        assert!(*of_pull.last().unwrap() >= 45, "{seen:?}");
        assert!(
            seen.iter().all(|(stage, percent)| stage == "pull" || *percent == 0 || *percent >= 60),
            "{seen:?}"
        );
        assert!(!seen.iter().any(|(stage, _)| stage == "unpack"), "{seen:?}");
    }
}

/// The JSON lines of an update in its own process.
fn lines_of(place: &Place, source: &[&str]) -> Vec<Value> {
    let out = place.run(&[&["copal", "update", "--json", "--no-daemon", "-n"], source].concat());
    assert_eq!(out.status.code(), Some(0), "{}{}", stdout(&out), stderr(&out));
    stdout(&out).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// The percentages of a stage, which begins, climbs, and ends.
#[track_caller]
fn percents(lines: &[Value], stage: &str) -> Vec<u64> {
    let of: Vec<&Value> = lines.iter().filter(|l| l["stage"] == stage).collect();
    assert_eq!((&of[0]["state"], &of[of.len() - 1]["state"]), (&"begin".into(), &"end".into()), "{of:?}");
    assert_eq!(of[of.len() - 1]["bytes_done"].as_u64(), of[of.len() - 1]["bytes_total"].as_u64(), "{of:?}");
    let percents: Vec<u64> = of.iter().map(|l| l["percent"].as_u64().unwrap()).collect();
    assert!(percents.is_sorted() && percents.last() == Some(&100), "{percents:?}");
    percents
}

#[test]
fn json_progress_follows_balena_engine_to_the_end_of_each_stage() {
    needs!(can_run);
    for recorded in [PULL_FULL, PULL_DELTA] {
        let place = Place::new();
        let _engine = engine(&place, "pull", 1, slower(recorded, 4.0));
        let lines = lines_of(&place, &["-i", "127.0.0.1:5000/os:full"]);
        let percents = percents(&lines, "pull");
        // How many there are depends on the machine.
        assert!(percents.iter().any(|p| (10..95).contains(p)), "{percents:?}");
        assert!(!lines.iter().any(|l| l["stage"] == "unpack"), "it unpacks on the way: {lines:?}");
    }
    let place = Place::new();
    let _engine = engine(&place, "load", 1, slower(LOAD_DELTA, 8.0));
    // A little larger than the layers that are recorded, as their archive was.
    let mut noise = vec![0; 3_615_744 + 2_307_072];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    let layer = tar_of(&[("boot/init", 0o755, b"#!/bin/sh\n"), ("noise", 0o644, &noise)]);
    place.put("opt/os.tar", Made::new(vec![layer]).archive(&["os:1"]));
    let lines = lines_of(&place, &["-f", "/opt/os.tar"]);
    percents(&lines, "load");
    let of: Vec<&Value> = lines.iter().filter(|l| l["stage"] == "unpack").collect();
    let percents: Vec<u64> = of.iter().filter_map(|l| l["percent"].as_u64()).collect();
    // The second layer is the second part, and not the rest behind the end.
    assert!(percents.is_sorted() && percents.iter().any(|p| (40..99).contains(p)), "{percents:?}");
    assert_eq!(of.last().unwrap()["state"], "end");
}

#[test]
fn a_cancelled_job_breaks_its_pull_off() {
    needs!(can_run);
    for (call_that_hangs, effect, exit) in [("pull", "written", "4"), ("distribution", "refused", "3")] {
        let place = Place::with_systemd();
        let engine = engine(&place, call_that_hangs, 0, Kind::Hang);
        let _daemon = Daemon::start(&place);
        begin(&place);
        until("the engine is asked", || engine.calls().iter().any(|c| c == call_that_hangs));
        std::thread::sleep(Duration::from_millis(500));
        call(&place, "/io/balena/Copal1/job/1", &["io.balena.Copal1.Job", "Cancel"]);
        let sent = Instant::now();
        until("the end", || property(&place, "State") == "cancelled");
        assert!(sent.elapsed() < SOON, "{:?}", sent.elapsed());
        let all = ["org.freedesktop.DBus.Properties", "Get", "ss", "io.balena.Copal1.Job", "Error"];
        let error = call(&place, "/io/balena/Copal1/job/1", &all);
        for part in
            [r#""code" "interrupted""#, &format!(r#""effect" "{effect}""#), &format!(r#""exit" "{exit}""#)]
        {
            assert!(error.contains(part), "{call_that_hangs}: {error}");
        }
        until("the engine hears of it", || engine.given_up() > 0);
    }
}

#[test]
fn a_signal_breaks_off_what_a_program_waits_for_in_its_own_process() {
    needs!(can_run);
    // Also before anything is changed there is a result.
    for (call_that_hangs, code) in [("pull", 4), ("distribution", 3)] {
        let place = Place::new();
        let engine = engine(&place, call_that_hangs, 0, Kind::Hang);
        let update = place.start(&["copal", "update", "--no-daemon", "-n", "-i", "127.0.0.1:5000/os:full"]);
        until("the engine is asked", || engine.calls().iter().any(|c| c == call_that_hangs));
        std::thread::sleep(Duration::from_millis(500));
        signal(&update, Signal::SIGTERM);
        let sent = Instant::now();
        let out = wait(update);
        assert!(sent.elapsed() < SOON, "{:?}", sent.elapsed());
        assert_eq!(out.status.code(), Some(code), "{}", stderr(&out));
        assert!(stderr(&out).contains("the update was ended by SIGTERM [interrupted]"), "{}", stderr(&out));
        // The next one finds nothing in its way.
        drop(engine);
        let _engine = self::engine(&place, "none", 1, Kind::Hang);
        lines_of(&place, &["-i", "127.0.0.1:5000/os:full"]);
    }
}
