//! Certificates: one that is taken has a key of a length that is allowed, and that key refuses what is no signature.
#![no_main]

use copal::signature::Certificate;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(certificate) = Certificate::first_of(data) else { return };
    assert!((256..=512).contains(&certificate.key.signature_len()));
    assert_eq!(certificate.key_id.len(), 40);
    assert!(!certificate.key.has_signed(data, data));
});
