//! The flasher as a board runs it: a Debian with systemd on a stick, its units, its boot partition, and the disks of a device.

use serde_json::{Value, json};

use crate::support::medium::{Image, Installed, UNIT, empty, noise, seconds, used_disk};
use crate::support::{Disk, Guest, LIMIT, Outcome, Shutdown, System, fat_image, folder, gpt_image};

const FLASH_STARTED: &str = "06b2ee14b8b447e6b23061cee0def024";
const FLASH_FINISHED: &str = "bd777019650f46e385f1b23c954427f6";
const FLASH_FAILED: &str = "94231e1ed99a406f899dfda870cbf1a2";
const TARGET_REJECTED: &str = "2793065fec784251b574ea7b00bea85a";
const BOOTLOADER_WRITTEN: &str = "957714db815b40879cf91340b3777ef2";

/// Of a device that belongs to a fleet.
const CONFIG_JSON: &str = "{\"apiEndpoint\": \"https://api\",\n \"big\": 12345678901234567890.10,\n\
     \"installer\": {\"secureboot\": false},  \"wifi\": {\"x\":  [1, 2.0]}}\n";

/// What stays of it on the internal disk.
const CONFIG_JSON_INSIDE: &str = "{\n  \"apiEndpoint\": \"https://api\",\n  \"big\": 12345678901234567890.10,\n  \
     \"wifi\": {\"x\":  [1, 2.0]}\n}\n";

/// Looks twice a second at what an owner may look at. As soon as the system may not be switched off, it tries to.
const WATCHER: &str = r#"#!/bin/bash
while sleep 0.4; do
    status=$(systemctl status resin-init-flasher | sed -n 's/^ *Status: //p')
    held=$(systemd-inhibit --list --no-legend | grep '^copal ' | tr -s ' ')
    echo "$status|$held" >>/host/seen
    if [ -n "$held" ] && [ ! -e /host/refused ]; then
        systemctl --check-inhibitors=yes poweroff >/host/refused 2>&1
        echo "status $?" >>/host/refused
    fi
done
"#;

/// The flasher's entries in the journal.
fn entries(outcome: &Outcome) -> Vec<Value> {
    let own = |e: &Value| e["SYSLOG_IDENTIFIER"] == "resin-init-flasher";
    outcome.journal().into_iter().filter(own).collect()
}

