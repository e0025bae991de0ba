//! Target choice on real loop devices, file systems and swap areas of this machine.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::kit::disk::{Loop, MIB, Undo, ext4, mount, run};
use crate::kit::needs::{can_run, has, needs, not_run, test_name};
use copal::config::paths::Paths;
use copal::disk::Facts;
use copal::disk::select::ImageSize;
use copal::disk::select::{self, Candidate, Choice, Target, TargetKind};
use copal::error::{Code, Error};

const IMAGE: Option<ImageSize> = Some(ImageSize::Exact(16 * MIB));

fn facts() -> Facts {
    Facts::gather(&Paths::default()).unwrap()
}

fn choose(nodes: &[&Path]) -> Result<Choice, Error> {
    let list: Vec<Candidate> = nodes.iter().map(|n| Candidate { name: n.to_path_buf(), md: false }).collect();
    select::choose(&list, &facts(), IMAGE)
}

fn named(path: &Path) -> Result<Target, Error> {
    select::named(path, &facts(), None, IMAGE)
}

/// Refused by its name, and as the first candidate before a disk that would do.
#[track_caller]
fn refused(node: &Path, code: Code, words: &[&str]) {
    let other = Loop::new(32 * MIB);
    for e in [named(node).unwrap_err(), choose(&[node, &other.node]).unwrap_err()] {
        assert_eq!(e.code(), code, "{e}");
        for word in words {
            assert!(e.message().contains(word), "{word:?} is not in: {e}");
        }
    }
}

#[test]
fn a_free_loop_device_is_a_target_under_any_name() {
    needs!(can_run);
    let disk = Loop::new(32 * MIB);
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink(&disk.node, &link).unwrap();
    let target = named(&link).unwrap();
    assert_eq!((&target.name, &target.node), (&link, &disk.node));
    assert_eq!((target.kind, target.size, target.block_size), (TargetKind::Block, 32 * MIB, 512));
    let choice = choose(&[&disk.node]).unwrap();
    assert_eq!(choice.target.dev, target.dev);
    target.reverify(&choice.target.identity().unwrap()).unwrap();
}

#[test]
fn the_disk_below_the_running_system_is_the_medium() {
    needs!(can_run);
    let facts = facts();
    let medium = facts.medium();
    if medium.is_empty() {
        return not_run(test_name!(), "needs / on a disk");
    }
    let disk = Loop::new(32 * MIB);
    for dev in medium {
        let device = facts.device(dev).unwrap();
        let node = facts.node_of(device);
        let code = if device.role.is_whole_disk() { Code::TargetIsMedium } else { Code::TargetNotDisk };
        assert_eq!(named(&node).unwrap_err().code(), code);
        let choice = choose(&[&node, &disk.node]).unwrap();
        assert_eq!((choice.rejected[0].code, choice.target.name), (code, disk.node.clone()));
    }
}

#[test]
fn a_mounted_disk_and_a_bind_mount_of_it() {
    needs!(can_run);
    let disk = Loop::new(32 * MIB);
    ext4(&disk.node);
    let first = mount(&disk.node, &[]);
    refused(&disk.node, Code::TargetMounted, &[disk.name(), first.point.to_str().unwrap()]);
    fs::create_dir(first.point.join("sub")).unwrap();
    let bind = mount(&first.point.join("sub"), &["--bind"]);
    refused(&disk.node, Code::TargetMounted, &["another place"]);
    drop((first, bind));
    named(&disk.node).unwrap();
}

#[test]
fn a_mounted_partition() {
    needs!(can_run);
    let disk = Loop::new(128 * MIB);
    let (part, _delete) = disk.partition(1, 32 * MIB);
    assert_eq!(named(&part).unwrap_err().code(), Code::TargetNotDisk);
    named(&disk.node).unwrap();
    ext4(&part);
    let mounted = mount(&part, &[]);
    refused(&disk.node, Code::TargetMounted, &[part.to_str().unwrap(), mounted.point.to_str().unwrap()]);
}

#[test]
fn swap_on_a_disk_and_on_a_partition() {
    needs!(can_run);
    let swap = |node: &Path| {
        let name = node.to_str().unwrap();
        run("mkswap", &[name]).unwrap();
        run("swapon", &["-p", "0", name]).unwrap();
        Undo::by(&["swapoff", name])
    };
    let disk = Loop::new(128 * MIB);
    let whole = swap(&disk.node);
    refused(&disk.node, Code::TargetSwap, &[disk.name()]);
    drop(whole);
    let (part, _delete) = disk.partition(2, 32 * MIB);
    let _off = swap(&part);
    refused(&disk.node, Code::TargetSwap, &[part.to_str().unwrap()]);
}

#[test]
fn swap_in_a_file() {
    needs!(can_run);
    let disk = Loop::new(64 * MIB);
    ext4(&disk.node);
    let mounted = mount(&disk.node, &[]);
    let file = mounted.point.join("swap file");
    fs::write(&file, vec![0; 8 << 20]).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let name = file.to_str().unwrap();
    run("mkswap", &[name]).unwrap();
    run("swapon", &["-p", "0", name]).unwrap();
    let _off = Undo::by(&["swapoff", name]);
    fs::hard_link(&file, mounted.point.join("other")).unwrap();
    for name in ["swap file", "other"] {
        assert_eq!(named(&mounted.point.join(name)).unwrap_err().code(), Code::TargetSwap);
    }
}

