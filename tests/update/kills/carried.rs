//! A device tree of the owner, which an update carries into the new release.

use std::fs;
use std::path::Path;

use super::rig::{Backend, Rig, View};
use super::runs;
use super::shim::End;
use super::system::{VOLUME, put};
use super::updates::UPDATE;
use crate::kit::device_tree::model;

/// What a bootloader loads from the root that it boots.
const FILES: [&str; 2] = ["boot/bzImage", "boot/overlays/own.dtb"];
const RUNNING: &str = "mnt/sysroot/active/current/boot/overlays/own.dtb";

/// As [`Rig::after_a_cut`] has it.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|bytes| shown(&bytes))
}

/// An update, with a look at both roots after each change: whatever a power cut leaves, a root that has a kernel has the tree.
fn update(rig: &Rig, tree: &str, kill_after: Option<usize>, cuts: bool) -> Vec<String> {
    let (mut number, mut bad) = (0, Vec::new());
    let (traced, said) = rig.run_each(View::Running, &UPDATE, kill_after, &mut |change| {
        number += 1;
        if text(&rig.at(RUNNING)).as_deref() != Some(tree) {
            bad.push(format!("the running release after {number}, {change}"));
        }
        if cuts && change.contains("/mnt/sysroot/inactive/") {
            let [kernel, own] = rig.after_a_cut(FILES);
            let complete = own.as_deref() == Some(tree);
            if (kernel.is_some() || own.is_some()) && !complete {
                bad.push(format!("a power cut after {number}, {change}"));
            }
        }
    });
    let expected = if kill_after.is_some() { End::Killed } else { End::Ended(Some(0)) };
    assert_eq!(traced.end, expected, "{said}");
    assert!(bad.is_empty(), "a root without the owner's tree: {bad:#?}\n{said}");
    rig.unmount_new();
    traced.changes
}

#[test]
fn a_new_release_that_can_boot_has_the_tree_after_every_change() {
    if !runs("a_new_release_that_can_boot_has_the_tree_after_every_change") {
        return;
    }
    let rig = Rig::new(Backend::Uboot, &[]);
    let tree = model("the owner's", 34_000);
    put(&rig.at(RUNNING), &tree, 0o644);
    let tree = shown(&tree);
    put(&rig.at("mnt/boot/extra_uEnv.txt"), "custom_fdt_file=overlays/own.dtb\n", 0o644);
    let start = rig.tree();
    let changes = update(&rig, &tree, None, true);
    assert_eq!(rig.after_a_cut(FILES), [Some(VOLUME[1].1.to_owned()), Some(tree.clone())]);

    // The next update succeeds from whatever a kill has left while the tree was carried.
    let (first, last) = (".new", "/inactive/current");
    let first =
        changes.iter().position(|c| c.starts_with("rename ") && c.contains("/hostapps/")).expect(first);
    let last = changes.iter().rposition(|c| c.starts_with("rename ") && c.ends_with(last)).expect(last);
    assert!(last > first + 4, "nothing is carried between the links: {changes:#?}");
    for n in first + 1..last {
        rig.restore(&start);
        update(&rig, &tree, Some(n + 1), false);
        // As many changes lead a little farther, or less far, than before.
        let [kernel, own] = FILES.map(|file| text(&rig.at("mnt/sysroot/inactive").join(file)));
        assert!(
            kernel.is_none() || own.as_ref() == Some(&tree),
            "after {n} changes the release lacks the tree"
        );
        update(&rig, &tree, None, false);
        assert_eq!(text(&rig.at("mnt/sysroot/inactive").join(FILES[1])), Some(tree.clone()));
    }
    rig.assert_tidy();
}
