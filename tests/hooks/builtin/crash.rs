//! The program itself, killed before every call that changes a file, and before every flush.
//!
//! It runs in a root of its own, so that the well-known paths are those of the made-up device.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use copal::boot_state::{BootState, detect};
use copal::disk::Facts;
use copal::slot::{Root, Roots};
use nix::sys::stat::{Mode, SFlag, mknod};

use super::bios::{boot_img, core_img, disk, ship, started};
use super::golden::CASES;
use super::machine::{Machine, PLAIN, copy, golden, see};
use crate::kit::disk::Loop;
use crate::kit::needs::{can_run, needs};

/// Whatever changes a file or a name, or says that it is on the medium.
const CALLS: [&str; 11] = [
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "pwrite64",
    "fsync",
    "fdatasync",
    "ftruncate",
];

/// Runs a hook in the machine's root, and kills it at the `n`th call of a kind. Whether it came to that.
fn killed(machine: &Machine, hook: &str, during_update: bool, call: &str, n: u32) -> bool {
    killed_with(machine, hook, during_update, call, n, Path::new(""))
}

/// [`killed`], with the programs of a folder installed.
fn killed_with(
    machine: &Machine,
    hook: &str,
    during_update: bool,
    call: &str,
    n: u32,
    programs: &Path,
) -> bool {
    let script = r#"for d in lib lib64; do [ ! -d "/$d" ] || { mkdir -p "$1/$d"; mount --bind "/$d" "$1/$d"; }; done
for d in bin usr/bin; do [ -z "$6" ] || { mkdir -p "$1/$d"; mount --bind "/$d" "$1/$d"; }; done
[ -z "$6" ] || { mkdir -p "$1/usr/sbin"; mount --bind "$6" "$1/usr/sbin"; mkdir -p "$1/dev"; : >"$1/dev/null"; }
: >"$1/copal"; mount --bind "$2" "$1/copal"; cd /
exec strace -qq -o /dev/null -e "trace=$4" -e "inject=$4:signal=KILL:when=$5" chroot "$1" /copal "$3""#;
    let root = machine.paths().root().to_owned();
    let out = Command::new("unshare")
        .args(["-m", "sh", "-ec", script, "sh"])
        .arg(root)
        .args([env!("CARGO_BIN_EXE_copal"), hook, call, &n.to_string()])
        .arg(programs)
        .env("DURING_UPDATE", if during_update { "1" } else { "0" })
        .env("TMPDIR", "/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() || out.status.signal() == Some(9), "{hook}: {:?} {text}", out.status);
    !out.status.success()
}

fn state(machine: &Machine) -> BootState {
    detect(&machine.paths()).unwrap().read().unwrap()
}

fn roots(machine: &Machine) -> [Root; 2] {
    let roots = Roots::of(&Facts::gather(&machine.paths()).unwrap()).unwrap();
    [roots.active.clone(), roots.inactive().unwrap().clone()]
}

/// Puts what is on the partitions back to what it was.
fn restore(machine: &Machine, saved: &tempfile::TempDir) {
    fs::remove_dir_all(machine.at("/mnt")).unwrap();
    copy(saved.path(), &machine.at("/mnt"));
}

fn check(case: &str) {
    let (_, hook, during_update, kind) = CASES.iter().find(|c| c.0 == case).unwrap();
    check_with(
        case,
        hook,
        *during_update,
        &|| {
            let machine = Machine::new(*kind);
            machine.lay(&golden(case, "root"));
            machine
        },
        &|_, _| {},
    );
}

/// `make` gives a device before the hook; `inspect` is shown every device that the hook was killed on.
fn check_with(
    case: &str,
    hook: &str,
    during_update: bool,
    make: &dyn Fn() -> Machine,
    inspect: &dyn Fn(&Machine, &str),
) {
    if !can_run(case) {
        return;
    }
    let before = state(&make());
    let expected = see(&golden(case, "expected/mnt"));
    let mut stops = 0;
    let mut switched = 0;
    for call in CALLS {
        for n in 1.. {
            let machine = make();
            if !killed(&machine, hook, during_update, call, n) {
                assert_eq!(machine.see(), expected, "{case}, not killed");
                break;
            }
            stops += 1;
            let context = format!("{case}, killed before {call} {n}");
            let [active, other] = roots(&machine);
            let goal = if during_update { &other } else { &active };
            let found = state(&machine);
            let old = found.root == before.root && found.upgrade_available == before.upgrade_available;
            let new =
                found.root.means(goal) && found.bootcount == 0 && (found.upgrade_available == during_update);
            assert!(old || new, "{context}: {found:?}");
            switched += u32::from(new && !old);
            inspect(&machine, &context);

            let saved = tempfile::tempdir().unwrap();
            copy(&machine.at("/mnt"), saved.path());
            machine.run(hook, during_update).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(machine.see(), expected, "{context}, run again");
            if during_update {
                restore(&machine, &saved);
                machine.run(hook, false).unwrap_or_else(|e| panic!("{context}, undo: {e}"));
                let back = state(&machine);
                assert!(
                    back.root.means(&active) && !back.upgrade_available && back.bootcount == 0,
                    "{context}: {back:?}"
                );
                inspect(&machine, &context);
            }
        }
    }
    assert!(stops > 5 && switched > 0, "{case}: {stops} stops, {switched} of them behind the switch");
}

#[test]
fn uboot_for_the_first_time() {
    check("uboot-first");
}

#[test]
fn uboot_back() {
    check("uboot-undo");
}

#[test]
fn from_uboot_to_the_balena_bootloader() {
    check("balena-after-uboot");
}

#[test]
fn from_the_balena_bootloader_to_uboot() {
    check("uboot-after-bootenv");
}

#[test]
fn grub_for_uefi() {
    check("grub-uefi");
}

#[test]
fn grub_for_uefi_back() {
    check("grub-uefi-undo");
}

#[test]
fn grub_on_an_encrypted_disk() {
    check("grub-encrypted");
}

/// Kills a hook everywhere: `after` sees the device, and then the one on which the hook has run again.
fn check_small(
    hook: &str,
    during_update: bool,
    programs: &Path,
    make: &dyn Fn() -> Machine,
    after: &dyn Fn(&Machine, bool, &str),
) {
    if !can_run(hook) {
        return;
    }
    let mut stops = 0;
    for call in CALLS {
        for n in 1.. {
            let machine = make();
            let context = format!("{hook}, killed before {call} {n}");
            if !killed_with(&machine, hook, during_update, call, n, programs) {
                after(&machine, true, &context);
                break;
            }
            stops += 1;
            after(&machine, false, &context);
            assert!(
                !killed_with(&machine, hook, during_update, "reboot", 1, programs),
                "{context}: run again"
            );
            after(&machine, true, &context);
        }
    }
    assert!(stops > 2, "{hook}: {stops} stops");
}

#[test]
fn breadcrumbs() {
    for case in ["rollback-update", "rollback-undo-selected", "rollback-undo-shell", "data-missing"] {
        let (_, hook, during_update, kind) = CASES.iter().find(|c| c.0 == case).unwrap();
        let make = || {
            let machine = Machine::new(*kind);
            machine.lay(&golden(case, "root"));
            machine
        };
        let expected = see(&golden(case, "expected/mnt"));
        check_small(hook, *during_update, Path::new(""), &make, &|machine, done, context| {
            if done {
                assert_eq!(machine.see(), expected, "{context}");
            }
        });
    }
}

/// Of a database there is always one whole: the old one until the copy is confirmed, the copy from then on.
#[test]
fn the_supervisor_s_database() {
    const FROM: &str = "data/resin-data/resin-supervisor/database.sqlite";
    const TO: &str = "data/resin-data/balena-supervisor/database.sqlite";
    let make = |to: Option<&str>| {
        let mut machine = Machine::new(PLAIN);
        machine.tree.file(&format!("/mnt/{FROM}"), "one").file(&format!("/mnt/{FROM}-wal"), "wal");
        let source = File::options().write(true).open(machine.at("/mnt").join(FROM)).unwrap();
        source.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        if let Some(to) = to {
            machine.tree.file(&format!("/mnt/{TO}"), to);
        }
        machine
    };
    check_small(
        "76-forward_supervisor-db",
        true,
        Path::new(""),
        &|| make(None),
        &|machine, done, context| {
            let files = machine.see();
            assert_eq!(files[FROM], "one", "{context}");
            let copy = (files.get(TO), files.get(&format!("{TO}-wal")));
            assert!(
                copy.0.is_none() || copy == (Some(&"one".into()), Some(&"wal".into())),
                "{context}: {copy:?}"
            );
            assert!(!done || copy.0.is_some(), "{context}");
        },
    );
    check_small(
        "76-fwd_commit_supervisor-db",
        false,
        Path::new(""),
        &|| make(Some("two")),
        &|machine, done, context| {
            let files = machine.see();
            assert_eq!(files[TO], "two", "{context}");
            assert!(
                !done || !files.keys().any(|name| name.contains("resin-supervisor")),
                "{context}: {files:?}"
            );
        },
    );
}

#[test]
fn the_host_key() {
    const KEYS: &str = "state/root-overlay/etc/ssh/hostkeys/ssh_host_rsa_key";
    let make = || {
        let mut machine = Machine::new(PLAIN);
        machine.tree.file("/mnt/state/root-overlay/etc/dropbear/dropbear_rsa_host_key", "secret\n");
        machine
    };
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/builtin/programs");
    check_small("70-sshd_migrate_keys", true, &programs, &make, &|machine, done, context| {
        let files = machine.see();
        let key = (files.get(KEYS), files.get(&format!("{KEYS}.pub")));
        let whole = "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n".to_owned();
        let both = (Some(&whole), Some(&"ssh-rsa secret\n".to_owned()));
        assert!(key.0.is_none() || key == both, "{context}: {key:?}");
        assert!(!done || (key == both && files.len() == 3), "{context}: {files:?}");
    });
}

/// At every instant a BIOS starts the whole old GRUB or the whole new one.
#[test]
fn grub_for_a_bios() {
    needs!(can_run);
    let (old, new) = (core_img(20_000, 1), core_img(30_000, 2));
    let before = disk(&boot_img(1), &old);
    let device = Loop::new(before.len() as u64);
    let rounded = |core: &[u8]| {
        let mut core = core.to_vec();
        core.resize(core.len().next_multiple_of(512), 0);
        core
    };
    let cores = [rounded(&old), rounded(&new)];
    let make = || {
        let machine = Machine::new(PLAIN);
        machine.lay(&golden("grub-bios", "root"));
        ship(&machine, &boot_img(2), &new);
        let mut node = File::options().write(true).open(&device.node).unwrap();
        node.write_all(&before).unwrap();
        node.sync_all().unwrap();
        let node = machine.at("/dev/sda");
        fs::remove_file(&node).unwrap();
        let number = fs::metadata(&device.node).unwrap().rdev();
        mknod(&node, SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), number).unwrap();
        machine
    };
    let inspect = |_: &Machine, context: &str| {
        let now = fs::read(&device.node).unwrap();
        let core = started(&now);
        assert!(cores.contains(&core), "{context}: GRUB is neither the old nor the new one");
        assert!(now[446..512] == before[446..512], "{context}: the partition table");
        assert!(now[4 << 20..] == before[4 << 20..], "{context}: the partitions");
    };
    check_with("grub-bios", "99-resin-grub", true, &make, &inspect);
}
