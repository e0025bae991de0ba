//! `copal status` and `copal doctor`, on made-up machines.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::kit::needs::{is_root, needs};
use crate::kit::process::{assert_words, copy_of_copal};
use crate::kit::tree::{GIB, MIB, Tree};
use serde_json::Value;

/// A device with U-Boot: A (partition 2) runs release 5.3.1, B holds 6.0.0.
pub(crate) fn device() -> Tree {
    let mut t = Tree::new();
    t.disk("mmcblk0", "179:0", 16 * GIB);
    for (n, bytes) in [(1, 40 * MIB), (2, GIB), (3, GIB), (5, 20 * MIB), (6, 10 * GIB)] {
        t.part("mmcblk0", &format!("mmcblk0p{n}"), &format!("179:{n}"), bytes);
    }
    t.udev("179:2", &[("ID_FS_LABEL", "resin-rootA")]).udev("179:3", &[("ID_FS_LABEL", "resin-rootB")]);
    t.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "rw");
    t.mount("179:5", "/mnt/state", "ext4", "/dev/mmcblk0p5", "rw");
    t.mount("179:6", "/mnt/data", "ext4", "/dev/mmcblk0p6", "rw");
    t.mount("179:2", "/mnt/sysroot/active", "ext4", "/dev/mmcblk0p2", "ro");
    t.mount("179:3", "/mnt/sysroot/inactive", "ext4", "/dev/mmcblk0p3", "rw");
    t.folder("/mnt/state")
        .folder("/mnt/data")
        .folder("/run")
        .file("/proc/sys/kernel/random/boot_id", "boot\n");
    hostapp(&mut t, "active", "5.3.1", "3");
    hostapp(&mut t, "inactive", "6.0.0", "4");
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n");
    t
}

fn hostapp(t: &mut Tree, place: &str, version: &str, counter: &str) {
    let root = format!("/mnt/sysroot/{place}");
    t.folder(&format!("{root}/balena/volumes/v/_data")).file(&format!("{root}/counter"), counter);
    t.link(&format!("{root}/hostapps/{place}id/boot"), "../../balena/volumes/v/_data");
    t.link(&format!("{root}/current"), &format!("hostapps/{place}id"));
    t.file(&format!("{root}/balena/image/overlay2/layerdb/mounts/{place}id/mount-id"), "top");
    t.file(&format!("{root}/balena/overlay2/top/diff/etc/os-release"), &format!("VERSION=\"{version}\"\n"));
}

pub(crate) fn copal(t: &Tree, args: &[&str]) -> (i32, String, String) {
    let root = t.paths().root().to_owned();
    let out = Command::new(env!("CARGO_BIN_EXE_copal")).args(args).arg("--root").arg(root).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    assert_words(&text(&out.stderr));
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

pub(crate) fn status(t: &Tree) -> Value {
    let (code, out, err) = copal(t, &["status", "--json"]);
    assert_eq!(code, 0, "{err}");
    let line: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(line["ok"], true, "{line}");
    line["status"].clone()
}

const HEADER: &str = "# GRUB Environment Block\n";

/// The same device with another bootloader, whose file has this content; it runs A.
fn with_block(name: &str, content: &[u8]) -> Tree {
    let mut t = device();
    fs::remove_file(t.paths().boot().join("resinOS_uEnv.txt")).unwrap();
    t.file(&format!("/mnt/boot/{name}"), "");
    fs::write(t.paths().boot().join(name), content).unwrap();
    t
}

fn block(lines: &str) -> Vec<u8> {
    let mut block = format!("{HEADER}{lines}").into_bytes();
    block.resize(1024, b'#');
    block
}

/// Verdict and text of each finding about the boot state.
fn boot_state(t: &Tree) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let found = findings(t);
    let of = found.iter().filter(|f| f["check"] == "boot-state");
    of.map(|f| (text(&f["verdict"]), text(&f["text"]))).collect()
}

pub(crate) fn findings(t: &Tree) -> Vec<Value> {
    let (_, out, _) = copal(t, &["doctor", "--json"]);
    let found = out.lines().find_map(|l| {
        let line: Value = serde_json::from_str(l).unwrap();
        line["doctor"].as_array().cloned()
    });
    found.unwrap()
}

