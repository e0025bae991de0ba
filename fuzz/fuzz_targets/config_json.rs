//! A device's `config.json`: what is handed on can be read again.
#![no_main]

use std::path::Path;

use copal::config::config_json::ConfigJson;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = Path::new("/mnt/boot/config.json");
    let Ok(config) = ConfigJson::parse(data, path) else { return };
    let _read = (config.installer_target_devices(), config.installer_secureboot(), config.api_endpoint());
    let handed_on = config.for_internal_disk();
    let again = ConfigJson::parse(&handed_on, path).expect("what is handed on can be read");
    assert_eq!(again.for_internal_disk(), handed_on);
});
