//! A flasher that is stopped (`systemctl stop` sends SIGTERM): its last words are for whoever stands beside the device.

use serde_json::{Value, json};

use crate::kit::needs::needs;
use crate::rig::{Rig, can_run};
use crate::stderr;

/// Stops the flasher that has started this program.
const STOP: &str = "#!/bin/sh\nkill -TERM $PPID\n";

/// As a service whose stderr is the journal's: it shows nothing on the console otherwise.
const SERVICE: &str = "touch /run/console; mount --bind /run/console /dev/console; \
    export JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2); \"$@\"; exit $?";

#[test]
fn a_flasher_that_is_stopped_says_in_which_state_the_disk_is() {
    needs!(can_run);
    let flasher = ["sh", "-c", SERVICE, "sh", "/resin-init-flasher"];
    let untouched = "nothing was written";
    let plugin =
        format!("secureboot_setup() {{ {}return 1; }}\n", STOP.lines().last().unwrap().to_owned() + "; ");
    for (program, text, step, state, hint) in [
        ("bin/resin-init-board", STOP, "board set-up", untouched.to_owned(), "run it again"),
        (
            "libexec/balena-init-flasher-secureboot",
            &*plugin,
            "secure boot",
            format!("{untouched} to DISK"),
            "run it again",
        ),
        // When the table is there.
        ("", "", "write", "DISK has no partition table and does not boot".to_owned(), "flash it again"),
        (
            "bin/resin-init-flasher-board",
            STOP,
            "board program",
            "DISK has no partition table and does not boot".to_owned(),
            "flash it again",
        ),
    ] {
        let rig = Rig::new();
        let out = if program.is_empty() {
            rig.run_and_end(&flasher, "TERM")
        } else {
            rig.program(program, text);
            rig.run(&flasher)
        };
        let said = stderr(&out);
        let state = state.replace("DISK", &rig.disk.node);
        let line = format!(
            "[resin-init-flasher][ERROR] the installation was interrupted after its step `{step}` by SIGTERM; \
             {state} [interrupted]; {hint}"
        );
        assert_eq!(said.lines().last(), Some(line.as_str()), "{said}");
        assert_eq!(out.status.code(), Some(1), "{said}");
        let console = std::fs::read_to_string(rig.root().join("run/console")).unwrap();
        assert_eq!(console, format!("{line}\n"), "{said}");
        let former = if state.starts_with(untouched) { 0xA5 } else { 0 };
        assert!(rig.disk.boot_bytes().iter().all(|b| *b == former), "{said}");
    }
}

/// Its result is in a file for its client, and the one who has stopped it may be somebody else.
#[test]
fn a_job_that_is_stopped_says_it_too() {
    needs!(can_run);
    let rig = Rig::new();
    rig.program("bin/resin-init-flasher-board", STOP);
    let flash = json!({
        "conf": null, "image": null, "target": null, "force_raw": false, "single_pass": false, "image_only": false,
        "power_off": false,
    });
    let request = json!({ "spec": { "flash": flash }, "program": "me", "environment": null });
    rig.put("run/copal/job-1.taken", request.to_string());
    let out = rig.run(&["sh", "-c", SERVICE, "sh", "/copal", "job", "--json", "--run-for=me", "1"]);
    let message = format!(
        "the installation was interrupted after its step `board program` by SIGTERM; {} has no partition table and does not boot",
        rig.disk.node
    );
    let result: Value =
        serde_json::from_str(String::from_utf8_lossy(&out.stdout).lines().last().unwrap()).unwrap();
    assert_eq!((&result["code"], &result["message"]), (&json!("interrupted"), &json!(message)));
    let console = std::fs::read_to_string(rig.root().join("run/console")).unwrap();
    assert_eq!(console, format!("copal: {message} [interrupted]; flash it again\n"), "{}", stderr(&out));
    assert_eq!(out.status.code(), Some(4));
}
