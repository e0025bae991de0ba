//! Signals that ask the program to end, and what it leaves and says then.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::needs::{needs, tools};
use crate::kit::process::{stderr, tool, until, wait};
use crate::support::*;

/// All have one effect. A lost terminal sends SIGHUP.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

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

/// An image that takes a while.
fn make_dense(image: &Path) {
    let dense = "cp $1 $2; head -c 80M /dev/urandom | dd of=$2 bs=1M seek=10 conv=notrunc status=none";
    tool(&["sh", "-ec", dense, "sh", os_image().to_str().unwrap(), image.to_str().unwrap()]);
}

#[test]
fn a_signal_before_the_first_write_leaves_the_target_as_it_was() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk");
    fill(&target, 100 * MIB);
    // Without it nothing is written, and it is waited for.
    let lock = Flock::lock(File::open(&target).unwrap(), FlockArg::LockExclusive).unwrap();
    for signal in ENDING {
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
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk");
    let image = dir.path().join("dense.img");
    make_dense(&image);
    for signal in ENDING {
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
        assert_eq!(line["hint"], "flash it again");
        assert!(read(&target, 0, MIB).iter().all(|b| *b == 0), "{signal}: it may still boot");
    }
    // It goes on where it was stopped.
    let receipt = flashed(&image, &target, &[]);
    assert_equal(&image, &target);
    assert!(receipt["bytes"]["skipped"].as_u64().unwrap() > 0, "{receipt}");
}

/// Its last line says in which state the target is.
#[test]
fn a_flash_that_is_stopped_names_the_target_and_its_state() {
    needs!(tools);
    let dir = folder();
    let (target, image) = (dir.path().join("disk"), os_image().to_owned());
    let packed = dir.path().join("os.img.gz");
    tool(&["sh", "-ec", "gzip -1c <\"$1\" >\"$2\"", "sh", image.to_str().unwrap(), packed.to_str().unwrap()]);
    let disk = target.to_str().unwrap();
    let cleared = format!(
        "interrupted by SIGTERM while {disk} was being written; it has no partition table and does not boot"
    );
    let untouched = format!(
        "interrupted by SIGTERM while {} was checked; nothing was written to {disk}",
        packed.display()
    );
    for (stage, image, message, hint, left) in [
        ("check", &packed, &untouched, "run it again", 0xA5),
        ("write", &image, &cleared, "flash it again", 0),
        ("verify", &image, &cleared, "flash it again", 0),
    ] {
        fill(&target, 100 * MIB);
        // The signal may come too late.
        let stopped = (0..9).find_map(|_| {
            let mut child = start(image, &target);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            assert!(lines.any(|l| l.contains(&format!("\"stage\":\"{stage}\""))), "{stage}");
            send(&child, Signal::SIGTERM);
            let last: serde_json::Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
            (child.wait().unwrap().code() != Some(0)).then_some(last)
        });
        let last = stopped.unwrap();
        assert_eq!((&last["message"], &last["hint"]), (&message.as_str().into(), &hint.into()), "{stage}");
        assert!(read(&target, 0, MIB).iter().all(|b| *b == left), "{stage}");
    }
}

/// Its user wants it to go on without a terminal.
#[test]
fn under_nohup_a_hangup_ends_nothing() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk");
    fill(&target, 100 * MIB);
    let lock = Flock::lock(File::open(&target).unwrap(), FlockArg::LockExclusive).unwrap();
    let mut flash = Command::new("sh");
    flash.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_copal")]);
    flash.args(["flash", "--json", "--image"]).arg(os_image()).arg("--target").arg(&target);
    let child = flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("it is prepared for signals", || is_prepared(&child));
    send(&child, Signal::SIGHUP);
    drop(lock);
    let out = wait(child);
    assert_eq!(out.status.code(), Some(0), "{}", last_line(&out));
    assert_equal(os_image(), &target);
}

/// As when the connection breaks over which an operator works: the terminal can take no more output either.
#[test]
fn a_lost_terminal_ends_a_flash_and_leaves_no_partition_table() {
    needs!(tools);
    let dir = folder();
    let (target, image) = (dir.path().join("disk"), dir.path().join("dense.img"));
    make_dense(&image);
    fill(&target, 100 * MIB);
    // No other process gets it.
    let terminal = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(nix::libc::O_NOCTTY);
    let name = ptsname_r(&terminal).unwrap();
    let own = || Stdio::from(options.open(&name).unwrap());
    let mut flash = Command::new("setsid");
    flash.args(["--ctty", env!("CARGO_BIN_EXE_copal"), "flash", "--yes", "--image"]).arg(&image);
    flash.arg("--target").arg(&target).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("COPAL_LOG");
    let mut child = flash.stdin(own()).stdout(own()).stderr(own()).spawn().unwrap();
    drop(flash);
    until("the body is being written", || read(&target, 12 * MIB, 512) != [0xA5; 512]);
    drop(terminal);
    until("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(read(&target, 0, MIB).iter().all(|b| *b == 0), "it may still boot");
}

/// What only reads ends at once, and has nothing to say.
#[test]
fn each_signal_ends_a_verb_that_reads() {
    needs!(tools);
    let dir = folder();
    let path = dir.path().join("dense.img");
    make_dense(&path);
    let image = path.to_str().unwrap();
    for verb in [&["digest", image][..], &["verify", "--image", image, "--target", image]] {
        let start = |ignored: &str| {
            let mut command = Command::new("sh");
            let script = format!("{ignored} exec \"$@\"");
            command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_copal")]).args(verb);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let io = format!("/proc/{}/io", child.id());
            until("it reads", || {
                let read = std::fs::read_to_string(&io).unwrap();
                let bytes = read.lines().find_map(|l| l.strip_prefix("rchar: ")).unwrap();
                bytes.parse::<u64>().unwrap() > MIB
            });
            child
        };
        for signal in ENDING {
            let child = start("");
            send(&child, signal);
            let out = wait(child);
            assert_eq!(out.status.signal(), Some(signal as i32), "{verb:?}: {}", stderr(&out));
            assert!(out.stdout.is_empty() && !stderr(&out).contains("error"), "{verb:?}: {}", stderr(&out));
        }
        let child = start("trap '' HUP;");
        send(&child, Signal::SIGHUP);
        assert_eq!(wait(child).status.code(), Some(0), "{verb:?}");
    }
}

/// Zeroes that are not read are digested nevertheless: many of them take minutes.
#[test]
fn a_signal_within_the_check_of_a_hole_is_obeyed() {
    needs!(tools);
    let dir = folder();
    let (image, target) = (dir.path().join("os.img"), dir.path().join("disk"));
    std::fs::copy(os_image(), &image).unwrap();
    File::options().write(true).open(&image).unwrap().set_len(300 << 30).unwrap();
    std::fs::write(dir.path().join("os.img.sha256"), format!("{}  os.img\n", "0".repeat(64))).unwrap();
    let mut flash = copal();
    flash.args(["flash", "--json", "--force-raw"]).args([&image, &target]);
    let child = flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("it is prepared for signals", || is_prepared(&child));
    send(&child, Signal::SIGTERM);
    let out = wait(child);
    let line = last_line(&out);
    assert_eq!((out.status.code(), &line["code"]), (Some(3), &"interrupted".into()), "{line}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(!target.exists() && !text.contains("digest-mismatch"), "{text}");
}
