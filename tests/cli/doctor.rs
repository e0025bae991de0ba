//! What `copal doctor` finds.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::Value;

use crate::kit::needs::{is_root, needs};
use crate::kit::process::copy_of_copal;
use crate::kit::tree::Tree;
use crate::status::{copal, device, findings, finds, snapshot};

/// They stop nothing: a trial tolerates them.
#[test]
fn the_doctor_names_mistakes_in_the_rules_of_a_trial() {
    let mut t = device();
    finds(&t, "rollback-conf", "ok", "no mistakes");
    t.file("/etc/copal/rollback.conf", "TIMEOUT=soon\nTIMOUT=5\nFALLBACK_COUNT=x\nREQUIRE_UNITS=1\n");
    let of_the_conf = findings(&t).into_iter().filter(|f| f["check"] == "rollback-conf");
    let (lines, verdicts): (Vec<String>, BTreeSet<String>) =
        of_the_conf.map(|f| (f["text"].to_string(), f["verdict"].as_str().unwrap().to_owned())).unzip();
    for (line, words) in
        lines.iter().zip([":2: unknown key TIMOUT", ":1: TIMEOUT: `soon`", ":3: FALLBACK_COUNT: `x`"])
    {
        assert!(line.contains(words), "{words}: {line}");
    }
    assert_eq!((lines.len(), verdicts), (3, BTreeSet::from(["warning".to_owned()])), "{lines:?}");
    t.file("/etc/copal/rollback.conf", "COUNT=$(slow)\n");
    finds(&t, "rollback-conf", "warning", "a trial ignores it");
}

#[test]
fn the_doctor_names_what_would_stop_an_update() {
    let t = device();
    let before = snapshot(&t);
    let (code, out, err) = copal(&t, &["doctor"]);
    // No engine answers in a folder tree.
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("PROBLEM engine: ") && out.contains("[engine-unreachable]"), "{out}");
    assert!(err.contains("1 thing would stop") && err.contains("[problems-found]"), "{err}");
    assert!(out.contains("ok      slots: slot A runs, from mmcblk0p2 (partition 2)"), "{out}");
    let (_, out, _) = copal(&t, &["doctor", "--update", "/"]);
    assert!(out.contains("ok      release: ") && out.contains("needs no signatures"), "{out}");
    let (_, out, _) = copal(&t, &["doctor", "--update", "/no/such/release"]);
    assert!(out.contains("PROBLEM release: ") && out.contains("/no/such/release"), "{out}");
    assert_eq!(snapshot(&t), before, "nothing may be changed");

    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=9\nupgrade_available=0\n");
    finds(&t, "boot-state", "problem", "selects neither");
    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "mine=1\n");
    finds(&t, "boot-state", "warning", "selects no root; U-Boot takes partition 2");
    // Where the disk says nothing about the roots.
    for (text, words) in [
        ("resin_root_part=9\nupgrade_available=0\n", "selects neither"),
        ("mine=1\n", "selects no root; U-Boot takes partition 2"),
        ("", "selects no root; U-Boot takes partition 2"),
    ] {
        let mut t = Tree::new();
        t.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "rw");
        t.file("/mnt/boot/resinOS_uEnv.txt", text);
        finds(&t, "boot-state", "problem", words);
    }
    let mut t = device();
    t.file("/mnt/boot/bootcount.env", "bootcount=9\n\0");
    finds(&t, "boot-state", "warning", "9 attempts");
    let mut t = device();
    t.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "ro");
    finds(&t, "boot-partition", "problem", "mounted read-only");
    let mut t = device();
    t.file("/mnt/boot/splash/.logo.png.12345678.0123456789abcdef0123456789abcdef.md5sum", "");
    t.file("/mnt/boot/CPL0A0B0.TMP", "");
    finds(&t, "boot-partition", "warning", "CPL0A0B0.TMP");
    finds(&t, "boot-partition", "warning", "splash/.logo.png");
    let mut t = device();
    t.file("/mnt/boot/FSCK0000.REC", "abc").file("/mnt/boot/fsck0001.rec", "mine");
    finds(&t, "boot-partition", "warning", "recovered: FSCK0000.REC (3 bytes)");
    let mut t = device();
    t.folder("/mnt/sysroot/inactive/hostapps/.new");
    finds(&t, "cleanup", "warning", "hostapps/.new");
    fs::remove_file(t.paths().inactive().join("current")).unwrap();
    finds(&t, "slots", "warning", "slot B holds no complete hostapp");
    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=1\n");
    finds(&t, "update", "warning", "trial: ");
    let mut t = Tree::new();
    t.file("/etc/os-release", "ID=\"balena-os\"\n");
    finds(&t, "slots", "problem", "no ext4 file system is mounted there");
}

