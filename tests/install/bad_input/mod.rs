//! Bad input, as `docs/flasher.md` lists it: each row of that table is a situation here, and each situation a row there.
//! What the program prints is the row's message and remedy, and the disk is left as the row says.

mod disks;
mod files;

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::kit::disk::Undo;
use crate::kit::needs::{needs, not_run};
use crate::kit::prove;
use crate::kit::storage_daemon::Daemon;
use crate::rig::{Disk, MIB, Rig, can_run};
use crate::stderr;

/// A row of the table.
struct Row {
    input: String,
    code: String,
    message: String,
    remedy: String,
    unbootable: bool,
}

fn rows() -> Vec<Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/flasher.md");
    let text = std::fs::read_to_string(path).unwrap();
    let part = text.split("\n## Bad input\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let table = part.lines().filter_map(|l| l.strip_prefix('|')?.strip_suffix('|'));
    table
        .skip(2)
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [input, code, message, remedy, disk] = cells[..] else { panic!("five cells: {line}") };
            assert!(["", "unbootable"].contains(&disk), "{line}");
            Row {
                input: input.to_owned(),
                code: code.trim_matches('`').to_owned(),
                message: message.to_owned(),
                remedy: remedy.to_owned(),
                unbootable: !disk.is_empty(),
            }
        })
        .collect()
}

/// Done to a system that could be installed, makes it one with bad input.
type Make = fn(&mut Case);

/// What is done while the program runs, which was started as this process.
type During = Box<dyn FnOnce(&Rig, u32)>;

/// A system, and how it is to be tried. What is dropped first comes first.
struct Case {
    undo: Vec<Box<dyn std::any::Any>>,
    /// Other disks that must stay as they are.
    others: Vec<Disk>,
    rig: Rig,
    /// What lies below the disk.
    below: Option<Daemon>,
    /// What the message has to name.
    object: String,
    /// In front of the program.
    wrapper: Vec<String>,
    env: Vec<(&'static str, &'static str)>,
    during: Option<During>,
    /// Why it cannot be tried here.
    not_run: Option<&'static str>,
    /// Where the content of the disk is to be looked at, when it has gone.
    content: PathBuf,
    /// Bytes at the beginning of each disk that others write to.
    skipped: u64,
}

impl Case {
    fn new() -> Case {
        let rig = Rig::new();
        let content = rig.disk.file.clone();
        Case {
            undo: Vec::new(),
            others: Vec::new(),
            rig,
            below: None,
            object: String::new(),
            wrapper: Vec::new(),
            env: Vec::new(),
            during: None,
            not_run: None,
            content,
            skipped: 0,
        }
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.rig.root().join(path)).unwrap();
    }

    /// Runs a command when the situation is over.
    fn afterwards(&mut self, argv: &[&str]) {
        self.undo.push(Box::new(Undo::by(argv)));
    }

    /// Of each disk.
    fn digests(&self) -> Vec<u64> {
        let files = std::iter::once(&self.content).chain(self.others.iter().map(|d| &d.file));
        files.map(|f| digest(f, self.skipped)).collect()
    }

    /// Runs the program, and compares what it does with the row.
    fn check(&mut self, row: &Row) {
        if let Some(why) = self.not_run {
            return not_run(
                "every_documented_input_is_refused_as_documented",
                &format!("{}: {why}", row.input),
            );
        }
        let before = if row.unbootable { Vec::new() } else { self.digests() };
        let mut argv: Vec<&str> = self.wrapper.iter().map(String::as_str).collect();
        argv.push("/resin-init-flasher");
        let child = self.rig.start(&argv, &self.env);
        if let Some(during) = self.during.take() {
            during(&self.rig, child.id());
        }
        let out = self.rig.wait(child, None);
        let text = stderr(&out);
        let input = &row.input;
        assert_eq!(out.status.code(), Some(1), "{input}: {:?} {text}", out.status);
        let last = text.lines().rev().find_map(|l| l.strip_prefix("[resin-init-flasher][ERROR] "));
        let last = last.unwrap_or_else(|| panic!("{input}: no error: {text}"));
        let documented = format!("{} [{}]; {}", row.message, row.code, row.remedy);
        assert!(matches(&documented, last), "{input}:\n documented: {documented}\n printed:    {last}");
        let message = last.rsplit_once(" [").unwrap().0;
        assert!(
            !self.object.is_empty() && message.contains(&self.object),
            "{input}: {}: {last}",
            self.object
        );
        if row.unbootable {
            unbootable(&self.content, input);
        } else {
            assert!(self.digests() == before, "{input}: something was written");
        }
    }
}

fn digest(path: &Path, from: u64) -> u64 {
    let (mut file, mut buffer) = (File::open(path).unwrap(), vec![0; 1 << 20]);
    file.seek(SeekFrom::Start(from)).unwrap();
    let mut hasher = DefaultHasher::new();
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return hasher.finish(),
            n => hasher.write(&buffer[..n]),
        }
    }
}

/// Neither boot sector nor table at the beginning, and no table at the image's end or the disk's.
fn unbootable(disk: &Path, input: &str) {
    let all = std::fs::read(disk).unwrap();
    assert!(all[..MIB].iter().all(|b| *b == 0), "{input}: the disk may still boot");
    for end in [32 << 20, all.len()] {
        assert!(!all[end - 512..end].starts_with(b"EFI PART"), "{input}: a backup table is left");
    }
}

/// Whether `text` is `pattern`, in which `…` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn patterns_match_all_of_a_line() {
    assert!(matches("a … b … c", "a 1 b 2 b 3 c") && matches("a", "a") && matches("a…", "a"));
    assert!(!matches("a", "ab") && !matches("a …", "b a 1") && !matches("a … b", "a 1 b 2"));
    assert!(!matches("a…aa", "aa"));
}

#[test]
fn every_documented_input_is_refused_as_documented() {
    let test = "every_documented_input_is_refused_as_documented";
    needs!(can_run);
    let situations = [files::SITUATIONS, disks::SITUATIONS].concat();
    let rows = rows();
    let documented: Vec<&str> = rows.iter().map(|r| r.input.as_str()).collect();
    let made: Vec<&str> = situations.iter().map(|s| s.0).collect();
    assert_eq!(documented, made, "docs/flasher.md and the situations, in this order");

    // `BAD_INPUT=word` tries the rows with that word alone.
    let only = std::env::var("BAD_INPUT").unwrap_or_default();
    let all = rows.iter().zip(situations).flat_map(|(row, s)| s.1.iter().map(move |make| (row, *make)));
    let all: Vec<_> = all.filter(|(row, _)| row.input.contains(&only)).collect();
    let tried = prove::cases("slow", test, all.len(), 25);
    let mut queue: Vec<_> = tried.into_iter().map(|at| all[at]).collect();
    // The last is taken first: what waits for a disk takes longest.
    queue.sort_by_key(|(row, _)| row.code == "no-target");
    let (queue, failures) = (Mutex::new(queue), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some((row, make)) = { queue.lock().unwrap().pop() } {
                    let tried = std::panic::catch_unwind(|| {
                        let mut case = Case::new();
                        make(&mut case);
                        case.check(row);
                    });
                    if tried.is_err() {
                        failures.lock().unwrap().push(row.input.clone());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures:?}");
}
