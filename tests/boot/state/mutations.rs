//! The fuzz targets' questions, asked of a bounded number of mutated files: nothing panics, nothing is lost.

use copal::boot_state::envblock::{EnvBlock, SIZE};
use copal::boot_state::uenv::Uenv;

use super::support::{block, uboot_value};

/// Files mutated.
const ROUNDS: usize = 20_000;

/// One to eight changes of the kind that a failing medium, a careless editor or another program makes.
fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    const PIECES: [&[u8]; 10] = [
        b"\n",
        b"\\",
        b"#",
        b"=",
        b"\0",
        b"\r\n",
        b"bootcount=",
        b"resin_root_part=",
        b"# GRUB Environment Block\n",
        b"a=b\n",
    ];
    for _ in 0..random.usize(1..=8) {
        let at = random.usize(0..=bytes.len());
        let length = random.usize(0..64).min(bytes.len() - at);
        match random.u8(0..6) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 => drop(bytes.splice(at..at, PIECES[random.usize(0..PIECES.len())].iter().copied())),
            2 => drop(bytes.drain(at..at + length)),
            3 => bytes[at..at + length].fill(0),
            4 => {
                let copy = bytes[at..at + length].to_vec();
                let to = random.usize(0..=bytes.len());
                drop(bytes.splice(to..to, copy));
            }
            _ => bytes.truncate(at),
        }
        if random.u8(0..3) == 0 {
            bytes.resize(SIZE, b'#');
        }
    }
}

#[test]
fn blocks() {
    let seed = block("bootcount=1\nresin_root_part=2\nupgrade_available=1\n# c\nabi=x\\\ny\n");
    let mut random = fastrand::Rng::with_seed(0x636f_7061_6c01);
    let (mut sound, mut damaged) = (0, 0);
    for round in 0..ROUNDS {
        let mut bytes = seed.clone();
        mutate(&mut random, &mut bytes);
        let mut block = match EnvBlock::parse(&bytes) {
            Ok(block) => {
                sound += 1;
                assert_eq!(
                    EnvBlock::parse(&block.print().unwrap()).unwrap().keys().count(),
                    block.keys().count()
                );
                block
            }
            Err(_) => {
                damaged += 1;
                EnvBlock::salvage(&bytes)
            }
        };
        for (key, value) in [("bootcount", "0"), ("resin_root_part", "3"), ("upgrade_available", "1")] {
            assert!(block.set(key, value.as_bytes()));
        }
        while block.print().is_err() && block.drop_last() {}
        // Whatever it was, it can be repaired.
        let repaired = EnvBlock::parse(&block.print().unwrap()).unwrap();
        assert_eq!(repaired.get("resin_root_part"), Some(&b"3"[..]), "round {round}");
        if let Ok(Some(change)) = block.in_place(&bytes) {
            assert_eq!(EnvBlock::parse(&change.new).unwrap().get("resin_root_part"), Some(&b"3"[..]));
        }
    }
    assert!(sound > 500 && damaged > 500, "{sound} sound, {damaged} damaged");
}

#[test]
fn texts() {
    let seed = b"# c\nresin_root_part=2\nupgrade_available=0\nextra=a\\\nb\nlast=1";
    let mut random = fastrand::Rng::with_seed(0x636f_7061_6c02);
    for round in 0..ROUNDS {
        let mut bytes = seed.to_vec();
        mutate(&mut random, &mut bytes);
        let mut uenv = Uenv::parse(&bytes);
        assert_eq!(uenv.print(), bytes, "round {round}");
        assert!(uenv.set("resin_root_part", "b") && uenv.set("upgrade_available", "1"));
        let again = Uenv::parse(&uenv.print());
        assert_eq!(again, uenv, "round {round}");
        assert_eq!(uboot_value(&again, "resin_root_part"), Some(b"b".to_vec()), "round {round}");
        assert_eq!(uboot_value(&again, "upgrade_available"), Some(b"1".to_vec()), "round {round}");
    }
}
