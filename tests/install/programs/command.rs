//! `sys::command` with real programs.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use copal::sys::command::{self, Command, End, Event, MAX_LINE_BYTES, Said, Stream};

use crate::kit::needs::{needs, tools};
use crate::kit::process::{HANG, Root, runs, soon};

fn sh(script: &str) -> Command {
    Command::new("sh").args(["-c", script])
}

/// Its end and its lines; those of standard error with `!` before them.
fn run(command: Command) -> (End, Vec<String>) {
    let mut lines = Vec::new();
    let end = command.run(|said| match said {
        Said::Line(Stream::Out, line) => lines.push(line.to_owned()),
        Said::Line(Stream::Err, line) => lines.push(format!("!{line}")),
        Said::Nothing(_) => {}
    });
    (end.unwrap(), lines)
}

#[test]
fn lines_come_in_their_order_and_the_end_is_reported() {
    let (end, lines) = run(sh("echo a; echo b >&2; printf c; exit 3"));
    assert_eq!((end, lines.as_slice()), (End::Status(3), ["a", "b", "c"].map(String::from).as_slice()));
    assert_eq!(end.to_string(), "it ended with status 3");

    let (end, mut lines) = run(sh("echo a; echo b >&2").apart());
    lines.sort();
    assert_eq!((end, lines.as_slice()), (End::Status(0), ["!b", "a"].map(String::from).as_slice()));

    let (end, _) = run(sh("kill -9 $$"));
    assert_eq!((end, end.to_string().as_str()), (End::Signal(9), "it was ended by SIGKILL"));
}

#[test]
fn input_is_empty_and_the_group_its_own() {
    let (end, lines) = run(sh("cat; echo $$; ps -o pgid= -p $$ | tr -d ' '"));
    assert!(end.is_success());
    assert_eq!(lines[0], lines[1]);
}

#[test]
fn environment_is_inherited_but_for_what_is_named() {
    let (_, lines) = run(sh("echo $ADDED; echo ${HOME-none}; echo ${PATH:+path}")
        .envs([("ADDED", "x y")])
        .without("HOME"));
    assert_eq!(lines, ["x y", "none", "path"]);
}

#[test]
fn output_of_any_size_and_kind_is_taken() {
    let (end, lines) =
        run(sh("head -c 300000 /dev/zero | tr '\\0' x; echo; head -c 200000 /dev/urandom; echo end"));
    assert!(end.is_success());
    assert!(lines.iter().all(|l| l.len() <= 3 * MAX_LINE_BYTES));
    assert_eq!(
        lines.iter().take_while(|l| l.bytes().all(|b| b == b'x')).map(String::len).sum::<usize>(),
        300_000
    );
    assert!(lines.last().unwrap().ends_with("end"));
}

#[test]
fn a_child_that_outlives_its_parent_does_not_hold_us_and_lives_on() {
    let root = Root::new();
    let pid = root.at("pid");
    let script = format!(
        "(for i in $(seq 10000); do echo tick; sleep 0.1; done) & echo $! >{}; echo done",
        pid.display()
    );
    let began = Instant::now();
    let (end, lines) = run(sh(&script));
    let took = began.elapsed();
    assert!(end.is_success());
    assert!(took >= Duration::from_secs(2) && took < HANG, "{took:?}");
    assert!(lines.contains(&"done".to_owned()) && lines.contains(&"tick".to_owned()), "{lines:?}");
    // It goes on to write, which must not kill it.
    std::thread::sleep(Duration::from_millis(500));
    let pid = root.read("pid");
    assert!(runs(&pid));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
}

#[test]
fn what_takes_too_long_is_ended_with_all_it_started() {
    let root = Root::new();
    let pid = root.at("pid");
    // Both of them pay no attention to SIGTERM; the leader goes after SIGKILL only.
    let script = format!(
        "trap '' TERM; sleep 1000 & echo $! >{}; echo begun; while :; do sleep 1; done",
        pid.display()
    );
    let limit = Duration::from_millis(1500);
    let began = Instant::now();
    let (end, lines) = run(sh(&script).limit(Some(limit)));
    let took = began.elapsed();
    assert_eq!((end, lines.as_slice()), (End::TooLong(limit), ["begun".to_owned()].as_slice()));
    assert!(took >= Duration::from_secs(5) && took < HANG, "{took:?}");
    let pid = root.read("pid");
    assert!(!pid.is_empty() && soon(|| !runs(&pid)), "{pid} lives");
    assert_eq!(end.to_string(), "it was ended, having taken longer than 1.5 s");
}

