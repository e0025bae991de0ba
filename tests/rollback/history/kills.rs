//! A writer that is killed at any moment.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use copal::config::paths::Paths;
use copal::state::history;

use super::support::{Device, rollback, small, times};
use crate::kit::needs::test_name;
use crate::kit::process::until;

/// Where it is set, this program is the writer.
const ROOT: &str = "COPAL_TEST_HISTORY_ROOT";

/// Updates and rolls back without end.
fn write_without_end(root: OsString) {
    let paths = Paths::new(root);
    let next = |records: &[history::Record]| {
        records.last().map_or(0, |r| r.time.strip_prefix("time ").unwrap().parse::<usize>().unwrap() + 1)
    };
    let first = next(&history::read(&paths));
    for n in first.. {
        if n % 3 == 0 {
            history::prepare(&paths);
        }
        let record = if n % 2 == 0 { rollback(n) } else { small(n) };
        history::append(&paths, &record);
        assert_eq!(history::read(&paths).last(), Some(&record));
    }
}

#[test]
fn a_kill_costs_the_record_that_was_being_written_at_most() {
    if let Some(root) = std::env::var_os(ROOT) {
        return write_without_end(root);
    }
    let device = Device::new();
    let numbers = || -> Vec<usize> {
        let read = times(&history::read(&device.paths()));
        read.iter().map(|t| t.strip_prefix("time ").unwrap().parse().unwrap()).collect()
    };
    let mut before = None;
    for round in 0..40 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test_name!()])
            .env(ROOT, device.paths().root())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("another record", || numbers().last().copied() > before);
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..20)));
        writer.kill().unwrap();
        assert_eq!(writer.wait().unwrap().signal(), Some(9), "round {round}: it has failed by itself");
        let numbers = numbers();
        assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "round {round}: {numbers:?}");
        let last = numbers.last().copied();
        assert!(last > before, "round {round}: {last:?} after {before:?}");
        before = last;
    }
    // What kills have left beside it goes with the next update.
    copal::state::files::sweep(&device.paths());
    let names = std::fs::read_dir(device.file().parent().unwrap()).unwrap();
    assert_eq!(names.count(), 1);
}
