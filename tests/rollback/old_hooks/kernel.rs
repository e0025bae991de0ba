//! The kernel override of an environment block, as `grub-editenv` reads and writes it.

use crate::kit::needs::{has, needs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use copal::boot_state;
use copal::config::paths::Paths;
use copal::rollback::kernel_override::{commit, restore};
use copal::slot::Slot;

const OLD: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";
const NEW: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";
const DECISION: [&str; 3] = ["bootcount=1", "resin_root_part=B", "upgrade_available=1"];

struct Device {
    dir: tempfile::TempDir,
    name: &'static str,
}

impl Device {
    /// A boot partition with a block that GRUB's own tool has made.
    fn new(name: &'static str, variables: &[&str]) -> Device {
        let dir = tempfile::tempdir().unwrap();
        let device = Device { dir, name };
        for folder in ["mnt/state", "proc"] {
            std::fs::create_dir_all(device.dir.path().join(folder)).unwrap();
        }
        std::fs::create_dir_all(device.block().parent().unwrap()).unwrap();
        device.editenv(&["create"]);
        device.editenv(&[&["set"], &DECISION[..], variables].concat());
        device
    }

    fn paths(&self) -> Paths {
        Paths::new(self.dir.path())
    }

    fn block(&self) -> PathBuf {
        self.dir.path().join("mnt/boot").join(self.name)
    }

    fn editenv(&self, arguments: &[&str]) -> String {
        let out = Command::new("grub-editenv").arg(self.block()).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Its variables without the decision, which must be as it was.
    fn variables(&self) -> Vec<String> {
        let list = self.editenv(&["list"]);
        assert!(DECISION.iter().all(|d| list.lines().any(|l| l == *d)), "{list}");
        list.lines().filter(|l| !DECISION.contains(l)).map(str::to_owned).collect()
    }

    fn booted(&self, cmdline: &str) -> &Device {
        std::fs::write(self.dir.path().join("proc/cmdline"), cmdline).unwrap();
        self
    }

    fn restore(&self, old: Slot) {
        restore(&self.paths(), &*boot_state::detect(&self.paths()).unwrap(), old);
    }

    fn commit(&self, running: Slot) {
        commit(&self.paths(), &*boot_state::detect(&self.paths()).unwrap(), running);
    }

    /// What is said about it on the state partition, and when.
    fn said(&self) -> Option<(String, String)> {
        let text =
            std::fs::read_to_string(self.dir.path().join("mnt/state/override-health-triggered")).ok()?;
        let (when, what) = text.split_once(": ").unwrap();
        Some((when.to_owned(), what.to_owned()))
    }
}

fn abi(value: &str) -> String {
    format!("kernel_override_abi={value}")
}

fn committed(slot: &str, value: &str) -> String {
    format!("kernel_override_abi_committed_{slot}={value}")
}

/// As `date -Iseconds` prints the time in UTC.
fn assert_time(text: &str) {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00+00:00");
}

#[test]
fn a_rollback_restores_the_committed_kernel() {
    needs!(|test| has(test, "grub-editenv"));
    for name in ["bootenv", "EFI/BOOT/grubenv", "grub/grubenv"] {
        let device = Device::new(name, &[&abi(NEW), &committed("A", OLD), &committed("B", "x"), "own=1"]);
        let inode = std::fs::metadata(device.block()).unwrap().ino();
        device.restore(Slot::A);
        assert_eq!(device.variables(), [abi(OLD), committed("A", OLD), committed("B", "x"), "own=1".into()]);
        assert_eq!(std::fs::metadata(device.block()).unwrap().ino(), inode, "{name}: in place");
        let (when, what) = device.said().unwrap();
        assert_time(&when);
        assert_eq!(what, format!("from={NEW} to={OLD} slot=A\n"));
    }
}

#[test]
fn without_a_committed_one_it_is_the_kernel_of_the_slot() {
    needs!(|test| has(test, "grub-editenv"));
    for variables in
        [vec![abi(NEW), committed("A", OLD)], vec![abi(NEW), committed("B", ""), committed("A", OLD)]]
    {
        let device = Device::new("bootenv", &variables.iter().map(String::as_str).collect::<Vec<_>>());
        device.restore(Slot::B);
        assert_eq!(device.variables(), variables[1..]);
        assert_eq!(device.said().unwrap().1, format!("from={NEW} to=none slot=B\n"));
    }
}

#[test]
fn without_an_override_nothing_is_touched() {
    needs!(|test| has(test, "grub-editenv"));
    for variables in [&[][..], &["kernel_override_abi="], &["kernel_override_abi_committed_A=x"]] {
        let device = Device::new("bootenv", variables);
        let before = std::fs::read(device.block()).unwrap();
        device.restore(Slot::A);
        device.booted("quiet").commit(Slot::A);
        assert_eq!(std::fs::read(device.block()).unwrap(), before);
        assert_eq!(device.said(), None);
    }
}

#[test]
fn a_device_with_uboot_has_none() {
    needs!(|test| has(test, "grub-editenv"));
    let device = Device::new("bootenv", &[&abi(NEW)]);
    let uenv = device.block().with_file_name("resinOS_uEnv.txt");
    let text = format!("resin_root_part=2\nupgrade_available=0\n{}\n", abi(NEW));
    std::fs::write(&uenv, &text).unwrap();
    device.restore(Slot::A);
    device.booted(&format!("balena_kernel_abi={NEW}")).commit(Slot::A);
    assert_eq!(std::fs::read_to_string(&uenv).unwrap(), text);
    assert_eq!(device.variables(), [abi(NEW)]);
    assert_eq!(device.said(), None);
}

#[test]
fn nothing_stops_a_rollback() {
    needs!(|test| has(test, "grub-editenv"));
    // A value for which there is no room: the others fill the block.
    let device = Device::new("bootenv", &["kernel_override_abi=1", &committed("A", OLD)]);
    let room = std::fs::read(device.block()).unwrap().iter().rev().take_while(|b| **b == b'#').count();
    device.editenv(&["set", &format!("own={}", "x".repeat(room - "own=\n".len() - 20))]);
    let before = std::fs::read(device.block()).unwrap();
    device.restore(Slot::A);
    assert_eq!(std::fs::read(device.block()).unwrap(), before);
    assert_eq!(device.said().unwrap().1, format!("from=1 to={OLD} slot=A\n"));

    // Nobody can be told.
    let device = Device::new("bootenv", &[&abi(NEW)]);
    std::fs::remove_dir(device.dir.path().join("mnt/state")).unwrap();
    device.restore(Slot::A);
    assert_eq!(device.variables(), [""; 0]);

    // No block any more.
    let device = Device::new("bootenv", &[&abi(NEW)]);
    let backend = boot_state::balena(&device.paths()).unwrap();
    std::fs::remove_file(device.block()).unwrap();
    restore(&device.paths(), &*backend, Slot::A);
    commit(&device.paths(), &*backend, Slot::A);
    assert!(!device.block().exists() && device.said().is_none());
}

#[test]
fn a_commit_keeps_the_kernel_that_runs() {
    needs!(|test| has(test, "grub-editenv"));
    let device = Device::new("bootenv", &[&abi(NEW), &committed("A", OLD)]);
    for cmdline in [
        "quiet root=UUID=1\n".to_owned(),
        format!("balena_kernel_abi={OLD}\n"),
        format!("x_balena_kernel_abi={NEW}\n"),
        format!("balena_kernel_abi={NEW}0\n"),
        "balena_kernel_abi=\n".to_owned(),
        format!("balena_kernel_abi={NEW} balena_kernel_abi={OLD}\n"),
    ] {
        device.booted(&cmdline).commit(Slot::B);
        assert_eq!(device.variables(), [abi(NEW), committed("A", OLD)], "{cmdline}");
    }
    let inode = std::fs::metadata(device.block()).unwrap().ino();
    device.booted(&format!("quiet balena_kernel_abi={NEW} root=UUID=1\n")).commit(Slot::B);
    assert_eq!(device.variables(), [abi(NEW), committed("A", OLD), committed("B", NEW)]);
    device.commit(Slot::A);
    assert_eq!(device.variables(), [abi(NEW), committed("A", NEW), committed("B", NEW)]);
    assert_eq!(std::fs::metadata(device.block()).unwrap().ino(), inode, "in place");
    assert_eq!(device.said(), None, "nothing was taken back");

    // Nobody knows which one runs.
    let device = Device::new("bootenv", &[&abi(NEW)]);
    device.commit(Slot::A);
    assert_eq!(device.variables(), [abi(NEW)]);
    assert!(!Path::new(&device.dir.path().join("proc/cmdline")).exists());
}
