//! The file by which a hook that is part of copal is installed: which copal it starts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::needs::{needs, tools};
use crate::support::{COPAL, STAND_IN, Site, clean, program};

const TEMPLATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/hook");

/// What stands for copal: tells by which path it was started, and with what.
const TEACHER: &str = "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\" >>\"$OUT\"\n";

const SHELLS: [&[&str]; 4] = [&["dash"], &["bash"], &["bash", "--posix"], &["busybox", "sh"]];

/// A release below `top`, whose copal is `TEACHER`; its hook directory.
fn release(top: &Path) -> PathBuf {
    program(&top.join("usr/bin/copal"), TEACHER, "755");
    let hooks = top.join("etc/hostapp-update-hooks.d");
    std::fs::create_dir_all(&hooks).unwrap();
    hooks
}

fn install(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let status = Command::new("install").args(["-m", "0755", TEMPLATE]).arg(path).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_hook_is_executed_by_the_copal_of_its_own_release() {
    let site = Site::new();
    // With a name that could be mistaken, and blanks.
    let top = site.at("etc/hostapp-update-hooks.d/new root");
    let hooks = release(&top);
    for name in ["1-bootfiles", "75-supervisor-db/75-forward_supervisor-db"] {
        install(&hooks.join(name));
    }
    let copal = top.canonicalize().unwrap().join("usr/bin/copal").display().to_string();
    let expected = format!("{copal}|1-bootfiles|{copal}|75-forward_supervisor-db|");
    let runners: [&[&OsStr]; 1] = [&[COPAL.as_ref(), "hostapp-update-hooks-v2".as_ref()]];
    let out = site.at("told");
    for runner in runners {
        let run =
            clean(runner[0]).args(&runner[1..]).arg("--dir").arg(&hooks).env("OUT", &out).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(site.read("told"), expected);
        std::fs::remove_file(&out).unwrap();
    }

    // A runner in shell, which knows no blanks.
    let hooks = release(&site.at("new"));
    install(&hooks.join("1-bootfiles"));
    let run = clean(STAND_IN).arg("--dir").arg(&hooks).env("OUT", &out).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let copal = site.path().canonicalize().unwrap().join("new/usr/bin/copal");
    assert_eq!(site.read("told"), format!("{}|1-bootfiles|", copal.display()));
}

#[test]
fn every_shell_of_the_field_runs_it() {
    needs!(tools);
    let site = Site::new();
    let hooks = release(&site.at("new"));
    install(&hooks.join("80-rollback"));
    let copal = site.path().canonicalize().unwrap().join("new/usr/bin/copal").display().to_string();
    for shell in SHELLS {
        for (folder, hook) in [
            (site.at("/"), hooks.join("80-rollback")),
            (hooks.clone(), "./80-rollback".into()),
            (hooks.clone(), "80-rollback".into()),
            (site.at("new/etc"), "hostapp-update-hooks.d/80-rollback".into()),
        ] {
            let out = site.at("told");
            drop(std::fs::remove_file(&out));
            let run = clean(shell[0])
                .args(&shell[1..])
                .arg(&hook)
                .args(["a b", ""])
                .current_dir(folder)
                .env("CDPATH", "/usr")
                .env("OUT", &out)
                .output()
                .unwrap();
            assert!(run.status.success(), "{shell:?}: {}", String::from_utf8_lossy(&run.stderr));
            assert_eq!(site.read("told"), format!("{copal}|80-rollback|a b||"), "{shell:?} {hook:?}");
        }
    }
}

#[test]
fn a_release_without_copal_is_not_served_by_another_one() {
    needs!(tools);
    let site = Site::new();
    let hooks = release(&site.at("new"));
    install(&hooks.join("99-resin-uboot"));
    std::fs::remove_file(site.at("new/usr/bin/copal")).unwrap();
    for shell in SHELLS {
        let run = clean(shell[0]).args(&shell[1..]).arg(hooks.join("99-resin-uboot")).output().unwrap();
        assert_eq!(run.status.code(), Some(127), "{shell:?}");
        assert!(String::from_utf8_lossy(&run.stderr).contains("/new/usr/bin/copal"), "{run:?}");
    }
    // Anywhere else it is the running system's.
    install(&site.at("elsewhere/99-resin-uboot"));
    let run = clean("dash").arg(site.at("elsewhere/99-resin-uboot")).output().unwrap();
    assert!(String::from_utf8_lossy(&run.stderr).contains(": /usr/bin/copal"), "{run:?}");
}

#[test]
fn the_real_program_runs_a_hook_by_its_own_name() {
    let site = Site::new();
    let hooks = release(&site.at("new"));
    std::fs::remove_file(site.at("new/usr/bin/copal")).unwrap();
    std::os::unix::fs::symlink(COPAL, site.at("new/usr/bin/copal")).unwrap();
    install(&hooks.join("hostapp-update-hooks"));
    let run = clean("dash").arg(hooks.join("hostapp-update-hooks")).arg("--help").output().unwrap();
    assert!(run.status.success() && run.stdout.starts_with(b"Usage: hostapp-update-hooks"), "{run:?}");
}
