//! Loads and pulls that a signal ends, wherever they wait.
//!
//! Each test does its work in a process of its own: what is done with signals is the whole process's.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use copal::engine::{Retry, Timeouts};
use copal::error::{Code, Error};
use copal::sys::signal::SignalGuard;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::calls::{Bench, IMPATIENT, fails, says};
use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::needs::test_name;
use crate::kit::process::HANG;
use crate::kit::stub_engine::{Kind, Script, Then};

/// What is waited for in these tests, were it not for the signal.
const LONG: Duration = Duration::from_secs(1000);

/// More than it takes to obey on a machine that is busy.
const SOON: Duration = HANG;

fn alone(test: &str) -> bool {
    if !is_alone() {
        in_own_process(test, &[]);
    }
    is_alone()
}

/// A bench that waits, and as many of its calls hang.
fn bench(change: impl FnOnce(Script) -> Script) -> Bench {
    let mut bench = Bench::new(change);
    let timeout = Timeouts { look: LONG, answer: LONG, stall: LONG, registry: LONG, ..IMPATIENT };
    bench.engine = bench.engine.with_timeouts(timeout);
    bench
}

/// Does `work`, and sends itself SIGTERM when `begun`. It must fail with that, and soon.
fn is_interrupted<T: std::fmt::Debug>(
    bench: &Bench,
    begun: &str,
    work: impl FnOnce(&Bench) -> Result<T, Error>,
) {
    // Never released: the signal would end this process.
    let _put_off = SignalGuard::begin().unwrap();
    let calls = || bench.stub.calls().iter().filter(|c| *c == begun).count();
    let before = calls();
    let (result, sent) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let end = Instant::now() + SOON;
            while calls() == before && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
            // On the way into whatever waits.
            std::thread::sleep(Duration::from_millis(300));
            kill(Pid::this(), Signal::SIGTERM).unwrap();
            Instant::now()
        });
        (work(bench), sending.join().unwrap())
    });
    let took = sent.elapsed();
    fails(result, Code::Interrupted, &["SIGTERM"]);
    assert!(took < SOON, "{begun}: {took:?}");
}

/// The engine hears that nobody waits any more, though this process goes on.
fn is_given_up(bench: &Bench) {
    let end = Instant::now() + SOON;
    while bench.stub.given_up() == 0 {
        assert!(Instant::now() < end, "the connection stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_pull_of_which_nothing_is_heard() {
    if !alone(test_name!()) {
        return;
    }
    let bench = bench(|s| s.fault("pull", 0, Kind::Hang));
    is_interrupted(&bench, "pull", |b| b.engine.pull("r.example/a", &mut |_| {}));
    is_given_up(&bench);
}

#[test]
fn a_pull_that_is_under_way() {
    if !alone(test_name!()) {
        return;
    }
    let bench = bench(|s| s.fault("pull", 0, says(&["{\"status\":\"Pulling\"}\r\n"], Then::Hang)));
    is_interrupted(&bench, "pull", |b| b.engine.pull("r.example/a", &mut |_| {}));
    is_given_up(&bench);
    assert_eq!(bench.stub.calls(), ["pull"], "it is not tried again");
}

#[test]
fn a_pull_of_an_engine_that_is_asked_whether_it_is_alive() {
    if !alone(test_name!()) {
        return;
    }
    let mut bench = bench(|s| s.fault("pull", 0, Kind::Hang).fault("ping", 0, Kind::Hang));
    let timeout = Timeouts { look: Duration::from_millis(10), answer: LONG, stall: LONG, ..IMPATIENT };
    bench.engine = bench.engine.with_timeouts(timeout);
    is_interrupted(&bench, "pull", |b| b.engine.pull("r.example/a", &mut |_| {}));
}

fn pause_after(call: &str) {
    let mut bench = bench(|s| s.fault(call, 0, Kind::Close));
    bench.engine = bench.engine.with_retry(Retry { tries: 2, first: LONG, longest: LONG });
    is_interrupted(&bench, call, |b| match call {
        "pull" => b.engine.pull("r.example/a", &mut |_| {}),
        _ => b.load(),
    });
    assert_eq!(bench.stub.calls(), [call]);
}

#[test]
fn a_pause_between_two_pulls() {
    if alone(test_name!()) {
        pause_after("pull");
    }
}

#[test]
fn a_pause_between_two_loads() {
    if alone(test_name!()) {
        pause_after("load");
    }
}

#[test]
fn a_load_that_the_engine_does_not_take() {
    if !alone(test_name!()) {
        return;
    }
    let bench = bench(|s| s.fault("load", 0, Kind::Hang));
    is_interrupted(&bench, "load", Bench::load);
    is_given_up(&bench);
    assert_eq!(bench.stub.calls(), ["load"]);
}

#[test]
fn the_question_for_what_was_fetched() {
    if !alone(test_name!()) {
        return;
    }
    let bench = bench(|s| s.fault("image", 0, Kind::Hang));
    is_interrupted(&bench, "image", Bench::load);
}

#[test]
fn a_credential_helper() {
    if !is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("docker-credential-slow");
        std::fs::write(&program, "#!/bin/sh\n: > \"$0.asked\"\nsleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let search = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        in_own_process(test_name!(), &[("PATH", &search)]);
        return;
    }
    let bench = bench(|s| s);
    std::fs::write(bench.dir.path().join("config.json"), r#"{"credsStore":"slow"}"#).unwrap();
    // Never released: the signal would end this process.
    let _put_off = SignalGuard::begin().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            kill(Pid::this(), Signal::SIGTERM).unwrap();
        });
        fails(bench.engine.pull("r.example/a", &mut |_| {}), Code::Interrupted, &["SIGTERM"]);
    });
}
