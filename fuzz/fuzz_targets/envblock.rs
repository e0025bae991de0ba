//! GRUB's environment block: what is read can be written and read again, and a change in place never passes through nonsense.
#![no_main]

use copal::boot_state::envblock::{EnvBlock, SIZE};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The size is the first thing that is looked at; without this hardly any input would come further.
    let mut sized = data.to_vec();
    sized.resize(SIZE, b'#');
    for bytes in [data, &sized] {
        let Ok(block) = EnvBlock::parse(bytes) else {
            if let Ok(printed) = EnvBlock::salvage(bytes).print() {
                EnvBlock::parse(&printed).expect("what was salvaged is sound");
            }
            continue;
        };
        let printed = block.print().expect("what was read fits");
        let again = EnvBlock::parse(&printed).expect("what was written is sound");
        assert!(again.keys().all(|key| block.keys().any(|k| k == key)));

        let mut next = block.clone();
        assert!(
            next.set("bootcount", b"0")
                && next.set("resin_root_part", b"3")
                && next.set("upgrade_available", b"1")
        );
        let Ok(Some(change)) = next.in_place(bytes) else { continue };
        let mut now = bytes.to_vec();
        for index in change.order {
            let sector = index * 512..(index + 1) * 512;
            now[sector.clone()].copy_from_slice(&change.new[sector]);
            EnvBlock::parse(&now).expect("each step leaves a sound block");
        }
        assert_eq!(now, change.new);
    }
});
