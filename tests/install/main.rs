//! Whole installations by the real program, onto a loop device, in a root folder and a PID namespace of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod alone;
    pub mod disk;
    pub mod files;
    pub mod let_go;
    pub mod log;
    pub mod needs;
    pub mod old_kernel;
    pub mod process;
    pub mod prove;
    pub mod schema;
    pub mod storage_daemon;
}

mod bad_input;
mod boot_partition;
mod device_trees;
mod oldest_kernel;
mod programs;
mod refusals;
mod rig;
mod screen;
mod signed;
mod stopped;
mod undone;

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use crate::kit::needs::{needs, tools};
use crate::kit::schema;
use kit::process::stderr;
use rig::{CONFIG_JSON, MIB, Rig, can_run, image};

/// What the event says by which an owner takes the old system for lost.
pub const STARTED: &str = ": flashing ";

fn assert_ok(out: &Output) {
    assert!(
        out.status.success(),
        "{:?}\n{}\n{}",
        out.status,
        stderr(out),
        String::from_utf8_lossy(&out.stdout)
    );
}

/// Everything behind the boot partition, and the table in front of it, is the image's.
fn assert_image(rig: &Rig) {
    let (disk, image) = (std::fs::read(&rig.disk.file).unwrap(), std::fs::read(image()).unwrap());
    let (boot, rest) = (MIB, 9 * MIB);
    assert!(disk[..boot] == image[..boot], "the first MiB differs");
    assert!(disk[rest..image.len()] == image[rest..], "a byte behind the boot partition differs");
    assert!(disk[image.len()..].iter().all(|b| *b == 0xA5), "behind the image something was written");
}

#[test]
fn a_disk_is_installed_from_beginning_to_end() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program(
        "bin/resin-init-flasher-board",
        "#!/bin/sh\nenv | sort\nls $INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT\necho by the board >/tmp/internal_boot/board\n",
    );
    let out = rig.run_with(&["/copal", "flash", "--no-power-off", "-v"], &[("MARK", "kept")]);
    assert_ok(&out);
    assert_image(&rig);
    let disk = &rig.disk;
    assert_eq!(disk.boot_text("/EFI/BOOT/grub.cfg").unwrap(), "menuentry internal\n");
    assert_eq!(disk.boot_text("/system-connections/cellular").unwrap(), "new connection\n");
    assert_eq!(disk.boot_text("/system-connections/old"), None, "the folder is replaced");
    assert_eq!(disk.boot_text("/splash/balena-logo.png").unwrap(), "new logo");
    assert_eq!(disk.boot_text("/kernel").unwrap(), "kernel of the image", "what the image brings stays");
    assert_eq!(disk.boot_text("/board").unwrap(), "by the board\n");

    let config = disk.boot_text("/config.json").unwrap();
    let value: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert!(value.get("installer").is_none(), "{config}");
    assert!(config.contains("12345678901234567890.10") && config.contains("{\"x\": [1, 2.0]}"), "{config}");

    let receipt: serde_json::Value =
        serde_json::from_str(&disk.boot_text("/flash-receipt.json").unwrap()).unwrap();
    assert_eq!(schema::complaints(&receipt), "");
    assert_eq!(receipt["image"]["size"], 32 << 20);
    assert_eq!(receipt["target"]["name"], disk.node.as_str());
    assert_eq!(receipt["boot_partition"]["device"], format!("{}p1", disk.node));
    assert_eq!(receipt["bootloaders"], serde_json::json!([]));
    let steps: Vec<&str> =
        receipt["timeline"].as_array().unwrap().iter().map(|s| s["step"].as_str().unwrap()).collect();
    let order = [
        "board set-up",
        "inputs",
        "network",
        "disk",
        "check",
        "write",
        "partitions",
        "boot partition",
        "board program",
    ];
    let at: Vec<usize> = order.iter().map(|s| steps.iter().position(|x| x == s).expect(s)).collect();
    assert!(at.is_sorted(), "{steps:?}");
    let shown: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(shown, receipt, "stdout shows what the boot partition holds");

    let log = stderr(&out);
    for line in [
        &format!("internal_dev={}", disk.node),
        "INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT=/tmp/internal_boot",
        "EXTERNAL_DEVICE_BOOT_PART_MOUNTPOINT=/mnt/boot",
        "CONFIG_PATH=/mnt/boottmp/config.json",
        "MARK=kept",
        "not waiting for the network",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!log.contains("CRYPT="), "{log}");
}

#[test]
fn the_schema_of_receipts_takes_no_other() {
    needs!(tools);
    let rig = Rig::new();
    let file = rig.root().join("disk.img");
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_copal"))
        .args(["flash", "--sha256", "--image"])
        .arg(image())
        .arg("--target")
        .arg(&file)
        .output()
        .unwrap();
    assert_ok(&out);
    let good: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(schema::complaints(&good), "", "the receipt of a plain file");
    for (field, wrong) in [
        ("version", serde_json::json!(2)),
        ("boot_partition", serde_json::json!({ "device": "/dev/sda1" })),
        ("bootloaders", serde_json::json!([{ "kind": "tape" }])),
        ("bytes", serde_json::json!({ "written": -1, "zeroed": 0, "skipped": 0, "verified": 0 })),
        ("unknown", serde_json::json!(1)),
    ] {
        let mut bad = good.clone();
        bad[field] = wrong;
        assert_ne!(schema::complaints(&bad), "", "{field}");
    }
}

