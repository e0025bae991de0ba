//! U-Boot's text files: whatever is in them stays, byte by byte, and what is set is read back.
#![no_main]

use copal::boot_state::uenv::Uenv;
use copal::boot_state::variables::Variables;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut uenv = Uenv::parse(data);
    assert_eq!(uenv.print(), data);
    assert!(uenv.set("resin_root_part", "b") && uenv.set("upgrade_available", "1"));
    let printed = uenv.print();
    let again = Uenv::parse(&printed);
    assert_eq!(again, uenv);
    let mut read = Variables::default();
    read.import(&again).expect("U-Boot reads to the end");
    assert_eq!(read.get("resin_root_part"), Some(&b"b"[..]));
    assert_eq!(read.get("upgrade_available"), Some(&b"1"[..]));
    // Setting the same once more changes nothing.
    assert!(uenv.set("resin_root_part", "b"));
    assert_eq!(uenv.print(), printed);
});
