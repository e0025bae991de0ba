//! What a person who calls it wrongly, or without the rights, is told.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::kit::needs::{is_root, needs};
use crate::names::{code, copal, stderr, stdout};

#[test]
fn a_missing_verb_is_named_with_those_that_there_are() {
    for (name, verbs) in
        [("rollback", &["health", "mark-good", "now"][..]), ("bootloader", &["show", "write"])]
    {
        let o = copal(&[name]);
        let text = stderr(&o);
        assert_eq!((code(&o), text.lines().count()), (2, 1), "{text}");
        assert!(text.contains("[usage]") && text.contains(&format!("copal help {name}")), "{text}");
        for verb in verbs {
            assert!(text.contains(verb), "{verb}: {text}");
        }
    }
}

/// `copal` as a user without any rights, in a place where that user can run it. That user may write to `/run`, as in some containers: no refusal
/// may depend on the mode of a directory.
fn as_nobody(dir: &tempfile::TempDir, args: &[&str]) -> (i32, String) {
    let program = dir.path().join("copal");
    if !program.exists() {
        std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        // By another program: one that a test starts meanwhile would inherit a file that is open to be written, and it could not be started.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_copal")).arg(&program).status().unwrap();
        assert!(copied.success());
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c"]).current_dir("/");
    command.arg("mount -t tmpfs -o mode=1777 run /run && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" \"$@\"");
    let o = command.arg(program).args(args).output().unwrap();
    (code(&o), stderr(&o))
}

#[test]
fn an_ordinary_user_is_told_to_be_root() {
    needs!(is_root);
    let dir = tempfile::tempdir().unwrap();
    for line in [
        "update --image a:1",
        "update --no-daemon --file /nothing",
        "rollback now",
        "rollback mark-good",
        "rollback tests",
        "rollback stop",
        "rollback boot-check",
        "bootloader protect",
        "hooks",
        "reboot",
        "daemon",
    ] {
        let (status, text) = as_nobody(&dir, &line.split(' ').collect::<Vec<_>>());
        assert_eq!((status, text.lines().count()), (3, 1), "{line}: {text}");
        assert!(text.contains("[not-root]") && text.contains("sudo"), "{line}: {text}");
    }
    // What only reads.
    for line in ["status", "hooks --list", "rollback check-version", "bootloader show"] {
        let (_, text) = as_nobody(&dir, &line.split(' ').collect::<Vec<_>>());
        assert!(!text.contains("[not-root]"), "{line}: {text}");
    }
    // The legacy name has its own exit codes.
    let (status, text) = as_nobody(&dir, &["hostapp-update", "-i", "a:1"]);
    assert!(status == 1 && text.contains("[not-root]") && text.contains("sudo"), "{text}");
}

#[test]
fn the_legacy_updater_helps_and_refuses_what_it_does_not_know() {
    for line in [&["--help"][..], &["-r", "--help"], &["-f", "/nothing", "--help"]] {
        let o = copal(&[&["hostapp-update"], line].concat());
        assert_eq!((code(&o), stderr(&o).as_str()), (0, ""), "{line:?}");
        for option in ["-f, --file FILE", "-i, --image", "-r, ", "-n, ", "-x, ", "--force", "--no-daemon"] {
            assert!(stdout(&o).contains(option), "{option}: {}", stdout(&o));
        }
    }
    for line in [&["-h"][..], &["--helpme"], &["--help=1"]] {
        let o = copal(&[&["hostapp-update"], line].concat());
        assert_eq!((code(&o), stdout(&o).as_str()), (2, ""), "{line:?}");
    }
}

#[test]
fn an_image_and_its_target_need_no_options() {
    let dir = tempfile::tempdir().unwrap();
    let (image, target) = (dir.path().join("os.img"), dir.path().join("disk.img"));
    let (image, target) = (image.to_str().unwrap(), target.to_str().unwrap());
    std::fs::write(image, vec![7; 2 << 20]).unwrap();
    for line in [
        &["flash", "--force-raw", image, target][..],
        &["flash", image, target, "--force-raw"],
        &["flash", image, "--force-raw", "--target", target],
        &["flash", "--force-raw", "--image", image, target],
    ] {
        let o = copal(line);
        assert_eq!(code(&o), 0, "{line:?}: {}", stderr(&o));
        assert_eq!(std::fs::read(target).unwrap(), std::fs::read(image).unwrap(), "{line:?}");
        std::fs::remove_file(target).unwrap();
    }
    std::fs::write(target, std::fs::read(image).unwrap()).unwrap();
    for line in [&["verify", image, target][..], &["verify", image, "--target", target]] {
        let o = copal(line);
        assert_eq!(code(&o), 0, "{line:?}: {}", stderr(&o));
    }
    std::fs::remove_file(target).unwrap();
    // Twice the same thing, and one thing too many.
    for line in [
        &["flash", image, target, "--image", image][..],
        &["flash", image, target, "--target", target],
        &["flash", "--image", image, "--target", target, target],
        &["flash", image, target, "x"],
        &["verify", image, target, "--image", image],
        &["verify", image],
        &["bootloader", "write", image, target, "--target", target],
        &["bootloader", "write", image],
        &["bootloader", "show", image],
    ] {
        let o = copal(line);
        assert_eq!((code(&o), stdout(&o).as_str()), (2, ""), "{line:?}: {}", stderr(&o));
        assert!(!std::path::Path::new(target).exists());
    }
}

#[test]
fn a_bare_flash_names_what_it_needs() {
    let root = tempfile::tempdir().unwrap();
    let o = copal(&["flash", "--root", root.path().to_str().unwrap()]);
    let text = stderr(&o);
    assert!(code(&o) == 3 && text.contains("[conf-missing]") && text.contains("IMAGE TARGET"), "{text}");
}

#[test]
fn an_image_or_a_target_alone_is_told_which_option_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let image = root.path().join("os.img");
    std::fs::write(&image, "x").unwrap();
    let (image, root) = (image.to_str().unwrap(), root.path().to_str().unwrap());
    for (line, missing) in [
        (&["--image", image][..], "--target"),
        (&[image], "--target"),
        (&["--plan", image], "--target"),
        (&["--image-only", image], "--target"),
        (&["--target", image], "--image"),
    ] {
        let o = copal(&[&["flash", "--root", root], line].concat());
        let text = stderr(&o);
        assert_eq!((code(&o), text.lines().count()), (2, 1), "{line:?}: {text}");
        assert!(
            text.contains(&format!("no {missing} is given")) && text.contains("[usage]"),
            "{line:?}: {text}"
        );
        assert!(!text.contains("resin-init-flasher.conf"), "{line:?}: {text}");
    }
}

