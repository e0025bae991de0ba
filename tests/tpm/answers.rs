//! What goes over the wire, and answers that are damaged, or not from the TPM that was asked.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use copal::error::Code;
use copal::tpm::store::INDEX;
use copal::tpm::{Tpm, policy};
use copal::unlock::seal;
use proptest::prelude::*;

use crate::kit::emulated_tpm::{Emulated, no_password};

const SECRET: [u8; 32] = *b"a passphrase of thirty-two bytes";

/// Reads one command, or one answer.
fn message(wire: &mut UnixStream) -> Option<Vec<u8>> {
    let mut head = [0; 10];
    wire.read_exact(&mut head).ok()?;
    let size = usize::try_from(u32::from_be_bytes(head[2..6].try_into().unwrap())).unwrap();
    let mut whole = head.to_vec();
    whole.resize(size, 0);
    wire.read_exact(&mut whole[10..]).ok()?;
    Some(whole)
}

/// A TPM whose wire is listened to, or changed: `see` gets each command with its answer. Ends with the TPM; gives what `see` has left.
fn between<T: Send>(
    emulated: &Emulated,
    mut state: T,
    see: impl Fn(&mut T, &[u8], &mut Vec<u8>) + Send,
    work: impl FnOnce(Tpm),
) -> T {
    let (mut here, there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let mut wire = emulated.wire();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            while let Some(command) = message(&mut here) {
                wire.write_all(&command).unwrap();
                let mut answer = message(&mut wire).unwrap();
                see(&mut state, &command, &mut answer);
                here.write_all(&answer).unwrap();
            }
            state
        });
        work(Tpm::over(File::from(OwnedFd::from(there)), Duration::from_secs(60)));
        thread.join().unwrap()
    })
}

fn has(bytes: &[u8], searched: &[u8]) -> bool {
    bytes.windows(searched.len()).any(|window| window == searched)
}

#[test]
fn the_passphrase_never_crosses_the_wire_in_the_clear() {
    let Some(emulated) = Emulated::new("the_passphrase_never_crosses_the_wire_in_the_clear") else { return };
    let keep = |all: &mut Vec<u8>, command: &[u8], answer: &mut Vec<u8>| {
        all.extend(command);
        all.extend(&*answer);
    };
    let wire = between(&emulated, Vec::new(), keep, |mut tpm| {
        let now = policy::pcr(&tpm.pcrs().unwrap());
        assert!(tpm.store(INDEX, &now, &(&SECRET).into()).unwrap());
        assert_eq!(tpm.unlock(INDEX, &[now]).unwrap().bytes(), &SECRET);
    });
    assert!(wire.len() > 2000);
    assert!(has(&wire, &INDEX.to_be_bytes()));
    assert!(!has(&wire, &SECRET[..8]) && !has(&wire, &SECRET[24..]));
}

/// The code of CreatePrimary, and the answer of a TPM that does not have the cipher (TCG, TPM 2.0 Library, part 2: TPM_RC_SYMMETRIC).
const CREATE: u32 = 0x131;
const NO_CIPHER: u32 = 0x96;

#[test]
fn a_tpm_that_cannot_encrypt_keeps_the_passphrase_all_the_same() {
    let Some(emulated) = Emulated::new("a_tpm_that_cannot_encrypt_keeps_the_passphrase_all_the_same") else {
        return;
    };
    let refuse = |all: &mut Vec<u8>, command: &[u8], to_give: &mut Vec<u8>| {
        if command[6..10] == CREATE.to_be_bytes() {
            *to_give = answer(NO_CIPHER, &[]);
        }
        all.extend(command);
        all.extend(&*to_give);
    };
    let wire = between(&emulated, Vec::new(), refuse, |mut tpm| {
        let now = policy::pcr(&tpm.pcrs().unwrap());
        // Not encrypted, as the caller is told.
        assert!(!tpm.store(INDEX, &now, &(&SECRET).into()).unwrap());
        assert_eq!(tpm.unlock(INDEX, &[now]).unwrap().bytes(), &SECRET);
    });
    assert!(has(&wire, &SECRET), "it was encrypted");
}

