//! `copal job`: each request becomes its own work.

use std::fs;

use serde_json::{Value, json};

use crate::kit::tree::Tree;
use crate::status::{copal, device};

/// The result of a job with this specification.
fn job(t: &Tree, spec: &Value) -> Value {
    let folder = t.paths().at("/run/copal");
    fs::create_dir_all(&folder).unwrap();
    let request = json!({ "spec": spec, "program": "me", "environment": null });
    fs::write(folder.join("job-1.taken"), request.to_string()).unwrap();
    let (_, out, err) = copal(t, &["job", "--json", "--run-for=me", "1"]);
    assert!(!folder.join("job-1.taken").exists(), "{err}");
    let last = out.lines().last().unwrap_or_else(|| panic!("{err}"));
    serde_json::from_str(last).unwrap()
}

#[test]
fn a_commit_is_no_rollback() {
    let t = device();
    let committed = job(&t, &json!("mark-good"));
    assert_eq!(committed["ok"], true, "nothing is on trial: {committed}");
    assert!(committed["rollback"].is_object(), "{committed}");
    let refused = job(&t, &json!("rollback"));
    assert_eq!((&refused["ok"], &refused["code"]), (&json!(false), &json!("rollback-refused")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("roll back"), "{refused}");
}

#[test]
fn a_plan_writes_nothing() {
    let t = device();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let spec = json!({
        "conf": null,
        "image": image,
        "target": "/copal-target",
        "force_raw": true,
        "single_pass": false,
        "image_only": false,
        "power_off": true,
    });
    let planned = job(&t, &json!({ "plan": spec }));
    assert_eq!(planned["ok"], true, "{planned}");
    assert!(planned["plan"]["target"].to_string().contains("/copal-target"), "{planned}");
    for root in [t.paths().root(), std::path::Path::new("/")] {
        assert!(!root.join("copal-target").exists());
    }
}
