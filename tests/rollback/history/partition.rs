//! State partitions that are full, read-only, or do not answer: they cost the story at most, and never time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use copal::config::paths::Paths;
use copal::state::history::{self, Record};

use super::support::{logged, rollback, small, told_to_the_journal};
use crate::kit::disk::{Loop, folder};
use crate::kit::needs::{can_run, needs};
use crate::kit::process::{HANG, tool};

/// A state partition of its own: ext4 on a loop device, as images have it.
struct Partition {
    dir: tempfile::TempDir,
    disk: Loop,
}

impl Partition {
    fn new() -> Partition {
        let dir = folder();
        let file = dir.path().join("state.raw");
        fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
        tool(&["mkfs.ext4", "-q", "-F", "-L", "resin-state", file.to_str().unwrap()]);
        let partition = Partition { dir, disk: Loop::over(&file, &[]) };
        fs::create_dir_all(partition.state()).unwrap();
        partition.mount("rw");
        partition
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("root/mnt/state")
    }

    fn paths(&self) -> Paths {
        Paths::new(self.dir.path().join("root"))
    }

    fn mount(&self, options: &str) {
        tool(&["mount", "-o", options, self.disk.name(), self.state().to_str().unwrap()]);
    }

    fn tool_on_it(&self, argv: &[&str]) {
        tool(&[argv, &[self.state().to_str().unwrap()]].concat());
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let write = |size: usize, name: &str| {
            let mut written = fs::File::create(self.state().join(name)).unwrap();
            while std::io::Write::write(&mut written, &vec![0x55; size]).is_ok_and(|n| n > 0) {}
            drop(written.sync_all());
        };
        write(64 << 10, "large");
        write(512, "small");
        assert!(fs::write(self.state().join("one more"), [0; 4096]).is_err(), "there is room left");
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        drop(Command::new("fsfreeze").arg("-u").arg(self.state()).output());
        drop(Command::new("umount").arg(self.state()).output());
    }
}

/// On a full partition there is still room for what was allocated when the update started.
#[test]
fn a_partition_that_fills_up_during_the_update_keeps_the_history() {
    needs!(can_run);
    let partition = Partition::new();
    history::append(&partition.paths(), &small(0));
    history::prepare(&partition.paths());
    partition.fill();
    let records = [small(0), small(1), rollback(2), rollback(3), small(4)];
    let said = logged(|| records[1..].iter().for_each(|r| history::append(&partition.paths(), r)));
    assert!(said.is_empty(), "{said:?}");
    assert_eq!(history::read(&partition.paths()), records);
    // They are on the medium, and the file system is as it should be.
    partition.tool_on_it(&["umount"]);
    tool(&["e2fsck", "-f", "-n", partition.disk.name()]);
    partition.mount("ro");
    assert_eq!(history::read(&partition.paths()), records);
}

/// The next update asks for 256 KiB for its own files, and must find them.
#[test]
fn little_space_is_left_to_the_next_update() {
    needs!(can_run);
    for (free, kept) in [(400 << 10, false), (600 << 10, true)] {
        let partition = Partition::new();
        let room = || {
            let space = nix::sys::statvfs::statvfs(&partition.state()).unwrap();
            usize::try_from(space.blocks_available() * space.fragment_size()).unwrap()
        };
        history::append(&partition.paths(), &small(0));
        fs::write(partition.state().join("large"), vec![0x55; room() - free]).unwrap();
        while room() > free {
            let n = fs::read_dir(partition.state()).unwrap().count();
            fs::write(partition.state().join(format!("{n}")), [0x55; 1024]).unwrap();
        }
        let said = logged(|| history::prepare(&partition.paths()));
        assert!(said.is_empty(), "{said:?}");
        let blocks = std::os::unix::fs::MetadataExt::blocks(
            &fs::metadata(partition.state().join("copal/history.jsonl")).unwrap(),
        );
        assert_eq!(blocks * 512 >= 256 << 10, kept, "{free}: {blocks}");
        assert!(room() >= 256 << 10, "{free}: {}", room());
        history::append(&partition.paths(), &small(1));
        assert_eq!(history::read(&partition.paths()), [small(0), small(1)]);
    }
}

#[test]
fn without_space_the_journal_has_the_history() {
    needs!(can_run);
    let partition = Partition::new();
    partition.fill();
    let said = logged(|| history::prepare(&partition.paths()));
    assert!(said.len() == 1 && format!("{said:?}").contains("No space left"), "{said:?}");
    let said = logged(|| history::append(&partition.paths(), &rollback(1)));
    assert_eq!(told_to_the_journal(&said), Record { journal: Vec::new(), ..rollback(1) });
    // Room again: nothing is in the way of the next one.
    fs::remove_file(partition.state().join("large")).unwrap();
    history::append(&partition.paths(), &rollback(2));
    assert_eq!(history::read(&partition.paths()), [rollback(2)]);
}

#[test]
fn what_is_read_only_is_read_and_the_journal_has_the_rest() {
    needs!(can_run);
    let partition = Partition::new();
    history::append(&partition.paths(), &small(1));
    partition.tool_on_it(&["mount", "-o", "remount,ro"]);
    let said = logged(|| history::append(&partition.paths(), &small(2)));
    assert_eq!(told_to_the_journal(&said), small(2));
    assert!(format!("{said:?}").contains("Read-only file system"), "{said:?}");
    assert_eq!(logged(|| history::prepare(&partition.paths())).len(), 1);
    assert_eq!(history::read(&partition.paths()), [small(1)]);
}

/// A frozen file system lets nobody write, for as long as it is frozen; as a medium does that has stopped answering.
#[test]
fn a_partition_that_hangs_is_not_waited_for() {
    needs!(can_run);
    let partition = Partition::new();
    history::prepare(&partition.paths());
    history::append(&partition.paths(), &small(1));
    partition.tool_on_it(&["fsfreeze", "-f"]);
    let begun = Instant::now();
    let said = logged(|| history::append(&partition.paths(), &small(2)));
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(4) && took < HANG, "{took:?}");
    assert_eq!(told_to_the_journal(&said), small(2));
    assert!(format!("{said:?}").contains("longer than 5 s"), "{said:?}");
    partition.tool_on_it(&["fsfreeze", "-u"]);
    // It may have come through late; the next one does in any case.
    let end = Instant::now() + Duration::from_secs(60);
    while history::read(&partition.paths()).len() < 2 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    history::append(&partition.paths(), &small(3));
    assert_eq!(history::read(&partition.paths()), [small(1), small(2), small(3)]);
    assert!(Path::new(partition.disk.name()).exists());
}