/// `TPM_RC_OBJECT_MEMORY`, and `TPM_RC_NV_RATE`.
const NO_MEMORY: u32 = 0x902;
const NV_RATE: u32 = 0x920;
/// GetRandom.
const RANDOM: u32 = 0x17b;

#[test]
fn a_tpm_that_is_only_busy_never_gets_the_passphrase_in_the_clear() {
    let Some(emulated) = Emulated::new("a_tpm_that_is_only_busy_never_gets_the_passphrase_in_the_clear")
    else {
        return;
    };
    let refuse = |all: &mut Vec<u8>, command: &[u8], to_give: &mut Vec<u8>| {
        if command[6..10] == CREATE.to_be_bytes() {
            *to_give = answer(NO_MEMORY, &[]);
        }
        all.extend(command);
    };
    let wire = between(&emulated, Vec::new(), refuse, |mut tpm| {
        let now = policy::pcr(&tpm.pcrs().unwrap());
        assert!(tpm.store(INDEX, &now, &(&SECRET).into()).is_err());
        assert!(tpm.public(INDEX).unwrap().is_none());
    });
    assert!(wire.len() > 100 && !has(&wire, &SECRET[..8]));
}

#[test]
fn a_tpm_that_spares_its_memory_is_asked_again() {
    let Some(emulated) = Emulated::new("a_tpm_that_spares_its_memory_is_asked_again") else { return };
    let once = |seen: &mut u32, command: &[u8], to_give: &mut Vec<u8>| {
        if command[6..10] == RANDOM.to_be_bytes() {
            *seen += 1;
            if *seen < 3 {
                *to_give = answer(NV_RATE, &[]);
            }
        }
    };
    let seen = between(&emulated, 0, once, |mut tpm| drop(tpm.passphrase().unwrap()));
    assert_eq!(seen, 3);
}

/// The code of NV_Read.
const READ: u32 = 0x14e;

#[test]
fn an_answer_that_was_changed_on_the_way_is_not_taken() {
    let Some(emulated) = Emulated::new("an_answer_that_was_changed_on_the_way_is_not_taken") else { return };
    let mut tpm = emulated.tpm();
    let now = policy::pcr(&tpm.pcrs().unwrap());
    tpm.store(INDEX, &now, &(&SECRET).into()).unwrap();
    drop(tpm);
    // The content, then the second session: nonce, attributes, code. What stands between them is the nonce of the policy.
    for at in [16, 40, 90, 119, 130] {
        let change = |changed: &mut u32, command: &[u8], answer: &mut Vec<u8>| {
            if command[6..10] == READ.to_be_bytes() && answer.len() > at {
                answer[at] ^= 1;
                *changed += 1;
            }
        };
        let changed = between(&emulated, 0, change, |mut tpm| {
            let e = tpm.unlock(INDEX, &[now]).unwrap_err();
            assert!(
                e.message().contains("does not belong to the session") || e.message().contains("damaged"),
                "{e}"
            );
        });
        assert_eq!(changed, 1, "{at}");
    }
    assert_eq!(emulated.tpm().unlock(INDEX, &[now]).unwrap().bytes(), &SECRET);
}

/// `TPM2_PCR_Read`.
const PCR_READ: u32 = 0x17e;

#[test]
fn a_tpm_is_closed_only_if_pcr_7_has_the_value_that_follows() {
    let Some(emulated) = Emulated::new("a_tpm_is_closed_only_if_pcr_7_has_the_value_that_follows") else {
        return;
    };
    seal::close(&mut emulated.tpm()).unwrap();
    let unchanged = |seen: &mut BTreeMap<Vec<u8>, Vec<u8>>, command: &[u8], answer: &mut Vec<u8>| {
        if command[6..10] == PCR_READ.to_be_bytes() {
            answer.clone_from(seen.entry(command.to_vec()).or_insert_with(|| answer.clone()));
        }
    };
    between(&emulated, BTreeMap::new(), unchanged, |mut tpm| {
        assert_eq!(seal::close(&mut tpm).unwrap_err().code(), Code::TpmUnusable);
    });
    let other = |reads: &mut u32, command: &[u8], answer: &mut Vec<u8>| {
        if command[6..10] == PCR_READ.to_be_bytes() {
            *reads += 1;
            *answer.last_mut().unwrap() ^= u8::from(*reads == 8);
        }
    };
    let reads = between(&emulated, 0, other, |mut tpm| {
        assert_eq!(seal::close(&mut tpm).unwrap_err().code(), Code::TpmUnusable);
    });
    assert_eq!(reads, 8, "the last one is that of PCR 7");
}

