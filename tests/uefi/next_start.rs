//! The next start of a device that has the two programs of `release/` in its boot partition.

use std::fs;
use std::path::Path;

use copal::measurements::event_log::Event;
use copal::measurements::{EventLog, Measured, pcr};
use copal::tpm::policy;
use copal::uefi::Guid;
use copal::uefi::authenticode::Program;
use copal::uefi::signature_list::of_hashes;
use copal::unlock::next_start::{self, NextStart, Start};

const LOADER: &[u8] = include_bytes!("release/loader.efi");
const KERNEL: &[u8] = include_bytes!("release/kernel.efi");
const PCRS: [[u8; 32]; 3] = [[1; 32], [2; 32], [3; 32]];

fn allowing(programs: &[&[u8]]) -> Start {
    let hashes: Vec<[u8; 32]> = programs.iter().map(|file| Program::parse(file).unwrap().digest).collect();
    let now = Measured { secure_boot: vec![1], db: of_hashes(&hashes, Guid::GLOBAL), ..Measured::default() };
    let [pcr0, pcr2, pcr3] = PCRS;
    Start { log: None, now, values: [pcr0, pcr2, pcr3, [7; 32]] }
}

fn put(plain: &Path, name: &str, content: &[u8]) {
    let path = plain.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn a_start_is_unlocked_by_the_policy_of_its_programs_and_variables() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path();
    let of = |start: &Start, policies: &[[u8; 32]]| next_start::look(plain, start, policies);
    let is_unknown = |start: &Start, words: &str| match of(start, &[]) {
        NextStart::Unknown(why) => assert!(why.contains(words), "{why}"),
        other => panic!("{words}: {other:?}"),
    };
    let start = allowing(&[LOADER, KERNEL]);
    is_unknown(&start, "bootx64.efi cannot be read");
    put(plain, "EFI/BOOT/bootx64.efi", LOADER);
    put(plain, "bzImage", b"no program");
    is_unknown(&start, "bzImage is not a UEFI program");
    put(plain, "bzImage", &[KERNEL, &[0; 3]].concat());
    is_unknown(&start, "not a multiple of 8");
    put(plain, "bzImage", KERNEL);
    is_unknown(&allowing(&[LOADER]), "db has neither");

    // Of firmware that measures what allows the programs, and of firmware that does not.
    let [pcr0, pcr2, pcr3] = PCRS;
    let policy_of = |start: &Start, authorities: &[[u8; 32]]| {
        let pcr7 = start.now.pcr7(&pcr::between(None), authorities);
        policy::pcr(&[pcr0, pcr2, pcr3, pcr7])
    };
    let programs = [LOADER, KERNEL].map(|file| Program::parse(file).unwrap());
    let programs: Vec<&Program<'_>> = programs.iter().collect();
    let both = pcr::branches(&start.now, &pcr::between(None), &[], &programs).unwrap();
    let measured = policy::pcr(&[pcr0, pcr2, pcr3, both[1]]);
    let silent = policy_of(&start, &[]);
    assert_eq!(of(&start, &[[9; 32], measured]), NextStart::Unlocks);
    assert_eq!(of(&start, &[silent]), NextStart::Unlocks);
    assert!(matches!(of(&start, &[[9; 32]]), NextStart::Unknown(why) if why.contains("no log")));

    // Of firmware whose log says that it does not.
    let with_log = |start: &Start| {
        let digests = [[0; 32]; 5].into_iter().chain(pcr::between(None));
        let event = |digest| Event { pcr: 7, kind: 4, digest, data: Vec::new() };
        Start {
            log: Some(EventLog { events: digests.map(event).collect(), ..EventLog::default() }),
            ..start.clone()
        }
    };
    assert_eq!(of(&with_log(&start), &[silent]), NextStart::Unlocks);
    assert_eq!(of(&with_log(&start), &[measured]), NextStart::DoesNotUnlock);

    // As a program of the owner leaves it that adds to `db`, and does not seal the passphrase again.
    let more = with_log(&allowing(&[LOADER, KERNEL, &[LOADER, &[0; 8]].concat()]));
    assert_eq!(of(&more, &[silent, measured]), NextStart::DoesNotUnlock);
    assert_eq!(of(&more, &[policy_of(&more, &[])]), NextStart::Unlocks);
}