fn log(entries: &[Value]) -> String {
    let lines = entries.iter().map(|e| e["MESSAGE"].as_str().unwrap_or("(no text)"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The one entry about this event.
fn event<'a>(entries: &'a [Value], id: &str, device: &str) -> &'a Value {
    let found: Vec<&Value> =
        entries.iter().filter(|e| e["MESSAGE_ID"] == id && e["COPAL_DEVICE"] == device).collect();
    assert_eq!(found.len(), 1, "{id} of {device}: {}", log(entries));
    found[0]
}

#[test]
fn a_device_is_flashed_from_beginning_to_end() {
    let test = "a_device_is_flashed_from_beginning_to_end";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let image = Image::new(dir.path(), 72);
    let at = |name: &str| dir.path().join(name);
    let (spl, u_boot) = (noise(11, 100_000), noise(12, 300_001));
    let (nor_before, mut emmc_before) = (noise(13, 1 << 20), noise(14, 2 << 20));
    emmc_before.resize(18 << 20, 0x11);
    std::fs::write(at("nor"), &nor_before).unwrap();
    std::fs::write(at("emmc"), &emmc_before).unwrap();
    let target = used_disk(at("target"), 144);

    let system = system
        .flasher(
            &image,
            "INTERNAL_DEVICE_KERNEL=\"md/balena{,_*} sd? nvme?n? mmcblk? vd?\"\n\
             INTERNAL_DEVICE_BOOTLOADER_CONFIG=\"grub.cfg_internal\"\n\
             INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=\"/EFI/BOOT/grub.cfg\"\n\
             BOOTLOADER_FLASH_DEVICE=mtdblock0\nBOOTLOADER_IMAGE=spl.img\n\
             BOOTLOADER_BLOCK_SIZE_OFFSET=1024\nBOOTLOADER_SKIP_OUTPUT_BLOCKS=1\n\
             BOOTLOADER_FLASH_DEVICE_1=mmcblk0boot0\nBOOTLOADER_IMAGE_1=u-boot.img\n\
             BOOTLOADER_BLOCK_SIZE_OFFSET_1=1024\nBOOTLOADER_SKIP_OUTPUT_BLOCKS_1=33",
        )
        .flashing()
        .text("/usr/bin/resin-device-progress", "#!/bin/sh\necho \"$@\" >>/host/progress\n")
        // As boards have it: without an interpreter.
        .text(
            "/usr/bin/resin-init-flasher-board",
            "cat /sys/block/mmcblk0boot0/force_ro >/host/read_only_for_board\n\
             [[ -f $INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT/config.json ]] && echo said by the board $internal_dev\n\
             echo made by the board >$INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT/board.txt\n",
        )
        .text("/usr/local/sbin/watcher", WATCHER)
        .unit("watcher.service", "[Service]\nExecStart=/usr/local/sbin/watcher\n")
        .text(
            &format!("/etc/systemd/system/{UNIT}.d/after.conf"),
            "[Service]\nExecStopPost=/bin/sh -c 'cat /sys/block/mmcblk0boot0/force_ro >/host/read_only_at_last'\n",
        );
    let medium = system.medium(
        dir.path(),
        640,
        &[
            ("config.json", CONFIG_JSON.as_bytes()),
            ("grub.cfg_internal", b"menuentry internal\n"),
            ("spl.img", &spl),
            ("u-boot.img", &u_boot),
            ("splash/balena-logo.png", b"a new logo"),
            ("system-connections/cellular.nmconnection", b"a new connection\n"),
            ("dispatcher.d/90-hook", b"#!/bin/sh\n"),
            ("system-proxy/redsocks.conf", b"base {}\n"),
            ("resinOS_uEnv.txt", b"extra=1\n"),
        ],
    );
    let outcome = guest
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &target, "TARGET")
        .disk(Disk::Emmc { boot: 1 << 20 }, &at("emmc"), "")
        .pflash(&at("nor"))
        .run(LIMIT);
    let entries = entries(&outcome);
    println!("took {:?}\n{}", outcome.took, log(&entries));
    assert_eq!(outcome.ending, Shutdown::PoweredOff, "{}", outcome.console);

    let disk = image.assert_on(&target);
    assert_internal_boot_partition(&disk);
    let (used, old_table) = disk.behind.split_at(disk.behind.len() - 33 * 512);
    assert!(used.iter().all(|b| *b == 0xA5), "written behind the image");
    assert!(old_table.iter().all(|b| *b == 0), "the old backup table is still there");
    let mut nor = nor_before;
    nor[1024..][..spl.len()].copy_from_slice(&spl);
    assert!(std::fs::read(at("nor")).unwrap() == nor, "the NOR flash");
    let mut emmc = emmc_before;
    emmc[33 * 1024..][..u_boot.len()].copy_from_slice(&u_boot);
    assert!(std::fs::read(at("emmc")).unwrap() == emmc, "the eMMC");
    assert_eq!(outcome.file("read_only_for_board"), "1\n");
    assert_eq!(outcome.file("read_only_at_last"), "1\n");

    // To be stopped on the way down is no failure of the service.
    let journal = outcome.journal();
    let of_systemd = journal.iter().filter(|e| e["UNIT"] == UNIT).filter_map(|e| e["MESSAGE"].as_str());
    let of_systemd: Vec<&str> = of_systemd.collect();
    assert!(of_systemd.iter().any(|m| m.starts_with("Starting ")), "{of_systemd:#?}");
    assert!(!of_systemd.iter().any(|m| m.contains("Failed") || m.contains("killed")), "{of_systemd:#?}");

    let receipt = disk.receipt();
    assert_full_receipt(&receipt, spl.len(), u_boot.len());
    assert_journal(&entries, &receipt);
    assert_watched(&outcome);
}

