//! The shell file that recipes fill in and boards install, with a stand-in for copal.

use crate::kit::needs::{needs, tools};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/1-bootfiles");

/// Says how it was called.
const STAND_IN: &str = "#!/bin/sh\n\
    echo \"args=$*\"\n\
    for v in NAME ROOT FINGERPRINT BLACKLIST PASSED_OVER; do eval \"echo \\\"$v=\\$COPAL_BOOTFILES_$v\\\"\"; done\n\
    echo \"update=$DURING_UPDATE crypt=${CRYPT-none} plain=$BALENA_NONENC_BOOT_MOUNTPOINT\"\n\
    sed 's/^/list=/'\n\
    exit 7\n";

/// A root with the hook installed as a board's recipe does it.
fn root(called: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let hook = dir.path().join("etc/hostapp-update-hooks.d").join(called);
    let copal = dir.path().join("usr/bin/copal");
    for file in [&hook, &copal] {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    std::fs::copy(SHIM, &hook).unwrap();
    let fill = "s:@BALENA_BOOT_FINGERPRINT@:balenaos.fingerprint:g;s:@BALENA_BOOTFILES_BLACKLIST@:\t/config.json \t/a*:g";
    assert!(Command::new("sed").args(["-i", "-e", fill]).arg(&hook).status().unwrap().success());
    std::fs::write(&copal, STAND_IN).unwrap();
    for file in [&hook, &copal] {
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    for file in ["resin-boot/zImage", "resin-boot/EFI/a b*.efi", "resin-boot/start.elf"] {
        let file = dir.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "x").unwrap();
    }
    (dir, hook)
}

fn helper(root: &Path, name: &str, text: &str) {
    let file = root.join("usr").join(name);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

fn run(shell: &[&str], hook: &Path) -> (Output, Vec<String>) {
    let out = Command::new(shell[0])
        .args(&shell[1..])
        .arg(hook)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("DURING_UPDATE", "1")
        .env("CRYPT", "1")
        .output()
        .unwrap();
    let mut lines: Vec<String> =
        String::from_utf8(out.stdout.clone()).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    (out, lines)
}

const SHELLS: [&[&str]; 3] = [&["dash"], &["bash"], &["busybox", "sh"]];

/// What boards define, with what it calls in `os-helpers-fs`; it has other ideas of word splitting, and it reads and speaks.
const DO_SKIP: &str = "do_skip() { cat; echo thinking; IFS=:; skip_nonencrypted_boot_files \"$1\"; }\n";
const SPLIT: &str = "skip_nonencrypted_boot_files() {\n\
    IFS=' '\n\
    for b in zImage start.elf; do\n\
    if [ \"$b\" = \"$(basename \"$1\")\" ]; then test \"$(basename \"$0\")\" = 1-bootfiles; return; fi\n\
    done\n\
    test \"$(basename \"$0\")\" != 1-bootfiles\n}\n";

#[test]
fn what_a_board_decides_is_handed_on() {
    needs!(tools);
    for shell in SHELLS {
        for (called, passed_over) in
            [("1-bootfiles", &["/start.elf", "/zImage"][..]), ("2-rpifiles", &["/EFI/a b*.efi"])]
        {
            let (dir, hook) = root(called);
            helper(dir.path(), "libexec/os-helpers-sb", DO_SKIP);
            helper(dir.path(), "libexec/os-helpers-fs", SPLIT);
            helper(dir.path(), "sbin/balena-config-defaults", "BALENA_NONENC_BOOT_MOUNTPOINT=/mnt/rpi\n");
            let (out, lines) = run(shell, &hook);
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(7), "{shell:?} {called}: {text}");
            assert_eq!(text, "thinking\n".repeat(3), "{shell:?}");
            let own = hook.parent().unwrap().join("../..");
            let mut wanted = vec![
                "args=1-bootfiles".to_owned(),
                format!("NAME={called}"),
                format!("ROOT={}", own.display()),
                "FINGERPRINT=balenaos.fingerprint".into(),
                "BLACKLIST=\t/config.json \t/a*".into(),
                "PASSED_OVER=stdin".into(),
                "update=1 crypt=none plain=/mnt/rpi".into(),
                "list=".into(),
            ];
            wanted.extend(passed_over.iter().map(|p| format!("list={p}")));
            wanted.sort();
            assert_eq!(lines, wanted, "{shell:?} {called}");
        }
    }
}

#[test]
fn without_helpers_nothing_is_passed_over() {
    needs!(tools);
    for shell in SHELLS {
        let (_dir, hook) = root("1-bootfiles");
        let (out, lines) = run(shell, &hook);
        assert_eq!((out.status.code(), out.stderr.len()), (Some(7), 0), "{shell:?}");
        assert_eq!(lines.iter().filter(|l| l.starts_with("list=") && l.len() > 5).count(), 0, "{lines:?}");
        assert!(lines.contains(&"update=1 crypt=none plain=".to_owned()), "{lines:?}");
    }
}

/// If its own root has no copal, it calls the running system's copal. Here neither exists.
#[test]
fn a_root_without_copal_falls_back_to_the_running_system() {
    let (dir, hook) = root("1-bootfiles");
    std::fs::remove_file(dir.path().join("usr/bin/copal")).unwrap();
    let (out, lines) = run(&["dash"], &hook);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && lines.is_empty(), "{lines:?}");
    assert!(text.contains(" /usr/bin/copal") && !text.contains("../.."), "{text}");
}

/// Recipes look for these words, boards copy the file, shell runners look for a regular file that can be run.
#[test]
fn it_is_what_recipes_expect() {
    needs!(tools);
    let text = std::fs::read_to_string(SHIM).unwrap();
    let doc = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/hooks-bootfiles.md");
    let doc = std::fs::read_to_string(doc).unwrap();
    for word in ["@BALENA_BOOT_FINGERPRINT@", "@BALENA_BOOTFILES_BLACKLIST@"] {
        assert_eq!(text.matches(word).count(), 1, "{word}");
    }
    let meta = std::fs::symlink_metadata(SHIM).unwrap();
    assert!(meta.is_file() && meta.permissions().mode() & 0o111 == 0o111);
    for variable in copal::hooks::builtin::bootfiles::VARIABLES {
        assert!(text.contains(&format!("{variable}=")), "{variable}");
        assert!(doc.contains(&format!("| `{variable}` |")), "{variable}");
    }
    let out = Command::new("shellcheck").arg(SHIM).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
