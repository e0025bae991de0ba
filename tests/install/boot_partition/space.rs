//! Whether it fits is known before the first copy.

use std::path::Path;

use copal::error::{Code, Effect};

use super::support::{Rig, can_run, small};
use crate::kit::needs::needs;

/// A destination on a tmpfs of `kib`.
fn on_small(rig: &Rig, kib: u64) -> super::support::Undo {
    small(&rig.dest, kib)
}

fn filled(path: &Path, bytes: usize) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, vec![b'o'; bytes]).unwrap();
}

#[test]
fn a_full_partition_is_found_before_anything_changes() {
    needs!(can_run);
    let big = "n".repeat(200 << 10);
    let rig = Rig::new(&[("resinOS_uEnv.txt", "new"), ("splash/big", &big)], &[]);
    let _unmount = on_small(&rig, 400);
    filled(&rig.dest.join("resinOS_uEnv.txt"), 10);
    filled(&rig.dest.join("vmlinuz"), 150 << 10);
    let before = rig.see();
    let contents = rig.gather("").unwrap();
    let e = contents.check(&rig.open(), 0).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BootPartitionFull, Effect::Written));
    let numbers: Vec<u64> =
        e.message().split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(numbers.contains(&(400 * 1024 - 156 * 1024)), "free bytes: {e}");
    assert!(numbers.iter().any(|n| (264 << 10..400 << 10).contains(n)), "needed bytes: {e}");
    assert_eq!(rig.see(), before);
    // Without the check the copy fails, with the same code; every file that was there is still whole.
    std::fs::write(rig.dest.join("filler"), vec![0; 100 << 10]).unwrap();
    let e = contents.deploy(&rig.open()).unwrap_err();
    assert_eq!(e.code(), Code::BootPartitionFull, "{e}");
    std::fs::remove_file(rig.dest.join("filler")).unwrap();
    let after = rig.see();
    for (path, old) in before {
        let new = &after[&path];
        assert!(*new == old || path == "resinOS_uEnv.txt" && new == "new", "{path}");
    }
    assert!(after.keys().all(|p| !p.contains("CPL")), "{:?}", after.keys());
}

/// A file needs its second copy while it is replaced; what a replaced folder frees comes too late for its own files.
#[test]
fn the_second_copy_counts() {
    needs!(can_run);
    let fits = |medium: &[(&str, &str)], old: &[(&str, usize)], kib: u64| {
        let rig = Rig::new(medium, &[]);
        let _unmount = on_small(&rig, kib);
        for (path, bytes) in old {
            filled(&rig.dest.join(path), *bytes);
        }
        rig.gather("").unwrap().check(&rig.open(), 0).is_ok()
    };
    let kib100 = "n".repeat(100 << 10);
    // With some for the entries of folders.
    assert!(fits(&[("splash/a", &kib100)], &[("splash/a", 100 << 10)], 320));
    assert!(!fits(&[("splash/a", &kib100)], &[("splash/a", 100 << 10)], 204));
    let folder = |name: &'static str| format!("{name}/a");
    for name in ["system-connections", "dispatcher.d"] {
        assert!(!fits(&[(&folder(name), &kib100)], &[(&format!("{name}/b"), 100 << 10)], 200), "{name}");
    }
    // Of an earlier folder, it does count for the later.
    let both: &[(&str, &str)] = &[("system-connections/a", ""), ("system-proxy/a", &kib100)];
    assert!(fits(both, &[("system-connections/old", 100 << 10)], 230));
}

/// Whatever passes the check does fit.
#[test]
fn what_passes_the_check_can_be_copied() {
    needs!(can_run);
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut passed, mut refused) = (0, 0);
    for round in 0..60 {
        let names =
            ["splash/a", "splash/b/c", "system-connections/x", "system-connections/y", "dispatcher.d/z"];
        let text = "n".repeat(60 << 10);
        let mut medium = Vec::new();
        for name in names {
            if rng.bool() {
                medium.push((name, &text[..rng.usize(..60 << 10)]));
            }
        }
        let rig = Rig::new(&medium, &[]);
        let _unmount = on_small(&rig, rng.u64(150..400));
        for name in names {
            if rng.bool() {
                filled(&rig.dest.join(name), rng.usize(..20 << 10));
            }
        }
        let contents = rig.gather("").unwrap();
        if contents.check(&rig.open(), 0).is_err() {
            refused += 1;
            continue;
        }
        passed += 1;
        contents.deploy(&rig.open()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        contents.deploy_config_json(&rig.open()).unwrap();
    }
    assert!(passed > 10 && refused > 10, "{passed} passed, {refused} refused");
}

#[test]
fn space_for_the_log_is_kept() {
    needs!(can_run);
    let rig = Rig::new(&[], &[]);
    let _unmount = on_small(&rig, 300);
    let contents = rig.gather("").unwrap();
    contents.check(&rig.open(), 100 << 10).unwrap();
    assert_eq!(contents.check(&rig.open(), 250 << 10).unwrap_err().code(), Code::BootPartitionFull);
}