#[test]
fn what_the_plan_says_happens_and_the_plan_itself_does_nothing() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("bin/resin-init-board", "#!/bin/sh\ntouch /etc/ran\n");
    rig.program("bin/resin-init-flasher-board", "#!/bin/sh\ntouch /etc/ran\n");
    rig.program("libexec/balena-init-flasher-secureboot", "touch /etc/ran\n");
    let before = std::fs::read(&rig.disk.file).unwrap();
    let out = rig.run(&["/copal", "flash", "--plan", "--json"]);
    assert_ok(&out);
    assert!(std::fs::read(&rig.disk.file).unwrap() == before, "a plan writes nothing");
    assert!(!rig.root().join("etc/ran").exists(), "a plan runs no program of the board");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let installation = &last["plan"]["installation"];
    assert_eq!(installation["ending"], "power-off", "{last:#}");
    assert_eq!(installation["board_program"], "/usr/bin/resin-init-flasher-board", "{last:#}");
    let whole = installation.to_string();
    for name in ["EFI/BOOT/grub.cfg", "system-connections", "splash", "config.json"] {
        assert!(whole.contains(name), "{name}: {whole}");
    }
}

#[test]
fn the_legacy_name_ends_with_power_off_or_reboot() {
    needs!(can_run);
    // What the kernel does to a PID namespace whose init calls reboot(2), see pid_namespaces(7).
    for (more, signal) in [("", nix::libc::SIGINT), ("POSTINSTALL_REBOOT=1", nix::libc::SIGHUP)] {
        let rig = Rig::new();
        rig.conf(&[more]);
        let out = rig.run(&["/resin-init-flasher"]);
        let log = stderr(&out);
        let ended = out.status.signal().or(out.status.code().map(|c| c - 128));
        assert_eq!(ended, Some(signal), "{:?} {log}", out.status);
        assert!(log.contains("[resin-init-flasher][INFO] "), "{log}");
        assert!(rig.disk.boot_file("/flash-receipt.json").is_some(), "{log}");
        assert_image(&rig);
    }
}

#[test]
fn the_board_s_way_to_power_off_comes_first() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("libexec/os-helpers-power", "os_helpers_shutdown() { echo by GPIO; touch /etc/off; }\n");
    // Where a board would be off, the power is taken from outside.
    let out = rig.run_until(&["/resin-init-flasher"], "etc/off");
    let log = stderr(&out);
    assert!(log.contains("by GPIO"), "{log}");
    assert!(rig.disk.boot_file("/flash-receipt.json").is_some(), "{log}");
}

#[test]
fn arguments_to_the_legacy_name_flash_nothing() {
    needs!(can_run);
    let rig = Rig::new();
    let before = std::fs::read(&rig.disk.file).unwrap();
    for arg in ["--help", "x"] {
        let out = rig.run(&["/resin-init-flasher", arg]);
        assert_eq!(out.status.code(), Some(2), "{arg}: {}", stderr(&out));
    }
    assert!(std::fs::read(&rig.disk.file).unwrap() == before);
}

#[test]
fn config_json_is_read_again_right_before_it_is_copied() {
    needs!(can_run);
    let rig = Rig::new();
    let registered = CONFIG_JSON.replacen('{', "{\"registered_at\": 1700000000, \"deviceId\": 7, ", 1);
    rig.put("etc/registered.json", &registered);
    // The device registers itself while the flasher works; the last moment is when the boot files are there.
    rig.program(
        "libexec/balena-init-flasher-secureboot",
        "secureboot_setup() { return 1; }\n\
         secureboot_bootloader_setup() { ls /tmp/internal_boot; cp /etc/registered.json $CONFIG_PATH; }\n\
         secureboot_bootloader_postsetup() { mountpoint -q /tmp/internal_boot || echo postsetup after unmount; }\n",
    );
    let out = rig.run(&["/copal", "flash", "--no-power-off", "-v"]);
    assert_ok(&out);
    let config = rig.disk.boot_text("/config.json").unwrap();
    assert!(config.contains("\"deviceId\": 7") && !config.contains("installer"), "{config}");
    assert!(stderr(&out).contains("postsetup after unmount"), "{}", stderr(&out));
}

#[test]
fn the_log_of_an_initramfs_is_kept() {
    needs!(can_run);
    let rig = Rig::new();
    rig.put("var/initramfs.log", "all that happened\n");
    let log = [("INITRAMFS_LOGFILE", "/var/initramfs.log")];
    assert_ok(&rig.run_with(&["/copal", "flash", "--no-power-off"], &log));
    let part = rig.disk.file.with_extension("list");
    let all = std::fs::read(&rig.disk.file).unwrap();
    std::fs::write(&part, &all[MIB..9 * MIB]).unwrap();
    let list = rig::tool(&["debugfs", "-R", "ls -p /", part.to_str().unwrap()]);
    let name = list.split('/').find(|n| n.starts_with("migration_")).unwrap_or_else(|| panic!("{list}"));
    let digits: String = name.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
    assert_eq!(digits, "migration_99999999T9999");
    assert_eq!(rig.disk.boot_text(&format!("/{name}")).unwrap(), "all that happened\n");
}

#[test]
fn a_log_without_space_is_left_on_the_medium() {
    needs!(can_run);
    let rig = Rig::new();
    rig.put("var/initramfs.log", "all that happened\n".repeat(9 * MIB / 18));
    let log = [("INITRAMFS_LOGFILE", "/var/initramfs.log")];
    let out = rig.run_with(&["/copal", "flash", "--no-power-off"], &log);
    assert_ok(&out);
    assert!(stderr(&out).contains("cannot keep /var/initramfs.log"), "{}", stderr(&out));
    assert!(rig.disk.boot_text("/flash-receipt.json").unwrap().ends_with("}\n"));
    assert!(rig.disk.boot_file("/config.json").is_some());
}
