//! The log in a journal of the tests' own.

use std::collections::BTreeMap;
use std::io::{IoSliceMut, Read as _, Seek as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use copal::sys::log::{self, Voice, events};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::{child, is_child};
use crate::kit::process::HANG;

const LEGACY: Voice = Voice::Legacy("resin-init-flasher");

pub(crate) const ROOT: &str = "COPAL_TEST_ROOT";
pub(crate) const VOICE: &str = "COPAL_TEST_VOICE";

pub(crate) type Entry = BTreeMap<String, String>;

/// A root folder with a journal that reads when it is asked to.
pub(crate) struct Journal {
    root: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Journal {
    pub(crate) fn new() -> Journal {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("run/systemd/journal")).unwrap();
        let socket = UnixDatagram::bind(root.path().join("run/systemd/journal/socket")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Journal { root, socket }
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        std::iter::from_fn(|| self.entry()).collect()
    }

    /// The next entry: a datagram, or the descriptor of a sealed file.
    fn entry(&self) -> Option<Entry> {
        let mut buffer = vec![0; 1 << 20];
        let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
        let (n, descriptor) = {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let got = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags);
            let got = match got {
                Err(nix::errno::Errno::EAGAIN) => return None,
                other => other.unwrap(),
            };
            let descriptor = got.cmsgs().unwrap().find_map(|c| match c {
                ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                _ => None,
            });
            (got.bytes, descriptor)
        };
        let Some(descriptor) = descriptor else { return Some(parse(&buffer[..n])) };
        assert_eq!(n, 0);
        let mut file = std::fs::File::open(format!("/proc/self/fd/{descriptor}")).unwrap();
        nix::unistd::close(descriptor).unwrap();
        let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS).unwrap());
        assert!(seals.contains(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW));
        buffer.clear();
        file.read_to_end(&mut buffer).unwrap();
        Some(parse(&buffer))
    }

    /// The test `name` in a process that logs below this root.
    pub(crate) fn run(
        &self,
        name: &str,
        voice: &str,
        change: impl FnOnce(&mut std::process::Command),
    ) -> Output {
        let mut command = child(&[], name);
        command.env(ROOT, self.root.path()).env(VOICE, voice).env_remove(log::LEVEL_VARIABLE);
        command.env_remove("JOURNAL_STREAM").stderr(Stdio::piped());
        change(&mut command);
        let out = command.spawn().unwrap().wait_with_output().unwrap();
        assert!(out.status.success(), "{}", text(&out));
        out
    }
}

/// As systemd.io/JOURNAL_NATIVE_PROTOCOL has it, strictly.
fn parse(mut bytes: &[u8]) -> Entry {
    let mut entry = Entry::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|b| *b == b'\n').expect("a line without end");
        let (line, rest) = bytes.split_at(end);
        let (name, value) = match line.iter().position(|b| *b == b'=') {
            Some(at) => {
                bytes = &rest[1..];
                (&line[..at], &line[at + 1..])
            }
            None => {
                let len = usize::try_from(u64::from_le_bytes(rest[1..9].try_into().unwrap())).unwrap();
                assert_eq!(rest[9 + len], b'\n');
                bytes = &rest[10 + len..];
                (line, &rest[9..9 + len])
            }
        };
        let string = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        let name = string(name);
        assert!(name.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{name}");
        assert!(entry.insert(name.clone(), string(value)).is_none(), "{name} twice");
    }
    entry
}

fn text(out: &Output) -> String {
    String::from_utf8(out.stderr.clone()).unwrap()
}

/// The lines of the log on stderr, without those of the test program.
fn lines(out: &Output) -> Vec<String> {
    text(out).lines().filter(|l| is_of_the_log(l)).map(str::to_owned).collect()
}

fn is_of_the_log(line: &str) -> bool {
    line.starts_with("[resin-init-flasher]") || line.starts_with("copal: ")
}