/// `TPM2_PolicyPCR`.
const POLICY_PCR: u32 = 0x17f;

#[test]
fn a_pcr_that_is_extended_meanwhile_restarts_the_policy() {
    let Some(emulated) = Emulated::new("a_pcr_that_is_extended_meanwhile_restarts_the_policy") else {
        return;
    };
    let mut tpm = emulated.tpm();
    let now = policy::pcr(&tpm.pcrs().unwrap());
    tpm.store(INDEX, &now, &(&SECRET).into()).unwrap();
    drop(tpm);
    // The kernel extends PCR 10 (IMA), which no policy names, after the policy was met: this many times.
    for (times, reads) in [(0, true), (1, true), (5, true), (1000, false)] {
        let extend = |(wire, seen): &mut (UnixStream, u32), command: &[u8], _: &mut Vec<u8>| {
            if command[6..10] == POLICY_PCR.to_be_bytes() && *seen < times {
                *seen += 1;
                let bank = [&1u32.to_be_bytes()[..], &[0, 0x0b], &[1; 32]].concat();
                let body = [&10u32.to_be_bytes()[..], &no_password(), &bank].concat();
                let size = u32::try_from(10 + body.len()).unwrap();
                let head = [&[0x80, 2][..], &size.to_be_bytes(), &0x182u32.to_be_bytes()].concat();
                wire.write_all(&[head, body].concat()).unwrap();
                assert_eq!(message(wire).unwrap()[6..10], [0; 4]);
            }
        };
        between(&emulated, (emulated.wire(), 0), extend, |mut tpm| match tpm.unlock(INDEX, &[now]) {
            Ok(secret) => assert!(reads && secret.bytes() == &SECRET, "{times}"),
            Err(e) => assert!(!reads && e.message().contains("0x128"), "{times}: {e}"),
        });
    }
}

/// A TPM that gives these answers, one after the other, whatever it is asked.
fn lying(answers: Vec<Vec<u8>>) -> Tpm {
    let (here, there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let mut here = here;
        for answer in answers {
            if message(&mut here).is_none() || here.write_all(&answer).is_err() {
                return;
            }
        }
        while message(&mut here).is_some() {}
    });
    Tpm::over(File::from(OwnedFd::from(there)), Duration::from_millis(50))
}

fn answer(code: u32, rest: &[u8]) -> Vec<u8> {
    let size = u32::try_from(10 + rest.len()).unwrap();
    [&[0x80, 1][..], &size.to_be_bytes(), &code.to_be_bytes(), rest].concat()
}

#[test]
fn a_tpm_that_does_not_answer_is_left() {
    let e = lying(Vec::new()).pcrs().unwrap_err();
    assert!(e.message().contains("does not answer"), "{e}");
    let cut_off = answer(0, &[1; 40])[..20].to_vec();
    assert!(lying(vec![cut_off]).pcrs().is_err());
}

#[test]
fn sizes_that_are_not_those_of_the_answer_are_noticed() {
    for size in [0, 9, 11, 4097, u32::MAX] {
        let mut wrong = answer(0, &[]);
        wrong[2..6].copy_from_slice(&size.to_be_bytes());
        assert!(lying(vec![wrong]).pcrs().is_err(), "{size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Nothing is taken for a passphrase, and nothing ends in a panic.
    #[test]
    fn any_answers_are_survived(
        bodies in prop::collection::vec((prop_oneof![Just(0u32), any::<u32>()], prop::collection::vec(any::<u8>(), 0..90)), 1..12),
    ) {
        let answers = || bodies.iter().map(|(code, body)| answer(*code, body)).filter(|a| a[6..10] != 0x922u32.to_be_bytes()).collect::<Vec<_>>();
        let now = [[7; 32]];
        prop_assert!(lying(answers()).unlock(INDEX, &now).is_err());
        prop_assert!(lying(answers()).store(INDEX, &now[0], &(&SECRET).into()).is_err());
        drop(lying(answers()).check());
        drop(lying(answers()).pcrs());
    }
}