#[test]
fn swap_in_compressed_memory() {
    let control = Path::new("/sys/class/zram-control");
    needs!(can_run);
    let Ok(number) = fs::read_to_string(control.join("hot_add")) else {
        return not_run(test_name!(), "needs zram");
    };
    let number = number.trim().to_owned();
    let remove = format!("echo {number} >{}/hot_remove", control.display());
    let _remove = Undo::by(&["sh", "-c", &remove]);
    let (node, sysfs) = (format!("/dev/zram{number}"), format!("/sys/block/zram{number}"));
    assert_eq!(named(Path::new(&node)).unwrap_err().code(), Code::TargetNoMedium);
    fs::write(format!("{sysfs}/disksize"), "32M").unwrap();
    run("mkswap", &[&node]).unwrap();
    run("swapon", &["-p", "0", &node]).unwrap();
    let _off = Undo::by(&["swapoff", &node]);
    refused(Path::new(&node), Code::TargetSwap, &[&node]);
}

#[test]
fn an_overlay_is_traced_to_its_disks() {
    needs!(can_run);
    let (lower, upper) = (Loop::new(32 * MIB), Loop::new(32 * MIB));
    ext4(&lower.node);
    ext4(&upper.node);
    let (low, up) = (mount(&lower.node, &[]), mount(&upper.node, &[]));
    let odd = low.point.join("a:b,c d\\e");
    for folder in [odd.clone(), up.point.join("up"), up.point.join("work")] {
        fs::create_dir(folder).unwrap();
    }
    let escaped = odd.to_str().unwrap().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,");
    let up_point = up.point.display();
    let options = format!("lowerdir={escaped},upperdir={up_point}/up,workdir={up_point}/work");
    let mounted = mount(Path::new("overlay"), &["-t", "overlay", "-o", &options]);
    let facts = facts();
    let (_, devs) = facts.mount_of(&mounted.point.join("x")).unwrap();
    for disk in [&lower, &upper] {
        assert!(devs.contains(&facts.device_at(&disk.node).unwrap().dev), "{devs:?}");
    }
}

#[test]
fn a_disk_mounted_in_another_namespace_is_in_use() {
    needs!(can_run);
    // In a chroot `/` is not a mount point, and its propagation cannot be changed.
    if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success()) {
        return not_run(test_name!(), "needs unshare -m");
    }
    let disk = Loop::new(32 * MIB);
    ext4(&disk.node);
    // In a mount namespace of its own, until its standard input ends.
    let script = format!("mount {} /mnt && echo ready && read x; umount /mnt", disk.name());
    let mut child = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let result = std::panic::catch_unwind(|| refused(&disk.node, Code::Busy, &["namespace"]));
    drop(child.stdin.take());
    child.wait().unwrap();
    result.unwrap();
    named(&disk.node).unwrap();
}

#[test]
fn an_external_journal() {
    needs!(can_run);
    let (disk, journal) = (Loop::new(64 * MIB), Loop::new(64 * MIB));
    run("mke2fs", &["-q", "-F", "-b", "4096", "-O", "journal_dev", journal.name()]).unwrap();
    let device = format!("device={}", journal.name());
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-J", &device, disk.name()]).unwrap();
    let _mounted = mount(&disk.node, &[]);
    refused(&journal.node, Code::TargetInUse, &[journal.name(), "journal"]);
}

#[test]
fn each_member_of_a_mounted_btrfs() {
    needs!(can_run, |test| has(test, "mkfs.btrfs"));
    let (first, second) = (Loop::new(128 * MIB), Loop::new(128 * MIB));
    run("mkfs.btrfs", &["-q", "-f", "-d", "raid1", "-m", "raid1", first.name(), second.name()]).unwrap();
    let options = format!("device={},device={}", first.name(), second.name());
    let mounted = mount(&first.node, &["-t", "btrfs", "-o", &options]);
    let point = mounted.point.to_str().unwrap();
    refused(&first.node, Code::TargetMounted, &[point]);
    refused(&second.node, Code::TargetMounted, &[point]);
    let file = mounted.point.join("image");
    File::create(&file).unwrap().set_len(32 * MIB).unwrap();
    let inner = Loop::over(&file, &[]);
    let facts = facts();
    let below = facts.all_below([facts.device_at(&inner.node).unwrap().dev]);
    for member in [&first, &second] {
        assert!(below.contains(&facts.device_at(&member.node).unwrap().dev));
    }
}

#[test]
fn an_xfs_log_on_another_disk() {
    needs!(can_run, |test| has(test, "mkfs.xfs"));
    let (disk, log) = (Loop::new(512 * MIB), Loop::new(128 * MIB));
    let option = format!("logdev={},size=64m", log.name());
    run("mkfs.xfs", &["-q", "-f", "-l", &option, disk.name()]).unwrap();
    let mounted = mount(&disk.node, &["-o", &format!("logdev={}", log.name())]);
    refused(&log.node, Code::TargetMounted, &[log.name(), mounted.point.to_str().unwrap()]);
}

