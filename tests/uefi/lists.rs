use std::time::{Duration, SystemTime};

use copal::uefi::signature_list::{append, beginnings, entries, of_hashes};
use copal::uefi::{Guid, authenticated};
use proptest::prelude::*;

use crate::tools::Tools;

const OWNER: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

#[test]
fn lists_of_efitools_are_read_and_made() {
    let Some(tools) = Tools::new("lists_of_efitools_are_read_and_made") else { return };
    tools.key("one");
    tools.run("cert-to-efi-sig-list", &["-g", OWNER, &tools.at("one.crt"), &tools.at("one.esl")]);
    let list = tools.get("one.esl");
    let found = entries(&list).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, Guid::X509.bytes());
    assert_eq!(found[0].data(), tools.get("one.der"));
    assert_eq!(found[0].bytes[..16], Guid::GLOBAL.bytes());

    let stub = std::fs::read(tools.tree().join("stub.efi")).unwrap();
    tools.run("hash-to-efi-sig-list", &[&tools.put("stub.efi", &stub), &tools.at("stub.esl")]);
    let hashes = tools.get("stub.esl");
    let entry = entries(&hashes).unwrap()[0];
    assert_eq!(entry.kind, Guid::SHA256.bytes());
    // Its owner is none.
    let mut own = of_hashes(&[entry.data().try_into().unwrap()], Guid::GLOBAL);
    own[28..44].copy_from_slice(&hashes[28..44]);
    assert_eq!(own, hashes);

    let both = [&list[..], &hashes].concat();
    assert_eq!(entries(&both).unwrap().len(), 2);
    assert_eq!(append(&both, &list).unwrap(), both, "it is there");
    assert_eq!(append(&list, &both).unwrap(), both);
    assert_eq!(append(&[], &both).unwrap(), both);
}

#[test]
fn only_new_entries_are_appended_with_a_header_of_their_own() {
    let list = |hashes: &[u8]| -> Vec<u8> {
        let entries = hashes.iter().map(|n| [&[9; 16][..], &[*n; 32]].concat()).collect::<Vec<_>>().concat();
        let sizes = [28 + u32::try_from(entries.len()).unwrap(), 0, 48].map(u32::to_le_bytes).concat();
        [&Guid::SHA256.bytes()[..], &sizes, &entries].concat()
    };
    assert_eq!(append(&list(&[1, 2]), &list(&[2, 3, 4])).unwrap(), [list(&[1, 2]), list(&[3, 4])].concat());
    assert_eq!(append(&list(&[1]), &list(&[1])).unwrap(), list(&[1]));
    // Among the new ones, the same entry twice stays: they are compared with the old ones only.
    assert_eq!(append(&list(&[1]), &list(&[5, 5])).unwrap(), [list(&[1]), list(&[5, 5])].concat());
    // Another owner makes another entry.
    let mut other = list(&[1]);
    other[28] = 7;
    assert_eq!(append(&list(&[1]), &other).unwrap(), [list(&[1]), other].concat());
}

#[test]
fn what_was_there_before_appends_ends_where_a_list_ends() {
    let [one, two] = [1, 2].map(|n| of_hashes(&[[n; 32]], Guid::GLOBAL));
    let both = [&one[..], &two].concat();
    assert_eq!(beginnings(&both), [&both[..], &one, &[]]);
    assert_eq!(beginnings(&[]), [&[0_u8; 0][..]]);
    assert_eq!(beginnings(&both[..100]), [&both[..100]], "a damaged list has no end");
}

#[test]
fn damaged_lists_are_refused() {
    let good = of_hashes(&[[1; 32], [2; 32]], Guid::GLOBAL);
    assert_eq!(entries(&good).unwrap().len(), 2);
    for len in (1..76).chain(77..152) {
        assert!(entries(&good[..len]).is_err(), "{len}");
    }
    for (at, value) in
        [(16, 75), (16, 77), (16, 0), (20, 1), (20, 0xff), (24, 47), (24, 0), (24, 16), (27, 0xff)]
    {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(entries(&bad).is_err(), "{at}: {value}");
    }
    assert!(entries(&[]).unwrap().is_empty());
}

#[test]
fn signed_lists_of_efitools_are_taken_apart() {
    let Some(tools) = Tools::new("signed_lists_of_efitools_are_taken_apart") else { return };
    tools.key("PK");
    tools.run("cert-to-efi-sig-list", &["-g", OWNER, &tools.at("PK.crt"), &tools.at("PK.esl")]);
    let words = [
        "-t",
        "2026-11-27 10:47:12",
        "-g",
        OWNER,
        "-k",
        &tools.at("PK.key"),
        "-c",
        &tools.at("PK.crt"),
        "PK",
    ];
    tools.run("sign-efi-sig-list", &[&words[..], &[&tools.at("PK.esl"), &tools.at("PK.auth")]].concat());
    let auth = tools.get("PK.auth");
    assert_eq!(authenticated::payload(&auth).unwrap(), tools.get("PK.esl"));
    let own = authenticated::unsigned(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_776_432));
    // The zone of the tool is this machine's; all else of the time is the same.
    assert_eq!(auth[..4], own[..4]);
    assert_eq!(auth[20..40], own[20..40]);
    for len in 0..auth.len() - tools.get("PK.esl").len() {
        assert!(authenticated::payload(&auth[..len]).is_err(), "{len}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn damage_is_survived(damage in prop::collection::vec((0..200_usize, any::<u8>()), 0..6), len in 0..200_usize) {
        let mut bytes = of_hashes(&[[1; 32], [2; 32]], Guid::GLOBAL);
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(len.max(1));
        if let Ok(found) = entries(&bytes) {
            let len: usize = found.iter().map(|entry| entry.bytes.len()).sum();
            prop_assert!(len <= bytes.len());
            prop_assert_eq!(append(&bytes, &bytes).unwrap(), bytes.clone());
        }
        prop_assert!(authenticated::payload(&bytes).is_err() || bytes.len() >= 40);
    }
}
