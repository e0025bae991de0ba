//! Both codecs: golden files, and properties of whatever may be in them.

use std::collections::BTreeMap;

use copal::boot_state::envblock::{DECISION, Damage, EnvBlock, SIZE, TooLarge, trim};
use copal::boot_state::uenv::{Line, Uenv};
use copal::boot_state::variables::Variables;
use proptest::prelude::*;

use super::support::{block, uboot_value};

#[test]
fn the_block_that_images_come_with() {
    let bytes = block("bootcount=0\nresin_root_part=2\nupgrade_available=0\n");
    let mut read = EnvBlock::parse(&bytes).unwrap();
    assert_eq!(read.keys().collect::<Vec<_>>(), DECISION.map(str::as_bytes));
    assert_eq!(read.print().unwrap(), bytes);
    assert!(read.set("resin_root_part", b"3"));
    let change = read.in_place(&bytes).unwrap().unwrap();
    assert_eq!(change.new, block("bootcount=0\nresin_root_part=3\nupgrade_available=0\n"));
    assert_eq!(change.order, [0]);
}

#[test]
fn backslash_and_newline_are_escaped() {
    let mut read = EnvBlock::default();
    assert!(read.set("a", b"one\ntwo\\three\\") && read.set("b", b""));
    let bytes = block("a=one\\\ntwo\\\\three\\\\\nb=\n");
    assert_eq!(read.print().unwrap(), bytes);
    assert_eq!(EnvBlock::parse(&bytes).unwrap(), read);
    for key in ["", "a=b", "a\nb", "#a", "a\0"] {
        assert!(!read.set(key, b"1"), "{key:?}");
    }
    assert_eq!(read.print().unwrap(), bytes);
}

/// `bootcount=0 ` is what `rollback-clear-bootcount` of the shell leaves.
#[test]
fn blanks_and_the_like_are_trimmed() {
    let read = EnvBlock::parse(&block("bootcount=0 \nresin_root_part= 3\r\nupgrade_available=\n")).unwrap();
    let get = |key| read.get(key).map(<[u8]>::to_vec);
    assert_eq!(get("bootcount"), Some(b"0".to_vec()));
    assert_eq!(get("resin_root_part"), Some(b"3".to_vec()));
    assert_eq!(get("upgrade_available"), Some(Vec::new()));
    assert_eq!(get("other"), None);
}

/// Newer releases of `grub-editenv` write a warning as the second line.
#[test]
fn comments_stay() {
    let bytes = block("# WARNING: hands off\na=1\n# more\nb=2\n");
    let mut read = EnvBlock::parse(&bytes).unwrap();
    assert!(read.set("b", b"3"));
    let change = read.in_place(&bytes).unwrap().unwrap();
    assert_eq!(change.new, block("# WARNING: hands off\na=1\n# more\nb=3\n"));
}

#[test]
fn damage_is_reported() {
    let good = block("a=1\n");
    let damage = |bytes: &[u8]| EnvBlock::parse(bytes).unwrap_err();
    assert_eq!(damage(&good[..1023]), Damage::Size(1023));
    assert_eq!(damage(&[&good[..], b"\n"].concat()), Damage::Size(1025));
    assert_eq!(damage(&[]), Damage::Size(0));
    assert_eq!(damage(&[0; SIZE]), Damage::Header);
    for lines in ["a\n", "=1\n", "a=1\nwords\nb=2\n", "a=1\n\nb=2\n", "a=1 without an end", "# ends not"] {
        assert_eq!(damage(&block(lines)), Damage::Line, "{lines:?}");
    }
    assert_eq!(damage(&block("a=1\nb=2\na=3\n")), Damage::Twice);
    for lines in ["# c\\\na=1\n", "a=1\n# c\\\n", "#\\\\\\\na=1\n"] {
        assert_eq!(damage(&block(lines)), Damage::Comment, "{lines:?}");
    }
    assert!(EnvBlock::parse(&block("# c\\\\\n# \\x\na=1\n")).is_ok());
}