#[test]
fn a_program_that_handles_sigterm_may_clean_up() {
    let root = Root::new();
    let script =
        format!("trap 'echo bye; exit 7' TERM; sleep 60 & echo $! >{}; wait", root.at("pid").display());
    let (end, lines) = run(sh(&script).limit(Some(Duration::from_millis(1500))));
    assert!(matches!(end, End::TooLong(_)), "{end}");
    assert_eq!(lines, ["bye"]);
    assert!(soon(|| !runs(&root.read("pid"))));
}

#[test]
fn silence_is_reported_repeatedly_and_ends_with_a_byte() {
    let mut told = Vec::new();
    let script = "sleep 1.8; for i in $(seq 50); do printf .; sleep 0.1; done; echo";
    let end = sh(script).silence(Duration::from_millis(800)).run(|said| {
        if let Said::Nothing(time) = said {
            told.push(time.as_millis());
        }
    });
    assert!(end.unwrap().is_success());
    assert!(told.len() >= 2 && told[0] >= 800 && told[1] >= 1600, "{told:?}");
    // The dots are no lines, yet a sign of life.
    assert!(told.len() <= 5, "{told:?}");
}

#[test]
fn a_conversation_is_possible() {
    let mut running =
        sh("while read -r l; do echo \"<$l>\"; done; echo bye; exit 4").with_input().start().unwrap();
    running.say("one").unwrap();
    assert_eq!(running.next(None).unwrap(), Event::Line(Stream::Out, "<one>".to_owned()));
    assert_eq!(running.next(Some(Instant::now() + Duration::from_millis(50))).unwrap(), Event::Waited);
    running.hang_up();
    assert_eq!(running.next(None).unwrap(), Event::Line(Stream::Out, "bye".to_owned()));
    for _ in 0..2 {
        assert_eq!(running.next(None).unwrap(), Event::Ended(End::Status(4)));
    }
    assert!(running.say("two").is_err());
}

#[test]
fn one_that_is_dropped_is_killed() {
    let root = Root::new();
    let mut running = sh("echo $$; sleep 60 & echo $!; wait").start().unwrap();
    let Event::Line(_, leader) = running.next(None).unwrap() else { panic!() };
    let Event::Line(_, child) = running.next(None).unwrap() else { panic!() };
    drop(running);
    assert!(soon(|| !runs(&leader) && !runs(&child)));
    drop(root);
}

#[test]
fn a_script_without_interpreter_is_run_by_bash() {
    let root = Root::new();
    // `[[` and arrays are bash's own.
    let path =
        root.program("p", "a=(x y); [[ ${a[1]} == y ]] && echo \"$0 ${BASH_VERSION:+bash}\"\nexit 5\n");
    let (end, lines) = run(Command::script(&path).unwrap());
    assert_eq!((end, lines), (End::Status(5), vec![format!("{} bash", path.display())]));

    // Read only, as `bash FILE` did.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(run(Command::script(&path).unwrap()).0, End::Status(5));

    let empty = root.program("empty", "");
    assert!(run(Command::script(&empty).unwrap()).0.is_success());
}

#[test]
fn a_script_or_binary_that_names_its_own_is_run_by_the_kernel() {
    needs!(tools);
    let root = Root::new();
    let path = root.program("p", "#!/usr/bin/env python3\nprint('hello')\n");
    assert_eq!(run(Command::script(&path).unwrap()), (End::Status(0), vec!["hello".to_owned()]));
    let path = root.program("q", "#! /bin/sh -e\nfalse\necho no\n");
    assert_eq!(run(Command::script(&path).unwrap()), (End::Status(1), vec![]));
    let env = std::path::Path::new("/usr/bin/env");
    assert!(run(Command::script(env).unwrap()).1.iter().any(|l| l.starts_with("PATH=")));
}

#[test]
fn what_cannot_run_is_found_before() {
    let root = Root::new();
    let error = |path: &std::path::Path| {
        assert!(command::check_script(path).is_err() == Command::script(path).is_err());
        command::check_script(path).map(drop).unwrap_err().to_string()
    };
    assert!(error(&root.at("none")).contains("No such file"));
    std::fs::create_dir(root.at("folder")).unwrap();
    assert_eq!(error(&root.at("folder")), "it is not a plain file");
    let path = root.program("q", "#!/no/such/interpreter -x\n");
    assert_eq!(error(&path), "its interpreter /no/such/interpreter is missing");
    let path = root.program("r", "#!/bin/sh\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(error(&path), "it is not executable (chmod +x)");
    assert!(Command::new(root.at("none")).start().is_err());
}