#[test]
fn every_code_is_explained_and_an_unknown_one_gets_the_nearest() {
    use copal::error::Code;
    for each in Code::ALL {
        let (text, json) = (copal(&["explain", each.as_str()]), copal(&["explain", each.as_str(), "--json"]));
        let last: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
        let found = &last["explain"][0];
        assert_eq!(
            (code(&text), &found["code"], &found["remedy"]),
            (0, &each.as_str().into(), &each.remedy().into())
        );
        let exits = found["exit_codes"].as_array().unwrap();
        for exit in exits {
            assert!(stdout(&text).contains(&format!("{}: ", exit["exit"])), "{each}: {}", stdout(&text));
        }
        assert!(!exits.is_empty() && stdout(&text).split_whitespace().count() > 10, "{each}");
    }
    for (word, nearest) in [
        ("image-damagd", "nearest is `image-damaged`; "),
        ("bussy", "nearest is `busy`; "),
        ("raid", "nearest is `target-raid-member`; "),
        ("qqqqqqqq", "; `copal explain` lists all codes"),
    ] {
        let o = copal(&["explain", word]);
        let text = stderr(&o);
        assert_eq!((code(&o), stdout(&o).as_str(), text.lines().count()), (2, "", 1), "{text}");
        assert!(text.contains(&format!("`{word}` [usage]; ")) && text.contains(nearest), "{text}");
    }
    assert!(stdout(&copal(&["help"])).contains("copal explain CODE"));
}

#[test]
fn a_release_that_does_not_exist_is_what_the_doctor_names_off_a_device() {
    let o = copal(&["doctor", "--update", "/no/such/release"]);
    let text = stderr(&o);
    assert!(code(&o) == 3 && text.contains("[image-missing]") && text.contains("/no/such/release"), "{text}");
}
