//! The system guest itself.

use std::time::Duration;

use crate::support::{Disk, Guest, System, disk, fat, folder};

const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn a_system_boots_from_a_stick_and_switches_off() {
    let test = "a_system_boots_from_a_stick_and_switches_off";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let (boot, root, medium) = (dir.path().join("boot"), dir.path().join("root"), dir.path().join("medium"));
    system
        .copal()
        .unit(
            "early.service",
            "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'copal --version; touch /run/early'",
        )
        .ext4(&root, "flash-rootA", 400);
    fat(&boot, "flash-boot", 32, &[("config.json", b"{}"), ("a/b/c.txt", b"c")]);
    disk(&medium, &[("flash-boot", &boot), ("flash-rootA", &root)], 1);
    let outcome = guest
        .disk(Disk::Usb, &medium, "STICK")
        .script(
            "mkdir -p /mnt/boot
             mount LABEL=flash-boot /mnt/boot
             cat /mnt/boot/a/b/c.txt >/host/c
             for i in $(seq 100); do [ -e /run/early ] && break; sleep 0.1; done
             [ -e /run/early ]
             busctl --system list >/host/bus
             systemctl is-active systemd-logind
             [ /dev/disk/by-label/flash-rootA -ef /dev/sda2 ]
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
