//! The passphrase in a real TPM's memory, as far as an emulated one is real.

use copal::error::Code;
use copal::tpm::policy::{self, Digest};
use copal::tpm::store::{INDEX, SPARE};
use copal::unlock::policies::{List, Policies};
use copal::unlock::seal;

use crate::kit::emulated_tpm::{Emulated, no_password};

const SECRET: [u8; 32] = *b"a passphrase of thirty-two bytes";

/// A policy for a state that is never there.
fn never(n: u8) -> Digest {
    policy::pcr(&[[n; 32]; 4])
}

#[test]
fn a_passphrase_is_read_back_in_the_state_it_was_stored_for_and_in_no_other() {
    let Some(mut emulated) =
        Emulated::new("a_passphrase_is_read_back_in_the_state_it_was_stored_for_and_in_no_other")
    else {
        return;
    };
    let mut tpm = emulated.tpm();
    tpm.check().unwrap();
    let now = policy::pcr(&tpm.pcrs().unwrap());
    assert!(tpm.public(INDEX).unwrap().is_none());
    assert!(tpm.store(INDEX, &now, &(&SECRET).into()).unwrap(), "on its way it is encrypted");
    assert!(tpm.public(INDEX).unwrap().unwrap().holds(&now));
    assert!(tpm.public(SPARE).unwrap().is_none());
    assert_eq!(tpm.unlock(INDEX, &[now]).unwrap().bytes(), &SECRET);

    drop(tpm);
    emulated.restart();
    let mut tpm = emulated.tpm();
    assert_eq!(tpm.unlock(INDEX, &[now]).unwrap().bytes(), &SECRET, "it lasts");
    emulated.extend(7);
    let mut tpm = emulated.tpm();
    let e = tpm.unlock(INDEX, &[now]).unwrap_err();
    assert_eq!(e.code(), Code::TpmFailed);
    assert!(e.message().contains("the policy is not met"), "{e}");
    let other = policy::pcr(&tpm.pcrs().unwrap());
    assert!(tpm.unlock(INDEX, &[other]).is_err(), "a policy that the index does not have");

    tpm.remove(INDEX).unwrap();
    assert!(tpm.public(INDEX).unwrap().is_none());
    tpm.remove(INDEX).unwrap();
}

#[test]
fn any_of_two_to_eight_branches_gives_it() {
    let Some(emulated) = Emulated::new("any_of_two_to_eight_branches_gives_it") else { return };
    let mut tpm = emulated.tpm();
    let now = policy::pcr(&tpm.pcrs().unwrap());
    for (count, place) in [(2, 0), (2, 1), (3, 1), (8, 7)] {
        let mut branches: Vec<Digest> = (1..=count).map(never).collect();
        branches[place] = now;
        tpm.store(SPARE, &policy::any(&branches), &(&SECRET).into()).unwrap();
        assert_eq!(tpm.unlock(SPARE, &branches).unwrap().bytes(), &SECRET, "{count}, {place}");
        branches.reverse();
        assert!(tpm.unlock(SPARE, &branches).is_err(), "in another order it is another policy");
        assert!(tpm.unlock(SPARE, &[now]).is_err());
    }
    let foreign: Vec<Digest> = (1..=2).map(never).collect();
    tpm.store(SPARE, &policy::any(&foreign), &(&SECRET).into()).unwrap();
    assert!(tpm.unlock(SPARE, &foreign).is_err());
}

#[test]
fn a_passphrase_of_before_the_index_is_named_and_the_remedy_too() {
    let Some(emulated) = Emulated::new("a_passphrase_of_before_the_index_is_named_and_the_remedy_too") else {
        return;
    };
    let partition = tempfile::tempdir().unwrap();
    let (mut tpm, policies) = (emulated.tpm(), Policies::at(partition.path().to_owned()));
    assert_eq!(seal::read(&mut tpm, &policies).unwrap_err().code(), Code::WouldNotUnlock);
    // As releases before 6.4.0 leave it.
    std::fs::write(partition.path().join("balena-luks.enc"), [3; 256]).unwrap();
    std::fs::write(partition.path().join("balena-luks.ctx"), [4; 64]).unwrap();
    let e = seal::read(&mut tpm, &policies).unwrap_err();
    assert_eq!(e.code(), Code::EncryptionOutdated);
    assert!(e.hint().contains("6.4.0 to 8.0.2"), "{e}");
    // Such a release, after the update that has made the index: the file stays there until the commit.
    let met = policy::pcr(&tpm.pcrs().unwrap());
    let list = List::of(&[met], &List::default(), &tpm.pcrs().unwrap());
    policies.write_current(&list).unwrap();
    tpm.store(INDEX, &list.policy(), &(&SECRET).into()).unwrap();
    assert_eq!(seal::read(&mut tpm, &policies).unwrap().secret.bytes(), &SECRET);
}

