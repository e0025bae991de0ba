//! A hook that fails, everywhere in the order; and the undo of it, killed after each change.

use super::judge::{Files, Root, Selection, judge, selection};
use super::rig::{Backend, PLACES};
use super::runs;
use super::tree::Tree;
use super::updates::{Bench, UPDATE, chosen};
use crate::kit::prove;

/// Places where no boot file has been deployed yet.
const EARLY: [&str; 2] = ["before.d/here", "0-first"];

/// What the device means when the failed update has ended.
fn is_as_before(tree: &Tree, bench: &Bench, place: &str, restored: bool) -> Result<(), String> {
    let verdict = judge(tree, bench.rig.pristine(), bench.rig.backend)?;
    let found = selection(tree, bench.rig.backend)?;
    if !matches!(found, Selection { root: Root::A, trial: false, count: 0 | 1 }) {
        return Err(format!("{found:?}"));
    }
    for name in
        ["mnt/state/rollback-health-breadcrumb", "mnt/state/rollback-altboot-breadcrumb", "run/copal/marker"]
    {
        if tree.has(name) {
            return Err(format!("{name} is left"));
        }
    }
    // Without the running system's hooks the boot files stay, and the record has the next boot put them right.
    let wanted = if restored || EARLY.contains(&place) { (Files::Old, false) } else { (Files::New, true) };
    let found = (verdict.files, tree.has("mnt/state/copal/bootfiles"));
    if found == wanted { Ok(()) } else { Err(format!("boot files and record are {found:?}")) }
}

/// Places, and changes of the undo after each, where not all are proved.
const FEW: (usize, usize) = (3, 2);

fn every_place(test: &str, backend: Backend) {
    let mut bench = Bench::new(backend, &PLACES);
    let mut bad = Vec::new();
    let ways: Vec<(&str, bool)> = PLACES.iter().flat_map(|place| [(*place, true), (*place, false)]).collect();
    let tried = prove::cases("cuts", test, ways.len(), FEW.0);
    for (place, restored) in tried.iter().map(|at| ways[*at]) {
        let mut argv = UPDATE.to_vec();
        argv.extend((!restored).then_some("-x"));
        bench.rig.restore(bench.rig.pristine());
        bench.rig.fail_at(place);
        let start = bench.rig.tree();
        let what = format!("{place} fails, {argv:?}");
        let (whole, said) = bench.whole(&start, &argv, 1);
        assert!(said.contains("[hook-failed]") && said.contains("boots next"), "{what}: {said}");
        if let Err(e) = is_as_before(&bench.rig.tree(), &bench, place, restored) {
            eprintln!("{backend:?}, {what}: {e}");
            bad.push(format!("{what}: {e}\n{said}"));
        }
        let failed = whole.iter().position(|c| c.ends_with("/mnt/data/failed")).unwrap();
        // One undo is looked at change by change: the one with the most to undo.
        let one = restored && place == "999-last" && backend == Backend::Uboot;
        let candidates: Vec<usize> = (failed + 2..=whole.len()).step_by(if one { 1 } else { 24 }).collect();
        for n in chosen(test, &candidates, FEW.1) {
            if let Err(e) = bench.point(&start, &argv, n, &whole) {
                bad.push(format!("{what}: {e}"));
            }
        }
    }
    bench.assert_none(&bad);
    bench.told(&format!("hooks fail in {} of {} ways, with and without -x", tried.len(), ways.len()));
}

#[test]
fn a_hook_that_fails_anywhere_is_undone_with_u_boot() {
    let test = "a_hook_that_fails_anywhere_is_undone_with_u_boot";
    if runs(test) {
        every_place(test, Backend::Uboot);
    }
}

#[test]
fn a_hook_that_fails_anywhere_is_undone_with_grub() {
    let test = "a_hook_that_fails_anywhere_is_undone_with_grub";
    if runs(test) {
        every_place(test, Backend::Grub);
    }
}
