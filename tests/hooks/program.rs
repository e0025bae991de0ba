//! `hostapp-update-hooks` and `copal hooks` as their callers see them.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::needs::{needs, tools};
use crate::support::{COPAL, Site, clean, soon};

fn legacy(site: &Site, args: &[&str]) -> Command {
    let mut command = clean(COPAL);
    command.arg("hostapp-update-hooks-v2").args(args).arg("--dir").arg(site.hooks());
    command
}

#[track_caller]
fn ends(out: &Output, code: i32) -> (String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

#[test]
fn nothing_that_the_caller_ignores_is_ignored_in_a_hook_and_its_boot_partition_is_not_theirs() {
    let site = Site::new();
    let text = "grep SigIgn: /proc/self/status\necho at $BALENA_BOOT_MOUNTPOINT, $BOOT_MOUNTPOINT\n";
    site.hook("1-x", &format!("#!/bin/sh\n{text}"));
    // One that a shell runs.
    site.hook("2-x", text);
    std::fs::set_permissions(site.hooks().join("2-x"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = Command::new("sh");
    // As nohup, a job in the background, and a program that looks after its pipes itself.
    command.args(["-c", "trap '' HUP INT QUIT PIPE; exec \"$0\" \"$@\""]);
    command.env("BALENA_BOOT_MOUNTPOINT", "/theirs").env_remove("BOOT_MOUNTPOINT");
    let ours = legacy(&site, &[]);
    command.arg(ours.get_program()).args(ours.get_args());
    ours.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(command.env(name, value)),
        None => drop(command.env_remove(name)),
    });
    let (_, stderr) = ends(&command.output().unwrap(), 0);
    for name in ["1-x", "2-x"] {
        let said = |words: &str| {
            stderr
                .lines()
                .find(|l| l.contains(&format!("{name}: {words}")))
                .unwrap_or_else(|| panic!("{stderr}"))
        };
        let ignored = said("SigIgn:").rsplit(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        assert_eq!(ignored & 0x7fff_ffff, 0, "{stderr}");
        assert!(said("at ").ends_with("at /mnt/boot,"), "{stderr}");
    }
}

#[test]
fn hooks_find_what_is_documented() {
    let site = Site::new();
    site.hook(
        "1-x",
        "#!/bin/sh\nexport | sed -n \"s/^export \\(DURING_UPDATE\\|HOOKS_DIR\\|CRYPT\\|OTHER\\|NOTIFY_SOCKET\\|FDSTORE\\|WATCHDOG_[A-Z]*\\|LISTEN_[A-Z]*\\)=/\\1=/p\" | tr -d \"'\"\nread -r x && exit 7\necho \"$# $0\"\n",
    );
    let hooks = site.hooks();
    let said = |change: &dyn Fn(&mut Command)| {
        let mut command = legacy(&site, &[]);
        command.env("HOOKS_DIR", "/inherited").env("CRYPT", "1").env("OTHER", "kept");
        command.env("NOTIFY_SOCKET", site.at("notify")).env("FDSTORE", "4");
        command.envs([("WATCHDOG_USEC", "9"), ("WATCHDOG_PID", "1")]);
        command.envs([("LISTEN_FDS", "1"), ("LISTEN_PID", "1"), ("LISTEN_FDNAMES", "x")]);
        change(&mut command);
        let (_, stderr) = ends(&command.output().unwrap(), 0);
        let own = |l: &str| l.strip_prefix("[hostapp-update-hooks-v2][INFO] 1-x: ").map(str::to_owned);
        stderr.lines().filter_map(own).collect::<Vec<_>>()
    };
    let expected = |value: &str| {
        let (dir, end) = (format!("HOOKS_DIR={}/", hooks.display()), format!("0 {}/1-x", hooks.display()));
        vec![format!("DURING_UPDATE={value}"), dir, "OTHER=kept".into(), end]
    };
    assert_eq!(said(&|_| ()), expected("0"));
    for (value, seen) in [("", "0"), ("1", "1"), ("0", "0"), ("yes", "yes")] {
        assert_eq!(
            said(&|c| {
                c.env("DURING_UPDATE", value);
            }),
            expected(seen),
            "{value:?}"
        );
    }
}

#[test]
fn the_exit_status_is_0_or_1_and_the_error_is_the_last_line() {
    let site = Site::new();
    site.tell(&[("1-x", 0), ("2/before", 3)]);
    ends(&legacy(&site, &[]).output().unwrap(), 0);
    let (stdout, stderr) = ends(&legacy(&site, &["-b"]).output().unwrap(), 1);
    assert_eq!(stdout, "");
    let last = stderr.lines().last().unwrap();
    let expected = "[hostapp-update-hooks-v2][ERROR] the before hook 2/before failed: it ended with status 3 [hook-failed]; ";
    assert!(last.starts_with(expected), "{stderr}");
}

#[test]
fn help_is_on_stdout_and_arguments_that_are_not_known_are_ignored() {
    let site = Site::new();
    site.tell(&[("1-x", 0)]);
    for flag in ["-h", "--help"] {
        let (stdout, stderr) = ends(&legacy(&site, &[flag]).output().unwrap(), 0);
        assert!(stdout.starts_with("Usage: hostapp-update-hooks") && stderr.is_empty(), "{stderr}");
    }
    assert!(site.told().is_empty());
    let (_, stderr) = ends(&legacy(&site, &["--what", "x"]).output().unwrap(), 0);
    for word in ["--what", "x"] {
        let line = format!("[hostapp-update-hooks-v2][WARN] ignoring the unknown argument '{word}'");
        assert!(stderr.lines().any(|l| l == line), "{stderr}");
    }
    assert_eq!(site.told(), ["1-x"]);
}

#[test]
fn without_its_directory_nothing_is_run() {
    for args in [&["--dir"][..], &["-b", "-d"], &["-d", ""], &["--dir="]] {
        let (_, stderr) = ends(&clean(COPAL).arg("hostapp-update-hooks").args(args).output().unwrap(), 2);
        assert!(stderr.contains("--dir needs a directory [usage]"), "{stderr}");
    }
    let site = Site::new();
    site.tell(&[("1-x", 0)]);
    let mut wrong = legacy(&site, &[]);
    wrong.env("COPAL_HOOK_TIMEOUT", "soon");
    ends(&wrong.output().unwrap(), 2);
    assert!(site.told().is_empty());
}

#[test]
fn a_limit_is_taken_from_the_environment() {
    let site = Site::new();
    site.hook("1-x", "#!/bin/sh\nexec sleep 60\n");
    let mut command = legacy(&site, &[]);
    let (_, stderr) = ends(&command.env("COPAL_HOOK_TIMEOUT", "1").output().unwrap(), 1);
    assert!(stderr.contains("longer than 1 s [hook-failed]"), "{stderr}");
}

#[test]
fn a_signal_lets_the_running_hook_end_and_starts_no_other() {
    needs!(tools);
    for signal in ["TERM", "INT", "HUP"] {
        let site = Site::new();
        site.hook("1-x", "#!/bin/sh\n: >\"$HOOKS_DIR/../begun\"\nsleep 0.5\n: >\"$HOOKS_DIR/../done\"\n");
        site.tell(&[("2-x", 0), ("3/cleanup", 0)]);
        let mut child = legacy(&site, &[]).stderr(Stdio::piped()).spawn().unwrap();
        assert!(soon(|| site.at("begun").exists() || child.try_wait().unwrap().is_some()));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        let (_, stderr) = ends(&out, 1);
        assert!(stderr.contains(&format!("interrupted by SIG{signal} before 2-x [interrupted]")), "{stderr}");
        assert!(site.at("done").exists() && site.told().is_empty());
    }
}

#[test]
fn a_signal_during_the_last_hook_is_obeyed_after_it() {
    let site = Site::new();
    site.hook("1-x", "#!/bin/sh\nkill -TERM $PPID\nsleep 0.3\n: >\"$HOOKS_DIR/../done\"\n");
    let out = legacy(&site, &[]).output().unwrap();
    assert_eq!(out.status.signal(), Some(15), "{out:?}");
    assert!(site.at("done").exists());
}

#[test]
fn systemd_hears_which_hook_runs() {
    let site = Site::new();
    site.tell(&[("1-x", 0), ("2-x/forward", 0)]);
    let socket = UnixDatagram::bind(site.at("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    ends(&legacy(&site, &[]).env("NOTIFY_SOCKET", site.at("notify")).output().unwrap(), 0);
    let mut heard = Vec::new();
    for _ in 0..2 {
        let mut buffer = [0; 512];
        let n = socket.recv(&mut buffer).unwrap();
        heard.push(String::from_utf8(buffer[..n].to_vec()).unwrap());
    }
    assert_eq!(heard, ["STATUS=forward hook 1-x\n", "STATUS=forward hook 2-x/forward\n"]);
}

#[test]
fn the_verb_lists_and_runs() {
    let site = Site::new();
    site.tell(&[("1-x", 0), ("2/before", 0), ("3/after", 0), ("4/commit", 5)]);
    let path = |name: &str| site.hooks().join(name).display().to_string();
    let (stdout, stderr) = ends(&site.copal(&["--full", "--list"]).output().unwrap(), 0);
    assert_eq!(
        (stdout, stderr),
        (format!("{}\n{}\n{}\n", path("2/before"), path("1-x"), path("3/after")), String::new())
    );
    let result = |args: &[&str], code| -> Value {
        let (stdout, stderr) = ends(&site.copal(args).output().unwrap(), code);
        assert_eq!((stdout.lines().count(), stderr.as_str()), (1, ""));
        serde_json::from_str(&stdout).unwrap()
    };
    let listed = result(&["--list", "--json", "--before", "--after"], 0);
    let entry = |phase: &str, name: &str| json!({ "phase": phase, "name": name, "path": path(name) });
    assert_eq!(listed["hooks"], json!([entry("before", "2/before"), entry("after", "3/after")]));
    assert!(site.told().is_empty());
    let ran = result(&["--json"], 0);
    assert_eq!((&ran["hooks"][0]["name"], ran["hooks"].as_array().unwrap().len()), (&"1-x".into(), 1));
    assert!(ran["hooks"][0]["seconds"].as_f64().unwrap() < 20.0);
    assert_eq!(site.told(), ["1-x"]);
    let (stdout, _) = ends(&site.copal(&["--full"]).output().unwrap(), 0);
    assert_eq!(stdout, "3 hooks were run\n");
    let mut failing = site.copal(&["--commit", "--json"]);
    let (stdout, stderr) = ends(&failing.output().unwrap(), 4);
    let e: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&e["code"], &e["object"], &e["effect"]),
        (&"hook-failed".into(), &"4/commit".into(), &"written".into())
    );
    assert!(stderr.contains("4/commit: it ended with status 5"), "{stderr}");
    for wrong in [&["--full", "--before"][..], &["--what"], &["x"]] {
        assert!(ends(&site.copal(wrong).output().unwrap(), 2).1.contains("[usage]"));
    }
}
