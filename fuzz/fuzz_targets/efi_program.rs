//! Programs of UEFI: certificates lie in the file.
#![no_main]

use copal::uefi::authenticode::Program;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(program) = Program::parse(data) {
        assert!(program.certificates.len() <= data.len());
        assert_eq!(program.is_aligned, data.len().is_multiple_of(8));
    }
});