#[test]
fn a_loop_device_over_a_loop_device() {
    needs!(can_run);
    let disk = Loop::new(64 * MIB);
    let upper = Loop::over(&disk.node, &[]);
    let name = upper.node.file_name().unwrap().to_str().unwrap();
    refused(&disk.node, Code::TargetInUse, &[name, "a loop device"]);
    named(&upper.node).unwrap();
    ext4(&upper.node);
    let mounted = mount(&upper.node, &[]);
    refused(&disk.node, Code::TargetMounted, &[mounted.point.to_str().unwrap()]);
}

#[test]
fn a_loop_device_over_a_file_on_the_disk() {
    needs!(can_run);
    let disk = Loop::new(64 * MIB);
    ext4(&disk.node);
    let outer = mount(&disk.node, &[]);
    let file = outer.point.join("inner");
    File::create(&file).unwrap().set_len(32 * MIB).unwrap();
    let inner = Loop::over(&file, &[]);
    named(&inner.node).unwrap();
    // The path leads elsewhere now, the file is where it was: the driver still knows.
    let at = outer.point.to_str().unwrap();
    run("mount", &["-t", "tmpfs", "cover", at]).unwrap();
    let _uncover = Undo::by(&["umount", at]);
    let facts = facts();
    let below = facts.all_below([facts.device_at(&inner.node).unwrap().dev]);
    assert!(below.contains(&facts.device_at(&disk.node).unwrap().dev));
    refused(&disk.node, Code::TargetMounted, &[outer.point.to_str().unwrap()]);
}

#[test]
fn read_only_empty_and_small_disks() {
    needs!(can_run);
    let disk = Loop::new(32 * MIB);
    let locked = Loop::over(&disk.file, &["-r"]);
    refused(&locked.node, Code::TargetReadOnly, &[locked.name()]);
    let small = Loop::new(16 * MIB - 512);
    refused(&small.node, Code::TargetTooSmall, &["16777216", "16776704"]);
    let exact = Loop::new(16 * MIB);
    named(&exact.node).unwrap();
    let empty = Loop::new(0);
    assert_eq!(named(&empty.node).unwrap_err().code(), Code::TargetNoMedium);
    let choice = choose(&[&empty.node, &exact.node]).unwrap();
    assert_eq!((choice.rejected[0].code, choice.target.name), (Code::TargetNoMedium, exact.node.clone()));
}

#[test]
fn a_raid_superblock_is_read_from_the_disk() {
    needs!(can_run);
    let (member, free) = (Loop::new(128 * MIB), Loop::new(32 * MIB));
    let (part, _delete) = member.partition(1, 32 * MIB);
    let node = fs::OpenOptions::new().write(true).open(&part).unwrap();
    let head = [0xa92b_4efc_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
    node.write_all_at(&head, 4096).unwrap();
    node.sync_all().unwrap();
    assert_eq!(named(&member.node).unwrap_err().code(), Code::TargetRaidMember);
    let choice = choose(&[&member.node, &free.node]).unwrap();
    assert_eq!((choice.rejected[0].code, choice.target.name), (Code::TargetRaidMember, free.node.clone()));
}

#[test]
fn files_as_targets() {
    needs!(can_run);
    let disk = Loop::new(32 * MIB);
    ext4(&disk.node);
    assert_eq!(named(&disk.file).unwrap().size, 32 * MIB);
    let mounted = mount(&disk.node, &[]);
    let e = named(&disk.file).unwrap_err();
    assert_eq!(e.code(), Code::TargetMounted);
    assert!(e.message().contains(mounted.point.to_str().unwrap()), "{e}");

    let image = mounted.point.join("image");
    fs::write(&image, "x").unwrap();
    fs::hard_link(&image, mounted.point.join("hard")).unwrap();
    symlink("image", mounted.point.join("soft")).unwrap();
    for name in ["image", "hard", "soft"] {
        let e = select::named(&mounted.point.join(name), &facts(), Some(&image), IMAGE).unwrap_err();
        assert_eq!(e.code(), Code::TargetIsImage, "{e}");
    }
    assert_eq!(named(&mounted.point.join("new")).unwrap().size, 0);
    run("mount", &["-o", "remount,ro", mounted.point.to_str().unwrap()]).unwrap();
    for name in ["new", "image"] {
        assert_eq!(named(&mounted.point.join(name)).unwrap_err().code(), Code::TargetReadOnly);
    }
    for path in ["/dev/null", "/dev/no-such-disk", "/proc/sysrq-trigger", "/sys/x", "/dev"] {
        assert_eq!(named(Path::new(path)).unwrap_err().code(), Code::TargetMissing, "{path}");
    }
}

#[test]
fn a_loop_device_over_the_image_is_no_target() {
    needs!(can_run);
    let disk = Loop::new(32 * MIB);
    let e = select::named(&disk.node, &facts(), Some(&disk.file), IMAGE).unwrap_err();
    assert_eq!(e.code(), Code::TargetIsImage, "{e}");
}
