//! The program as its callers see it: names, exit codes, output.

use std::fs::{File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use copal::hooks::builtin::BUILTINS;
use serde_json::Value;

use crate::kit::process::assert_words;

const COPAL: &str = env!("CARGO_BIN_EXE_copal");

/// `copal` with nothing in its environment that could change what it says.
fn command(program: impl AsRef<Path>) -> Command {
    let mut c = Command::new(program.as_ref());
    c.env_remove("COPAL_LOG").env_remove("NO_COLOR").stdin(Stdio::null());
    c
}

pub(crate) fn copal(args: &[&str]) -> Output {
    let o = command(COPAL).args(args).output().unwrap();
    assert_words(&stderr(&o));
    o
}

pub(crate) fn code(o: &Output) -> i32 {
    o.status.code().unwrap_or_else(|| panic!("killed: {:?}", o.status))
}

pub(crate) fn stdout(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

pub(crate) fn stderr(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !c.is_control())
}

fn legacy_names() -> Vec<String> {
    let o = copal(&["--list"]);
    assert_eq!((code(&o), stderr(&o).as_str()), (0, ""));
    stdout(&o).lines().map(str::to_owned).collect()
}

#[test]
fn list_has_the_names_that_boards_and_units_call() {
    let expected = [
        "resin-init-flasher",
        "hostapp-update",
        "hostapp-update-hooks",
        "hostapp-update-hooks-v2",
        "rollback-health",
        "rollback-altboot",
        "rollback-clear-bootcount",
        "rollback-stop",
        "rollback-tests",
        "rollback-check-version",
        "rollback-parse-bootloader",
        "safe_reboot",
        "fatrw",
        "resin_update_state_probe",
        "0-carry-boot",
        "0-signed-update",
        "1-bootfiles",
        "2-rpifiles",
        "2-imxfiles",
        "60-data-breadcrumb",
        "70-sshd_migrate_keys",
        "75-forward_supervisor-db",
        "75-fwd_commit_supervisor-db",
        "76-forward_supervisor-db",
        "76-fwd_commit_supervisor-db",
        "80-rollback",
        "85-after_os-blocks-extensions",
        "85-fwd_commit_os-blocks-extensions",
        "1-fwd_commit_apply-dbx",
        "2-fwd_commit_update-policy",
        "99-flash-bootloader",
        "99-resin-uboot",
        "99-resin-grub",
        "99-balena-bootloader",
    ];
    assert_eq!(legacy_names(), expected);
}

#[test]
fn a_legacy_name_answers_through_its_link_and_as_an_argument() {
    let dir = tempfile::tempdir().unwrap();
    // A hook that is there does its work on whatever machine it is called: those have tests of their own.
    let is_hook = |name: &String| BUILTINS.iter().any(|b| b.names.contains(&name.as_str()));
    for name in legacy_names().into_iter().filter(|name| !is_hook(name)) {
        let link = dir.path().join(&name);
        symlink(COPAL, &link).unwrap();
        // What runs hooks ignores arguments that it does not know.
        let wrong = if name.starts_with("hostapp-update-hooks") { "--dir" } else { "--whatever" };
        let by_link = command(&link).arg(wrong).output().unwrap();
        let by_argument = copal(&[&name, wrong]);
        for o in [by_link, by_argument] {
            // None may look as if it had done its work.
            let (status, error) = match name.as_str() {
                "resin-init-flasher"
                | "fatrw"
                | "safe_reboot"
                | "hostapp-update"
                | "hostapp-update-hooks"
                | "hostapp-update-hooks-v2"
                | "resin_update_state_probe" => (2, "[usage]"),
                "rollback-parse-bootloader" => (1, "[not-in-this-build]"),
                rollback if rollback.starts_with("rollback-") => (2, "[usage]"),
                hook if hook.starts_with(|c: char| c.is_ascii_digit()) => (2, "[usage]"),
                other => panic!("what does {other} answer?"),
            };
            assert_eq!((code(&o), stdout(&o).as_str()), (status, ""), "{name}");
            let text = stderr(&o);
            assert!(text.starts_with(&format!("[{name}][ERROR] ")), "{text}");
            assert!(text.contains(error), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
}

#[test]
fn an_unknown_name_is_copal() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("copal-static-amd64");
    symlink(COPAL, &link).unwrap();
    let o = command(&link).arg("--version").output().unwrap();
    assert_eq!((code(&o), stdout(&o)), (0, format!("copal {}\n", env!("COPAL_VERSION"))));
}

#[test]
fn sourced_name_says_that_it_is_sourced() {
    let text = stderr(&copal(&["rollback-parse-bootloader"]));
    assert!(text.contains("sourced"), "{text}");
}

#[test]
fn usage_errors_are_one_line_and_exit_2() {
    for (args, part) in [
        (&[][..], "no command was given"),
        (&["frobnicate"], "frobnicate"),
        (&["flash", "--frobnicate"], "copal help flash"),
        (&["flash", "--sha256=xyz"], "64 hex digits"),
        (&["verify", "--image", "x"], "--target"),
        (&["digest"], "<FILE>"),
        (&["completions", "bash"], "completions"),
        (&["man"], "man"),
        (&["flash", "evil\u{1b}[2Jname"], "evil"),
    ] {
        let o = copal(args);
        let text = stderr(&o);
        assert_eq!((code(&o), stdout(&o).as_str()), (2, ""), "{args:?}: {text}");
        assert!(text.starts_with("copal: ") && text.contains(" [usage]; ") && text.contains(part), "{text}");
        assert!(text.lines().count() == 1 && is_plain(&text), "{text:?}");
    }
}

#[test]
fn help_goes_to_stdout_and_exits_0() {
    for args in
        [&["help"][..], &["--help"], &["-h"], &["help", "flash"], &["flash", "--help"], &["verify", "-h"]]
    {
        let o = copal(args);
        assert_eq!((code(&o), stderr(&o).as_str()), (0, ""), "{args:?}");
        assert!(stdout(&o).contains("Usage: copal") && is_plain(&stdout(&o)), "{args:?}");
        assert!(stdout(&o).lines().all(|l| l.len() <= 120), "{args:?}");
    }
}

#[test]
fn with_json_the_error_is_the_last_line_of_stdout_and_nowhere_else() {
    for (args, exit, error, object) in [
        (&["flash", "--json", "--frobnicate"][..], 2, "usage", "--frobnicate".into()),
        (&["digest", "/nothing", "--json"], 3, "image-missing", "/nothing".into()),
        (&["--json"], 2, "usage", "--json".into()),
    ] {
        let o = copal(args);
        assert_eq!((code(&o), stderr(&o).as_str()), (exit, ""), "{args:?}");
        let last: Value = serde_json::from_str(stdout(&o).lines().last().unwrap()).unwrap();
        assert_eq!((&last["event"], &last["ok"]), (&"result".into(), &false.into()));
        assert_eq!((&last["code"], &last["object"]), (&Value::from(error), &object));
        assert_eq!((&last["version"], &last["effect"]), (&1.into(), &"refused".into()));
    }
}

/// Runs it with a stdout whose reader has left.
fn without_reader(args: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command(COPAL).args(args).stdout(writer).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn a_reader_that_has_left_is_no_failure() {
    for args in [&["--list"][..], &["help"], &["--version"], &["help", "flash"]] {
        let o = without_reader(args);
        assert_eq!((code(&o), stderr(&o).as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn a_reader_may_leave_in_the_middle() {
    // More than a pipe takes at once.
    let hooks = tempfile::tempdir().unwrap();
    for number in 0..1000 {
        let hook = hooks.path().join(format!("{number:0>100}"));
        File::create(hook).unwrap().set_permissions(Permissions::from_mode(0o755)).unwrap();
    }
    let mut child = command(COPAL)
        .args(["hooks", "--list", "--dir"])
        .arg(hooks.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 1]).unwrap();
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_error_that_no_client_reads_as_json_goes_to_stderr() {
    let o = without_reader(&["flash", "--json", "--frobnicate"]);
    assert_eq!(code(&o), 2);
    assert!(stderr(&o).contains("[usage]"), "{}", stderr(&o));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for args in [&["--list"][..], &["help"]] {
        let o = command(COPAL).args(args).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(code(&o), 1, "{args:?}");
        assert!(stderr(&o).contains("[output-failed]"), "{}", stderr(&o));
    }
    // With nowhere to tell it, the exit code still does.
    let o = command(COPAL).arg("--list").stdout(full()).stderr(full()).output().unwrap();
    assert_eq!(code(&o), 1);
    let o = command(COPAL).args(["rollback-stop", "--whatever"]).stderr(full()).output().unwrap();
    assert_eq!(code(&o), 2);
}

#[test]
fn a_wrong_log_level_is_reported_and_ignored() {
    let o = command(COPAL).arg("--version").env("COPAL_LOG", "loud").output().unwrap();
    assert_eq!(code(&o), 0);
    assert!(stderr(&o).starts_with("copal: warning: COPAL_LOG=loud "), "{}", stderr(&o));
    let o = command(COPAL).args(["rollback-stop", "--whatever"]).env("COPAL_LOG", "loud").output().unwrap();
    assert!(stderr(&o).starts_with("[rollback-stop][WARN] COPAL_LOG=loud "), "{}", stderr(&o));
    let o = command(COPAL).arg("--version").env("COPAL_LOG", "debug").output().unwrap();
    assert_eq!(stderr(&o), "");
}