/// What a check of the doctor says of a directory with a file system on it that has these options: the verdict and the code.
fn mounted(check: &str, place: &str, options: &str) -> (String, Value) {
    let t = device();
    let root = t.paths().root().to_owned();
    let script = r#"
        cp -a "$2" /tmp/kept.$$; mount -t tmpfs none "$2"; cp -a /tmp/kept.$$/. "$2"; rm -r /tmp/kept.$$; mount -o "remount,$1" "$2"
        "$3" doctor --json --root "$4"; true"#;
    let out = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", options])
        .arg(t.paths().at(place))
        .arg(env!("CARGO_BIN_EXE_copal"))
        .arg(root)
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let found =
        text.lines().find_map(|l| serde_json::from_str::<Value>(l).unwrap()["doctor"].as_array().cloned());
    let found = found.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&out.stderr)));
    let about = |f: &&Value| f["check"] == check && f["text"].as_str().unwrap().contains(place);
    let of_it: Vec<&Value> = found.iter().filter(about).collect();
    assert_eq!(of_it.len(), 1, "{found:#?}");
    (of_it[0]["verdict"].as_str().unwrap().to_owned(), of_it[0]["code"].clone())
}

fn space(place: &str, kib: u32) -> (String, Value) {
    mounted("space", place, &format!("size={kib}k"))
}

#[test]
fn what_the_kernel_has_made_read_only_is_a_problem() {
    needs!(is_root);
    assert_eq!(mounted("slots", "/mnt/sysroot/inactive", "ro"), ("problem".into(), "update-refused".into()));
    assert_eq!(mounted("space", "/mnt/state", "ro"), ("problem".into(), "state-unwritable".into()));
    let (verdict, _) = mounted("space", "/mnt/sysroot/inactive", "rw");
    assert_eq!(verdict, "ok");
}

#[test]
fn space_is_a_problem_where_an_update_would_stop_for_it() {
    needs!(is_root);
    assert_eq!(space("/mnt/state", 512), ("ok".into(), Value::Null));
    assert_eq!(space("/mnt/state", 128), ("problem".into(), "state-unwritable".into()));
    // Only an archive is unpacked there.
    assert_eq!(space("/mnt/data", 512), ("warning".into(), Value::Null));
    assert_eq!(space("/mnt/data", 128 << 10), ("ok".into(), Value::Null));
    let t = device();
    fs::remove_dir(t.paths().data()).unwrap();
    finds(&t, "space", "warning", "/mnt/data");
}

#[test]
fn what_only_root_may_read_is_unknown_to_others() {
    needs!(is_root);
    let mut t = device();
    t.file("/copal", "");
    let (root, program) = (t.paths().root().to_owned(), t.paths().at("/copal"));
    copy_of_copal(&program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for private in ["/mnt/boot", "/mnt/sysroot/inactive", "/mnt/state"] {
        fs::set_permissions(t.paths().at(private), fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["doctor", "--root"])
        .arg(&root)
        .env("LLVM_PROFILE_FILE", "/dev/null")
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    for check in ["boot-state", "boot-partition", "space", "cleanup"] {
        let line = text.lines().find(|line| line.contains(&format!(" {check}: unknown (requires root): ")));
        assert!(
            line.is_some_and(|line| line.starts_with("warning ") && line.ends_with("run it as root")),
            "{check}: {text}"
        );
    }
    assert!(!text.contains("no files of an interrupted update"), "{text}");
    assert!(
        !text.lines().any(|line| line.starts_with("PROBLEM") && line.contains("Permission denied")),
        "{text}"
    );
}

#[test]
fn every_mistake_in_the_rules_of_a_trial_is_named() {
    let mut t = device();
    t.file(
        "/etc/copal/rollback.conf",
        "COUNT=many\nTIMEOUT = 5\nUNKNOWN=1\nREQUIRE_UNITS='2\nALTBOOT_TIMEOUT=0\n",
    );
    for words in
        ["COUNT: ", "rollback.conf:2:", "unknown key UNKNOWN", "rollback.conf:4:", "ALTBOOT_TIMEOUT: "]
    {
        finds(&t, "rollback-conf", "warning", words);
    }
}

#[test]
fn on_a_flasher_medium_the_doctor_looks_at_the_flash() {
    let mut t = device();
    t.file("/mnt/boot/balena-image-flasher", "");
    finds(&t, "flash", "problem", "resin-init-flasher.conf");
    let (code, out, _) = copal(&t, &["doctor"]);
    assert_eq!((code, out.lines().count()), (1, 2), "{out}");
    assert!(out.starts_with("examined: the installation from this medium\n"), "{out}");
    let (code, out, err) = copal(&t, &["doctor", "--update", "/"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("not an installed device"), "{err}");
}
