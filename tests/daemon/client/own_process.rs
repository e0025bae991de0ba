//! Where an update runs in the process of its client.

use std::io::{Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;

use super::jobs::BEGUN_HERE;
use super::place::{Place, can_run, stderr};
use crate::kit::needs::needs;
use crate::kit::systemd::Answer;

/// Runs it, and sees it begin in its own process, to be refused there: there are no slots.
fn begins_here(place: &Place, argv: &[&str]) {
    let out = place.run(argv);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(3), "{argv:?}: {log}");
    assert!(log.contains(BEGUN_HERE), "{argv:?}: {log}");
}

const UPDATE: [&str; 4] = ["copal", "update", "-i", "a:1"];

#[test]
fn without_a_bus_or_systemd() {
    needs!(can_run);
    let mut place = Place::new();
    begins_here(&place, &UPDATE);
    std::fs::create_dir_all(place.at("run/systemd/system")).unwrap();
    begins_here(&place, &UPDATE);
    place.start_bus();
    begins_here(&place, &UPDATE);
    let out = place.run(&["hostapp-update", "-i", "a:1"]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(1), "{log}");
    let steps = String::from_utf8_lossy(&out.stdout);
    assert!(steps.contains("[INFO] the update runs in this process: "), "{steps}{log}");
    assert!(!place.at("run/copal/job.json").exists(), "no job is recorded");
}

#[test]
fn where_systemd_does_not_start_the_unit() {
    needs!(can_run);
    let place = Place::with_systemd();
    // One without an answer was not started: its request was withdrawn.
    for answer in [Answer::NoSuchUnit, Answer::Silence] {
        place.systemd.answer(answer);
        begins_here(&place, &UPDATE);
        let left: Vec<_> =
            std::fs::read_dir(place.at("run/copal")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.iter().filter(|n| *n != "job.lock" && *n != "update.lock").count(), 0, "{left:?}");
    }
    assert_eq!(place.systemd.calls().len(), 2);
}

/// This process would be ended in the middle of the update, too.
#[test]
fn not_during_a_shutdown() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.systemd.answer(Answer::Destructive);
    let out = place.run(&UPDATE);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(5), "{log}");
    assert!(log.contains("[busy]") && !log.contains(BEGUN_HERE), "{log}");
    assert!(!place.at("run/copal/job.json").exists(), "no job is recorded");
}

#[test]
fn where_the_jobs_paths_would_mean_something_else() {
    needs!(can_run);
    let place = Place::with_systemd();
    place.worker(super::jobs::SUCCEEDS);
    // As a job it ends at once, and well.
    let out = place.run(&UPDATE);
    assert_eq!((out.status.code(), place.systemd.calls().len()), (Some(0), 1), "{}", stderr(&out));

    let chroot = "mkdir /chroot && mount --rbind / /chroot && exec chroot /chroot copal update -i a:1";
    begins_here(&place, &["unshare", "-m", "copal", "update", "-i", "a:1"]);
    begins_here(&place, &["sh", "-c", chroot]);
    begins_here(&place, &["copal", "update", "--no-daemon", "-i", "a:1"]);
    for mark in [".dockerenv", "run/.containerenv"] {
        place.put(mark, "");
        begins_here(&place, &UPDATE);
        std::fs::remove_file(place.at(mark)).unwrap();
    }
    // Without a running slot this is the making of an image.
    let out = place.run(&["copal", "update", "-n", "-i", "a:1"]);
    assert!(stderr(&out).contains("[engine-unreachable]"), "{}", stderr(&out));
    let out = place.run(&["hostapp-update", "--no-daemon", "-i", "a:1"]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert_eq!(place.systemd.calls().len(), 1, "no other was a job");
}

/// A service whose standard output is the journal, and one that keeps it in a file: the journal has each step from the program itself.
#[test]
fn steps_on_stdout_are_in_a_journal_once() {
    needs!(can_run);
    let place = Place::new();
    std::fs::create_dir_all(place.at("run/systemd/journal")).unwrap();
    let journal = UnixDatagram::bind(place.at("run/systemd/journal/socket")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let step = "the update runs in this process: systemd does not run";
    for is_the_journal in [true, false] {
        let mut file = tempfile::tempfile().unwrap();
        let stat = file.metadata().unwrap();
        let inode = stat.ino() + u64::from(!is_the_journal);
        let mut command = place.command(&["hostapp-update", "-i", "a:1"]);
        command.env("COPAL_LOG", "debug").env("JOURNAL_STREAM", format!("{}:{inode}", stat.dev()));
        let out = super::place::wait(command.stdout(file.try_clone().unwrap()).spawn().unwrap());
        assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
        let (mut printed, mut buffer, mut entries) = (String::new(), [0; 4096], 0);
        file.rewind().unwrap();
        file.read_to_string(&mut printed).unwrap();
        while let Ok(n) = journal.recv(&mut buffer) {
            entries += usize::from(String::from_utf8_lossy(&buffer[..n]).contains(step));
        }
        assert_eq!((printed.matches(step).count(), entries), (usize::from(!is_the_journal), 1), "{printed}");
        assert!(!stderr(&out).contains(step), "{}", stderr(&out));
    }
}
