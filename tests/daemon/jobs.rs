//! Jobs: what is started, what is told of it, how it ends.

use std::fs;
use std::process::Command;

use copal::job::lock::{Lock, Work};
use serde_json::json;

use crate::bus::{DONE, JOB, MANAGER, NAME, Place, TOP, progress, until};

/// Values of a property in the signals, in their order.
fn values(lines: &[String], name: &str) -> Vec<String> {
    let key = format!("'{name}': <");
    let of = |l: &String| l.split(&key).nth(1).map(|rest| rest.split('>').next().unwrap().to_owned());
    lines
        .iter()
        .filter(|l| l.contains("/job/1: ") && l.contains("PropertiesChanged"))
        .filter_map(of)
        .collect()
}

#[test]
fn an_update_is_logged_from_its_beginning_to_its_end() {
    let Some(place) = Place::new("update") else { return };
    let lines: Vec<String> = [("pull", 10), ("pull", 60), ("pull", 40), ("unpack", 5), ("unpack", 90)]
        .map(|(stage, percent)| progress(stage, percent))
        .to_vec();
    let says: Vec<&str> = lines.iter().map(String::as_str).chain([DONE, "exit 0"]).collect();
    place.says(&says);
    place.go(0);
    let _service = place.service(&[]);
    let watch = place.watch();
    let job = place.update(&["sa{sv}", "a/b:1", "2", "hooks", "b", "false", "program", "s", "me"]).unwrap();
    assert_eq!(job, "/io/balena/Copal1/job/1");
    watch.wait_for(&format!("{TOP}: {MANAGER}.JobNew (uint32 1, objectpath '{job}')"));
    watch.wait_for("InterfacesAdded");
    let get = |name: &str| place.property(&job, JOB, name);
    assert_eq!((get("Id"), get("Kind"), get("Stage")), ("1".into(), "update".into(), "start".into()));
    assert_eq!((get("State"), get("Percent"), get("Eta")), ("running".into(), "0".into(), "-1".into()));
    // One by one: each is told.
    for (n, percent) in [(1, 6), (2, 36), (3, 36), (4, 61), (5, 78)] {
        place.go(n);
        until("the next line", || get("BytesDone") == format!("{}0", [10, 60, 40, 5, 90][n - 1]));
        assert_eq!(get("Percent"), percent.to_string());
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    assert_eq!((get("Stage"), get("Eta"), get("BytesTotal")), ("unpack".into(), "7".into(), "1000".into()));
    place.go(6);
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(get("State"), "running", "its process has not ended");
    place.go(7);
    let end = watch.wait_for("JobRemoved");
    assert!(end.contains(&format!("{MANAGER}.JobRemoved (uint32 1, objectpath '{job}', 0, '')")), "{end}");
    assert_eq!(
        (get("State"), get("Percent"), get("Stage")),
        ("succeeded".into(), "100".into(), "done".into())
    );
    assert_eq!(get("Error"), "0");
    assert!(get("Result").contains("slot"), "{}", get("Result"));

    let told = watch.lines();
    let percents: Vec<u32> =
        values(&told, "Percent").iter().map(|v| v.trim_start_matches("uint32 ").parse().unwrap()).collect();
    assert!(percents.is_sorted() && percents.len() >= 4, "{percents:?}");
    assert_eq!(percents.iter().filter(|&&p| p == 100).count(), 1);
    assert_eq!(values(&told, "State"), ["'succeeded'"]);
    // All of one moment at once, and before the end is.
    let last = told.iter().position(|l| l.contains("'succeeded'")).unwrap();
    assert!(told[last].contains("uint32 100") && told[last].contains("'done'"), "{}", told[last]);
    assert!(last < told.iter().position(|l| l.contains("JobRemoved")).unwrap());

    let source = json!({ "reference": "a/b:1" });
    let spec = json!({ "source": source, "hooks": false, "recover": true, "reboot": false, "force": false, "accept_loader_key": false });
    assert_eq!(place.requests(), [json!(["me", { "update": spec }])]);
}

#[test]
fn a_client_hands_its_environment_and_its_credentials_over() {
    let Some(place) = Place::new("environment") else { return };
    let _service = place.service(&[]);
    let args = ["sa{sv}", "/a b", "2", "environment", "a{ss}", "2", "MINE", "a b", "NOTIFY_SOCKET", "/x"];
    let job = place.update(&[&args[..], &["credentials", "s", "{\"auths\":{}}"]].concat()).unwrap();
    place.wait_for_state(&job, "succeeded");
    let environment = place.read("environment");
    let has = |name: &str| environment.lines().any(|l| l.starts_with(&format!("{name}=")));
    assert!(environment.contains("MINE=a b\n") && has("PATH") && has("DOCKER_CONFIG"), "{environment}");
    assert!(!has("NOTIFY_SOCKET") && !has("CARGO_MANIFEST_DIR"), "{environment}");
    assert_eq!(place.read("credentials"), "{\"auths\":{}}");
    assert_eq!(place.requests()[0][1]["update"]["source"], json!({ "file": "/a b" }));
    // What is secret does not stay.
    let mut left: Vec<_> =
        fs::read_dir(place.root().join("run/copal")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["job-1.end", "job-1.jsonl", "job.json", "job.lock"]);
}

#[test]
fn a_cancelled_job_ends_by_itself_and_says_so() {
    let Some(place) = Place::new("cancel") else { return };
    place.says(&[&progress("pull", 50), DONE, "exit 0"]);
    place.go(1);
    let _service = place.service(&[]);
    let watch = place.watch();
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    until("it has begun", || place.property(&job, JOB, "Percent") == "30");
    place.call(&job, JOB, "Cancel", &[]).unwrap();
    // The process needs its time; a second one changes nothing.
    place.call(&job, JOB, "Cancel", &[]).unwrap();
    place.wait_for_state(&job, "cancelled");
    place.call(&job, JOB, "Cancel", &[]).unwrap();
    assert_eq!(place.read("signals"), "TERM\n");
    let end = watch.wait_for("JobRemoved");
    assert!(end.contains(", 4, 'the update was ended by SIGTERM [interrupted]; run it again')"), "{end}");
    let error = place.property(&job, JOB, "Error");
    for part in
        [r#""code" "interrupted""#, r#""effect" "written""#, r#""exit" "4""#, r#""hint" "run it again""#]
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(place.property(&job, JOB, "Percent"), "30");
    assert_eq!(place.property(TOP, MANAGER, "LastError"), "", "nothing failed");
}

#[test]
fn a_job_that_succeeds_although_it_was_cancelled_has_succeeded() {
    let Some(place) = Place::new("cancel too late") else { return };
    place.put("deaf", "");
    place.go(0);
    let _service = place.service(&[]);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    // The process is to hear it.
    until("it runs", || !place.read("environment").is_empty());
    std::thread::sleep(std::time::Duration::from_millis(300));
    place.call(&job, JOB, "Cancel", &[]).unwrap();
    assert_eq!(place.property(&job, JOB, "State"), "cancelling");
    until("it heard", || place.read("signals") == "TERM\n");
    place.go(9);
    place.wait_for_state(&job, "succeeded");
}

#[test]
fn one_job_at_a_time() {
    let Some(place) = Place::new("busy") else { return };
    place.go(0);
    let _service = place.service(&[]);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    let e = place.update(&["sa{sv}", "b", "0"]).unwrap_err();
    assert!(e.contains("the update of job 1 is under way [busy]"), "{e}");
    let out = Command::new("gdbus")
        .args(["call", "--address", &place.address(), "--dest", "io.balena.Copal1", "-o", TOP])
        .args(["-m", &format!("{MANAGER}.Rollback")])
        .output()
        .unwrap();
    let e = String::from_utf8(out.stderr).unwrap();
    assert!(e.contains("io.balena.Copal1.Error.Busy"), "{e}");
    place.go(9);
    place.wait_for_state(&job, "succeeded");
    // The next one takes the place of the last.
    let next = place.update(&["sa{sv}", "b", "0"]).unwrap();
    assert_eq!(next, "/io/balena/Copal1/job/2");
    let gone = place.busctl(&["get-property", "io.balena.Copal1", &job, JOB, "State"]).output().unwrap();
    assert!(!gone.status.success());
    place.wait_for_state(&next, "succeeded");

    // Somebody updates without the service.
    let paths = copal::config::paths::Paths::new(place.root());
    let lock = Lock::take(&paths, "another", Work::Update).unwrap();
    let e = place.update(&["sa{sv}", "b", "0"]).unwrap_err();
    assert!(e.contains("another (process") && e.contains("has been updating") && e.contains("[busy]"), "{e}");
    assert!(e.contains("or stop it"), "{e}");
    lock.release();
    // The job waits for a change of the boot state.
    let lock = Lock::take(&paths, "copal-boot-check", Work::BootState).unwrap();
    let third = place.update(&["sa{sv}", "b", "0"]).unwrap();
    lock.release();
    place.wait_for_state(&third, "succeeded");
}

#[test]
fn an_error_comes_with_its_code_however_the_process_ends() {
    let Some(place) = Place::new("error") else { return };
    let _service = place.service(&[]);
    let refused = r#"{"event":"result","version":1,"ok":false,"code":"slot-full","message":"no room","object":"/x","hint":"less","effect":"refused"}"#;
    let pull = progress("pull", 10);
    for (says, code, exit) in [
        (&[refused, "exit 3"][..], "slot-full", 3),
        (&["no json", "exit 7"], "job-lost", 7),
        (&[&pull, "kill"], "job-lost", 4),
        (&[DONE, "exit 1"], "job-lost", 1),
    ] {
        place.says(says);
        let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
        place.wait_for_state(&job, "failed");
        let error = place.property(&job, JOB, "Error");
        assert!(error.contains(&format!(r#""code" "{code}""#)), "{says:?}: {error}");
        assert!(error.contains(&format!(r#""exit" "{exit}""#)), "{says:?}: {error}");
        let last = place.property(TOP, MANAGER, "LastError");
        assert!(last.contains(&format!("[{code}]")), "{last}");
        assert_ne!(place.property(&job, JOB, "Percent"), "100");
    }
}

/// Clients made with GLib show an error's body only if it is one text.
#[test]
fn every_client_shows_the_whole_error() {
    let Some(place) = Place::new("error body") else { return };
    let _service = place.service(&[]);
    place.go(0);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    let out = Command::new("gdbus")
        .args(["call", "--address", &place.address(), "--dest", NAME, "-o", TOP, "-m"])
        .args([&format!("{MANAGER}.Update"), "b", "{}"])
        .output()
        .unwrap();
    let gdbus = String::from_utf8(out.stderr).unwrap();
    let busctl = place.update(&["sa{sv}", "b", "0"]).unwrap_err();
    for said in [gdbus, busctl] {
        for part in ["the update of job 1 is under way", "[busy]", &job, "wait until that job is over"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    place.go(9);
    place.wait_for_state(&job, "succeeded");
}

#[test]
fn a_real_update_fails_with_its_real_code() {
    let Some(place) = Place::new("real update") else { return };
    place.run_copal();
    let _service = place.service(&[]);
    let watch = place.watch();
    // Refused before anything is looked at.
    let job = place.update(&["sa{sv}", "/nonexistent/archive", "0"]).unwrap();
    place.wait_for_state(&job, "failed");
    let error = place.property(&job, JOB, "Error");
    assert!(error.contains(r#""effect" "refused""#) && error.contains(r#""exit" "3""#), "{error}");
    let end = watch.wait_for("JobRemoved");
    assert!(end.contains(", 3, '") || end.contains(", 3, \""), "{end}");
}

#[test]
fn wrong_calls_are_refused_with_a_reason() {
    let Some(place) = Place::new("usage") else { return };
    let _service = place.service(&[]);
    for (args, part) in [
        (&["sa{sv}", "", "0"][..], "not an absolute path"),
        (&["sa{sv}", "a", "1", "type", "s", "file"], "not an absolute path: 'a'"),
        (&["sa{sv}", "a", "1", "hook", "b", "true"], "unknown option hook"),
        (&["sa{sv}", "a", "1", "hooks", "s", "true"], "hooks has the wrong type"),
    ] {
        let e = place.update(args).unwrap_err();
        assert!(e.contains(part) && e.contains("[usage]"), "{args:?}: {e}");
    }
    assert!(place.requests().is_empty());
}

#[test]
fn a_commit_is_a_job_whose_end_is_the_answer() {
    let Some(place) = Place::new("commit") else { return };
    let _service = place.service(&[]);
    let watch = place.watch();
    place.says(&[r#"{"event":"result","version":1,"ok":true,"rollback":{"text":""}}"#, "exit 0"]);
    place.call(TOP, MANAGER, "MarkGood", &[]).unwrap();
    watch.wait_for("JobRemoved (uint32 1, objectpath '/io/balena/Copal1/job/1', 0, '')");
    assert_eq!(place.property("/io/balena/Copal1/job/1", JOB, "Kind"), "mark-good");
    assert_eq!(place.requests(), [json!(["copal daemon", "mark-good"])]);
    place.says(&[r#"{"event":"result","version":1,"ok":false,"code":"rollback-refused","message":"m","object":null,"hint":"h","effect":"refused"}"#, "exit 3"]);
    let e = place.call(TOP, MANAGER, "MarkGood", &[]).unwrap_err();
    assert!(e.contains("m [rollback-refused]; h"), "{e}");
}

#[test]
fn only_a_flasher_medium_flashes() {
    let Some(place) = Place::new("flash") else { return };
    let _service = place.service(&[]);
    for method in ["Flash", "Plan"] {
        let e = place.call(TOP, MANAGER, method, &["a{sv}", "0"]).unwrap_err();
        assert!(e.contains("[not-a-flasher]"), "{e}");
    }
    fs::write(place.root().join("mnt/boot/balena-image-flasher"), "").unwrap();
    place.says(&[r#"{"event":"result","version":1,"ok":true,"plan":{"target":"/dev/x"}}"#, "exit 0"]);
    let plan = place.call(TOP, MANAGER, "Plan", &["a{sv}", "1", "image", "s", "/i"]).unwrap();
    assert_eq!(plan, r#"s "{\"target\":\"/dev/x\"}""#);
    place.says(&[r#"{"event":"result","version":1,"ok":false,"code":"no-target","message":"m","object":null,"hint":"h","effect":"refused"}"#, "exit 3"]);
    let e = place.call(TOP, MANAGER, "Plan", &["a{sv}", "0"]).unwrap_err();
    assert!(e.contains("m [no-target]; h"), "{e}");
    let said = place.call(TOP, MANAGER, "Flash", &["a{sv}", "1", "power_off", "b", "false"]).unwrap();
    assert_eq!(said, r#"o "/io/balena/Copal1/job/1""#);
    place.wait_for_state("/io/balena/Copal1/job/1", "failed");
    assert_eq!(place.property("/io/balena/Copal1/job/1", JOB, "Kind"), "flash");
    let requests = place.requests();
    let (image, power_off) = (&requests[0][1]["plan"]["image"], &requests[2][1]["flash"]["power_off"]);
    assert_eq!((image, power_off, requests.len()), (&json!("/i"), &json!(false), 3));
    assert_eq!(requests[1][1]["plan"]["image"], json!(null));
}