/// A value may have newlines. The text after a newline belongs to the value, even in a value that was cut.
#[test]
fn what_is_left_of_a_value_gives_no_keys() {
    let whole = b"a=1\nx=some\\\nresin_root_part=9\nb=2\n";
    let get = |bytes: &[u8], key| EnvBlock::salvage(bytes).get(key).map(<[u8]>::to_vec);
    assert_eq!(get(whole, "b"), Some(b"2".to_vec()));
    for cut in 0..=whole.len() {
        let bytes = whole.get(..cut).unwrap();
        assert_eq!(get(bytes, "resin_root_part"), None, "{cut}");
        assert_eq!(get(bytes, "a").is_some(), cut >= b"a=".len(), "{cut}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut read = EnvBlock::default();
    let room = SIZE - b"# GRUB Environment Block\na=\n".len();
    assert!(read.set("a", &vec![b'x'; room]));
    assert_eq!(EnvBlock::parse(&read.print().unwrap()).unwrap(), read);
    assert!(read.set("a", &vec![b'x'; room + 1]));
    assert_eq!(read.print(), Err(TooLarge(SIZE + 1)));
    assert_eq!(read.in_place(&block("")), Err(TooLarge(SIZE + 1)));
}

/// Keys of the boot decision in both sectors: no order of writing them would do, so the block is written anew, with these keys
/// first and in a sector of their own.
#[test]
fn the_boot_decision_comes_to_lie_in_one_sector() {
    let long = "x".repeat(500);
    let bytes = block(&format!("resin_root_part=2\nabi={long}\nbootcount=1\nupgrade_available=1\n"));
    let mut read = EnvBlock::parse(&bytes).unwrap();
    assert!(read.set("resin_root_part", b"3") && read.set("bootcount", b"0"));
    assert_eq!(read.in_place(&bytes).unwrap(), None);
    let new = read.print().unwrap();
    let first = String::from_utf8(new[..512].to_vec()).unwrap();
    assert!(first.ends_with("#\n") && DECISION.iter().all(|key| first.contains(key)), "{first}");
    assert!(new[512..].starts_with(b"abi=xxx"));
    // From now on they change at once, and nothing else moves, even if a value gets longer.
    let mut next = EnvBlock::parse(&new).unwrap();
    assert!(next.set("resin_root_part", b"12") && next.set("upgrade_available", b"0"));
    let change = next.in_place(&new).unwrap().unwrap();
    assert_eq!((change.order.as_slice(), &change.new[512..]), (&[0][..], &new[512..]));
}

#[test]
fn uboot_text() {
    let text = b"#resin_root_part=9\nresin_root_part=2\n  upgrade_available=1 \r\nx=a\\\nresin_root_part=8\nlast=1\0tail";
    let mut uenv = Uenv::parse(text);
    // The fourth line goes on in the fifth.
    assert_eq!(uboot_value(&uenv, "resin_root_part"), Some(b"2".to_vec()));
    assert_eq!(uboot_value(&uenv, "upgrade_available"), Some(b"1 \r".to_vec()));
    // A zero byte ends the line only.
    assert_eq!(uboot_value(&uenv, "last"), Some(b"1".to_vec()));
    assert_eq!(uboot_value(&uenv, "tail"), Some(Vec::new()));
    assert_eq!(uboot_value(&uenv, "root_part"), None);
    assert!(uenv.set("resin_root_part", "3") && uenv.set("new", "1"));
    let wanted = b"#resin_root_part=9\nresin_root_part=3\n  upgrade_available=1 \r\nx=a\\\nresin_root_part=8\nlast=1\0tail\nnew=1\n";
    assert_eq!(String::from_utf8_lossy(&uenv.print()), String::from_utf8_lossy(wanted));
    for (key, value) in [("", "1"), ("a b", "1"), ("a", "1 2"), ("a", "1\n"), ("a", "\\")] {
        assert!(!uenv.set(key, value), "{key:?} {value:?}");
    }
    // Two zero bytes end the text, and what is set stands before them.
    let mut uenv = Uenv::parse(b"a=1\0\0b=2\n");
    assert_eq!(uboot_value(&uenv, "b"), None);
    assert!(uenv.set("b", "3"));
    assert_eq!(uenv.print(), b"a=1\0b=3\n\0b=2\n");
    // Returns go, but for one that is escaped: without it the newline would be.
    let mut uenv = Uenv::parse(b"a=1\r\n#\r\n\r\nb=2\\\r\nc=\r3\nd=4\r");
    assert_eq!(uenv.with_returns(), [(1, "a".into()), (4, "b".into()), (6, "d".into())]);
    assert!(uenv.drop_returns() && !uenv.drop_returns());
    assert_eq!(uenv.print(), b"a=1\n#\n\nb=2\\\r\nc=\r3\nd=4");
    // Of a key that is there twice the last one counts, and both are set.
    let mut uenv = Uenv::parse(b"a=1\nb=2\na=3\n");
    assert_eq!(uboot_value(&uenv, "a"), Some(b"3".to_vec()));
    assert!(uenv.set("a", "4"));
    assert_eq!(uenv.print(), b"a=4\nb=2\na=4\n");
}

#[test]
fn a_backslash_at_the_end_takes_no_key_with_it() {
    for text in ["x=1\\", "x=1\\\n", "#c\\", "word\\", "x=1\\\\"] {
        let mut uenv = Uenv::parse(text.as_bytes());
        assert!(uenv.set("a", "1"));
        let printed = uenv.print();
        assert!(printed.starts_with(text.as_bytes()));
        assert_eq!(uboot_value(&Uenv::parse(&printed), "a"), Some(b"1".to_vec()), "{text:?}");
    }
}

fn pairs() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
    let key = prop_oneof![
        3 => proptest::sample::select(&DECISION[..]).prop_map(str::to_owned),
        5 => "[a-z_][a-z0-9_#]{0,20}",
    ];
    let byte = prop_oneof![8 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b'\\'), 1 => Just(b'#')];
    proptest::collection::btree_map(key, proptest::collection::vec(byte, 0..120), 0..12)
}

