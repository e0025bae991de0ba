//! Signature lists and the header of signed ones: entries lie in the file, and an append of what is there changes nothing.
#![no_main]

use copal::uefi::{authenticated, signature_list};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(payload) = authenticated::payload(data) {
        assert!(payload.len() + 40 <= data.len());
    }
    let Ok(entries) = signature_list::entries(data) else { return };
    assert!(entries.iter().map(|entry| entry.bytes.len()).sum::<usize>() <= data.len());
    assert_eq!(signature_list::append(data, data).unwrap(), data);
    assert_eq!(signature_list::append(&[], data).unwrap(), data);
});
