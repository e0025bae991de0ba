//! Another program changes the image while it is read.

use std::fs::{DirEntry, File, FileTimes, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use crate::kit::needs::{needs, tools};
use crate::kit::process::{tool, until, wait};
use crate::kit::storage_daemon::Daemon;
use crate::support::*;

const SIZE: u64 = 96 * MIB;
/// With a hole at its end that takes a while to be digested.
const HUGE: u64 = 512 * MIB;
/// From here on the image has data in the first eighth of each MiB, and a hole after it.
const COMB: u64 = 40 * MIB;
/// When this is on the disk, the flash is held and the image changed.
const HELD_AT: u64 = 48 * MIB;
const LAST_DATA: u64 = 90 * MIB;

/// An image with a hole in each MiB, and a disk that can be held while it is written.
struct Bench {
    dir: tempfile::TempDir,
    image: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let dir = folder();
        let image = dir.path().join("os.img");
        tool(&["cp", "--sparse=always", os_image().to_str().unwrap(), image.to_str().unwrap()]);
        let file = OpenOptions::new().write(true).open(&image).unwrap();
        tool(&[
            "fallocate",
            "-p",
            "-o",
            &COMB.to_string(),
            "-l",
            &(54 * MIB).to_string(),
            image.to_str().unwrap(),
        ]);
        for (at, fill) in (COMB..=LAST_DATA).step_by(MIB as usize).zip(1u8..) {
            file.write_all_at(&[fill; MIB as usize / 8], at).unwrap();
        }
        file.sync_all().unwrap();
        Bench { dir, image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Flashes `image`, and calls `change` when half of it is on the disk. `None` where this machine has no such disk.
    fn flash_while(&self, test: &str, image: &Path, more: &[&str], change: &dyn Fn()) -> Option<Flashed> {
        // Where the machine is slower than the disk, the flash may be over before it is held: then on a slower disk.
        for rate in [40_000_000, 8_000_000, 1_600_000] {
            let backing = self.path("disk");
            fill(&backing, SIZE);
            let disk = Daemon::slow_to_write(&backing, rate).map_err(|why| not_run(test, why)).ok()?;
            let mut flash = copal();
            flash.args(["flash", "--json"]).args(more).arg(image).arg(&disk.export);
            let child = flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            until("half of it is written", || read(&backing, HELD_AT, 1) != [0xA5]);
            disk.hold();
            let is_half = read(&backing, LAST_DATA, 1) == [0xA5];
            if is_half {
                change();
            }
            disk.resume();
            let out = wait(child);
            drop(disk);
            if is_half {
                return Some(Flashed { out, backing });
            }
        }
        panic!("no disk is slow enough");
    }
}

struct Flashed {
    out: Output,
    backing: PathBuf,
}

impl Flashed {
    #[track_caller]
    fn assert_refused(&self, case: &str) {
        let line = last_line(&self.out);
        assert_eq!(
            (self.out.status.code(), &line["code"]),
            (Some(4), &"image-changed".into()),
            "{case}: {line}"
        );
        assert!(read(&self.backing, 0, MIB).iter().all(|b| *b == 0), "{case}: there is a table");
        let backup = read(&self.backing, SIZE - 33 * 512, 33 * 512);
        assert!(!backup.windows(8).any(|w| w == b"EFI PART"), "{case}: there is a backup table");
    }
}

type Change = fn(&File);

#[test]
fn an_image_that_changes_during_the_write_gets_no_table() {
    needs!(tools);
    const TEST: &str = "an_image_that_changes_during_the_write_gets_no_table";
    let changes: [(&str, Change); 6] = [
        ("truncated in data", |file| file.set_len(70 * MIB + 1000).unwrap()),
        ("truncated in a hole", |file| file.set_len(70 * MIB + MIB / 2).unwrap()),
        ("truncated in the last hole", |file| file.set_len(SIZE - MIB / 2).unwrap()),
        ("truncated and written again", |file| {
            let tail = vec![7; 20 * MIB as usize];
            file.set_len(70 * MIB).unwrap();
            file.write_all_at(&tail, 70 * MIB).unwrap();
            file.set_len(SIZE).unwrap();
        }),
        ("grown", |file| file.set_len(SIZE + MIB).unwrap()),
        ("written in place", |file| file.write_all_at(b"other", LAST_DATA).unwrap()),
    ];
    for (case, change) in changes {
        let bench = Bench::new();
        let file = OpenOptions::new().write(true).open(&bench.image).unwrap();
        let Some(flashed) = bench.flash_while(TEST, &bench.image, &[], &|| change(&file)) else { return };
        flashed.assert_refused(case);
    }
}

#[test]
fn a_compressed_image_that_changes_during_the_write_gets_no_table() {
    needs!(tools);
    const TEST: &str = "a_compressed_image_that_changes_during_the_write_gets_no_table";
    let changes: [(&str, Change); 2] = [
        ("truncated", |file| file.set_len(1000).unwrap()),
        ("written in place", |file| file.write_all_at(b"x", file.metadata().unwrap().len() - 1).unwrap()),
    ];
    for (case, change) in changes {
        let bench = Bench::new();
        let packed = bench.path("os.img.gz");
        tool(&[
            "sh",
            "-ec",
            "gzip -1 <$1 >$2",
            "sh",
            bench.image.to_str().unwrap(),
            packed.to_str().unwrap(),
        ]);
        let file = OpenOptions::new().write(true).open(&packed).unwrap();
        let Some(flashed) = bench.flash_while(TEST, &packed, &[], &|| change(&file)) else { return };
        flashed.assert_refused(case);
    }
}

/// The file that is open stays what it was, whatever its name leads to.
#[test]
fn other_names_modes_and_a_replacement_are_no_change_of_the_image() {
    needs!(tools);
    const TEST: &str = "other_names_modes_and_a_replacement_are_no_change_of_the_image";
    let bench = Bench::new();
    let (kept, new) = (bench.path("kept.img"), bench.path("new.img"));
    let replace = || {
        std::fs::hard_link(&bench.image, &kept).unwrap();
        std::fs::set_permissions(&kept, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&new, b"another image").unwrap();
        std::fs::rename(&new, &bench.image).unwrap();
    };
    let Some(flashed) = bench.flash_while(TEST, &bench.image, &[], &replace) else { return };
    assert!(flashed.out.status.success(), "{}", last_line(&flashed.out));
    assert_equal(&kept, &flashed.backing);
}

/// As from a medium that fails: time and size stay.
fn damage(file: &File, at: u64) {
    let before = file.metadata().unwrap();
    file.write_all_at(&[0xEE; 16], at).unwrap();
    file.set_times(FileTimes::new().set_modified(before.modified().unwrap())).unwrap();
}

#[test]
fn a_backup_table_that_is_damaged_after_the_check_is_not_written() {
    needs!(tools);
    const TEST: &str = "a_backup_table_that_is_damaged_after_the_check_is_not_written";
    for (case, from_end) in [("its header", 500), ("its entries", 32 * 512)] {
        let bench = Bench::new();
        let file = OpenOptions::new().write(true).open(&bench.image).unwrap();
        let Some(flashed) = bench.flash_while(TEST, &bench.image, &[], &|| damage(&file, SIZE - from_end))
        else {
            return;
        };
        flashed.assert_refused(case);
    }
}

/// Only the beginning of it is checked before the write.
#[test]
fn a_damaged_backup_table_in_a_single_pass_gets_no_table() {
    needs!(tools);
    let dir = folder();
    let (image, packed, target) =
        (dir.path().join("os.img"), dir.path().join("os.img.zst"), dir.path().join("disk"));
    tool(&["cp", "--sparse=always", os_image().to_str().unwrap(), image.to_str().unwrap()]);
    damage(&OpenOptions::new().write(true).open(&image).unwrap(), SIZE - 500);
    tool(&["zstd", "-q", image.to_str().unwrap(), "-o", packed.to_str().unwrap()]);
    fill(&target, SIZE);
    let out = flash(&packed, &target, &["--single-pass", "--json"]);
    let line = last_line(&out);
    assert_eq!((out.status.code(), &line["code"]), (Some(4), &"partition-table-invalid".into()), "{line}");
    assert!(read(&target, 0, MIB).iter().all(|b| *b == 0));
    // The same image, whole.
    tool(&["zstd", "-qf", os_image().to_str().unwrap(), "-o", packed.to_str().unwrap()]);
    flashed(&packed, &target, &["--single-pass"]);
    assert_equal(os_image(), &target);
}

/// The next line of progress that has all of these words.
fn wait_for(child: &mut Child, words: &[&str]) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let found = lines.by_ref().map(Result::unwrap).find(|line| words.iter().all(|word| line.contains(word)));
    assert!(found.is_some(), "no line with {words:?}");
    // The rest is of no interest, and must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
}

/// The target is asked again once the image was checked, and does not answer until the image has changed.
#[test]
fn an_image_that_changes_between_check_and_write_leaves_the_target_as_it_was() {
    needs!(tools);
    let bench = Bench::new();
    let file = OpenOptions::new().write(true).open(&bench.image).unwrap();
    file.set_len(HUGE).unwrap();
    let backing = bench.path("disk");
    fill(&backing, SIZE);
    OpenOptions::new().write(true).open(&backing).unwrap().set_len(HUGE).unwrap();
    let test = "an_image_that_changes_between_check_and_write_leaves_the_target_as_it_was";
    let Ok(disk) = Daemon::slow_to_write(&backing, 1 << 30).map_err(|why| not_run(test, why)) else { return };
    let mut flash = copal();
    flash.args(["flash", "--json", "--force-raw", "--sha256"]).arg(&bench.image).arg(&disk.export);
    let mut child = flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&mut child, &["\"stage\"", "check", "begin"]);
    disk.hold();
    until("the check is over, and the target is asked", || is_waiting(&child));
    file.write_all_at(b"other", LAST_DATA).unwrap();
    disk.resume();
    let out = wait(child);
    assert_eq!(out.status.code(), Some(3));
    assert!(read(&backing, 0, SIZE).iter().all(|b| *b == 0xA5), "something was written");
}

/// Whether no thread of it runs (proc(5): the state after the name), for as long as a check never rests.
fn is_waiting(child: &Child) -> bool {
    let is_running = |stat: String| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('R'));
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let stat =
            |task: std::io::Result<DirEntry>| std::fs::read_to_string(task.unwrap().path().join("stat"));
        !tasks.map(|task| stat(task).unwrap_or_default()).any(is_running)
    })
}
