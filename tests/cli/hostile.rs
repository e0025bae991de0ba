//! Names with characters that control a terminal, forge a line, or hide: every verb prints them escaped.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Output;

use crate::kit::needs::{needs, tools};
use crate::kit::process::tool;
use crate::names::{copal, stdout};

/// ESC, BEL, a newline with a forged line, CSI of 8 bits, right-to-left override, a space without width.
const NAME: &str = "e\u{1b}[31mX\u{7}\ncopal: FORGED\u{9b}2J\u{202e}\u{200b}";

/// What none of the outputs may have.
const HIDDEN: [char; 5] = ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}', '\u{200b}'];

#[track_caller]
fn assert_escaped(call: &[&str], out: &Output) {
    for text in [&out.stdout, &out.stderr] {
        let text = str::from_utf8(text).unwrap_or_else(|_| panic!("{call:?}: not UTF-8"));
        assert!(!text.contains(HIDDEN), "{call:?}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("copal: FORGED")), "{call:?}: {text}");
    }
    assert!(!out.stdout.is_empty() || !out.stderr.is_empty(), "{call:?}");
}

#[test]
fn every_verb_escapes_names() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, target, link, missing) =
        (at(&format!("{NAME}.img")), at(&format!("{NAME}.disk")), at("link"), at(&format!("{NAME}.none")));
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let name = format!("2:{}", HIDDEN.iter().collect::<String>());
    tool(&["sgdisk", "-n", "1:2048:4095", "-n", "2:4096:6143", "-c", &name, &image]);
    fs::write(format!("{image}.sig"), b"x").unwrap();
    tool(&["sh", "-ec", "sha256sum <\"$1\" >\"$1.sha256\"", "sh", &image]);
    symlink(&target, &link).unwrap();
    let hooks = at("hooks");
    fs::create_dir_all(format!("{hooks}/0-{NAME}")).unwrap();
    fs::write(format!("{hooks}/0-{NAME}/forward"), "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(format!("{hooks}/0-{NAME}/forward"), Permissions::from_mode(0o755)).unwrap();
    let receipt = at(&format!("{NAME}.json"));

    let calls: Vec<Vec<&str>> = vec![
        vec!["flash", "--force-raw", "--plan", &image, &target],
        vec!["flash", "--force-raw", "--plan", &image, &link],
        vec!["flash", "--force-raw", "--receipt", &receipt, &image, &target],
        vec!["flash", "--force-raw", "--plan", &image, &target],
        vec!["flash", &image, &target],
        vec!["flash", &missing, &target],
        vec!["verify", "--image", &image, "--target", &target],
        vec!["verify", "--image", &missing, "--target", &target],
        vec!["info", &image],
        vec!["info", &missing],
        vec!["digest", &image],
        vec!["digest", &missing],
        vec!["bootloader", "show", "--image", &image, "--target", NAME],
        vec!["bootloader", "write", "--image", &missing, "--target", NAME],
        vec!["hooks", "--list", "--dir", &hooks],
        vec!["update", "--no-daemon", "--file", &missing],
        vec!["update", "--no-daemon", "--file", &image],
        vec!["doctor", "--update", &missing],
        vec!["status", "--root", &missing],
        vec!["explain", NAME],
        vec!["recover", "--passphrase-file", &missing],
        // The rest names nothing: its mistakes do.
        vec!["rollback", NAME],
        vec!["daemon", NAME],
        vec!["unlock", NAME],
        vec!["help", NAME],
        vec![NAME],
    ];
    for call in &calls {
        assert_escaped(call, &copal(call));
        let json = [call.as_slice(), &["--json"]].concat();
        assert_escaped(&json, &copal(&json));
    }
    // The JSON still says what the name is.
    let out = copal(&["info", "--json", &image]);
    let last: serde_json::Value = serde_json::from_str(stdout(&out).lines().last().unwrap()).unwrap();
    assert_eq!(last["info"]["path"], image);

    let help = stdout(&copal(&["help"]));
    let verbs =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for verb in verbs.map(|line| line.split_whitespace().next().unwrap()) {
        assert!(calls.iter().any(|call| call[0] == verb), "no call of {verb} is tried");
    }
}
