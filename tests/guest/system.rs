//! The system guest itself.

use std::time::Duration;

use crate::support::{Disk, Guest, System, fat_image, folder, gpt_image};

const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn a_system_boots_from_a_stick_and_switches_off() {
    let test = "a_system_boots_from_a_stick_and_switches_off";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let (boot, root, medium) = (dir.path().join("boot"), dir.path().join("root"), dir.path().join("medium"));
    let image = |name: &str, size: u64| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    };
    system
        .copal()
        .unit(
            "early.service",
            "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'copal --version; touch /run/early'",
        )
        .ext4(&root, "flash-rootA", 400);
    fat_image(&boot, "flash-boot", 32, &[("config.json", b"{}"), ("a/b/c.txt", b"c")]);
    gpt_image(&medium, &[("flash-boot", &boot), ("flash-rootA", &root)], 1);
    let outcome = guest
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &image("target", 64 << 20), "TARGET")
        .disk(Disk::Emmc { boot: 1 << 20 }, &image("emmc", 18 << 20), "")
        .pflash(&image("nor", 1 << 20))
        .script(
            "mkdir -p /mnt/boot
             mount LABEL=flash-boot /mnt/boot
             cat /mnt/boot/a/b/c.txt >/host/c
             for i in $(seq 100); do [ -e /run/early ] && break; sleep 0.1; done
             [ -e /run/early ]
             busctl --system list >/host/bus
             systemctl is-active systemd-logind
             [ /dev/disk/by-label/flash-rootA -ef /dev/sda2 ]
             [ -b /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_TARGET ] && [ -b /dev/mmcblk0boot0 ] && [ -c /dev/mtd0 ]
             echo said by the test | systemd-cat -p warning -t thetest
             systemctl poweroff",
        )
        .run(LIMIT)
        .ok();
    assert_eq!(outcome.file("c"), "c");
    assert!(outcome.file("bus").contains("org.freedesktop.login1"));
    let said =
        |e: &&serde_json::Value| e["SYSLOG_IDENTIFIER"] == "thetest" && e["MESSAGE"] == "said by the test";
    let journal = outcome.journal();
    assert_eq!(journal.iter().find(said).expect("it is in the journal")["PRIORITY"], "4");
}
