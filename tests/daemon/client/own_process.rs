//! Where an update is not handed over.

use super::followed::BEGUN_HERE;
use super::place::{Place, can_run, stderr};
use super::stand_in::{Job, StandIn};

/// Runs it, and sees it begin in its own process, to be refused there: there are no slots.
fn begins_here(place: &Place, argv: &[&str], environment: Option<(&str, &str)>) {
    let mut command = place.command(argv);
    command.envs(environment);
    let out = super::place::wait(command.spawn().unwrap());
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(3), "{argv:?}: {log}");
    assert!(log.contains(BEGUN_HERE), "{argv:?}: {log}");
}

const UPDATE: [&str; 4] = ["copal", "update", "-i", "a:1"];

#[test]
fn without_a_bus_or_a_daemon() {
    if !can_run("without_a_bus_or_a_daemon") {
        return;
    }
    let mut place = Place::new();
    begins_here(&place, &UPDATE, None);
    place.start_bus();
    begins_here(&place, &UPDATE, None);
    let out = place.run(&["hostapp-update", "-i", "a:1"]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(1), "{log}");
    assert!(log.contains("[INFO] the update runs in this process: "), "{log}");
}

#[test]
fn where_the_daemons_paths_would_mean_something_else() {
    if !can_run("where_the_daemons_paths_would_mean_something_else") {
        return;
    }
    let place = Place::with_bus();
    let daemon = StandIn::on(&place);
    daemon.show(Job::succeeded());
    // Handed over, it ends at once, and well.
    let out = place.run(&UPDATE);
    assert_eq!((out.status.code(), daemon.count("Update")), (Some(0), 1), "{}", stderr(&out));

    let chroot = "mkdir /chroot && mount --rbind / /chroot && exec chroot /chroot copal update -i a:1";
    begins_here(&place, &["unshare", "-m", "copal", "update", "-i", "a:1"], None);
    begins_here(&place, &["sh", "-c", chroot], None);
    begins_here(&place, &["copal", "update", "--no-daemon", "-i", "a:1"], None);
    begins_here(&place, &UPDATE, Some(("COPAL_IN_DAEMON", "copal update")));
    for mark in [".dockerenv", "run/.containerenv"] {
        place.put(mark, "");
        begins_here(&place, &UPDATE, None);
        std::fs::remove_file(place.at(mark)).unwrap();
    }
    // Without a running slot this is the making of an image.
    let out = place.run(&["copal", "update", "-n", "-i", "a:1"]);
    assert!(stderr(&out).contains("[engine-unreachable]"), "{}", stderr(&out));
    assert_eq!(daemon.count("Update"), 1, "nobody else has asked");
    let out = place.run(&["hostapp-update", "--no-daemon", "-i", "a:1"]);
    assert_eq!((out.status.code(), daemon.count("Update")), (Some(1), 1), "{}", stderr(&out));
}
