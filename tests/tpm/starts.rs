//! What a start does with the indices that it finds, and what it gives to the disk of an attacker.

use copal::error::Code;
use copal::measurements::event_log::Event;
use copal::measurements::{EventLog, pcr};
use copal::tpm::policy;
use copal::tpm::store::{INDEX, SPARE};
use copal::unlock::seal;

use sha2::{Digest as _, Sha256};

use crate::kit::emulated_tpm::Emulated;
use crate::kit::prove::cases;
use crate::sealing::{Before, CHANGES, Change, Device, SECRET, branches, cut, foreign, found};

/// What somebody without a password does to the TPM of a device that is switched off, who then starts it from a disk of their own: the signed programs and
/// policies are this device's, the passphrase and all other programs are theirs.
#[derive(Debug, Clone, Copy)]
struct Attack {
    index: u32,
    /// Whether the disk has the device's lists, or only one for the index of the attack.
    shows_lists: bool,
}

const ATTACKS: [Attack; 4] = [
    Attack { index: INDEX, shows_lists: true },
    Attack { index: INDEX, shows_lists: false },
    Attack { index: SPARE, shows_lists: true },
    Attack { index: SPARE, shows_lists: false },
];

const THEIRS: [u8; 32] = *b"the passphrase of someone else..";

impl Attack {
    fn make(self, device: &mut Device) {
        let list = match device.policies().current().map(|list| list.branches()) {
            Ok(list) if self.shows_lists && !list.is_empty() => list,
            _ => foreign(device.met()),
        };
        let mut tpm = device.emulated.tpm();
        tpm.remove(self.index).unwrap();
        tpm.store(self.index, &policy::any(&list), &(&THEIRS).into()).unwrap();
        drop(tpm);
        if !self.shows_lists {
            device.partition = tempfile::tempdir().unwrap();
            let folder = device.partition.path().join("policies.theirs");
            std::fs::create_dir(&folder).unwrap();
            for (n, branch) in list.iter().enumerate() {
                std::fs::write(folder.join(format!("policy.{n}")), branch).unwrap();
            }
        }
        device.emulated.restart();
    }
}

#[test]
fn a_disk_of_somebody_else_reads_nothing_from_the_tpm() {
    let test = "a_disk_of_somebody_else_reads_nothing_from_the_tpm";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    // At rest, as copal installs now and as it did; and within each step of a change.
    let mut points = Vec::new();
    for (kind, change) in CHANGES.into_iter().enumerate() {
        device.begin(change);
        let (total, done) = cut(usize::MAX, || device.change(change));
        done.unwrap();
        points.extend((0..=total).flat_map(|n| ATTACKS.map(|attack| (kind, n, attack))));
    }
    let (mut started, mut tried) = (0, 0);
    for case in cases("secure-boot", test, points.len(), 16) {
        let (kind, n, attack) = points[case];
        let what = format!("{:?}, cut at {n}, {attack:?}", CHANGES[kind]);
        device.begin(CHANGES[kind]);
        drop(cut(n, || device.change(CHANGES[kind])));
        attack.make(&mut device);
        started += usize::from(device.start(&[&THEIRS]).is_ok());
        assert!(![INDEX, SPARE].iter().any(|index| device.gives(*index, &SECRET)), "{what}");
        device.emulated.restart();
        tried += 1;
    }
    println!(
        "{tried} of {} attacks: {started} start their disk, and none reads the passphrase",
        points.len()
    );
}

#[test]
fn a_start_leaves_one_index_by_what_has_opened_the_disk() {
    let test = "a_start_leaves_one_index_by_what_has_opened_the_disk";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    let older = Change { before: Before::Older, others: (1, 1) };

    // An older copal's own: the partition is not written.
    device.begin(older);
    let before = found(device.partition.path(), &|path| path.is_file());
    device.start(&[&SECRET]).unwrap();
    assert!(!device.has_spare() && device.unlocks_by_scripts());
    assert_eq!(found(device.partition.path(), &|path| path.is_file()), before);

    // The first index is gone, or for another start.
    for other in [None, Some([[0xee; 32]])] {
        device.begin(older);
        let mut tpm = device.emulated.tpm();
        tpm.remove(INDEX).unwrap();
        if let Some(other) = other {
            tpm.store(INDEX, &policy::any(&other), &(&SECRET).into()).unwrap();
        }
        drop(tpm);
        device.start(&[&SECRET]).unwrap();
        assert!(!device.has_spare() && device.unlocks_by_scripts());
    }

    // An older copal's recovery that was cut off: all partitions take both, or not.
    let two = |device: &Device| {
        let list = branches(device.met(), 1);
        device.emulated.tpm().store(SPARE, &policy::any(&list), &(&THEIRS).into()).unwrap();
    };
    device.begin(older);
    two(&device);
    assert!(seal::read(&mut device.emulated.tpm(), &device.policies()).is_err());
    device.start(&[&SECRET, &THEIRS]).unwrap();
    assert!(!device.has_spare() && device.unlocks_by_scripts());
    for known in [&SECRET, &THEIRS] {
        device.begin(older);
        two(&device);
        let e = device.start(&[known]).unwrap_err();
        assert!(e.code() == Code::WouldNotUnlock && e.message().contains("two passphrases"), "{e}");
        assert!(!device.gives(INDEX, &SECRET) && !device.gives(SPARE, &THEIRS), "closed");
        device.emulated.restart();
        assert!(device.gives(INDEX, &SECRET) && device.gives(SPARE, &THEIRS), "nothing is changed");
    }
}

