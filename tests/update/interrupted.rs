//! Checks and transfers that a signal breaks off, with a real engine.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::image::Release;
use crate::kit::needs::needs;
use crate::kit::process::HANG;
use crate::kit::prove;
use crate::layout::assert_slot;
use crate::rig::{Rig, can_run, stderr, until, wait};

/// More than an end takes on any machine; what is broken off would go on for a quarter of an hour.
const SOON: Duration = HANG;

/// Passes connections on to a registry, but of a large answer only the beginning.
struct Stalling {
    port: u16,
    stalls: Arc<AtomicBool>,
}

impl Stalling {
    fn before(registry: &str) -> Stalling {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, registry) = (listener.local_addr().unwrap().port(), registry.to_owned());
        let stalls = Arc::new(AtomicBool::new(false));
        let stalled = Arc::clone(&stalls);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&registry).unwrap();
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let stalled = Arc::clone(&stalled);
                std::thread::spawn(move || {
                    let (mut from, mut to) = (server, client);
                    let (mut piece, mut passed) = ([0; 16 << 10], 0);
                    while let Ok(n @ 1..) = from.read(&mut piece) {
                        passed += n;
                        if passed > 200_000 {
                            stalled.store(true, Ordering::Relaxed);
                            return;
                        }
                        if to.write_all(&piece[..n]).is_err() {
                            break;
                        }
                    }
                    let _closed = to.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Stalling { port, stalls }
    }
}

/// Sends SIGTERM to the update, and waits for its end.
fn ended(rig: &Rig, update: Child) -> (Output, Duration) {
    let lock: serde_json::Value = serde_json::from_str(&rig.text("run/copal/update.lock")).unwrap();
    rig.ok(&["kill", "-TERM", &lock["pid"].to_string()]);
    let sent = Instant::now();
    let out = wait(update);
    (out, sent.elapsed())
}

fn assert_interrupted(rig: &Rig, (out, took): &(Output, Duration), code: i32) {
    let log = stderr(out);
    assert_eq!(out.status.code(), Some(code), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.contains("the update was ended by SIGTERM [interrupted]; run the update again"), "{log}");
    assert!(*took < SOON, "{took:?}: {log}");
    rig.assert_back(&log);
    assert_eq!(rig.said(), "", "no hook has run");
    assert!(!rig.has("mnt/sysroot/inactive/current") && !rig.has("mnt/data/resin-data/tmp"), "{log}");
}

#[test]
fn checks_that_wait_for_the_engine() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.ok(&["sh", "-c", "kill -STOP $(cat /run/engine.pid)"]);
    for (program, code) in [(&["hostapp-update"][..], 1), (&["copal", "update"], 3)] {
        let update = rig.start(&[program, &["-f", "/mnt/data/os.tar"]].concat());
        let lock = || std::fs::read_to_string(rig.at("run/copal/update.lock")).unwrap_or_default();
        until("the checks", || lock().contains("pid"));
        std::thread::sleep(Duration::from_millis(300));
        let end = ended(&rig, update);
        assert_interrupted(&rig, &end, code);
        // Without the signal, the check waits a minute.
        assert!(end.1 < SOON / 2, "{:?}", end.1);
    }
    rig.ok(&["sh", "-c", "kill -CONT $(cat /run/engine.pid)"]);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
}

#[test]
fn a_pull_from_a_registry_that_stalls() {
    needs!(can_run);
    let rig = Rig::ready();
    let (mut registry, name) = rig.registry();
    let (address, path) = name.split_once('/').unwrap();
    for (program, code) in [(&["hostapp-update"][..], 1), (&["copal", "update"], 4)] {
        let stalling = Stalling::before(address);
        let slow = format!("127.0.0.1:{}/{path}", stalling.port);
        let update = rig.start(&[program, &["-i", &slow]].concat());
        until("the registry stalls", || stalling.stalls.load(Ordering::Relaxed));
        // Also while it waits for the engine, which is asked now and then whether it is alive.
        std::thread::sleep(Duration::from_millis(500));
        assert_interrupted(&rig, &ended(&rig, update), code);
    }
    let out = rig.run(&["hostapp-update", "-i", &name]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    drop(registry.kill());
    drop(registry.wait());
}

#[test]
fn a_load_that_the_engine_does_not_go_on_with() {
    let test = "a_load_that_the_engine_does_not_go_on_with";
    if !prove::runs("slow", test) || !can_run(test) {
        return;
    }
    let mut rig = Rig::new();
    rig.engine();
    let release = Release::new();
    // Takes the engine some time.
    let mut noise = vec![0; 40 << 20];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    release.put("usr/share/noise", noise);
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    let update = rig.start(&["hostapp-update", "-f", "/mnt/data/os.tar"]);
    // Where it unpacks is mounted right before the load.
    let mounts = rig.mounts();
    until("the load", || mounts().contains("/balena/tmp "));
    rig.ok(&["sh", "-c", "kill -STOP $(cat /run/engine.pid)"]);
    std::thread::sleep(Duration::from_millis(500));
    let end = ended(&rig, update);
    rig.ok(&["sh", "-c", "kill -CONT $(cat /run/engine.pid)"]);
    assert_interrupted(&rig, &end, 1);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
}
