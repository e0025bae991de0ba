//! What the history tells of an update.

use serde_json::{Value, json};

use crate::image::Release;
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr};

fn history(rig: &Rig) -> Vec<Value> {
    let text = rig.text("mnt/state/copal/history.jsonl");
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn what_was_installed_and_what_failed_is_kept() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.put("etc/os-release", "VERSION=\"5.3.1\"\n");
    let release = Release::new();
    release.put("etc/os-release", "VERSION=\"6.0.0\"\n");
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    rig.hook("after", "echo it is broken; exit 3\n");
    assert_eq!(rig.update(&[]).status.code(), Some(1));
    rig.no_hook("after");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));

    let all = history(&rig);
    let events: Vec<&str> = all.iter().map(|r| r["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["update-failed", "installed"]);
    for record in &all {
        assert_eq!(record["from"], json!({"slot": "A", "version": "5.3.1"}));
        assert_eq!(record["to"], json!({"slot": "B", "version": "6.0.0"}));
        assert_eq!((&record["image"], &record["phase"]), (&"/mnt/data/os.tar".into(), &"healthy".into()));
    }
    let hooks = |after: i32| json!([{"name": "before", "status": 0}, {"name": "forward", "status": 0}, {"name": "after", "status": after}]);
    assert_eq!((&all[0]["hooks"], &all[1]["hooks"]), (&hooks(3), &hooks(0)));
    assert_eq!((&all[0]["error"]["code"], &all[1]["error"]), (&"hook-failed".into(), &Value::Null));
    assert_eq!(all[0]["error"]["effect"], "written", "as the result says");
    let message = all[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("it is broken") && message.contains("slot A"), "{message}");
    // Each update has its number, which the marker of a trial has as well.
    assert_ne!(all[0]["transaction"], all[1]["transaction"]);
    let marker: Value = serde_json::from_str(&rig.text("run/copal/marker")).unwrap();
    assert_eq!(all[1]["transaction"], marker["transaction"]);
    // Room for a rollback is there.
    let blocks = rig.ok(&["stat", "-c", "%b", "/mnt/state/copal/history.jsonl"]);
    assert!(blocks.trim().parse::<usize>().unwrap() * 512 >= copal::state::history::FILE_LIMIT, "{blocks}");
}

/// Of what was in the slot before the update, nothing is told as its own.
#[test]
fn an_update_that_installs_nothing_has_no_release() {
    needs!(can_run);
    let rig = Rig::ready();
    // The registry knows the image, but has lost its layer: that is not seen before the pull.
    let (mut registry, name) = rig.registry();
    assert_eq!(rig.update(&[]).status.code(), Some(0));
    rig.ok(&["find", "/run/registry", "-type", "f", "-size", "+100k", "-delete"]);
    let out = rig.run(&["hostapp-update", "-i", &name]);
    drop(registry.kill());
    drop(registry.wait());
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let all = history(&rig);
    assert_eq!(all.len(), 2);
    assert_eq!((&all[1]["event"], &all[1]["image"]), (&"update-failed".into(), &name.into()));
    assert_eq!(all[1]["to"], json!({"slot": "B", "version": null}));
    assert_eq!((&all[1]["phase"], &all[1]["hooks"]), (&"pending".into(), &json!([])));
    // One that is refused changes nothing, and has no record.
    rig.put("mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=1\n");
    let out = rig.update(&[]);
    assert!(stderr(&out).contains("[update-refused]"), "{}", stderr(&out));
    assert_eq!(history(&rig).len(), 2);
}

/// The state partition may be full, or take nothing at all; the update does not depend on what it tells.
#[test]
fn a_history_that_cannot_be_kept_stops_no_update() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.put("mnt/state/copal/history.jsonl", "");
    let read_only = "mount --bind $0 $0 && mount -o remount,bind,ro $0";
    rig.ok(&["sh", "-c", read_only, "/mnt/state/copal/history.jsonl"]);
    let out = rig.update(&[]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(0), "{log}");
    assert!(log.contains("cannot add a record to /mnt/state/copal/history.jsonl"), "{log}");
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
}
