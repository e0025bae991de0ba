//! The starts that are possible during an update and on the way back.

use copal::measurements::event_log::Event;
use copal::measurements::{EventLog, Measured, pcr};
use copal::uefi::Guid;
use copal::uefi::authenticode::Program;
use copal::uefi::signature_list::{append, of_hashes};
use copal::unlock::next_start::{Pair, Start};
use copal::unlock::way::{Direction, Way};

const LOADER: &[u8] = include_bytes!("release/loader.efi");
const KERNEL: &[u8] = include_bytes!("release/kernel.efi");
const MET: [u8; 32] = [9; 32];

/// Release `n`'s.
fn files(n: usize) -> [Vec<u8>; 2] {
    [LOADER, KERNEL].map(|file| [file, &[0; 8].repeat(n)].concat())
}

fn parse(files: &[Vec<u8>; 2]) -> Pair<'_> {
    files.each_ref().map(|file| Program::parse(file))
}

fn entries(files: &[Vec<u8>; 2]) -> Vec<u8> {
    of_hashes(&parse(files).map(|program| program.unwrap().digest), Guid::GLOBAL)
}

/// What firmware may leave in its log: none, or one that shows whether it measures what allows its programs.
fn starts(now: &Measured, pair: &Pair<'_>) -> Vec<(&'static str, Start)> {
    let start = |log: Option<EventLog>, pcr7| Start {
        log,
        now: now.clone(),
        values: [[1; 32], [2; 32], [3; 32], pcr7],
    };
    let programs: Vec<&Program<'_>> = pair.iter().flatten().collect();
    let values = pcr::branches(now, &pcr::between(None), &[], &programs).unwrap();
    let event = |kind, digest| Event { pcr: 7, kind, digest, data: Vec::new() };
    let silent: Vec<Event> =
        [[0; 32]; 5].into_iter().chain(pcr::between(None)).map(|digest| event(4, digest)).collect();
    let mut speaking = silent.clone();
    speaking.extend([[5; 32], [6; 32]].map(|digest| event(0x8000_00e0, digest)));
    vec![
        ("no log", start(None, values[1])),
        ("silent", start(Some(EventLog { events: silent, ..EventLog::default() }), [0; 32])),
        ("speaking", start(Some(EventLog { events: speaking, ..EventLog::default() }), [0; 32])),
    ]
}

/// Each state that a power cut can leave, and whether a policy of it is among the branches.
fn lacking(
    start: &Start,
    branches: &[[u8; 32]],
    states: &[(&Measured, [&Option<Program<'_>>; 2])],
) -> Vec<usize> {
    let is_covered = |(keys, [loader, kernel]): &(&Measured, [&Option<Program<'_>>; 2])| {
        let policies = start.policies(keys, &[loader.as_ref().unwrap(), kernel.as_ref().unwrap()]);
        policies.unwrap().iter().all(|policy| branches.contains(policy))
    };
    states.iter().enumerate().filter(|(_, state)| !is_covered(state)).map(|(n, _)| n).collect()
}

#[test]
fn each_start_on_the_way_and_back_has_its_policy() {
    let releases = [files(0), files(1), files(2)];
    let [running, earlier, new] = releases.each_ref().map(parse);
    let now = Measured {
        secure_boot: vec![1],
        db: [entries(&releases[0]), entries(&releases[1])].concat(),
        ..Measured::default()
    };
    let later = Measured { db: append(&now.db, &entries(&releases[2])).unwrap(), ..now.clone() };
    // The second one: an update before, without a restart, has left its programs in place.
    for (name, in_place) in [("one update", &running), ("two updates", &earlier)] {
        for (firmware, start) in starts(&now, &running) {
            let way = Way {
                start: &start,
                now: &now,
                in_place,
                running: &running,
                new: &new,
                direction: Direction::Forward,
            };
            let branches = way.branches(&later, MET).unwrap();
            assert_eq!(branches[0], MET);
            let ([old_loader, old_kernel], [loader, kernel]) = (in_place, &new);
            let [first_loader, first_kernel] = &running;
            let forward = [
                (&now, [old_loader, old_kernel]),
                (&later, [old_loader, old_kernel]),
                (&later, [old_loader, kernel]),
                (&later, [loader, kernel]),
            ];
            let undo = [
                (&later, [first_loader, old_kernel]),
                (&later, [first_loader, kernel]),
                (&later, [first_loader, first_kernel]),
            ];
            let states = [&forward[..], &undo].concat();
            assert_eq!(lacking(&start, &branches, &states), [0_usize; 0], "{name}, {firmware}");
            // Each is necessary, and one update always fits.
            assert!(!lacking(&start, &[MET], &forward).is_empty());
            let is_too_long = branches.len() > 8;
            assert_eq!(is_too_long, (name, firmware) == ("two updates", "no log"), "{}", branches.len());

            // From the end, the way back needs nothing else.
            let back = Way { in_place: &new, new: &running, now: &later, direction: Direction::Back, ..way };
            let back = back.branches(&later, MET).unwrap();
            assert!(back.iter().all(|branch| branches.contains(branch)), "{name}, {firmware}");
            let states = [&[(&later, [loader, kernel])][..], &undo[1..]].concat();
            assert_eq!(lacking(&start, &back, &states), [0_usize; 0], "{name}, {firmware}");
        }
    }
}

#[test]
fn what_cannot_be_predicted_stops_an_update() {
    let (old, new) = (files(0), files(1));
    let now = Measured { secure_boot: vec![1], db: entries(&old), ..Measured::default() };
    let later = Measured { db: append(&now.db, &entries(&new)).unwrap(), ..now.clone() };
    let (old, new) = (parse(&old), parse(&new));
    let (_, start) = starts(&now, &old).remove(0);
    let of = |start: &Start, in_place: &Pair<'_>, direction| {
        Way { start, now: &now, in_place, running: &old, new: &new, direction }.branches(&later, MET)
    };
    assert!(of(&start, &old, Direction::Forward).is_ok());
    // As after an append without a restart.
    let appended = Start { now: later.clone(), ..start.clone() };
    assert!(of(&appended, &old, Direction::Forward).is_ok());
    let mut other = start.clone();
    other.values[3] = [0; 32];
    for direction in [Direction::Forward, Direction::Back] {
        assert!(of(&other, &old, direction).unwrap_err().message().contains("has left no log"));
    }
    // A program that the firmware does not start, or that is damaged, stops nothing: only what replaces it helps.
    for direction in [Direction::Forward, Direction::Back] {
        assert!(of(&start, &new, direction).unwrap().contains(&MET));
        assert!(of(&start, &[None, None], direction).unwrap().contains(&MET));
    }
}
