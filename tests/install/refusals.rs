//! What is refused before anything is written.

use serde_json::{Value, json};

use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, tool};
use crate::{STARTED, stderr};

/// [`refused_late`], and whoever asks beforehand is told.
fn refused(rig: &Rig, code: &str, object: &str) {
    let doctor = rig.run(&["/copal", "doctor"]);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{code}: {told}{}", stderr(&doctor));
    assert!(told.contains(object), "{code}: {told}");
    refused_late(rig, code, object);
}

/// Runs the installation, which must be refused with `code` and name `object`, and leave the disk as it was.
fn refused_late(rig: &Rig, code: &str, object: &str) {
    let before = std::fs::read(&rig.disk.file).unwrap();
    let out = rig.run(&["/copal", "flash", "--no-power-off", "-v"]);
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(3), "{code}: {text}");
    assert!(text.contains(&format!("[{code}]")), "{code}: {text}");
    assert!(text.contains(object), "{object}: {text}");
    assert!(!text.contains(STARTED), "{code}: who reads that takes the old system for lost: {text}");
    assert!(std::fs::read(&rig.disk.file).unwrap() == before, "{code}: something was written");
    // By the legacy name too, whose only exit code for this is 1.
    let out = rig.run(&["/resin-init-flasher"]);
    assert_eq!(out.status.code(), Some(1), "{code}: {}", stderr(&out));
    assert!(stderr(&out).contains(&format!("[{code}]")), "{code}: {}", stderr(&out));
    assert!(std::fs::read(&rig.disk.file).unwrap() == before, "{code}: something was written");
}

#[test]
fn bootloaders_that_cannot_go_where_they_should() {
    needs!(can_run);
    let rig = Rig::new();
    let disk = rig.disk.name().to_owned();
    let write = |device: &str, image: &str, block: &str, skip: &str| {
        rig.conf(&[
            &format!("BOOTLOADER_FLASH_DEVICE={device}"),
            &format!("BOOTLOADER_IMAGE={image}"),
            &format!("BOOTLOADER_BLOCK_SIZE_OFFSET={block}"),
            &format!("BOOTLOADER_SKIP_OUTPUT_BLOCKS={skip}"),
        ]);
    };
    write(&disk, "", "1024", "3");
    refused(&rig, "conf-invalid", "BOOTLOADER_IMAGE");
    for block in ["0", "x", "99999999999999999999"] {
        write(&disk, "u-boot.imx", block, "3");
        refused(&rig, "conf-invalid", "BOOTLOADER_BLOCK_SIZE_OFFSET");
    }
    write(&disk, "u-boot.imx", "1024", "33");
    refused(&rig, "image-missing", "u-boot.imx");
    rig.boot("u-boot.imx", "U-Boot");
    write("mtdblock7", "u-boot.imx", "1024", "1");
    refused(&rig, "flash-device-missing", "mtdblock7");
    for (skip, code, what) in [
        ("1", "span-over-table", "partition table"),
        ("16", "span-over-table", "partition table"),
        // The image's boot partition, and its root partition: of the disk as it will be.
        ("1024", "span-over-file-system", "resin-boot"),
        ("10240", "span-over-file-system", "resin-rootA"),
        ("99999999", "span-outside-device", "it has 50331648 bytes"),
    ] {
        write(&disk, "u-boot.imx", "1024", skip);
        refused(&rig, code, what);
    }
}

#[test]
fn bootloaders_that_lie_over_each_other() {
    needs!(can_run);
    let rig = Rig::new();
    let disk = rig.disk.name().to_owned();
    rig.boot("MLO", &"M".repeat(100 << 10));
    rig.boot("u-boot.img", "U-Boot");
    let second_at = |block: &str| {
        rig.conf(&[
            &format!("BOOTLOADER_FLASH_DEVICE={disk}\nBOOTLOADER_IMAGE=MLO\nBOOTLOADER_BLOCK_SIZE_OFFSET=1024"),
            &format!("BOOTLOADER_SKIP_OUTPUT_BLOCKS=33\nBOOTLOADER_FLASH_DEVICE_1=/dev/{disk}"),
            &format!("BOOTLOADER_IMAGE_1=u-boot.img\nBOOTLOADER_BLOCK_SIZE_OFFSET_1=1024\nBOOTLOADER_SKIP_OUTPUT_BLOCKS_1={block}"),
        ]);
    };
    second_at("132");
    refused(&rig, "conf-invalid", "MLO and /mnt/boot/u-boot.img overlap on");
    second_at("133");
    let out = rig.run(&["/copal", "flash", "--plan"]);
    assert!(out.status.success(), "one behind the other: {}", stderr(&out));
}

#[test]
fn a_config_json_that_is_missing_or_cannot_be_understood() {
    needs!(can_run);
    let rig = Rig::new();
    for key in ["secureboot", "whitelist_pcr2"] {
        rig.put("mnt/boottmp/config.json", format!("{{\"installer\": {{\"{key}\": \"yes\"}}}}\n"));
        refused(&rig, "config-json-invalid", key);
        let out = rig.run(&["/copal", "flash", "--plan"]);
        assert_eq!(out.status.code(), Some(3), "the plan says so, too: {}", stderr(&out));
    }
    std::fs::remove_file(rig.root().join("mnt/boottmp/config.json")).unwrap();
    refused(&rig, "config-json-missing", "/mnt/boottmp/config.json");
    // Of a medium without the flag, as an initramfs may have it.
    std::fs::remove_file(rig.root().join("mnt/boot/balena-image-flasher")).unwrap();
    std::fs::remove_file(rig.root().join("mnt/boot/config.json")).unwrap();
    refused_late(&rig, "config-json-missing", "/mnt/boot/config.json");
}