/// The page shows the bootloader's own choice: it reads nothing, GRUB takes root B, and the balena bootloader finds no root.
#[test]
fn a_damaged_byte_of_the_first_line_is_shown_as_the_bootloader_takes_it() {
    let grub = block("bootcount=0\nresin_root_part=3\nupgrade_available=1\n");
    let balena = block("bootcount=0\nresin_root_part=B\nupgrade_available=1\n");
    for at in 0..HEADER.len() {
        for (name, whole, next) in
            [("EFI/BOOT/grubenv", &grub, Value::from("B")), ("bootenv", &balena, Value::Null)]
        {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            let t = with_block(name, &damaged);
            let before = snapshot(&t);
            let s = status(&t);
            assert_eq!((&s["next"], &s["phase"]), (&next, &"healthy".into()), "{name}, byte {at}: {s}");
            assert_eq!(s["boot"]["selected"], false, "{name}, byte {at}: {s}");
            assert!(s["boot"]["damage"].is_string() && s["boot"]["upgrade_available"] == false, "{s}");
            let found = boot_state(&t);
            assert_eq!((found.len(), found[0].0.as_str()), (1, "problem"), "{name}, byte {at}: {found:?}");
            assert!(found[0].1.contains("is damaged: "), "{found:?}");
            assert_eq!(snapshot(&t), before, "nothing may be changed");
        }
    }
    let (_, out, _) = copal(&with_block("EFI/BOOT/grubenv", b"no block"), &["status"]);
    assert!(out.contains("boot     GRUB finds no selection; by default it starts root B\n"), "{out}");
    assert!(out.contains("         DAMAGED: it has 8 bytes instead of 1024\n"), "{out}");
}

/// U-Boot finds no partition `3\r`, and does not count.
#[test]
fn a_selection_with_carriage_returns_is_a_problem_and_the_owners_file_a_warning() {
    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\r\nupgrade_available=1\r\n");
    t.file("/mnt/boot/extra_uEnv.txt", "extra_os_cmdline=quiet\r\n");
    let s = status(&t);
    assert_eq!((&s["next"], &s["boot"]["selected"]), (&Value::Null, &false.into()), "{s}");
    assert_eq!(s["boot"]["upgrade_available"], false, "{s}");
    let found = boot_state(&t);
    assert_eq!(found.iter().map(|f| f.0.as_str()).collect::<Vec<_>>(), ["warning", "problem"], "{found:?}");
    assert!(found[0].1.contains("extra_uEnv.txt, line 1: "), "{found:?}");
    assert!(found[1].1.contains("a carriage return after a value"), "{found:?}");
}

#[test]
fn a_line_at_which_uboot_stops_is_shown() {
    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "=x\nresin_root_part=3\nupgrade_available=1\n");
    let s = status(&t);
    assert_eq!((&s["next"], &s["phase"]), (&"A".into(), &"healthy".into()), "{s}");
    assert_eq!((&s["boot"]["root"], &s["boot"]["selected"]), (&"2".into(), &false.into()), "{s}");
    let found = boot_state(&t);
    assert_eq!((found.len(), found[0].0.as_str()), (1, "problem"), "{found:?}");
    assert!(found[0].1.contains("a line that has a value and no key"), "{found:?}");
}

/// Whatever a block holds.
#[test]
fn the_doctor_has_one_answer_to_one_question() {
    for (name, content, verdict) in [
        ("bootenv", Vec::new(), "problem"),
        ("bootenv", block(""), "problem"),
        ("bootenv", block("resin_root_part=C\n"), "problem"),
        ("bootenv", block("resin_root_part=A\n"), "ok"),
        ("EFI/BOOT/grubenv", Vec::new(), "problem"),
        ("EFI/BOOT/grubenv", block("resin_root_part=9\nupgrade_available=0\n"), "problem"),
        ("EFI/BOOT/grubenv", block("resin_root_part=2\nupgrade_available=0\n"), "ok"),
    ] {
        let found = boot_state(&with_block(name, &content));
        let verdicts: Vec<_> = found.iter().map(|(verdict, _)| verdict.as_str()).collect();
        assert_eq!(verdicts, [verdict], "{name}: {found:?}");
    }
}

