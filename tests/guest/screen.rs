//! What stands on the device's screen while the flasher works, and what its keyboard does.

use std::time::{Duration, Instant};

use crate::support::medium::{Image, UNIT, used_disk};
use crate::support::{ALPHABET, Disk, Font, Guest, LIMIT, Shutdown, System, folder};

/// From one look to the next.
const PAUSE: Duration = Duration::from_millis(150);

/// The line below the facts that says what goes on; a countdown without its number.
fn heading(screen: &str) -> Option<&str> {
    let line = screen.split("\n\n").nth(2)?.lines().next()?;
    Some(line.trim_end_matches(" s").trim_end_matches(|c: char| c.is_ascii_digit()).trim_end())
}

/// Flashes of a medium, one after the other: stopped by a key, refused, failed, and, after Enter, done.
#[test]
fn the_screen_tells_each_stage() {
    let test = "the_screen_tells_each_stage";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let image = Image::new(dir.path(), 48);
    let target = used_disk(dir.path().join("target"), 96);
    let system = system.flasher(&image, "INTERNAL_DEVICE_KERNEL=nvme?n?\nINSTALLER_CONFIRM=countdown:100");
    let medium = system.medium(dir.path(), 640, &[("config.json", b"{}")]);
    let script = format!(
        r#"
        systemctl start temp-conf.service
        printf '\033[?25l\033[2J\033[H%s' '{alphabet}' >/dev/tty1
        touch /host/printed
        until [ -e /host/learnt ]; do sleep 0.1; done
        flash() {{
            echo "$2" >/mnt/boottmp/config.json
            systemctl start {UNIT} 2>/dev/null || true
            systemctl show -p ExecMainStatus --value {UNIT} >/host/$1
            head -c 1M /dev/nvme0n1 | tail -c 4096 | tr -d '\245' | wc -c >>/host/$1
            until [ -e /host/$1.seen ]; do sleep 0.1; done
        }}
        flash aborted '{{}}'
        flash refused '{{"installer": {{"confirm": "maybe"}}}}'
        printf '#!/bin/sh\nexit 7\n' >/usr/bin/resin-init-flasher-board
        chmod 755 /usr/bin/resin-init-flasher-board
        flash failed '{{"installer": {{"confirm": "none"}}}}'
        rm /usr/bin/resin-init-flasher-board
        flash done '{{"installer": {{"confirm": "key"}}}}'
        "#,
        alphabet = ALPHABET.replace('\'', r"'\''"),
    );
    let mut font = None;
    let mut next = Instant::now();
    let mut screens: Vec<String> = Vec::new();
    let mut pressed = Vec::new();
    let outcome = guest
        .screen()
        .other_module("kernel/drivers/input/evdev.ko")
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &target, "TARGET")
        .script(&script)
        .run_watched(LIMIT, |monitor| {
            if Instant::now() < next || !monitor.host().join("printed").exists() {
                return;
            }
            next = Instant::now() + PAUSE;
            let Some(picture) = monitor.picture() else { return };
            let Some(font) = &font else {
                font = Some(Font::learn(&picture));
                std::fs::write(monitor.host().join("learnt"), "").unwrap();
                return;
            };
            let screen = font.read(&picture);
            let Some(heading) = heading(&screen).map(str::to_owned) else { return };
            // Both are asked once.
            for (question, key) in [("ERASING BEGINS IN", "a"), ("READY TO ERASE", "ret")] {
                if heading == question && !pressed.contains(&question) {
                    pressed.push(question);
                    monitor.press(key);
                }
            }
            for (end, name) in [("ABORTED", "aborted"), ("REFUSED", "refused"), ("FAILED", "failed")] {
                if heading.starts_with(end) {
                    std::fs::write(monitor.host().join(format!("{name}.seen")), "").unwrap();
                }
            }
            if screens.last() != Some(&screen) {
                screens.push(screen);
            }
        });
    println!("took {:?}\n{}", outcome.took, screens.join("\n----\n"));
    assert_eq!(outcome.ending, Shutdown::PoweredOff, "{}", outcome.console);

    let mut stages: Vec<&str> = screens.iter().filter_map(|screen| heading(screen)).collect();
    stages.dedup();
    let (write, verify) = ("WRITING: DO NOT SWITCH OFF", "READING BACK: DO NOT SWITCH OFF");
    let finish = "FINISHING: DO NOT SWITCH OFF";
    // Some of them are over between two looks.
    stages.retain(|stage| *stage != "STARTING" && *stage != finish);
    let expected = [
        "ERASING BEGINS IN",
        "ABORTED: aborted",
        "REFUSED: config-json-invalid",
        write,
        verify,
        "FAILED: board-program-failed",
        "READY TO ERASE",
        write,
        verify,
        "DONE",
    ];
    assert_eq!(stages, expected);
    let first = screens.iter().find(|screen| heading(screen) == Some("STARTING"));
    let facts = "device   Board, serial number S-42";
    assert!(first.is_some_and(|screen| screen.contains(facts)), "{first:?}");
    for screen in screens.iter().filter(|screen| heading(screen).is_some_and(|h| h != "STARTING")) {
        assert!(screen.starts_with("Installer of Debian") && screen.contains(facts), "{screen}");
    }
    let erases = "erases   /dev/nvme0n1 QEMU NVMe Ctrl TARGET, 96.0 MiB: all data on it is lost";
    let shown = |stage: &str| screens.iter().find(|screen| heading(screen) == Some(stage)).unwrap();
    for (stage, words) in [
        ("ERASING BEGINS IN", "\n\nTo stop it, press any key."),
        ("READY TO ERASE", "\n\nTo begin, press Enter. To stop it, press any other key."),
        (write, "; write: "),
        (verify, "; verify: "),
        ("ABORTED: aborted", "stopped by a key at the device; nothing was written to"),
        ("FAILED: board-program-failed", "\n\nRemedy: "),
    ] {
        assert!(shown(stage).contains(erases) && shown(stage).contains(words), "{}", shown(stage));
    }
    assert!(shown("DONE").ends_with(
        "The device switches off now. Take the installation medium out, and switch the\ndevice on."
    ));

    // The exit code, and how many of 4096 bytes of the old disk are others now.
    assert_eq!(outcome.file("aborted"), "3\n0\n");
    assert_eq!(outcome.file("refused"), "1\n0\n");
    assert_eq!(outcome.file("failed"), "1\n4096\n");
    image.assert_on(&target);
}
