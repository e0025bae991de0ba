//! Mounting and unmounting a real partition, here with ext4.

use std::path::Path;
use std::time::Duration;

use copal::boot_files::install::{BootPartition, Destination};
use copal::error::{Code, Effect};

use super::support::{Ext4, Rig, Undo, can_run, small, tool};
use crate::kit::needs::needs;

fn mounts_at(point: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|l| l.split(' ').nth(4) == point.to_str()).count()
}

#[test]
fn a_partition_is_mounted_populated_unmounted() {
    needs!(can_run);
    let rig = Rig::new(&[("splash/a", "a")], &[]);
    let disk = Ext4::new(rig.dir.path(), "disk", 8);
    let point = rig.dir.path().canonicalize().unwrap().join("made");
    let contents = rig.gather("").unwrap();
    let partition = BootPartition::mount(&disk.node, &point).unwrap();
    assert_eq!((partition.point(), mounts_at(&point)), (point.as_path(), 1));
    {
        let dest = Destination::open(partition.point(), None).unwrap();
        contents.check(&dest, 0).unwrap();
        contents.deploy(&dest).unwrap();
        contents.deploy_config_json(&dest).unwrap();
    }
    // Somebody looks at it, and lets go of it after a while.
    let user = std::fs::File::open(point.join("splash/a")).unwrap();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        drop(user);
    });
    partition.unmount().unwrap();
    thread.join().unwrap();
    assert_eq!(mounts_at(&point), 0);
    assert!(!point.join("splash").exists());
    let out = tool(&["debugfs", "-R", "cat /splash/a", disk.node.to_str().unwrap()]);
    assert_eq!(out, "a");
}

#[test]
fn a_stale_mount_of_the_same_partition_makes_way_and_another_does_not() {
    needs!(can_run);
    let rig = Rig::new(&[], &[]);
    let (disk, other) = (Ext4::new(rig.dir.path(), "a", 8), Ext4::new(rig.dir.path(), "b", 8));
    let point = rig.dest.canonicalize().unwrap();
    let at = point.to_str().unwrap();
    tool(&["mount", disk.node.to_str().unwrap(), at]);
    let partition = BootPartition::mount(&disk.node, &point).unwrap();
    assert_eq!(mounts_at(&point), 1);
    partition.unmount().unwrap();

    tool(&["mount", other.node.to_str().unwrap(), at]);
    let _unmount = Undo::by(&["umount", at]);
    let e = BootPartition::mount(&disk.node, &point).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BootMountFailed, Effect::Written));
    assert!(e.message().contains(other.node.to_str().unwrap()), "{e}");
    assert_eq!(mounts_at(&point), 1);
}

#[test]
fn a_mount_point_of_another_user_is_refused() {
    needs!(can_run);
    let rig =
        Rig::new(&[], &[("folder/", ""), ("file", ""), ("link", "-> folder"), ("dangling", "-> nowhere")]);
    let disk = Ext4::new(rig.dir.path(), "disk", 8);
    let theirs = rig.dest.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1000), Some(1000)).unwrap();
    for name in ["file", "link", "dangling", "theirs", "missing/missing"] {
        let e = BootPartition::mount(&disk.node, &rig.dest.join(name)).unwrap_err();
        assert_eq!(e.code(), Code::BootMountFailed, "{name}");
        assert!(e.message().contains(name), "{e}");
    }
    assert_eq!(mounts_at(&rig.dest.join("folder").canonicalize().unwrap()), 0);
    assert!(!rig.dest.join("nowhere").exists());
}

#[test]
fn what_is_no_partition_is_refused() {
    needs!(can_run);
    let rig = Rig::new(&[], &[("file", "x")]);
    let point = rig.dir.path().join("point");
    for node in [rig.dest.join("file"), rig.dest.join("missing")] {
        let e = BootPartition::mount(&node, &point).unwrap_err();
        assert_eq!(e.code(), Code::BootMountFailed);
        assert!(e.message().contains(node.to_str().unwrap()), "{e}");
    }
    // A device without a file system that is known here.
    let disk = Ext4::new(rig.dir.path(), "disk", 8);
    tool(&["dd", "if=/dev/zero", &format!("of={}", disk.node.display()), "bs=1M", "count=2"]);
    let e = BootPartition::mount(&disk.node, &point).unwrap_err();
    assert_eq!(e.code(), Code::BootMountFailed, "{e}");
}

/// udev has the kernel take the partitions of a disk away, and show them again, when somebody has written to the disk.
#[test]
fn a_partition_that_is_away_for_a_moment_is_waited_for() {
    needs!(can_run);
    let rig = Rig::new(&[], &[]);
    let disk = Ext4::new(rig.dir.path(), "disk", 8);
    let (node, point) = (rig.dir.path().join("node"), rig.dest.canonicalize().unwrap());
    let partition = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            std::os::unix::fs::symlink(&disk.node, &node).unwrap();
        });
        BootPartition::mount(&node, &point).unwrap()
    });
    assert_eq!(mounts_at(&point), 1);
    partition.unmount().unwrap();
    assert_eq!(mounts_at(&point), 0);
}

/// Who keeps it busy is said.
#[test]
fn a_partition_that_stays_busy_names_its_users() {
    needs!(can_run);
    let rig = Rig::new(&[], &[]);
    let disk = Ext4::new(rig.dir.path(), "disk", 8);
    let point = rig.dest.canonicalize().unwrap();
    let partition = BootPartition::mount(&disk.node, &point).unwrap();
    let _unmount = Undo::by(&["umount", "-l", point.to_str().unwrap()]);
    let mut sleeper = std::process::Command::new("sleep").arg("60").current_dir(&point).spawn().unwrap();
    let e = partition.unmount().unwrap_err();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(e.code(), Code::BootUnmountFailed);
    assert!(e.message().contains(&format!("sleep[{}]", sleeper.id())), "{e}");
}

/// In memory there is no drive to be flushed; that is no error.
#[test]
fn a_tmpfs_has_no_drive() {
    needs!(can_run);
    let rig = Rig::new(&[("splash/a", "a")], &[]);
    let _unmount = small(&rig.dest, 400);
    rig.gather("").unwrap().deploy(&rig.open()).unwrap();
    assert_eq!(std::fs::read_to_string(rig.dest.join("splash/a")).unwrap(), "a");
}
