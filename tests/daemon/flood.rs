//! A user without rights who calls without end: the service stays small, answers root, and ends when told to.

use std::collections::HashMap;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use zbus::Variant;

use crate::bus::{DONE, Ended, JOB, MANAGER, NAME, Place, TOP, answer, has, progress, until};
use crate::kit::needs::is_root;
use crate::kit::process::HANG;
use crate::kit::prove;
use crate::life::{signal, wait};

/// Bytes by which the service may grow. 24 MiB is what it may have; the tests' build begins with more than the release's.
const GROWTH: u64 = 12 << 20;

/// An unoptimised service on a machine that is ten times slower than usual answers within this time.
const ANSWER: Duration = HANG;

/// A bus without a policy, so that the calls of another user reach the service. `None` if this process cannot become another user.
fn place(test: &str) -> Option<Place> {
    if !is_root(test) || !has(test, &["python3"]) {
        return None;
    }
    let mut place = Place::new(test)?;
    place.stop_bus();
    place.start_open_bus();
    Some(place)
}

/// Begins to send messages of a kind of flood.py.
fn flood(place: &Place, kind: &str, seconds: u32, connections: u32) -> Ended {
    place.put("flood.py", include_str!("flood.py"));
    let child = Command::new("python3")
        .arg(place.at("flood.py"))
        .arg(place.at("bus"))
        .args([kind, &seconds.to_string(), &connections.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Ended(child)
}

/// How many messages were sent.
fn sent(mut flood: Ended) -> u64 {
    let said = std::io::read_to_string(flood.0.stdout.take().unwrap()).unwrap();
    assert!(flood.0.wait().unwrap().success(), "{said}");
    said.split_once(' ').unwrap().0.parse().unwrap()
}

/// A value of /proc/PID/status: bytes, or a number.
fn status(process: &Child, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(&format!("{key}:"))).unwrap();
    let mut words = line.split_whitespace();
    let number: u64 = words.next().unwrap().parse().unwrap();
    if words.next() == Some("kB") { number << 10 } else { number }
}

#[test]
fn no_flood_makes_the_service_grow_or_keeps_root_from_an_answer() {
    let Some(place) = place("flood") else { return };
    let mut service = place.service(&["--idle", "60"]);
    place.call(TOP, MANAGER, "Status", &[]).unwrap();
    let before = status(&service.0, "VmHWM");
    let kinds = [("silent", 1, 5000), ("replies", 2, 500), ("deaf", 2, 500), ("reconnect", 100, 200)];
    // That of busctl is 25 s.
    let limit = format!("--timeout={}", ANSWER.as_secs());
    let test = "no_flood_makes_the_service_grow_or_keeps_root_from_an_answer";
    for (kind, connections, least) in
        prove::cases("slow", test, kinds.len(), 2).into_iter().map(|at| kinds[at])
    {
        let flood = flood(&place, kind, 3, connections);
        // Each over a connection of its own: until the bus has named its user, nothing tells it from those of the flood.
        let (calls, pause) = if kind == "reconnect" { (40, 10) } else { (3, 500) };
        for _ in 0..calls {
            let began = Instant::now();
            let call = place.busctl(&[&limit, "call", NAME, TOP, MANAGER, "Status"]).output().unwrap();
            answer(call).unwrap_or_else(|e| panic!("{kind}, after {:?}: {e}", began.elapsed()));
            std::thread::sleep(Duration::from_millis(pause));
        }
        let sent = sent(flood);
        assert!(sent >= least, "{kind}: this machine manages no flood: {sent}");
        let (memory, threads) = (status(&service.0, "VmHWM"), status(&service.0, "Threads"));
        assert!(memory < before + GROWTH, "{kind}: {} KiB more", (memory - before) >> 10);
        assert!(threads <= 4, "{kind}: {threads} threads");
    }
    signal(&service, Signal::SIGTERM);
    wait(&mut service);
}

#[test]
fn in_a_flood_the_service_shows_that_it_is_alive_and_obeys_signals() {
    let Some(place) = place("flood and signals") else { return };
    let notify = UnixDatagram::bind(place.at("notify")).unwrap();
    notify.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
    command.env("NOTIFY_SOCKET", place.at("notify")).env("WATCHDOG_USEC", "3000000");
    let mut service = place.service_of(command, &[]);
    place.says(&[&progress("pull", 50), DONE, "exit 0"]);
    place.go(1);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    until("it has begun", || place.property(&job, JOB, "Percent") == "30");

    let flood = flood(&place, "replies", 600, 4);
    let mut signs = 0;
    until("it shows three times that it is alive", || {
        let mut buffer = [0; 256];
        let n = notify.recv(&mut buffer).unwrap_or(0);
        signs += usize::from(buffer[..n].windows(10).any(|w| w == b"WATCHDOG=1"));
        signs == 3
    });
    // With a job under way it has to find out first what the signal means.
    let began = Instant::now();
    signal(&service, Signal::SIGTERM);
    wait(&mut service);
    assert!(began.elapsed() < ANSWER, "{:?}", began.elapsed());
    drop(flood);
    place.go(9);
}

#[test]
fn an_environment_that_is_too_long_is_refused_and_the_next_one_is_read() {
    let Some(place) = place("long environment") else { return };
    let _service = place.service(&[]);
    let long = "x".repeat(100_000);
    let variables = |n: usize| {
        let pairs: Vec<String> = (0..n).flat_map(|i| [format!("V{i}"), long.clone()]).collect();
        let args = ["sa{sv}", "a", "1", "environment", "a{ss}"].map(str::to_owned);
        args.into_iter().chain([n.to_string()]).chain(pairs).collect::<Vec<_>>()
    };
    let update = |n: usize| {
        let args = variables(n);
        place.update(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let e = update(3).unwrap_err();
    assert!(e.contains("longer than 256 KiB"), "{e}");
    let job = update(2).unwrap();
    place.wait_for_state(&job, "succeeded");
    assert!(place.read("environment").contains(&format!("V1={long}")));
}

#[test]
fn a_call_that_expects_no_reply_is_carried_out_for_root() {
    let Some(place) = place("no reply") else { return };
    let _service = place.service(&[]);
    let (address, options) = (place.address(), HashMap::<&str, Variant<'_>>::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // It stays until the job is there: of a connection that is gone the bus names no user.
        let caller = zbus::connection::Builder::address(address.as_str()).build().await.unwrap();
        let call = zbus::Message::method_call(TOP, "Update").destination(NAME).interface(MANAGER);
        let call = call.with_flags(zbus::message::Flags::NO_REPLY_EXPECTED);
        caller.send(&call.build(&("a", options)).unwrap()).await.unwrap();
        until("the job is there", || !place.requests().is_empty());
    });
    place.wait_for_state("/io/balena/Copal1/job/1", "succeeded");
    place.call(TOP, MANAGER, "Status", &[]).unwrap();
}

#[test]
fn one_plan_is_made_at_a_time_and_keeps_no_job_from_its_start() {
    let Some(place) = place("plans") else { return };
    std::fs::create_dir_all(place.root().join("etc")).unwrap();
    let flag = copal::config::paths::Paths::new(place.root()).flasher_flag();
    std::fs::create_dir_all(flag.parent().unwrap()).unwrap();
    std::fs::write(&flag, "").unwrap();
    let _service = place.service(&["--idle", "60"]);
    place.says(&[r#"{"event":"result","version":1,"ok":true,"plan":{"target":"/dev/x"}}"#, "exit 0"]);
    place.go(0);
    let call = |args: &[&str]| {
        let args = [&["call", "--timeout=60", NAME, TOP, MANAGER], args].concat();
        Ended(place.busctl(&args).stdout(Stdio::piped()).spawn().unwrap())
    };
    let begun = || place.requests().len();
    let mut plan = call(&["Plan", "a{sv}", "0"]);
    until("the plan has begun", || begun() == 1);
    let e = place.call(TOP, MANAGER, "Plan", &["a{sv}", "1", "image", "s", "/i"]).unwrap_err();
    assert!(e.contains("[busy]"), "{e}");
    let mut commit = call(&["MarkGood"]);
    until("the job has begun", || begun() == 2);
    place.go(9);
    assert!(wait(&mut commit).success());
    let said = std::io::read_to_string(plan.0.stdout.take().unwrap()).unwrap();
    assert!(said.contains("/dev/x"), "{said}");
}
