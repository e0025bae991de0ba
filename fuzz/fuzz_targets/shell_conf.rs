//! The board's configuration: anything is taken or refused with an error.
#![no_main]

use std::path::Path;

use copal::config::flasher_conf::{FlasherConf, RawConf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(raw) = RawConf::from_bytes(data, Path::new("/etc/resin-init-flasher.conf")) else { return };
    let _read = FlasherConf::from_raw(raw);
});