/// Files of a tree with their content, links and all.
pub(crate) fn snapshot(t: &Tree) -> BTreeSet<String> {
    let out = Command::new("find")
        .args([".", "-printf", "%p %y %s %T@ %l\n"])
        .current_dir(t.paths().root())
        .output()
        .unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_healthy_device_in_words_and_in_json() {
    let t = device();
    let before = snapshot(&t);
    let (code, out, err) = copal(&t, &["status"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for line in [
        "phase    healthy: no update is under way",
        "slot A   5.3.1, on mmcblk0p2 (partition 2), counter 3, runs now, boots next",
        "slot B   6.0.0, on mmcblk0p3 (partition 3), counter 4",
        "boot     U-Boot selects slot A (partition 2), not on trial",
    ] {
        assert!(out.lines().any(|l| l == line), "{line:?} in\n{out}");
    }
    let s = status(&t);
    assert_eq!((&s["phase"], &s["running"], &s["next"]), (&"healthy".into(), &"A".into(), &"A".into()));
    assert_eq!((&s["slots"][1]["version"], &s["slots"][1]["counter"]), (&"6.0.0".into(), &4.into()));
    assert_eq!(s["slots"][0]["hostapp"], "activeid");
    assert_eq!(s["problems"], Value::Array(Vec::new()));
    assert_eq!(snapshot(&t), before, "nothing may be changed");
}

/// Which root, whether on trial, and how many of how many attempts.
#[test]
fn the_boot_line_says_what_it_means() {
    let shown = |t: &Tree| {
        let (_, out, _) = copal(t, &["status"]);
        let lines =
            out.lines().skip_while(|l| !l.starts_with("boot ")).take_while(|l| !l.contains("/mnt/boot/"));
        lines.map(str::trim_end).collect::<Vec<_>>().join("\n")
    };
    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\nupgrade_available=1\n");
    t.file("/mnt/boot/bootcount.env", "bootcount=1\n\0");
    assert_eq!(
        shown(&t),
        "boot     U-Boot selects slot B (partition 3), on trial: 1 of 3 boot attempts counted"
    );
    t.file("/mnt/boot/bootcount.env", "bootcount=4\n\0");
    assert_eq!(
        shown(&t),
        "boot     U-Boot selects slot B (partition 3), on trial: 4 of 3 boot attempts counted
         that is too many: U-Boot starts slot A instead"
    );
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\nupgrade_available=0\n");
    t.file("/mnt/boot/bootcount.env", "bootcount=2\n\0");
    assert_eq!(
        shown(&t),
        "boot     U-Boot selects slot B (partition 3), not on trial: 2 of 3 boot attempts counted"
    );
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=9\nupgrade_available=0\n");
    t.file("/mnt/boot/bootcount.env", "");
    assert_eq!(shown(&t), "boot     U-Boot selects partition 9, not on trial");
    let t = with_block("bootenv", &block("bootcount=0\nresin_root_part=A\nupgrade_available=0\n"));
    assert_eq!(shown(&t), "boot     balena bootloader selects slot A, not on trial");
}

#[test]
fn phases_show_as_they_are() {
    let mut t = device();
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\nupgrade_available=1\n");
    t.file("/mnt/state/rollback-health-breadcrumb", "");
    let s = status(&t);
    assert_eq!((&s["phase"], &s["next"], &s["breadcrumb"]), (&"altboot".into(), &"B".into(), &true.into()));
    t.file("/run/copal/marker", r#"{"kind":"installing","boot_id":"boot","target":"B","transaction":"t"}"#);
    assert_eq!(status(&t)["phase"], "pending");
    t.file("/mnt/boot/bootcount.env", "bootcount=4\n\0");
    let s = status(&t);
    assert_eq!((&s["boot"]["exceeded"], &s["next"]), (&true.into(), &"A".into()), "{s}");
    // Jetson Orin has fallen back at 3, and boots the old root as long as the count stays.
    t.file("/mnt/boot/bootcount.env", "bootcount=3");
    assert_eq!(status(&t)["next"], "B");
    t.file("/etc/copal/rollback.conf", "FALLBACK_COUNT=3\n");
    let s = status(&t);
    assert_eq!((&s["boot"]["limit"], &s["next"]), (&3.into(), &"A".into()), "{s}");
    // The bootloader also falls back without a trial.
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\nupgrade_available=0\n");
    assert_eq!(status(&t)["next"], "A");
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\nupgrade_available=1\n");
    t.file("/mnt/state/copal/rollback", r#"{"target":"A","kind":"health"}"#);
    t.file("/mnt/state/copal/bootfiles", r#"{"transaction":"t","owner":"B"}"#);
    t.file("/mnt/state/rollback-health-triggered", "");
    let s = status(&t);
    assert_eq!(
        (&s["phase"], &s["rollback"], &s["bootfiles"]),
        (&"finishing".into(), &"A".into(), &"B".into())
    );
    assert_eq!(s["flags"][0], "rollback-health-triggered");
}

#[test]
fn one_part_that_cannot_be_read_hides_no_other() {
    let mut t = device();
    t.file("/mnt/state/copal/rollback", "{");
    let s = status(&t);
    assert_eq!(s["phase"], Value::Null);
    assert_eq!((&s["running"], &s["boot"]["root"]), (&"A".into(), &"2".into()));
    assert_eq!(s["problems"].as_array().unwrap().len(), 1, "{s}");
    assert_eq!(s["problems"][0]["code"], "state-invalid");
    // Nothing is mounted at all.
    let s = status(&Tree::new());
    assert_eq!(s["problems"][0]["code"], "slot-unknown");
    // A lock that cannot be looked at, even by root.
    let mut t = device();
    t.link("/run/copal/update.lock", "update.lock");
    let s = status(&t);
    assert_eq!((&s["phase"], &s["update"]), (&"healthy".into(), &Value::Null));
    assert_eq!(s["problems"].as_array().unwrap().len(), 1, "{s}");
    assert_eq!(s["problems"][0]["code"], "io");
    assert!(s["problems"][0]["hint"].as_str().unwrap().contains("restart the device"), "{s}");
    finds(&t, "update", "warning", "cannot determine whether an update is running");
}

#[test]
fn a_machine_that_is_no_device_is_told_so() {
    let mut t = Tree::new();
    t.file("/etc/os-release", "ID=ubuntu\nPRETTY_NAME=\"Ubuntu 24.04\"\n");
    let (code, out, err) = copal(&t, &["status"]);
    assert_eq!((code, err.as_str(), out.lines().count()), (0, "", 1), "{out}");
    assert!(out.contains("not a balenaOS device") && out.contains("Ubuntu 24.04"), "{out}");
    // Programs get the same keys as elsewhere.
    assert_eq!(status(&t)["phase"], Value::Null);
    let (code, out, err) = copal(&t, &["doctor"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("not a balenaOS device") && out.matches("PROBLEM").count() == 1, "{out}");
    for text in [&out, &err] {
        assert!(!text.contains("copal doctor") && !text.contains("a flash"), "{text}");
    }
    // One that is damaged is still one.
    t.file("/etc/os-release", "ID=\"balena-os\"\n");
    let (_, out, _) = copal(&t, &["status"]);
    assert!(out.contains("phase    unknown") && out.contains("[slot-unknown]"), "{out}");
    let (_, out, err) = copal(&t, &["doctor"]);
    assert!(out.starts_with("examined: an update or a rollback of this device\n"), "{out}");
    assert!(out.contains("[slot-unknown]; check what is mounted") && !out.contains("copal doctor"), "{out}");
    assert!(err.contains("would stop an update or a rollback of this device"), "{err}");
}

#[test]
fn a_root_that_is_not_mounted_is_named() {
    let mut t = device();
    let table = fs::read_to_string(t.paths().at("/proc/self/mountinfo")).unwrap();
    let table: String =
        table.split_inclusive('\n').filter(|line| !line.contains(" /mnt/sysroot/inactive ")).collect();
    t.file("/proc/self/mountinfo", &table).file("/mnt/state/rollback-health-failed", "");
    let (_, out, _) = copal(&t, &["status"]);
    for line in [
        "slot A   5.3.1, on mmcblk0p2 (partition 2), counter 3, runs now, boots next",
        "slot B   not mounted",
        "flag     rollback-health-failed",
    ] {
        assert!(out.lines().any(|l| l == line), "{line:?} in\n{out}");
    }
    finds(&t, "slots", "problem", "by /mnt/sysroot/inactive: no ext4 file system is mounted there");
}

#[test]
fn every_key_is_documented() {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/status.md")).unwrap();
    let documented: BTreeSet<String> = text
        .lines()
        .filter_map(|l| Some(l.strip_prefix("| `")?.split('`').next().unwrap().to_owned()))
        .collect();
    let mut t = device();
    t.file("/mnt/boot/extra_uEnv.txt", "fdtfile=mine.dtb\n");
    let (_, out, _) = copal(&t, &["status", "--json", "--history"]);
    let s = serde_json::from_str::<Value>(out.lines().last().unwrap()).unwrap()["status"].clone();
    let mut used = BTreeSet::new();
    for object in [&s, &s["boot"], &s["slots"][0], &s["device_trees"][0]] {
        used.extend(object.as_object().unwrap().keys().cloned());
    }
    used.extend(copal::doctor::names().into_iter().map(str::to_owned));
    assert_eq!(documented, used);
}

#[track_caller]
pub(crate) fn finds(t: &Tree, check: &str, verdict: &str, words: &str) {
    let found = findings(t);
    let hit = |f: &&Value| {
        f["check"] == check && f["verdict"] == verdict && f["text"].as_str().unwrap().contains(words)
    };
    assert!(found.iter().any(|f| hit(&f)), "{check} {verdict} {words:?} in {found:#?}");
}

/// An ordinary user learns that something is unknown, not that nothing is there.
#[test]
fn what_only_root_may_read_is_unknown_to_others() {
    needs!(is_root);
    let mut t = device();
    t.file("/run/copal/update.lock", "").file("/mnt/state/copal/history.jsonl", "");
    t.file("/mnt/boot/extra_uEnv.txt", "custom_fdt_file=mine.dtb\n");
    let (root, program) = (t.paths().root().to_owned(), t.paths().at("/copal"));
    copy_of_copal(&program);
    let engines = ["active", "inactive"].map(|place| format!("/mnt/sysroot/{place}/balena"));
    for folder in engines.iter().map(String::as_str).chain(["/run/copal", "/mnt/state/copal/history.jsonl"]) {
        fs::set_permissions(t.paths().at(folder), fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let seen = |args: &[&str]| {
        let out = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .arg("status")
            .args(args)
            .arg("--root")
            .arg(&root)
            .env("LLVM_PROFILE_FILE", "/dev/null")
            .current_dir("/")
            .output()
            .unwrap();
        let (text, err) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && err.is_empty(), "{text}{err}");
        text
    };
    let text = seen(&[]);
    for part in ["phase    ", "update   ", "hook     ", "updated  ", "tree     "] {
        assert!(text.lines().any(|l| l == format!("{part}unknown (requires root)")), "{part} in {text}");
    }
    assert!(text.contains("slot B   unknown (requires root)") && !text.contains("no hostapp"), "{text}");
    assert!(!text.contains("problem"), "{text}");
    for option in ["--history", "--log"] {
        assert_eq!(seen(&[option]).trim(), "unknown (requires root)", "{option}");
    }
    let line: Value = serde_json::from_str(seen(&["--json"]).lines().last().unwrap()).unwrap();
    let expected =
        ["phase", "next", "update", "hook", "slots", "last_update", "last_rollback", "device_trees"];
    assert_eq!(line["status"]["needs_root"], serde_json::json!(expected), "{line}");
    assert_eq!(status(&t)["needs_root"], serde_json::json!([]), "root may read all of it");
}

/// Where a small file of copal's own belongs: a pipe that no process writes to, or more than memory holds.
#[test]
fn a_record_that_is_no_small_file_delays_no_caller() {
    let records = [
        "mnt/state/copal/trial",
        "mnt/state/copal/rollback",
        "mnt/state/copal/bootfiles",
        "mnt/state/copal/commit-due",
        "mnt/state/copal/history.jsonl",
        "mnt/state/rollback-health-variables",
        "run/copal/marker",
        "run/copal/hook",
        "run/copal/update.lock",
        "mnt/sysroot/active/counter",
        "mnt/sysroot/inactive/counter",
        "mnt/sysroot/inactive/balena/overlay2/top/diff/etc/os-release",
    ];
    for is_pipe in [true, false] {
        for record in records {
            let t = device();
            let place = t.paths().root().join(record);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            drop(fs::remove_file(&place));
            if is_pipe {
                nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRUSR).unwrap();
            } else {
                fs::File::create(&place).unwrap().set_len(8 << 30).unwrap();
            }
            let out = Command::new("timeout")
                .args([
                    "60",
                    "prlimit",
                    "--as=1073741824",
                    env!("CARGO_BIN_EXE_copal"),
                    "status",
                    "--json",
                    "--root",
                ])
                .arg(t.paths().root())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(0), "{record}, pipe: {is_pipe}: {said}");
        }
    }
}
