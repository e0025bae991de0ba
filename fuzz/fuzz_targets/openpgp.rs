//! Files of OpenPGP: what is no signature of a key is not taken for one.
#![no_main]

use copal::signature::openpgp::{is_signed, keys};
use libfuzzer_sys::fuzz_target;

const KEY: &[u8] = include_bytes!("../../tests/image/openpgp/rsa2048.gpg");

fuzz_target!(|data: &[u8]| {
    let own = keys(KEY).unwrap();
    assert_ne!(is_signed(&own, b"another file", data), Ok(true));
    if let Ok(found) = keys(data) {
        assert!(found.iter().all(|key| (256..=512).contains(&key.signature_len())));
    }
});
