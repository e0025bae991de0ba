//! Temporaries of an interrupted run. Those that share clusters exist on FAT only: see `tests/guest/bootpart.rs`.

use std::fs::File;

use copal::sys::file::{self, Folder, SweepResult};

use super::support::{Rig, tree};

#[test]
fn they_are_removed_unless_a_process_writes_to_them() {
    let rig = Rig::new(
        &[],
        &[
            ("CPL00001.TMP", "half"),
            ("cplabcde.tmp", "half"),
            ("CPL00002.TMP", "in use"),
            ("CPL00003.TMP/", ""),
        ],
    );
    for other in ["CPL1.TMP", "CPL0000G.TMP", "xCPL00001.TMP", "kept"] {
        std::fs::write(rig.dest.join(other), "k").unwrap();
    }
    let busy = File::open(rig.dest.join("CPL00002.TMP")).unwrap();
    busy.lock().unwrap();
    let swept = file::sweep(&Folder::open(&rig.dest).unwrap()).unwrap();
    let fates: Vec<(&str, &SweepResult)> = swept.iter().map(|(n, f)| (n.to_str().unwrap(), f)).collect();
    assert_eq!(fates[0], ("CPL00001.TMP", &SweepResult::Removed));
    assert_eq!(fates[1], ("CPL00002.TMP", &SweepResult::InUse));
    assert_eq!(fates[2], ("CPL00003.TMP", &SweepResult::Left));
    assert_eq!(fates[3], ("cplabcde.tmp", &SweepResult::Removed));
    assert_eq!(
        rig.see(),
        tree(&[
            ("CPL00002.TMP", "in use"),
            ("CPL00003.TMP/", ""),
            ("CPL1.TMP", "k"),
            ("CPL0000G.TMP", "k"),
            ("xCPL00001.TMP", "k"),
            ("kept", "k"),
        ])
    );
}

/// In every folder that is written to, the ones that are removed included.
#[test]
fn a_deployment_begins_with_them() {
    let rig = Rig::new(
        &[("splash/a", "a"), ("system-connections/b", "b")],
        &[
            ("CPL00001.TMP", "x"),
            ("splash/CPL00002.TMP", "x"),
            ("system-connections/CPL00003.TMP", "x"),
            ("system-connections/old/CPL00004.TMP", "x"),
            ("system-connections/old/file", "x"),
        ],
    );
    rig.gather("").unwrap().deploy(&rig.open()).unwrap();
    assert_eq!(
        rig.see(),
        tree(&[
            ("splash/", ""),
            ("splash/a", "a"),
            ("system-connections/", ""),
            ("system-connections/b", "b")
        ])
    );
}