#[test]
fn each_passphrase_is_another_one() {
    let Some(emulated) = Emulated::new("each_passphrase_is_another_one") else { return };
    let mut tpm = emulated.tpm();
    let (one, two) = (tpm.passphrase().unwrap(), tpm.passphrase().unwrap());
    assert_ne!(one.bytes(), two.bytes());
    assert!(one.bytes().iter().any(|byte| *byte != one.bytes()[0]));
}

#[test]
fn a_tpm_that_cannot_keep_it_is_refused_and_not_changed() {
    let Some(mut emulated) = Emulated::new("a_tpm_that_cannot_keep_it_is_refused_and_not_changed") else {
        return;
    };
    // HierarchyChangeAuth of the owner.
    let owned = [&0x4000_0001u32.to_be_bytes()[..], &no_password(), &[0, 1, b'x']].concat();
    assert_eq!(emulated.send(0x8002, 0x129, &owned), 0);
    let mut tpm = emulated.tpm();
    let e = tpm.check().unwrap_err();
    assert_eq!(e.code(), Code::TpmUnusable);
    assert!(e.message().contains("password"), "{e}");
    assert!(tpm.store(INDEX, &never(1), &(&SECRET).into()).is_err());
    assert!(tpm.public(INDEX).unwrap().is_none());

    // PCR_Allocate without SHA-256, from the next start on; the platform's password is empty.
    let bank = |algorithm: u16, bits: u8| [&algorithm.to_be_bytes()[..], &[3, bits, bits, bits]].concat();
    let banks = [&2u32.to_be_bytes()[..], &bank(0x000b, 0), &bank(0x000c, 0xff)].concat();
    let allocate = [&0x4000_000cu32.to_be_bytes()[..], &no_password(), &banks].concat();
    let mut other = Emulated::new("a_tpm_that_cannot_keep_it_is_refused_and_not_changed").unwrap();
    assert_eq!(other.send(0x8002, 0x12b, &allocate), 0);
    other.restart();
    let e = other.tpm().check().unwrap_err();
    assert_eq!(e.code(), Code::TpmUnusable);
    assert!(e.message().contains("SHA-256"), "{e}");
    emulated.restart();
}

/// NV_DefineSpace of an index that the owner reads and writes.
fn define(emulated: &Emulated, index: u32, size: u16) -> bool {
    let public =
        [&index.to_be_bytes()[..], &[0, 0x0b], &0x0002_0002u32.to_be_bytes(), &[0, 0], &size.to_be_bytes()]
            .concat();
    let len = u16::try_from(public.len()).unwrap().to_be_bytes();
    let rest = [&0x4000_0001u32.to_be_bytes()[..], &no_password(), &[0, 0], &len, &public].concat();
    emulated.send(0x8002, 0x12a, &rest) == 0
}

#[test]
fn a_test_of_the_space_touches_no_index_of_others_and_leaves_none() {
    let test = "a_test_of_the_space_touches_no_index_of_others_and_leaves_none";
    let Some(emulated) = Emulated::new(test) else { return };
    let handles = 0x0150_0000..=0x0150_000f;
    assert!(define(&emulated, 0x0150_0002, 16));
    let mut tpm = emulated.tpm();
    tpm.store(INDEX, &never(1), &(&SECRET).into()).unwrap();
    // An interrupted test has left this one.
    tpm.store(0x0150_0004, &never(2), &(&SECRET).into()).unwrap();
    tpm.test_space().unwrap();
    let there: Vec<u32> = handles.filter(|handle| tpm.public(*handle).unwrap().is_some()).collect();
    assert_eq!(there, [INDEX, 0x0150_0002]);
    assert!(tpm.public(INDEX).unwrap().unwrap().holds(&never(1)));

    // Space for one index, and none for the spare.
    let mut index = 0x0150_1000;
    for size in [2048, 16, 1] {
        while define(&emulated, index, size) {
            index += 1;
        }
    }
    assert!(tpm.test_space().unwrap_err().message().contains("no free space"));
}

#[test]
fn a_full_memory_leaves_nothing_half() {
    let Some(emulated) = Emulated::new("a_full_memory_leaves_nothing_half") else { return };
    let mut index = 0x0150_1000;
    for size in [2048, 16, 1] {
        while define(&emulated, index, size) {
            index += 1;
        }
    }
    let mut tpm = emulated.tpm();
    let e = tpm.store(INDEX, &never(1), &(&SECRET).into()).unwrap_err();
    assert!(e.message().contains("no free space"), "{e}");
    assert!(tpm.public(INDEX).unwrap().is_none());
    tpm.remove(0x0150_1000).unwrap();
    tpm.store(INDEX, &never(1), &(&SECRET).into()).unwrap();
}
