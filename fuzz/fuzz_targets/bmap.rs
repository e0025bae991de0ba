//! Block maps: one that is taken is printed so that the same is read again.
#![no_main]

use copal::image::bmap::{Bmap, MAX_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(map) = Bmap::parse(data) else { return };
    assert!(map.mapped() <= map.blocks());
    let printed = map.print();
    // It has more blanks than what was read may have had.
    if printed.len() > MAX_BYTES {
        return;
    }
    let again = Bmap::parse(printed.as_bytes()).expect("what was printed can be read");
    assert_eq!(again.print(), printed);
});
