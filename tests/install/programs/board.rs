//! The board's own programs.

use std::path::Path;
use std::time::{Duration, Instant};

use copal::config::paths::Paths;
use copal::error::{Code, Effect, Error};
use copal::install::board::{Board, Environment};

use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::log::logged;
use crate::kit::needs::test_name;
use crate::kit::process::{HANG, Root, runs, soon};

const INIT: &str = "/usr/bin/resin-init-board";
const FLASHER: &str = "/usr/bin/resin-init-flasher-board";

fn environment(root: &Root) -> Environment {
    Environment::new(&Paths::new(root.path()), &root.at("/mnt/boottmp/config.json"))
        .with_target(Path::new("/dev/md/balena"))
}

fn board(root: &Root) -> Board {
    Board::new(environment(root), None)
}

fn text(e: &Error) -> String {
    e.to_string()
}

#[test]
fn without_programs_there_is_nothing_to_do() {
    let board = board(&Root::new());
    board.check().unwrap();
    board.init_board().unwrap();
    board.flasher_board().unwrap();
    assert!(!board.has_flasher_program());
}

#[test]
fn output_is_logged_line_by_line() {
    let root = Root::new();
    root.program(INIT, "#!/bin/sh\necho one\necho two >&2\nprintf 'a\\033[2Jb'\n");
    let (result, log) = logged(|| board(&root).init_board());
    result.unwrap();
    assert_eq!(
        log,
        [
            "INFO running /usr/bin/resin-init-board",
            "INFO resin-init-board: one",
            "INFO resin-init-board: two",
            "INFO resin-init-board: a\u{1b}[2Jb",
        ]
    );
}

#[test]
fn environment_is_as_documented() {
    let root = Root::new();
    // No interpreter: some boards ship them so, with bash in them.
    root.program(FLASHER, "[[ 1 ]] || exit 9\nfor v in \"${!BALENA_@}\" CONFIG_PATH \"${!EXTERNAL_@}\" \"${!INTERNAL_@}\" internal_dev; do echo \"$v=${!v}\"; done\ncat; set -u; [[ -z ${CRYPT+x} ]] && echo plain\n");
    let (result, log) = logged(|| board(&root).flasher_board());
    result.unwrap();
    let top = root.path().display();
    let expected = [
        format!("BALENA_BOOT_MOUNTPOINT={top}/mnt/boot"),
        format!("CONFIG_PATH={top}/mnt/boottmp/config.json"),
        format!("EXTERNAL_DEVICE_BOOT_PART_MOUNTPOINT={top}/mnt/boot"),
        format!("INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT={top}/tmp/internal_boot"),
        "internal_dev=/dev/md/balena".to_owned(),
        "plain".to_owned(),
    ];
    assert_eq!(log[1..], expected.map(|line| format!("INFO resin-init-flasher-board: {line}")));
}

/// In a process of its own, whose environment has `CRYPT`.
#[test]
fn encryption_is_never_announced_by_accident() {
    if !is_alone() {
        let strange = [("CRYPT", "1"), ("BASH_ENV", "/no/such/file"), ("SHELLOPTS", "xtrace")];
        in_own_process(test_name!(), &strange);
        return;
    }
    assert_eq!(std::env::var("CRYPT").as_deref(), Ok("1"));
    let root = Root::new();
    root.program(INIT, "#!/bin/sh\n[ -z \"${CRYPT+x}\" ]\n");
    board(&root).init_board().unwrap();
    root.program(
        "/usr/libexec/balena-init-flasher-secureboot",
        "secureboot_setup() { [ \"$CRYPT\" = 0 ] && ! env | grep CRYPT= && return 1; }\n",
    );
    let mut plugin =
        copal::install::plugin::Plugin::start(&environment(&root), None, Duration::from_secs(300)).unwrap();
    plugin.secureboot_setup(false).unwrap();
}

#[test]
fn a_failure_names_program_end_and_last_words() {
    let root = Root::new();
    root.program(INIT, "echo working\necho 'no EEPROM found'\necho\nexit 3\n");
    let e = board(&root).init_board().unwrap_err();
    assert_eq!((e.code(), e.effect(), e.subject()), (Code::BoardProgramFailed, Effect::Refused, Some(INIT)));
    assert_eq!(
        e.message(),
        "the board's program failed: /usr/bin/resin-init-board: it ended with status 3, after it said: no EEPROM found"
    );

    root.program(FLASHER, "#!/bin/bash\nkill -SEGV $$\n");
    let e = board(&root).flasher_board().unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BoardProgramFailed, Effect::Written));
    assert!(text(&e).contains("it was ended by SIGSEGV [board-program-failed]"), "{e}");
}

#[test]
fn what_cannot_run_is_found_before_the_disk_is_written() {
    let root = Root::new();
    root.program(FLASHER, "#!/no/such/python\n");
    let e = board(&root).check().unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BoardProgramFailed, Effect::Refused));
    assert!(text(&e).contains("its interpreter /no/such/python is missing"), "{e}");

    let root = Root::new();
    std::fs::create_dir_all(root.at("/usr/bin")).unwrap();
    std::os::unix::fs::symlink("gone", root.at(INIT)).unwrap();
    assert!(
        text(&board(&root).check().unwrap_err())
            .contains("cannot run /usr/bin/resin-init-board: No such file")
    );
    assert!(board(&root).init_board().is_err());
}

#[test]
fn silence_is_warned_about_and_forgiven() {
    let root = Root::new();
    root.program(FLASHER, "sleep 1\n");
    let (result, log) = logged(|| board(&root).warn_after(Duration::from_millis(300)).flasher_board());
    result.unwrap();
    let warnings = log.iter().filter(|l| {
        *l == "WARN /usr/bin/resin-init-flasher-board has been silent for 0 min; copal still waits for it"
    });
    assert!(warnings.count() >= 2, "{log:?}");
}

#[test]
fn only_a_configured_limit_ends_it_with_all_it_started() {
    let root = Root::new();
    root.program(FLASHER, &format!("sleep 600 & echo $! >{}\nwait\n", root.at("pid").display()));
    let board = Board::new(environment(&root), Some(Duration::from_millis(1500)));
    let began = Instant::now();
    let e = board.flasher_board().unwrap_err();
    assert!(began.elapsed() < HANG);
    assert!(text(&e).contains("it was ended, having taken longer than 1.5 s"), "{e}");
    assert!(soon(|| !runs(&root.read("pid"))));
}

#[test]
fn garbage_and_remaining_children_are_no_failure() {
    let root = Root::new();
    let pid = root.at("pid");
    root.program(
        FLASHER,
        &format!("head -c 100000 /dev/urandom\nsleep 600 & echo $! >{}\necho; echo end\n", pid.display()),
    );
    let began = Instant::now();
    let (result, log) = logged(|| board(&root).flasher_board());
    result.unwrap();
    assert!(began.elapsed() < HANG);
    assert_eq!(log.last().unwrap(), "INFO resin-init-flasher-board: end");
    let pid = root.read("pid");
    assert!(runs(&pid), "a daemon may stay");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
}
