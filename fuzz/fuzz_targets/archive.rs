//! Image archives, plain and compressed: whatever the file holds, there is an answer; and the same one again.
#![no_main]

use copal::engine::archive::{inspect, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("copal-fuzz-archive-{}", std::process::id()));
    std::fs::write(&path, data).expect("a file for the archive");
    let asked = ["boot/overlays/own.dtbo".into()];
    let look = || open(&path).and_then(|image| inspect(&image, 64 << 20, &asked)).map_err(|e| e.to_string());
    assert_eq!(look(), look());
});
