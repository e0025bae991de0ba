//! `rollback-health` as it is installed: a small shell file that test suites and boards edit.

use crate::kit::needs::{needs, tools};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn shim() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/rollback-health")
}

/// The shim in a root, and beside it a copal that says how it was called.
fn installed(dir: &Path) -> PathBuf {
    let bin = dir.join("usr/bin");
    fs::create_dir_all(&bin).unwrap();
    let copal = bin.join("copal");
    fs::write(&copal, "#!/bin/sh\nprintf '%s|' \"$@\" \"${DURING_UPDATE-unset}\" \"$$\"\nexit 7\n").unwrap();
    fs::set_permissions(&copal, PermissionsExt::from_mode(0o755)).unwrap();
    let text = fs::read_to_string(shim()).unwrap();
    assert_eq!(text.matches("/usr/bin/copal").count(), 1);
    let file = bin.join("rollback-health");
    fs::write(&file, text.replace("/usr/bin/copal", copal.to_str().unwrap())).unwrap();
    fs::set_permissions(&file, fs::metadata(shim()).unwrap().permissions()).unwrap();
    file
}

fn run(file: &Path, shell: &[&str], during_update: Option<&str>) -> (i32, Vec<String>, u32) {
    let mut command = match shell {
        [] => Command::new(file),
        [shell, rest @ ..] => {
            let mut command = Command::new(shell);
            command.args(rest).arg(file);
            command
        }
    };
    command.env_remove("DURING_UPDATE").envs(during_update.map(|v| ("DURING_UPDATE", v)));
    let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    (out.status.code().unwrap(), said.split_terminator('|').map(str::to_owned).collect(), pid)
}

#[test]
fn it_hands_over_two_numbers_and_everything_else() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    let file = installed(dir.path());
    for shell in [&[][..], &["/bin/sh"], &["dash"], &["bash"], &["busybox", "sh"]] {
        for (set, seen) in [(None, "unset"), (Some("1"), "1")] {
            let (code, said, pid) = run(&file, shell, set);
            // In its place: systemd takes the status texts of that process alone.
            assert_eq!(said, ["rollback-health", "60", "15", seen, &pid.to_string()], "{shell:?}");
            assert_eq!(code, 7, "{shell:?}");
        }
    }
}

#[test]
fn the_edit_of_the_test_suite_works() {
    let dir = tempfile::tempdir().unwrap();
    let file = installed(dir.path());
    // As in meta-balena, tests/suites/hup: the file is looked for by its path, and edited in place.
    let edit = r#"sed -i -e "s/COUNT=.*/COUNT=3/g" -e "s/TIMEOUT=.*/TIMEOUT=10/g" $(find . | grep "bin/rollback-health")"#;
    let edited = Command::new("sh").arg("-c").arg(edit).current_dir(dir.path()).status().unwrap();
    assert!(edited.success());
    let (_, said, _) = run(&file, &[], None);
    assert_eq!(said[..3], ["rollback-health", "10", "3"]);
    assert_eq!(fs::read_to_string(&file).unwrap().lines().filter(|l| l.contains("COUNT=")).count(), 1);
}

#[test]
fn the_two_lines_are_literal_and_stand_nowhere_else() {
    let text = fs::read_to_string(shim()).unwrap();
    for (line, word) in [("TIMEOUT=60", "TIMEOUT="), ("COUNT=15", "COUNT=")] {
        assert_eq!(text.lines().filter(|l| *l == line).count(), 1, "{line}");
        assert_eq!(text.matches(word).count(), 1, "{word}");
    }
    assert!(text.starts_with("#!/bin/sh\n"), "systemd runs it by that");
    assert_eq!(fs::metadata(shim()).unwrap().permissions().mode() & 0o111, 0o111);
    // Whatever else has this in its path would be edited, too.
    let names = copal::names::applets().map(|a| a.name);
    assert_eq!(names.filter(|n| n.starts_with("rollback-health")).count(), 1);
    // The numbers are copal's own defaults, which it takes for nothing said.
    let help =
        Command::new(env!("CARGO_BIN_EXE_copal")).args(["rollback", "health", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("or 60]") && help.contains("or 15]"), "{help}");
}
