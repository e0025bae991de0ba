//! The file: its limits, and what cuts and others leave in it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use copal::state::history::{self, FILE_LIMIT, MAX_RECORDS, Record};

use super::support::{Device, logged, rollback, small, times, told_to_the_journal};

#[track_caller]
fn quietly(work: impl FnOnce()) {
    let said = logged(work);
    assert!(said.is_empty(), "{said:?}");
}

fn size(device: &Device) -> usize {
    usize::try_from(fs::metadata(device.file()).unwrap().len()).unwrap()
}

#[test]
fn records_are_read_in_their_order() {
    let device = Device::new();
    assert!(history::read(&device.paths()).is_empty());
    quietly(|| history::prepare(&device.paths()));
    assert!(history::read(&device.paths()).is_empty());
    let records = [small(0), rollback(1), small(2)];
    quietly(|| records.iter().for_each(|r| history::append(&device.paths(), r)));
    assert_eq!(history::read(&device.paths()), records);
    // Another update changes nothing of it.
    let before = fs::read(device.file()).unwrap();
    quietly(|| history::prepare(&device.paths()));
    assert_eq!(fs::read(device.file()).unwrap(), before);
    assert_eq!(fs::metadata(device.file()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn without_an_update_before_the_first_record_makes_the_file() {
    let device = Device::new();
    quietly(|| history::append(&device.paths(), &rollback(1)));
    assert_eq!(history::read(&device.paths()), [rollback(1)]);
}

#[test]
fn space_is_allocated_when_the_update_starts() {
    let device = Device::new();
    for n in 0..3 {
        history::prepare(&device.paths());
        let file = fs::metadata(device.file()).unwrap();
        assert!(file.blocks() * 512 >= FILE_LIMIT as u64, "{} blocks", file.blocks());
        let room = FILE_LIMIT - size(&device);
        assert!(room >= 2 * history::LINE_LIMIT, "{room}");
        for _ in 0..4 {
            history::append(&device.paths(), &rollback(n));
        }
    }
}

#[test]
fn the_file_keeps_within_its_limits() {
    for prepared in [true, false] {
        for record in [small as fn(usize) -> Record, rollback] {
            let device = Device::new();
            for n in 0..150 {
                if prepared && n % 3 == 0 {
                    history::prepare(&device.paths());
                }
                history::append(&device.paths(), &record(n));
                let records = history::read(&device.paths());
                assert!(
                    records.len() <= MAX_RECORDS && size(&device) <= FILE_LIMIT,
                    "{n}: {}",
                    records.len()
                );
                assert_eq!(records.last(), Some(&record(n)));
            }
            let kept = history::read(&device.paths());
            // A series without gaps, of which the last ones have their journal.
            assert!(kept.len() >= MAX_RECORDS - 8, "{}", kept.len());
            let first = 150 - kept.len();
            assert_eq!(times(&kept), (first..150).map(|n| format!("time {n}")).collect::<Vec<_>>());
            assert_eq!(kept[kept.len() - 3..], [record(147), record(148), record(149)]);
            if record(0).journal.len() > 1 {
                assert!(kept[0].journal.is_empty());
                assert_eq!(kept[0].checks, record(0).checks);
            }
        }
    }
}

/// What any cut of power during an append leaves: a part of the line, or zeros in the place of the rest.
#[test]
fn a_torn_line_costs_nothing_but_itself() {
    let device = Device::new();
    let (first, torn, next) = (small(1).line(), small(2).line(), small(3));
    for cut in 0..torn.len() {
        for zeros in [0, 1, torn.len() - cut] {
            let mut bytes = first.clone().into_bytes();
            bytes.extend(&torn.as_bytes()[..cut]);
            bytes.resize(bytes.len() + zeros, 0);
            device.put(&bytes);
            assert_eq!(times(&history::read(&device.paths()))[0], "time 1", "{cut}");
            history::append(&device.paths(), &next);
            let read = times(&history::read(&device.paths()));
            // Cut off in front of its newline only, the line is as good as whole.
            let whole = cut + 1 == torn.len() && zeros == 0;
            let expected: &[&str] =
                if whole { &["time 1", "time 2", "time 3"] } else { &["time 1", "time 3"] };
            assert_eq!(read, expected, "{cut} {zeros}");
            if cut % 16 == 0 {
                history::prepare(&device.paths());
                assert_eq!(times(&history::read(&device.paths())), expected, "{cut} {zeros}");
                let lines = fs::read_to_string(device.file()).unwrap();
                assert_eq!(lines.lines().count(), expected.len(), "healed: {lines:?}");
            }
        }
    }
}

#[test]
fn damaged_lines_hide_no_other_and_go_with_the_next_update() {
    let device = Device::new();
    let mut bytes = b"\n\xff\xfe{}\n{\"version\":1}\n".to_vec();
    bytes.extend(small(1).line().bytes());
    bytes.extend(b"{\"transaction\":\"t\",\n\0\0\0\n\n");
    bytes.extend(small(2).line().bytes());
    device.put(&bytes);
    assert_eq!(history::read(&device.paths()), [small(1), small(2)]);
    history::prepare(&device.paths());
    assert_eq!(fs::read_to_string(device.file()).unwrap(), [small(1).line(), small(2).line()].concat());
}

#[test]
fn what_later_releases_have_added_stays() {
    let device = Device::new();
    let later =
        "{\"version\":9,\"new\":[1,2],\"transaction\":\"t\",\"time\":\"time 0\",\"event\":\"exploded\"}\n";
    device.put(format!("{later}torn").as_bytes());
    history::prepare(&device.paths());
    history::append(&device.paths(), &small(1));
    assert_eq!(fs::read_to_string(device.file()).unwrap(), [later, &small(1).line()].concat());
}

#[test]
fn a_file_that_others_have_blown_up_is_made_small_again() {
    let device = Device::new();
    let mut bytes = vec![b'x'; 8 * FILE_LIMIT];
    bytes.push(b'\n');
    bytes.extend(small(1).line().bytes());
    for prepare in [true, false] {
        device.put(&bytes);
        assert_eq!(history::read(&device.paths()), [small(1)]);
        if prepare {
            history::prepare(&device.paths());
        }
        history::append(&device.paths(), &small(2));
        assert_eq!(history::read(&device.paths()), [small(1), small(2)]);
        assert!(size(&device) < 1000);
    }
}

/// A pipe would make whoever opens it wait for ever; a link would lead elsewhere.
#[test]
fn nothing_but_a_file_is_written_to() {
    for kind in ["pipe", "link", "folder"] {
        let device = Device::new();
        device.put(b"");
        fs::remove_file(device.file()).unwrap();
        let elsewhere = device.paths().at("/elsewhere");
        match kind {
            "pipe" => nix::unistd::mkfifo(&device.file(), nix::sys::stat::Mode::S_IRWXU).unwrap(),
            "link" => {
                fs::write(&elsewhere, "x").unwrap();
                symlink(&elsewhere, device.file()).unwrap();
            }
            _ => fs::create_dir(device.file()).unwrap(),
        }
        let said = logged(|| history::append(&device.paths(), &rollback(1)));
        assert_eq!(told_to_the_journal(&said), Record { journal: Vec::new(), ..rollback(1) }, "{kind}");
        assert_eq!(logged(|| history::prepare(&device.paths())).len(), 1, "{kind}");
        assert!(history::read(&device.paths()).is_empty(), "{kind}");
        if kind == "link" {
            assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "x");
        }
    }
}

#[test]
fn a_state_partition_that_is_not_mounted_gets_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let paths = copal::config::paths::Paths::new(dir.path());
    let said = logged(|| history::append(&paths, &small(1)));
    assert_eq!(told_to_the_journal(&said), small(1));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
