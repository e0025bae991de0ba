//! Golden trees: `root` before a hook, `expected` after it.

use super::machine::{ENCRYPTED, Kind, Machine, PLAIN, UEFI, golden, see};

const HEX: Kind = Kind { first_root: 11, ..PLAIN };

/// Case, hook, whether during an update, device.
pub(crate) const CASES: &[(&str, &str, bool, Kind)] = &[
    ("uboot-first", "99-resin-uboot", true, PLAIN),
    ("uboot-repeat", "99-resin-uboot", true, PLAIN),
    ("uboot-undo", "99-resin-uboot", false, PLAIN),
    ("uboot-hex", "99-resin-uboot", true, HEX),
    ("uboot-after-bootenv", "99-resin-uboot", true, PLAIN),
    ("balena-after-uboot", "99-balena-bootloader", true, UEFI),
    ("balena-undo", "99-balena-bootloader", false, PLAIN),
    ("grub-uefi", "99-resin-grub", true, UEFI),
    ("grub-uefi-undo", "99-resin-grub", false, UEFI),
    ("grub-encrypted", "99-resin-grub", true, ENCRYPTED),
    ("grub-encrypted-in-place", "99-resin-grub", true, ENCRYPTED),
    ("rollback-update", "80-rollback", true, PLAIN),
    ("rollback-undo-selected", "80-rollback", false, PLAIN),
    ("rollback-undo-shell", "80-rollback", false, PLAIN),
    ("rollback-undo-copal", "80-rollback", false, PLAIN),
    ("data-missing", "60-data-breadcrumb", true, PLAIN),
    ("data-there", "60-data-breadcrumb", true, PLAIN),
];

#[test]
fn hooks_make_the_expected_of_every_tree_and_leave_that_as_it_is() {
    let mut wrong = String::new();
    for (case, hook, during_update, kind) in CASES {
        let machine = Machine::new(*kind);
        machine.lay(&golden(case, "root"));
        let expected = see(&golden(case, "expected/mnt"));
        for run in ["first", "second"] {
            let result = machine.run(hook, *during_update);
            if result.is_err() || machine.see() != expected {
                let there = machine.see();
                let differ = |(n, c): &(&String, &String)| expected.get(*n) != Some(*c);
                let differ: Vec<_> = there.iter().filter(differ).collect();
                let missing: Vec<_> = expected.keys().filter(|n| !there.contains_key(*n)).collect();
                wrong +=
                    &format!("{case}, {run} run: {result:?}\n  differ {differ:#?}\n  missing {missing:?}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_golden_tree_is_used() {
    let mut there: Vec<String> = std::fs::read_dir(golden("", ""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut used: Vec<String> = CASES.iter().map(|c| c.0.to_owned()).collect();
    // With a disk beside the tree.
    used.extend(["grub-bios".to_owned(), "grub-legacy".to_owned()]);
    there.sort();
    used.sort();
    assert_eq!(there, used);
}