#[test]
fn a_start_that_asks_for_the_recovery_passphrase_gets_nothing_from_the_tpm() {
    let test = "a_start_that_asks_for_the_recovery_passphrase_gets_nothing_from_the_tpm";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    device.begin(CHANGES[0]);
    let read = |device: &Device| seal::read(&mut device.emulated.tpm(), &device.policies());
    read(&device).unwrap();
    seal::close(&mut device.emulated.tpm()).unwrap();
    assert_eq!(read(&device).unwrap_err().code().as_str(), "would-not-unlock");
    // What was measured before it is known from the log.
    let mut firmware = EventLog::default();
    firmware.events.push(Event { pcr: 7, kind: 4, digest: [3; 32], data: Vec::new() });
    let measured = firmware.replay(7);
    let extended = |value: [u8; 32]| -> [u8; 32] { Sha256::digest([value, seal::mark()].concat()).into() };
    let of = |pcr7| pcr::before_extended(&firmware, &[[0; 32], [1; 32], [2; 32], pcr7], &seal::mark());
    assert_eq!(of(measured), None);
    for pcr7 in [extended(measured), extended(extended(measured))] {
        assert_eq!(of(pcr7), Some([[0; 32], [1; 32], [2; 32], measured]));
    }
    assert_eq!(of([9; 32]), None);
    device.emulated.restart();
    read(&device).unwrap();
}

#[test]
fn a_tpm_in_lockout_still_gives_the_passphrase() {
    let Some(emulated) = Emulated::new("a_tpm_in_lockout_still_gives_the_passphrase") else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    device.begin(CHANGES[0]);
    let met = device.met();
    // Each switch-off after the use of a password counts as a wrong one.
    let refused = (0..40).find_map(|_| {
        let done = device.emulated.tpm().store(SPARE, &met, &(&SECRET).into());
        device.emulated.restart();
        done.err()
    });
    assert!(refused.unwrap().message().contains("lockout"));
    assert_eq!(seal::read(&mut device.emulated.tpm(), &device.policies()).unwrap().secret.bytes(), &SECRET);
    // A spare that was left is removed, without a password.
    assert!(device.has_spare());
    device.start(&[&SECRET]).unwrap();
    assert!(!device.has_spare() && device.unlocks_by_scripts());
}

/// The TPM defines an index in lockout, and does not write it.
#[test]
fn in_lockout_the_spare_alone_unlocks_each_start_and_no_other_disk() {
    let test = "in_lockout_the_spare_alone_unlocks_each_start_and_no_other_disk";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    let older = Change { before: Before::Older, others: (1, 1) };
    device.begin(older);
    let met = device.met();
    let lock_out = |device: &mut Device| {
        let refused = (0..40).any(|_| {
            let done = device.emulated.tpm().store(0x0150_0008, &met, &(&SECRET).into());
            device.emulated.restart();
            done.is_err()
        });
        assert!(refused);
    };
    lock_out(&mut device);
    // A power cut has left the spare alone.
    device.emulated.tpm().remove(INDEX).unwrap();
    for _ in 0..2 {
        device.start(&[&SECRET]).unwrap();
        assert!(device.has_spare() && !device.gives(INDEX, &SECRET));
        device.emulated.restart();
    }
    device.emulated.end_lockout();
    device.start(&[&SECRET]).unwrap();
    assert!(!device.has_spare() && device.unlocks_by_scripts());

    // The same lockout, by somebody who has made the spare: the first index, whose list their disk does not have, is gone before it starts.
    device.begin(Change { before: Before::Installed, others: (1, 1) });
    let attack = Attack { index: SPARE, shows_lists: false };
    attack.make(&mut device);
    lock_out(&mut device);
    device.start(&[&THEIRS]).unwrap();
    assert!(![INDEX, SPARE].iter().any(|index| device.gives(*index, &SECRET)));
    device.emulated.end_lockout();
}
