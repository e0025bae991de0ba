//! Failures behind the write: the disk must not boot.

use crate::kit::needs::needs;
use crate::kit::prove;
use crate::rig::{Rig, can_run};
use crate::{STARTED, stderr};

/// Runs the installation, which must fail with `code` after the write, and leave a disk that does not boot.
pub fn undone(rig: &Rig, code: &str, words: &[&str]) -> String {
    // The mounts are those of the rig's own namespace, which ends with its first process.
    let script =
        "/copal flash --no-power-off -v; status=$?; echo mounts; cat /proc/self/mountinfo; exit $status";
    let out = rig.run(&["sh", "-c", script]);
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(4), "{code}: {text}");
    assert!(text.contains(&format!("[{code}]")), "{code}: {text}");
    assert!(text.contains(STARTED), "{code}: {text}");
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(rig.disk.boot_bytes().iter().all(|b| *b == 0), "{code}: the disk may still boot");
    let left = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(left.contains("mounts\n"), "{left}");
    let mounted = left.lines().any(|l| l.contains(&format!("{}p", rig.disk.node)));
    assert_eq!(mounted, text.contains("cannot unmount /tmp/internal_boot"), "{code}: {left}\n{text}");
    text
}

#[test]
fn a_signal_as_soon_as_the_table_is_there() {
    needs!(can_run);
    for signal in ["TERM", "HUP"] {
        let rig = Rig::new();
        // Not the first process of its namespace, whom a signal does not end unless it is caught.
        let out = rig.run_and_end(&["sh", "-c", "/copal flash --no-power-off -v; exit $?"], signal);
        let text = stderr(&out);
        assert!(rig.disk.boot_bytes().iter().all(|b| *b == 0), "the disk may still boot: {text}");
        assert_eq!(out.status.code(), Some(4), "{text}");
        assert!(text.contains("[interrupted]") && text.contains(&format!("SIG{signal}")), "{text}");
    }
}

/// It is a service: a console that goes away asks it for nothing.
#[test]
fn a_hangup_ends_neither_the_flasher_nor_what_it_runs() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("bin/resin-init-flasher-board", "#!/bin/sh\nkill -HUP $$ $PPID\necho the program goes on\n");
    let out = rig.run_and_end(&["sh", "-c", "/resin-init-flasher; exit $?"], "HUP");
    let text = stderr(&out);
    assert!(text.contains("the program goes on") && !text.contains("[interrupted]"), "{text}");
    assert!(rig.disk.boot_file("/flash-receipt.json").is_some(), "{text}");
}

#[test]
fn a_board_program_that_moves_the_backup_table_and_fails() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("bin/resin-init-flasher-board", "#!/bin/sh\nset -e\nsgdisk -e $internal_dev\nexit 1\n");
    let text = undone(&rig, "board-program-failed", &["The operation has completed successfully"]);
    let disk = std::fs::read(&rig.disk.file).unwrap();
    assert!(
        disk[disk.len() - 33 * 512..].iter().all(|b| *b == 0),
        "firmware would bring the table back: {text}"
    );
}

#[test]
fn a_board_program_that_fails() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("bin/resin-init-flasher-board", "echo no interpreter is named here\nexit 5\n");
    undone(&rig, "board-program-failed", &["resin-init-flasher-board", "no interpreter is named here"]);
}

#[test]
fn a_board_program_that_leaves_a_process_in_the_boot_partition() {
    let test = "a_board_program_that_leaves_a_process_in_the_boot_partition";
    if !prove::runs("slow", test) || !can_run(test) {
        return;
    }
    let rig = Rig::new();
    rig.program(
        "bin/resin-init-flasher-board",
        "#!/bin/bash\ncd /tmp/internal_boot\nsleep 60 </dev/null >/dev/null 2>&1 &\nexit 1\n",
    );
    undone(&rig, "board-program-failed", &["resin-init-flasher-board"]);
}

#[test]
fn a_boot_partition_that_is_full() {
    needs!(can_run);
    let rig = Rig::new();
    // Fits an empty partition, but not beside what the image has in it.
    rig.boot("splash/huge.png", &"x".repeat(7 << 20));
    undone(&rig, "boot-partition-full", &["/tmp/internal_boot"]);
}

#[test]
fn a_plug_in_that_fails_after_the_write() {
    needs!(can_run);
    for function in ["secureboot_bootloader_setup", "secureboot_bootloader_postsetup"] {
        let rig = Rig::new();
        rig.program(
            "libexec/balena-init-flasher-secureboot",
            &format!("{function}() {{ echo no; return 3; }}\n"),
        );
        undone(&rig, "plugin-failed", &[function]);
    }
}

#[test]
fn a_config_json_that_breaks_in_the_meantime() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program(
        "libexec/balena-init-flasher-secureboot",
        "secureboot_bootloader_setup() { echo '{\"torn\":' >$CONFIG_PATH; }\n",
    );
    undone(&rig, "config-json-invalid", &["/mnt/boottmp/config.json"]);
    assert_eq!(rig.disk.boot_file("/config.json"), None, "never replaced by something emptier");
}