#[test]
fn a_recovery_key_that_cannot_be_used() {
    needs!(can_run);
    let rig = Rig::new();
    let configure = |secureboot: bool, key: Value| {
        let config = json!({"installer": {"secureboot": secureboot, "recovery_key": key}});
        rig.put("mnt/boottmp/config.json", config.to_string());
    };
    let (key, public) = (rig.beside("key"), rig.beside("public"));
    let [key, public] = [&key, &public].map(|path| path.to_str().unwrap());
    tool(&["openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-out", key]);
    tool(&["openssl", "pkey", "-in", key, "-pubout", "-out", public]);
    let [private, good] = [key, public].map(|path| std::fs::read_to_string(path).unwrap());
    configure(false, json!(7));
    refused(&rig, "config-json-invalid", "installer.recovery_key");
    for wrong in ["", &private, &good[..200]] {
        configure(false, json!(wrong));
        refused(&rig, "recovery-key-unusable", "installer.recovery_key");
        let plan = rig.run(&["/copal", "flash", "--plan"]);
        assert_eq!(plan.status.code(), Some(3), "{}", stderr(&plan));
    }

    configure(false, json!(good));
    let plan = rig.run(&["/copal", "flash", "--plan"]);
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    assert!(stderr(&plan).contains("installer.recovery_key in config.json has no use"), "{}", stderr(&plan));
    let plugin = |body: &str| {
        rig.program("libexec/balena-init-flasher-secureboot", &format!("secureboot_setup() {{ {body}; }}\n"));
    };
    plugin("touch /tmp/asked");
    configure(true, json!(good));
    refused(&rig, "recovery-key-unusable", "plug-in makes the key");
    assert!(!rig.root().join("tmp/asked").exists());
    // It decides alone.
    plugin("true");
    configure(false, json!(good));
    refused_late(&rig, "recovery-key-unusable", "plug-in makes the key");
    plugin("false");
    let out = rig.run(&["/copal", "flash", "--no-power-off"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stderr(&out).contains("installer.recovery_key in config.json has no use"), "{}", stderr(&out));
}

#[test]
fn a_board_set_up_that_fails() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("bin/resin-init-board", "#!/bin/sh\necho no such board >&2\nexit 7\n");
    refused_late(&rig, "board-program-failed", "resin-init-board");
}

#[test]
fn a_plug_in_that_asks_for_encryption_or_does_not_return() {
    needs!(can_run);
    let rig = Rig::new();
    rig.put("mnt/boottmp/config.json", "{\"installer\": {\"secureboot\": true}}\n");
    refused(&rig, "encryption-not-available", "installer.secureboot");
    let out = rig.run(&["/copal", "flash", "--plan"]);
    assert_eq!(out.status.code(), Some(3), "the plan says so, too: {}", stderr(&out));
    rig.put("mnt/boottmp/config.json", "{}\n");
    rig.program("libexec/balena-init-flasher-secureboot", "secureboot_setup() { return 0; }\n");
    // It needs a signed image, and there is no certificate.
    refused_late(&rig, "certificate-invalid", "kmod.crt");
    rig.program("libexec/balena-init-flasher-secureboot", "secureboot_setup() { exit 0; }\n");
    refused_late(&rig, "plugin-failed", "secureboot_setup");
}

#[test]
fn a_boot_partition_too_small_for_what_the_medium_has() {
    needs!(can_run);
    let rig = Rig::new();
    rig.boot("splash/huge.png", &"x".repeat(9 << 20));
    refused(&rig, "boot-partition-full", "8388608 bytes");
}

#[test]
fn a_caller_that_is_not_root() {
    needs!(can_run);
    let rig = Rig::new();
    let before = std::fs::read(&rig.disk.file).unwrap();
    let setpriv = ["setpriv", "--reuid=65534", "--clear-groups"];
    let out = rig.run(&[&setpriv[..], &["/copal", "flash", "--no-power-off"]].concat());
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    assert!(stderr(&out).contains("[not-root]"), "{}", stderr(&out));
    assert!(std::fs::read(&rig.disk.file).unwrap() == before);
}

#[test]
fn a_signal_before_the_first_write() {
    needs!(can_run);
    let rig = Rig::new();
    // Within the very first step; that program is not disturbed.
    rig.program("bin/resin-init-board", "#!/bin/sh\nkill -TERM $PPID\necho it goes on\n");
    refused_late(&rig, "interrupted", "SIGTERM");
    // While a disk is waited for, which otherwise ends with another error.
    rig.put("etc/resin-init-flasher.conf", "INTERNAL_DEVICE_KERNEL=nodisk\nBALENA_IMAGE=balena.img\n");
    rig.program("bin/resin-init-board", "#!/bin/sh\n(sleep 1; kill -INT $PPID) >/dev/null 2>&1 &\n");
    refused_late(&rig, "interrupted", "SIGINT");
}
