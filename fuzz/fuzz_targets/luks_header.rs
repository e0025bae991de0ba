//! The header of an encrypted partition: what is read from it becomes the name of a mapping.
#![no_main]

use copal::luks::header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(uuid) = header::uuid(data) {
        assert!(data.len() >= header::BYTES && data.starts_with(b"LUKS"));
        assert!(uuid.len() == 36 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'));
    }
});
