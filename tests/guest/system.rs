//! The system guest itself.

use crate::support::{Disk, Guest, LIMIT, Outcome, System, fat_image, folder, gpt_image};

/// The D-Bus service under systemd and the policy of the bus. Leaves what was said in files.
const SERVICE: &str = r#"
call() { busctl --system --timeout=120 call io.balena.Copal1 "$@"; }
manager() { call /io/balena/Copal1 io.balena.Copal1.Manager "$@"; }
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups -- busctl --system --timeout=120 call io.balena.Copal1 "$@"; }
show() { systemctl show --value -p "$1" copal.service; }

[ "$(show ActiveState)" = inactive ]
manager Status >/host/first
first=$(show MainPID)
show ActiveState >/host/active
[ "$(readlink "/proc/$first/ns/mnt")" != "$(readlink /proc/1/ns/mnt)" ]
grep -q '^CapEff:[[:space:]]*0000000000000004$' "/proc/$first/status"
grep -q '^NoNewPrivs:[[:space:]]*1' "/proc/$first/status"

forbidden() { if nobody "$@" 2>>/host/forbidden; then exit 1; fi; }
forbidden /io/balena/Copal1 io.balena.Copal1.Manager Status
forbidden /io/balena/Copal1 org.freedesktop.DBus.Properties Get ss io.balena.Copal1.Manager Version
forbidden /io/balena/Copal1 io.balena.Copal1.Manager Update 'sa{sv}' /nowhere.tar 0
forbidden /io/balena/Copal1 io.balena.Copal1.Manager MarkGood
forbidden /io/balena/Copal1 io.balena.Copal1.Manager Rollback
forbidden /io/balena/Copal1/job/1 io.balena.Copal1.Job Cancel

job=$(manager Update 'sa{sv}' /nowhere.tar 0 | cut -d'"' -f2)
property() { busctl --system get-property io.balena.Copal1 "$job" io.balena.Copal1.Job "$1"; }
for i in $(seq 600); do [ "$(property State)" = 's "running"' ] || break; sleep 0.1; done
property State >/host/job
property Error >>/host/job
# The job ran under its own unit, of which nothing is left but the log.
[ -z "$(systemctl --all --no-legend list-units 'copal-job@*')" ]
grep VmRSS "/proc/$(show MainPID)/status" >/host/memory

# Soon idle from here on: nothing more depends on how long a call takes.
echo "$IDLE_SOON" >/etc/systemd/system/copal.service.d/idle.conf
systemctl daemon-reload
systemctl stop copal.service
[ ! -e "/proc/$first" ]
property State >/host/again
for i in $(seq 1200); do [ "$(show ActiveState)" != inactive ] || break; sleep 0.1; done
show ActiveState >/host/idle
show Result >>/host/idle
property State >>/host/again
show NRestarts >>/host/again
"#;

/// The service as it is shipped waits for a minute until it ends.
fn idle(seconds: u32) -> String {
    format!("[Service]\nExecStart=\nExecStart=/usr/bin/copal daemon --idle {seconds}")
}

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
        .jobs()
        .text("/etc/systemd/system/copal.service.d/idle.conf", &idle(600))
        .ext4(&root, "flash-rootA", 400);
    fat_image(&boot, "flash-boot", 32, &[("config.json", b"{}"), ("a/b/c.txt", b"c")]);
    gpt_image(&medium, &[("flash-boot", &boot), ("flash-rootA", &root)], 1);
    let outcome = guest
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &image("target", 64 << 20), "TARGET")
        .disk(Disk::Emmc { boot: 1 << 20 }, &image("emmc", 18 << 20), "")
        .pflash(&image("nor", 1 << 20))
        .script(&format!(
            "mkdir -p /mnt/boot
             mount LABEL=flash-boot /mnt/boot
             cat /mnt/boot/a/b/c.txt >/host/c
             for i in $(seq 1200); do [ -e /run/early ] && break; sleep 0.1; done
             [ -e /run/early ]
             for i in $(seq 1200); do systemctl -q is-active systemd-logind && break; sleep 0.1; done
             busctl --system list >/host/bus
             systemctl is-active systemd-logind
             udevadm settle --timeout=120
             [ /dev/disk/by-label/flash-rootA -ef /dev/sda2 ]
             [ -b /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_TARGET ] && [ -b /dev/mmcblk0boot0 ] && [ -c /dev/mtd0 ]
             echo said by the test | systemd-cat -p warning -t thetest
             IDLE_SOON='{}'
             {SERVICE}",
            idle(3)
        ))
        .run(LIMIT)
        .ok();
    assert_eq!(outcome.file("c"), "c");
    assert!(outcome.file("bus").contains("org.freedesktop.login1"));
    let said =
        |e: &&serde_json::Value| e["SYSLOG_IDENTIFIER"] == "thetest" && e["MESSAGE"] == "said by the test";
    let journal = outcome.journal();
    assert_eq!(journal.iter().find(said).expect("it is in the journal")["PRIORITY"], "4");

    check_service(&outcome, &journal);
}

fn check_service(outcome: &Outcome, journal: &[serde_json::Value]) {
    assert!(outcome.file("first").contains(r#"\"copal\":\""#), "{}", outcome.file("first"));
    assert_eq!(outcome.file("active"), "active\n");
    let memory = outcome.file("memory");
    println!("the idle service: {}", memory.trim());
    let kilobytes: u32 = memory.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kilobytes < 8 << 10, "{memory}");
    // By the bus already, not only by the service.
    assert_eq!(
        outcome.file("forbidden").matches("Access denied").count(),
        6,
        "{}",
        outcome.file("forbidden")
    );
    let rejected = |member: &str| {
        let wanted = format!("member=\"{member}\"");
        let message = |e: &serde_json::Value| e["MESSAGE"].as_str().unwrap_or_default().to_owned();
        journal.iter().map(message).any(|m| m.contains("Rejected send message") && m.contains(&wanted))
    };
    for member in ["Status", "Get", "Update", "MarkGood", "Rollback", "Cancel"] {
        assert!(rejected(member), "{member}");
    }
    let job = outcome.file("job");
    let by_copal = crate::rollback::said(journal, "copal");
    assert!(
        job.starts_with("s \"failed\"\n") && job.contains(r#""code" "slot-unknown""#),
        "{job}\n{by_copal}"
    );
    assert_eq!(outcome.file("idle"), "inactive\nsuccess\n");
    // The next one knows the job of the one before it.
    assert_eq!(outcome.file("again"), "s \"failed\"\ns \"failed\"\n0\n");
}