fn start_child() -> Voice {
    let voice = if std::env::var(VOICE).unwrap() == "legacy" { LEGACY } else { Voice::Verb };
    log::start_below(voice, Path::new(&std::env::var_os(ROOT).unwrap()));
    voice
}

/// A bit of everything.
fn talk(voice: Voice) {
    tracing::debug!(target: "copal::test", "for developers");
    tracing::info!(target: "copal::test", COPAL_STAGE = "write", COPAL_PERCENT = 5_u8, "write: 5 %");
    tracing::info!(
        target: "copal::test",
        MESSAGE_ID = events::TARGET_REJECTED, COPAL_DEVICE = %"/dev/sda", COPAL_ERROR_CODE = %"target-is-medium",
        "/dev/sda is not the target"
    );
    tracing::warn!(target: "copal::test", node = "/dev/sd\u{1b}b", "slow\ndisk");
    log::failing_as(events::FLASH_FAILED, &[("COPAL_DEVICE", "/dev/sdb")]);
    log::last(voice, "cannot flash /dev/sdb [io]; look", "io");
}

#[test]
fn a_legacy_name_speaks_in_both_places() {
    if is_child() {
        return talk(start_child());
    }
    let journal = Journal::new();
    let out = journal.run("systemd::journal::a_legacy_name_speaks_in_both_places", "legacy", |_| {});
    assert_eq!(
        lines(&out),
        [
            "[resin-init-flasher][INFO] write: 5 %",
            "[resin-init-flasher][INFO] /dev/sda is not the target",
            "[resin-init-flasher][WARN] slow\\ndisk node=/dev/sd\\u{1b}b",
            "[resin-init-flasher][ERROR] cannot flash /dev/sdb [io]; look",
        ]
    );
    let entry = |fields: &[(&str, &str)]| -> Entry {
        let all = [("SYSLOG_IDENTIFIER", "resin-init-flasher")];
        all.iter().chain(fields).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let expected = [
        entry(&[
            ("MESSAGE", "write: 5 %"),
            ("PRIORITY", "6"),
            ("COPAL_STAGE", "write"),
            ("COPAL_PERCENT", "5"),
        ]),
        entry(&[
            ("MESSAGE", "/dev/sda is not the target"),
            ("PRIORITY", "6"),
            ("MESSAGE_ID", events::TARGET_REJECTED),
            ("COPAL_DEVICE", "/dev/sda"),
            ("COPAL_ERROR_CODE", "target-is-medium"),
        ]),
        entry(&[("MESSAGE", "slow\\ndisk node=/dev/sd\\u{1b}b"), ("PRIORITY", "4")]),
        entry(&[
            ("MESSAGE", "cannot flash /dev/sdb [io]; look"),
            ("PRIORITY", "3"),
            ("MESSAGE_ID", events::FLASH_FAILED),
            ("COPAL_DEVICE", "/dev/sdb"),
            ("COPAL_ERROR_CODE", "io"),
        ]),
    ];
    assert_eq!(journal.entries(), expected);
}

#[test]
fn nothing_is_said_twice_to_a_journal_that_reads_stderr_too() {
    if is_child() {
        return talk(start_child());
    }
    let name = "systemd::journal::nothing_is_said_twice_to_a_journal_that_reads_stderr_too";
    for voice in ["legacy", "verb"] {
        let journal = Journal::new();
        let file = tempfile::tempfile().unwrap();
        let stat = file.metadata().unwrap();
        let run = |stream: String| {
            file.set_len(0).unwrap();
            let mut stderr = file.try_clone().unwrap();
            stderr.rewind().unwrap();
            journal.run(name, voice, |c| {
                c.env("JOURNAL_STREAM", stream).stderr(stderr);
            });
            let mut copy = file.try_clone().unwrap();
            copy.rewind().unwrap();
            let mut said = String::new();
            copy.read_to_string(&mut said).unwrap();
            (said.lines().filter(|l| is_of_the_log(l)).count(), journal.entries().len())
        };
        let all = if voice == "legacy" { 4 } else { 3 };
        assert_eq!(run(format!("{}:{}", stat.dev(), stat.ino())), (0, all), "{voice}");
        // The stream of somebody else, whose environment was handed on.
        let elsewhere = if voice == "legacy" { (4, 4) } else { (2, 2) };
        assert_eq!(run(format!("{}:{}", stat.dev(), stat.ino() + 1)), elsewhere, "{voice}");
        assert_eq!(run("nonsense".into()), elsewhere, "{voice}");
    }
}

#[test]
fn a_verb_leaves_events_only() {
    if is_child() {
        let voice = start_child();
        tracing::warn!(target: "copal::test", "no direct I/O");
        log::last(voice, "wrong arguments [usage]; run", "usage");
        log::failing_as(events::FLASH_FAILED, &[]);
        log::failing_plainly();
        assert!(!log::last_in_journal(voice, "x", "io"));
        log::failing_as(events::FLASH_FAILED, &[]);
        assert!(log::last_in_journal(voice, "told as JSON", "io"));
        tracing::info!(target: "copal::test", MESSAGE_ID = events::FLASH_FINISHED, "done");
        return;
    }
    let journal = Journal::new();
    let out = journal.run("systemd::journal::a_verb_leaves_events_only", "verb", |_| {});
    assert_eq!(lines(&out), ["copal: warning: no direct I/O", "copal: wrong arguments [usage]; run"]);
    let entries = journal.entries();
    let ids: Vec<&str> = entries.iter().map(|e| e["MESSAGE_ID"].as_str()).collect();
    assert_eq!(ids, [events::FLASH_FAILED, events::FLASH_FINISHED]);
    assert_eq!(entries[0]["COPAL_ERROR_CODE"], "io");
    assert!(entries.iter().all(|e| e["SYSLOG_IDENTIFIER"] == "copal"));
}

#[test]
fn in_a_container_and_without_a_journal_stderr_is_all() {
    if is_child() {
        return talk(start_child());
    }
    let name = "systemd::journal::in_a_container_and_without_a_journal_stderr_is_all";
    for mark in [".dockerenv", "run/.containerenv"] {
        let journal = Journal::new();
        std::fs::write(journal.root.path().join(mark), "").unwrap();
        let out = journal.run(name, "legacy", |_| {});
        assert_eq!((lines(&out).len(), journal.entries().len()), (4, 0), "{mark}");
    }
    // No socket; one that nobody listens on any more.
    let journal = Journal::new();
    let path = journal.root.path().join("run/systemd/journal/socket");
    std::fs::rename(&path, path.with_extension("away")).unwrap();
    assert_eq!(lines(&journal.run(name, "legacy", |_| {})).len(), 4);
    drop(UnixDatagram::bind(&path).unwrap());
    assert_eq!(lines(&journal.run(name, "legacy", |_| {})).len(), 4);
    assert_eq!(journal.entries().len(), 0);
}

#[test]
fn a_journal_that_does_not_read_holds_nothing_up() {
    if is_child() {
        let voice = start_child();
        let began = Instant::now();
        for i in 0..5000 {
            tracing::debug!(target: "copal::test", "line {i}");
        }
        assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
        let began = Instant::now();
        log::last(voice, "the end", "io");
        let took = began.elapsed();
        assert!((Duration::from_secs(8)..HANG).contains(&took), "{took:?}");
        return;
    }
    let journal = Journal::new();
    let out = journal.run("systemd::journal::a_journal_that_does_not_read_holds_nothing_up", "legacy", |c| {
        // Seen by nobody, or else the pipe of stderr is what is waited for.
        c.env(log::LEVEL_VARIABLE, "debug").stderr(Stdio::null());
    });
    drop(out);
    assert!((1..4000).contains(&journal.entries().len()));
}

#[test]
fn what_was_lost_is_reported_and_the_last_line_waits_for_space() {
    if is_child() {
        let voice = start_child();
        for i in 0..3000 {
            tracing::info!(target: "copal::test", "line {i}");
        }
        // The journal begins to read when it sees this file.
        std::fs::write(Path::new(&std::env::var_os(ROOT).unwrap()).join("read"), "").unwrap();
        log::last(voice, "the end", "io");
        return;
    }
    let journal = Journal::new();
    let ended = AtomicBool::new(false);
    let entries = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(120);
            while !journal.root.path().join("read").exists() && !ended.load(Ordering::Relaxed) {
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(700));
            let mut all: Vec<Entry> = Vec::new();
            loop {
                assert!(Instant::now() < end);
                let was_ended = ended.load(Ordering::Relaxed);
                all.extend(journal.entry());
                // As a journal on a busy machine: there is room for one entry, and for a while not for another.
                if all.len() < 4 && !was_ended {
                    std::thread::sleep(Duration::from_millis(200));
                    continue;
                }
                all.extend(journal.entries());
                if was_ended {
                    return all;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        journal.run(
            "systemd::journal::what_was_lost_is_reported_and_the_last_line_waits_for_space",
            "legacy",
            |c| {
                c.stderr(Stdio::null());
            },
        );
        ended.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    let lost = entries
        .iter()
        .find_map(|e| e["MESSAGE"].strip_suffix(" entries before this one were lost: the journal was busy"));
    let lost: usize = lost.expect("nothing about lost entries").parse().unwrap();
    let kept = entries.iter().filter(|e| e["MESSAGE"].starts_with("line ")).count();
    assert_eq!(kept + lost, 3000);
    let last = entries.last().unwrap();
    assert_eq!(
        (last["MESSAGE"].as_str(), last.get("COPAL_ERROR_CODE").map(String::as_str)),
        ("the end", Some("io"))
    );
}

#[test]
fn an_entry_of_any_size_arrives() {
    const LONG: usize = 3 << 20;
    if is_child() {
        start_child();
        tracing::info!(target: "copal::test", COPAL_DEVICE = "a\nb", "{}", "x".repeat(LONG));
        tracing::info!(target: "copal::test", "short");
        return;
    }
    let journal = Journal::new();
    journal.run("systemd::journal::an_entry_of_any_size_arrives", "legacy", |c| {
        c.stderr(Stdio::null());
    });
    let entries = journal.entries();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["MESSAGE"].len(), LONG);
    assert_eq!(entries[0]["COPAL_DEVICE"], "a\nb");
    assert_eq!(entries[1]["MESSAGE"], "short");
}

#[test]
fn a_journal_that_was_restarted_is_found_again() {
    if is_child() {
        start_child();
        let path = Path::new(&std::env::var_os(ROOT).unwrap()).join("run/systemd/journal/socket");
        tracing::info!(target: "copal::test", "before");
        // As when the socket unit is restarted: the old socket is gone for good.
        std::fs::remove_file(&path).unwrap();
        let other = UnixDatagram::bind(&path).unwrap();
        std::fs::write(path.with_file_name("close"), "").unwrap();
        while path.with_file_name("close").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        tracing::info!(target: "copal::test", "after");
        let mut buffer = [0; 4096];
        other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let n = other.recv(&mut buffer).unwrap();
        assert_eq!(parse(&buffer[..n])["MESSAGE"], "after");
        return;
    }
    let Journal { root, socket } = Journal::new();
    let close = root.path().join("run/systemd/journal/close");
    let journal = Journal { root, socket: UnixDatagram::unbound().unwrap() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let end = Instant::now() + Duration::from_secs(60);
            while !close.exists() {
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(socket);
            std::fs::remove_file(close).unwrap();
        });
        journal.run("systemd::journal::a_journal_that_was_restarted_is_found_again", "legacy", |_| {});
    });
}