fn of(pairs: &BTreeMap<String, Vec<u8>>) -> EnvBlock {
    let mut block = EnvBlock::default();
    for (key, value) in pairs {
        assert!(block.set(key, value));
    }
    block
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_block_is_given_it_gives_back(pairs in pairs()) {
        let block = of(&pairs);
        match block.print() {
            Ok(bytes) => {
                prop_assert_eq!(bytes.len(), SIZE);
                let again = EnvBlock::parse(&bytes).unwrap();
                for key in again.keys() {
                    prop_assert!(pairs.contains_key(std::str::from_utf8(key).unwrap()));
                }
                prop_assert_eq!(again.keys().count(), pairs.len());
                for key in pairs.keys() {
                    prop_assert_eq!(again.get(key), block.get(key));
                }
            }
            Err(TooLarge(size)) => prop_assert!(size > SIZE),
        }
    }

    /// After each sector: sound, nothing lost, and the decision of before or of after.
    #[test]
    fn a_change_in_place_passes_through_sound_blocks_only(pairs in pairs(), root in 0_u32..300, upgrade in any::<bool>()) {
        let before = of(&pairs);
        let Ok(old) = before.print() else { return Ok(()) };
        let mut after = before.clone();
        let upgrade = if upgrade { "1" } else { "0" };
        for (key, value) in [("bootcount", "0"), ("resin_root_part", &root.to_string()), ("upgrade_available", upgrade)] {
            assert!(after.set(key, value.as_bytes()));
        }
        let Ok(Some(change)) = after.in_place(&old) else { return Ok(()) };
        let mut now = old.clone();
        for index in &change.order {
            let sector = index * 512..(index + 1) * 512;
            now[sector.clone()].copy_from_slice(&change.new[sector]);
            let block = EnvBlock::parse(&now).unwrap();
            let decides = |as_in: &EnvBlock| DECISION.iter().all(|key| block.get(key) == as_in.get(key));
            prop_assert!(decides(&before) || decides(&after));
            for key in pairs.keys() {
                prop_assert!(block.get(key) == before.get(key) || block.get(key) == after.get(key));
            }
        }
        prop_assert_eq!(&now, &change.new);
        prop_assert!(DECISION.iter().all(|key| EnvBlock::parse(&now).unwrap().get(key) == after.get(key)));
    }

    #[test]
    fn a_block_that_was_cut_keeps_the_lines_before(pairs in pairs(), cut in 0..SIZE) {
        let Ok(bytes) = of(&pairs).print() else { return Ok(()) };
        let whole = EnvBlock::parse(&bytes).unwrap();
        let left = EnvBlock::salvage(&bytes[..cut]);
        // The line in which the cut is may have lost the end of its value.
        let keys: Vec<_> = left.keys().collect();
        for key in keys.iter().take(keys.len().saturating_sub(1)) {
            let key = std::str::from_utf8(key).unwrap();
            prop_assert_eq!(left.get(key), whole.get(key));
        }
    }

    /// A block that copal takes for sound hides nothing from GRUB.
    #[test]
    fn what_is_sound_is_all_read_by_grub(
        text in "([#a-c =\\\\]|#\\\\\n|=1\n|\n){0,60}",
    ) {
        let bytes = block(&text);
        if let Ok(sound) = EnvBlock::parse(&bytes) {
            let read = Variables::of_block(&bytes).unwrap();
            prop_assert_eq!(read.iter().map(|(name, _)| name).collect::<Vec<_>>(), sound.keys().collect::<Vec<_>>());
            for key in sound.keys() {
                let key = std::str::from_utf8(key).unwrap();
                prop_assert_eq!(read.get(key).map(trim), sound.get(key));
            }
        }
    }

    #[test]
    fn uboot_text_stays_as_it_is(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(Uenv::parse(&text).print(), text);
    }

    #[test]
    fn what_is_set_is_read_back_and_nothing_else_changes(
        text in "([#a-c =\\\\\r\n]|resin_root_part=|upgrade_available=|\n){0,60}",
        root in 1_u32..64,
    ) {
        let before = Uenv::parse(text.as_bytes());
        let mut uenv = before.clone();
        let value = format!("{root:x}");
        prop_assert!(uenv.set("resin_root_part", &value));
        let again = Uenv::parse(&uenv.print());
        prop_assert_eq!(uboot_value(&again, "resin_root_part"), Some(value.into_bytes()));
        // After a line without a key U-Boot had not read on.
        if !before.lines().any(|line| line == Line::Nameless) {
            for key in ["upgrade_available", "a", "b", "c", "ab"] {
                prop_assert_eq!(uboot_value(&again, key), uboot_value(&before, key), "{}", key);
            }
        }
    }
}