fn assert_internal_boot_partition(disk: &Installed) {
    assert_eq!(disk.text("EFI/BOOT/grub.cfg"), "menuentry internal\n");
    assert_eq!(disk.text("system-connections/cellular.nmconnection"), "a new connection\n");
    assert_eq!(disk.text("splash/balena-logo.png"), "a new logo");
    assert_eq!(disk.text("config.json"), CONFIG_JSON_INSIDE);
    assert_eq!(disk.text("board.txt"), "made by the board\n");
    assert_eq!(disk.text("resinOS_uEnv.txt"), "extra=1\n");
    assert_eq!(disk.file("vmlinuz"), noise(1, 100_000));
    assert_eq!(
        disk.files(),
        [
            "EFI/BOOT/grub.cfg",
            "board.txt",
            "config.json",
            "dispatcher.d/90-hook",
            "flash-receipt.json",
            "resinOS_uEnv.txt",
            "splash/balena-logo.png",
            "system-connections/cellular.nmconnection",
            "system-proxy/redsocks.conf",
            "vmlinuz"
        ]
    );
}

fn assert_full_receipt(receipt: &Value, spl: usize, u_boot: usize) {
    println!("{:#}", receipt["timeline"]);
    assert_eq!(receipt["target"]["name"], "/dev/nvme0n1", "{receipt:#}");
    assert_eq!(receipt["target"]["serial"], "TARGET", "{receipt:#}");
    assert_eq!(receipt["partition_table_reread"], true, "{receipt:#}");
    assert_eq!(receipt["boot_partition"]["device"], "/dev/nvme0n1p1", "{receipt:#}");
    let brief = |b: &Value| {
        json!([b["kind"], b["device"], b["offset"], b["length"], b["changed"], b["blocks_erased"]])
    };
    let loaders: Vec<Value> = receipt["bootloaders"].as_array().unwrap().iter().map(brief).collect();
    let first = &receipt["bootloaders"][0]["device"];
    assert!(["/dev/mtd0", "/dev/mtdblock0"].iter().any(|d| first == d), "{receipt:#}");
    // 1024 + 100000 bytes are in 25 blocks of 4 KiB.
    assert_eq!(
        loaders,
        [
            json!(["mtd", first, 1024, spl, true, 25]),
            json!(["mmc-boot", "/dev/mmcblk0boot0", 33 * 1024, u_boot, true, 0])
        ]
    );
    let steps: Vec<&str> =
        receipt["timeline"].as_array().unwrap().iter().map(|s| s["step"].as_str().unwrap()).collect();
    let wanted = [
        "board set-up",
        "medium",
        "inputs",
        "network",
        "disk",
        "check",
        "secure boot",
        "write",
        "partitions",
        "bootloaders",
        "boot partition",
        "board program",
    ];
    assert_eq!(steps, wanted);
    // Neither of the services that are waited for exists.
    assert!(seconds(receipt, "network") < 8.0);
}

