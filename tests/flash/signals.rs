//! Signals that ask the program to end, and what it leaves and says then.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::process::{tool, until, wait};
use crate::support::*;

fn start(image: &Path, target: &Path) -> Child {
    let mut flash: Command = copal();
    flash.args(["flash", "--json", "--image"]).arg(image).arg("--target").arg(target);
    flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// Whether the program has taken over SIGTERM (proc(5): `SigCgt`, a mask).
fn is_prepared(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).map_or("0", str::trim);
    u64::from_str_radix(mask, 16).unwrap() & (1 << (Signal::SIGTERM as u64 - 1)) != 0
}

#[test]
fn a_signal_before_the_first_write_leaves_the_target_as_it_was() {
    let dir = folder();
    let target = dir.path().join("disk");
    fill(&target, 100 * MIB);
    // Without it nothing is written, and it is waited for.
    let lock = Flock::lock(File::open(&target).unwrap(), FlockArg::LockExclusive).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let child = start(os_image(), &target);
        until("it is prepared for signals", || is_prepared(&child));
        send(&child, signal);
        let out = wait(child);
        let line = last_line(&out);
        assert_eq!(out.status.code(), Some(3), "{line}");
        assert_eq!((&line["code"], &line["effect"]), (&"interrupted".into(), &"refused".into()), "{line}");
        let message = line["message"].as_str().unwrap();
        assert!(message.contains(signal.as_str()) && message.contains("nothing was written"), "{message}");
        assert!(std::fs::read(&target).unwrap().iter().all(|b| *b == 0xA5), "{signal}");
    }
    drop(lock);
}

#[test]
fn a_signal_within_the_write_leaves_no_partition_table() {
    let dir = folder();
    let target = dir.path().join("disk");
    let image = dir.path().join("dense.img");
    let dense = "cp $1 $2; head -c 80M /dev/urandom | dd of=$2 bs=1M seek=10 conv=notrunc status=none";
    let (from, to) = (os_image().to_str().unwrap(), image.to_str().unwrap());
    tool(&["sh", "-ec", dense, "sh", from, to]);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        fill(&target, 100 * MIB);
        let child = start(&image, &target);
        until("the body is being written", || read(&target, 12 * MIB, 512) != [0xA5; 512]);
        send(&child, signal);
        let out = wait(child);
        let line = last_line(&out);
        assert_eq!(out.status.code(), Some(4), "{line}");
        assert_eq!((&line["code"], &line["effect"]), (&"interrupted".into(), &"written".into()), "{line}");
        let message = line["message"].as_str().unwrap();
        assert!(message.contains(signal.as_str()) && message.contains("no partition table"), "{message}");
        assert_eq!(line["hint"], "run it again");
        assert!(read(&target, 0, MIB).iter().all(|b| *b == 0), "{signal}: it may still boot");
    }
    // It goes on where it was stopped.
    let receipt = flashed(&image, &target, &[]);
    assert_equal(&image, &target);
    assert!(receipt["bytes"]["skipped"].as_u64().unwrap() > 0, "{receipt}");
}
