//! A board whose bootloader reads its device tree from one slot at every boot, also while that slot is filled and the other one runs.

use std::fs;

use super::rig::{self, Backend, Rig, View};
use super::runs;
use super::shim::End;
use super::system::{VOLUME, put};
use super::updates::UPDATE;

/// What such a bootloader loads, from the root of that slot (`boot.script` of the iot-link: `boot/${fdtfile}`).
const TREE: &str = "boot/bzImage";

fn is_readable(rig: &Rig) -> bool {
    let found = fs::read_to_string(rig.at("mnt/sysroot/inactive").join(TREE));
    found.is_ok_and(|text| text == VOLUME[1].1)
}

/// An update, with a look at the tree after each change; with `cuts` also at what a power cut would leave, where the slot has changed.
fn update(rig: &Rig, kill_after: Option<usize>, cuts: bool) -> Vec<String> {
    let (mut number, mut missing) = (0, Vec::new());
    let (traced, said) = rig.run_each(View::Running, &UPDATE, kill_after, &mut |change| {
        number += 1;
        if !is_readable(rig) {
            missing.push(format!("a kill after {number}, {change}"));
        }
        let cut = cuts && change.contains("/mnt/sysroot/inactive/");
        if cut && rig.after_a_cut([TREE])[0].as_deref() != Some(VOLUME[1].1) {
            missing.push(format!("a power cut after {number}, {change}"));
        }
    });
    let expected = if kill_after.is_some() { End::Killed } else { End::Ended(Some(0)) };
    assert_eq!(traced.end, expected, "{said}");
    assert!(missing.is_empty(), "the board does not start after: {missing:#?}\n{said}");
    traced.changes
}

#[test]
fn the_device_tree_of_the_slot_is_there_after_every_change() {
    // On a device of these tests, this is its container engine.
    if rig::served() {
        return;
    }
    if !runs("the_device_tree_of_the_slot_is_there_after_every_change") {
        return;
    }
    let rig = Rig::new(Backend::Uboot, &[]);
    put(&rig.at("etc/copal/update.conf"), "ALWAYS_READ_SLOT=B\n", 0o644);
    let (status, said) = rig.run_freely(View::Running, &UPDATE);
    assert_eq!(status, Some(0), "{said}");
    rig.unmount_new();
    let current = || fs::read_link(rig.at("mnt/sysroot/inactive/current")).unwrap();
    let first = current();
    let installed = rig.tree();

    let changes = update(&rig, None, true);
    rig.unmount_new();
    assert!(current() != first && current().starts_with("hostapps"), "{}", current().display());
    assert!(!rig.at("mnt/sysroot/inactive/kept-boot").exists(), "it takes no space any more");

    // The next update goes on from what a kill has left: while the tree is being kept, and with the slot empty.
    for end in ["/kept-boot/boot", "/balena/tmp"] {
        let n =
            changes.iter().position(|c| c.ends_with(end)).unwrap_or_else(|| panic!("{end}: {changes:#?}"));
        rig.restore(&installed);
        update(&rig, Some(n + 1), false);
        rig.unmount_new();
        update(&rig, None, false);
        rig.unmount_new();
    }
    rig.assert_tidy();
}