fn assert_journal(entries: &[Value], receipt: &Value) {
    let log = log(entries);
    let device = "/dev/nvme0n1";
    assert_eq!(event(entries, FLASH_STARTED, device)["COPAL_IMAGE"], "/opt/balena.img", "{log}");
    let digest = &event(entries, FLASH_FINISHED, device)["COPAL_DIGEST"];
    assert_eq!(digest, &receipt["image"]["chunk_digest"], "{log}");
    assert_eq!(event(entries, TARGET_REJECTED, "/dev/sda")["COPAL_ERROR_CODE"], "target-is-medium", "{log}");
    for loader in receipt["bootloaders"].as_array().unwrap() {
        let entry = event(entries, BOOTLOADER_WRITTEN, loader["device"].as_str().unwrap());
        assert_eq!(entry["COPAL_DIGEST"], loader["sha256"], "{log}");
        assert_eq!(entry["COPAL_OFFSET"], loader["offset"].to_string(), "{log}");
    }
    assert!(!entries.iter().any(|e| e["MESSAGE_ID"] == FLASH_FAILED), "{log}");
    let percent = |e: &Value| e["COPAL_PERCENT"].as_str()?.parse::<u8>().ok();
    let percents: Vec<u8> = entries.iter().filter_map(percent).collect();
    // The bounds of two stages, at least.
    assert!(percents.len() >= 4 && percents.is_sorted() && percents.last() == Some(&100), "{percents:?}");
    for stage in ["write", "verify"] {
        assert!(entries.iter().any(|e| e["COPAL_STAGE"] == stage && percent(e).is_some()), "{stage}: {log}");
    }
    assert!(entries.iter().all(|e| e["_SYSTEMD_UNIT"] == UNIT), "{log}");
    let board = entries
        .iter()
        .find(|e| e["MESSAGE"].as_str().is_some_and(|m| m.contains("said by the board /dev/nvme0n1")));
    assert_eq!(board.expect("the board program's words are in the journal")["PRIORITY"], "6");
    for line in [" s] network: ", "not waiting for the network", "systemd was asked to power off"] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

/// What [`WATCHER`] and the program for the owner's dashboard saw.
fn assert_watched(outcome: &Outcome) {
    let seen = outcome.file("seen");
    println!("{seen}{}{}", outcome.file("refused"), outcome.file("progress"));
    let seen: Vec<(&str, &str)> = seen.lines().filter_map(|line| line.split_once('|')).collect();
    // Status and lock are looked at one after the other, so not every look has both; and a stage can be over within a second.
    let held = |lock: &str| lock.contains(" shutdown ") && lock.ends_with(" block");
    for stage in ["write: ", "verify: "] {
        let mut there = seen.iter().filter(|(status, _)| status.contains(stage));
        assert!(there.any(|(_, lock)| held(lock)), "{stage}: {seen:#?}");
    }
    assert!(seen.iter().any(|(status, lock)| status.contains(" %") && held(lock)), "{seen:#?}");
    assert!(seen.iter().any(|(_, lock)| lock.is_empty()), "the lock was there all the time: {seen:#?}");
    let refused = outcome.file("refused");
    assert!(refused.contains("copal") && !refused.ends_with("status 0\n"), "{refused}");

    let progress = outcome.file("progress");
    let told: Vec<(u8, &str)> = progress
        .lines()
        .map(|line| {
            let rest = line.strip_prefix("--percentage ").unwrap();
            let (percent, state) = rest.split_once(" --state ").unwrap();
            (percent.parse().unwrap(), state)
        })
        .collect();
    assert_eq!(told[0], (0, "Starting flashing balenaOS on internal media"), "{told:?}");
    assert_eq!(told.last().unwrap(), &(100, "Post-Provisioning"), "{told:?}");
    assert!(told.is_sorted_by_key(|t| t.0), "{told:?}");
    let flashing = told.iter().filter(|t| t.1 == "Flashing balenaOS on internal media").count();
    assert!(flashing > 0 && flashing + 2 == told.len(), "{told:?}");
}

/// A disk that was there before the system, with a boot partition of the same label, is what the mount unit took. It is the
/// disk to be flashed, too.
#[test]
fn the_medium_takes_its_own_boot_partition() {
    let test = "the_medium_takes_its_own_boot_partition";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let image = Image::new(dir.path(), 8);
    // An older flasher on the internal disk.
    let (boot, target) = (dir.path().join("other-boot"), dir.path().join("target"));
    fat_image(
        &boot,
        "flash-boot",
        16,
        &[("config.json", b"{\"from\": \"the other disk\"}"), ("balena-image-flasher", b"")],
    );
    gpt_image(&target, &[("flash-boot", &boot)], 40);
    let system = system
        .flasher(&image, "INTERNAL_DEVICE_KERNEL=nvme?n?")
        .flashing()
        // Of two partitions with the same label, udev takes this one.
        .text(
            "/etc/udev/rules.d/99-other.rules",
            "KERNEL==\"nvme0n1p1\", ENV{ID_FS_LABEL}==\"flash-boot\", OPTIONS+=\"link_priority=100\"\n",
        )
        .unit(
            "look.service",
            "[Unit]\nAfter=mnt-boot.mount\nBefore=resin-init-flasher.service\n[Service]\nType=oneshot\n\
             ExecStart=/bin/sh -c 'findmnt -n -o SOURCE /mnt/boot >/host/mounted'\n",
        )
        .text(
            "/usr/bin/resin-init-flasher-board",
            "#!/bin/sh\nfindmnt -n -o SOURCE,OPTIONS /mnt/boot >/host/mounted_then\n\
             systemctl is-active mnt-boot.mount >/host/unit\necho $CONFIG_PATH >/host/config_path\n",
        );
    let medium = system.medium(
        dir.path(),
        600,
        &[("config.json", b"{\"from\": \"the medium\"}"), ("splash/balena-logo.png", b"a new logo")],
    );
    let outcome = guest.disk(Disk::Usb, &medium, "STICK").disk(Disk::Nvme, &target, "TARGET").run(LIMIT);
    let entries = entries(&outcome);
    println!("took {:?}\n{}", outcome.took, log(&entries));
    for entry in outcome.journal().iter().filter(|e| e["UNIT"] == "mnt-boot.mount" || e["UNIT"] == UNIT) {
        println!("{}: {}", entry["UNIT"], entry["MESSAGE"]);
    }
    assert_eq!(outcome.ending, Shutdown::PoweredOff, "{}", outcome.console);
    assert_eq!(outcome.file("mounted").trim(), "/dev/nvme0n1p1", "the test's own mount");
    let disk = image.assert_on(&target);
    assert_eq!(disk.text("config.json"), "{\n  \"from\": \"the medium\"\n}\n");
    assert_eq!(disk.text("splash/balena-logo.png"), "a new logo");
    let then = outcome.file("mounted_then");
    assert!(then.starts_with("/dev/sda1 ro"), "{then}");
    // The unit that had mounted the other partition goes on with what is there now, and has not taken the flasher along.
    assert_eq!(outcome.file("unit"), "active\n");
    assert_eq!(outcome.file("config_path"), "/mnt/boot/config.json\n");
    let warning = entries
        .iter()
        .find(|e| e["MESSAGE"].as_str().unwrap_or_default().contains("/mnt/boot is /dev/nvme0n1p1"));
    assert_eq!(warning.expect("a warning")["PRIORITY"], "4");
}

/// Runs of a medium by hand: what each waits for, and a failure behind the write.
#[test]
fn waits_are_no_longer_than_needed_and_failures_leave_no_half_system() {
    // KiB from the beginning of a disk.
    const AT: usize = 64;
    let test = "waits_are_no_longer_than_needed_and_failures_leave_no_half_system";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let image = Image::new(dir.path(), 4);
    let mib = image.bytes.len() >> 20;
    let disks = ["a", "b", "c"].map(|name| empty(dir.path().join(name), mib));
    let late = used_disk(dir.path().join("late"), mib + 8);
    let system = system
        .flasher(&image, "INTERNAL_DEVICE_KERNEL=nvme?n?")
        .text(
            "/usr/lib/systemd/system/openvpn.service",
            "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 6\n",
        )
        .text("/usr/lib/systemd/system/resin-device-register.service", "[Service]\nExecStart=/bin/false\n");
    let loader = noise(15, 100_000);
    let medium = system.medium(dir.path(), 600, &[("config.json", b"{}"), ("u-boot.img", &loader)]);
    let outcome = guest
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &late, "LATE")
        .disk(Disk::Virtio, &disks[0], "A")
        .disk(Disk::Virtio, &disks[1], "B")
        .disk(Disk::Virtio, &disks[2], "C")
        .script(&format!(
            r#"
            flash() {{
                local name=$1
                shift
                copal flash --no-power-off --receipt /host/$name.json "$@" 2>/host/$name.log || echo "$name: $?"
            }}
            # With a loader on the disk itself: udev has its partitions go and come back when it has been written.
            with_loader() {{
                cp /etc/resin-init-flasher.conf /tmp/$2.conf
                printf '%s\n' BOOTLOADER_FLASH_DEVICE=$2 BOOTLOADER_IMAGE=u-boot.img BOOTLOADER_BLOCK_SIZE_OFFSET=1024 \
                    BOOTLOADER_SKIP_OUTPUT_BLOCKS={AT} >>/tmp/$2.conf
                flash $1 --target /dev/$2 --conf /tmp/$2.conf
            }}
            systemctl start temp-conf.service
            with_loader offline vda

            echo '{{"apiEndpoint": "https://api"}}' >/mnt/boottmp/config.json
            systemctl start --no-block openvpn.service
            with_loader soon vdb
            systemctl is-active openvpn.service >/host/openvpn

            systemctl stop openvpn.service
            systemctl mask --runtime openvpn.service
            systemctl start resin-device-register.service
            while systemctl is-active resin-device-register.service; do sleep 0.1; done
            systemctl is-failed resin-device-register.service
            with_loader never vdc

            echo 1 >/sys/bus/pci/devices/$(basename $(readlink -f /sys/block/nvme0n1/device/device))/remove
            [ ! -e /dev/nvme0n1 ]
            (until grep -q 'no disk to flash yet' /host/late.log; do sleep 0.2; done; sleep 3; echo 1 >/sys/bus/pci/rescan) &
            COPAL_LOG=info flash late

            printf '#!/bin/sh\necho the board says no\nexit 7\n' >/usr/bin/resin-init-flasher-board
            chmod 755 /usr/bin/resin-init-flasher-board
            systemctl start {UNIT} 2>/host/start && exit 1
            systemctl show -p ActiveState,Result,ExecMainStatus {UNIT} >/host/unit
            findmnt /tmp/internal_boot && exit 1
            ls /dev/nvme0n1* >/host/nodes
            echo still up >/host/up
            "#
        ))
        .run(LIMIT)
        .ok();
    println!("took {:?}", outcome.took);
    let receipt = |name: &str| -> Value {
        let text = std::fs::read_to_string(outcome.host().join(format!("{name}.json")));
        serde_json::from_str(
            &text.unwrap_or_else(|e| panic!("{name}: {e}\n{}", outcome.file(&format!("{name}.log")))),
        )
        .unwrap()
    };
    let [offline, soon, never, late_run] = ["offline", "soon", "never", "late"].map(receipt);
    for path in &disks {
        let mut disk = std::fs::read(path).unwrap();
        let place = AT << 10..(AT << 10) + loader.len();
        assert!(disk[place.clone()] == loader, "the loader");
        disk[place.clone()].copy_from_slice(&image.bytes[place]);
        std::fs::write(path, disk).unwrap();
        image.assert_on(path);
    }
    let network = [&offline, &soon, &never].map(|r| seconds(r, "network"));
    println!("waited for the network: {network:?}; for the disk: {}", seconds(&late_run, "disk"));
    assert!(network[0] < 8.0 && (1.0..14.0).contains(&network[1]) && network[2] < 8.0, "{network:?}");
    assert_eq!(outcome.file("openvpn"), "active\n");

    println!("{:#}\n{}", late_run["timeline"], outcome.file("late.log"));
    assert!((2.0..29.0).contains(&seconds(&late_run, "disk")), "{}", late_run["timeline"]);
    assert_eq!(late_run["target"]["serial"], "LATE");

    // The last run, by the unit, onto the same disk.
    let entries = entries(&outcome);
    let log = log(&entries);
    println!("{log}");
    assert_eq!(outcome.file("unit"), "Result=exit-code\nExecMainStatus=1\nActiveState=failed\n");
    let failed = event(&entries, FLASH_FAILED, "/dev/nvme0n1");
    assert_eq!(failed["COPAL_ERROR_CODE"], "board-program-failed", "{log}");
    assert!(log.contains("the board says no"), "{log}");
    let disk = std::fs::read(&late).unwrap();
    assert!(disk[..1 << 20].iter().all(|b| *b == 0), "the disk can still boot");
    assert!(
        disk[image.boot.end..][..4 << 20] == image.bytes[image.boot.end..][..4 << 20],
        "nothing was written"
    );
    // The backup of the table, at the end of the image.
    assert!(disk[image.bytes.len() - 512..][..8] != *b"EFI PART", "the disk can still boot");
    assert_eq!(outcome.file("nodes"), "/dev/nvme0n1\n");
    assert_eq!(outcome.file("up"), "still up\n");
}
