//! The firmware's log: its events lie in the file, and every PCR has a value.
#![no_main]

use copal::measurements::{EventLog, pcr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(log) = EventLog::parse(data) else { return };
    assert!(log.events.iter().map(|event| event.data.len()).sum::<usize>() <= data.len());
    for pcr in copal::measurements::SELECTED {
        let _ = log.replay(pcr);
    }
    let _ = (pcr::between(Some(&log)), pcr::drivers(&log), log.has_dma_protection_disabled());
    let _ = pcr::explains_authorities(&log, &Default::default());
});
