//! The supervisor's database, by times.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use super::machine::{Files, Machine, PLAIN};

/// Where the first and the second move begin and end.
const MOVES: [(&str, &str, &str); 2] = [
    ("75", "/mnt/data/resin-supervisor", "/mnt/data/resin-data/resin-supervisor"),
    ("76", "/mnt/data/resin-data/resin-supervisor", "/mnt/data/resin-data/balena-supervisor"),
];

fn put(machine: &mut Machine, folder: &str, name: &str, text: &str, seconds: u64) {
    let path = format!("{folder}/{name}");
    machine.tree.file(&path, text);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(machine.at(&path)).unwrap().set_modified(time).unwrap();
}

fn modified(machine: &Machine, folder: &str) -> SystemTime {
    fs::metadata(machine.at(folder).join("database.sqlite")).unwrap().modified().unwrap()
}

fn read(machine: &Machine, folder: &str, name: &str) -> Option<String> {
    fs::read_to_string(machine.at(folder).join(name)).ok()
}

#[test]
fn the_database_is_copied_unless_the_copy_is_newer_and_the_old_folder_goes_at_the_commit() {
    for (number, from, to) in MOVES {
        let (forward, commit) =
            (format!("{number}-forward_supervisor-db"), format!("{number}-fwd_commit_supervisor-db"));
        let mut machine = Machine::new(PLAIN);
        machine.run(&forward, true).unwrap();
        machine.run(&commit, false).unwrap();
        assert_eq!(machine.see(), Files::new());

        put(&mut machine, from, "database.sqlite", "one", 1000);
        machine.run(&forward, true).unwrap();
        assert_eq!(read(&machine, to, "database.sqlite").unwrap(), "one");
        assert!(modified(&machine, to) > modified(&machine, from));

        // The new supervisor has changed it: an update that is repeated does not take that back.
        put(&mut machine, to, "database.sqlite", "two", 1001);
        machine.run(&forward, true).unwrap();
        assert_eq!(read(&machine, to, "database.sqlite").unwrap(), "two");

        // After a rollback the old one went on.
        for seconds in [1001, 1002] {
            put(&mut machine, to, "database.sqlite", "two", 1001);
            put(&mut machine, from, "database.sqlite", "three", seconds);
            machine.run(&commit, false).unwrap();
            assert_eq!(read(&machine, from, "database.sqlite").unwrap(), "three", "not newer: it stays");
            machine.run(&forward, true).unwrap();
            assert_eq!(read(&machine, to, "database.sqlite").unwrap(), "three");
        }

        put(&mut machine, from, "backup/x", "x", 1);
        machine.run(&commit, false).unwrap();
        assert!(!machine.at(from).exists());
        assert_eq!(read(&machine, to, "database.sqlite").unwrap(), "three");
        machine.run(&commit, false).unwrap();
    }
}

#[test]
fn a_copy_of_the_future_is_still_newer_than_its_source() {
    let (_, from, to) = MOVES[1];
    let mut machine = Machine::new(PLAIN);
    let tomorrow = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 86_400;
    // The same content at the same time: a copy by a shell release within one second.
    put(&mut machine, to, "database.sqlite", "one", tomorrow);
    put(&mut machine, from, "database.sqlite", "one", tomorrow);
    machine.run("76-forward_supervisor-db", true).unwrap();
    assert!(modified(&machine, to) > modified(&machine, from));
    machine.run("76-fwd_commit_supervisor-db", false).unwrap();
    assert!(!machine.at(from).exists());
}

#[test]
fn what_sqlite_keeps_beside_a_database_comes_along_and_nothing_old_stays() {
    let (_, from, to) = MOVES[1];
    let mut machine = Machine::new(PLAIN);
    for (name, text) in [("", "new"), ("-wal", "new wal"), ("-shm", "index")] {
        put(&mut machine, from, &format!("database.sqlite{name}"), text, 2000);
    }
    for (name, text) in [("", "old"), ("-wal", "old wal"), ("-shm", "old index"), ("-journal", "old journal")]
    {
        put(&mut machine, to, &format!("database.sqlite{name}"), text, 1000);
    }
    put(&mut machine, to, "other", "kept", 1000);
    machine.run("76-forward_supervisor-db", true).unwrap();
    let there: Vec<String> =
        super::machine::see(&machine.at(to)).into_iter().map(|(n, c)| n + "=" + &c).collect();
    assert_eq!(there, ["database.sqlite=new", "database.sqlite-wal=new wal", "other=kept"]);
}

#[test]
fn two_names_of_one_folder_are_left_alone() {
    let (_, from, to) = MOVES[1];
    let mut machine = Machine::new(PLAIN);
    put(&mut machine, to, "database.sqlite", "one", 1000);
    machine.tree.link(from, "balena-supervisor");
    machine.run("76-forward_supervisor-db", true).unwrap();
    machine.run("76-fwd_commit_supervisor-db", false).unwrap();
    assert_eq!(read(&machine, to, "database.sqlite").unwrap(), "one");
    assert!(machine.at(from).is_symlink());
}
