//! The lock of all programs that change the slots or the boot state. One program holds it at a time.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::file::{make_private, open_record};
use crate::sys::signal;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    #[default]
    Update,
    /// A verdict, or a repair of the boot state. It must not be interrupted.
    BootState,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub program: String,
    pub since: String, // UTC, RFC 3339
    #[serde(default)]
    pub work: Work,
}

/// The kernel releases it when the process ends, even by SIGKILL. Child processes do not inherit it.
#[derive(Debug)]
#[must_use = "the lock ends with this value"]
pub struct Lock {
    file: File,
}

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// For root only: a process that can open the file, even read-only, can lock it.
const FILE_MODE: u32 = 0o600;

/// The file is never removed. If it were removed while a second process waits for it, a third process could lock a new file.
fn lock_file(paths: &Paths) -> PathBuf {
    paths.run_files().join("update.lock")
}

impl Lock {
    pub fn take(paths: &Paths, program: &str, work: Work) -> Result<Lock> {
        let path = lock_file(paths);
        let failed = |e: io::Error| {
            let cannot =
                |code| Error::new(code, format!("cannot lock {}", path.display())).object(path.display());
            match e.kind() {
                io::ErrorKind::PermissionDenied => {
                    cannot(Code::NotRoot).with_hint("run it as root, for example with sudo")
                }
                _ => cannot(Code::Io),
            }
            .because(e)
        };
        make_private(&paths.run_files()).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let mut file = options.open(&path).map_err(failed)?;
        // An earlier copal may have created it readable for all users.
        file.set_permissions(Permissions::from_mode(FILE_MODE)).map_err(failed)?;
        if !take_soon(&file).map_err(failed)? {
            let holder = Holder::read(&mut file).unwrap_or_else(Holder::unknown);
            return Err(holder.busy().object(path.display()));
        }
        let holder = Holder {
            pid: std::process::id(),
            program: program.to_owned(),
            since: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            work,
        };
        holder.write(&mut file).map_err(failed)?;
        Ok(Lock { file })
    }

    /// [`take`](Lock::take) for an update, which may be called as soon as the system is up: after programs that change the boot state, as one does at each
    /// boot and for each verdict.
    pub fn take_for_update(paths: &Paths, program: &str, limit: Duration) -> Result<Lock> {
        let (began, mut is_logged) = (Instant::now(), false);
        loop {
            let e = match Lock::take(paths, program, Work::Update) {
                Err(e) if e.code() == Code::Busy => e,
                taken => return taken,
            };
            let lasts = matches!(Holder::of(paths), Ok(Some(holder)) if holder.lasts());
            if lasts || began.elapsed() >= limit || signal::came().is_some() {
                return Err(e);
            }
            if !is_logged {
                tracing::warn!("{}; waiting for its end", e.message());
                is_logged = true;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    pub fn release(self) {
        if let Err(e) = self.file.set_len(0) {
            tracing::debug!("update.lock: {e}");
        }
    }
}

impl Holder {
    /// `None` when no process holds the lock.
    pub fn of(paths: &Paths) -> io::Result<Option<Holder>> {
        let mut file = match open_record(&lock_file(paths)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        // Closing the file releases it again.
        if is_free(&file)? {
            return Ok(None);
        }
        Ok(Some(Holder::read(&mut file).unwrap_or_else(Holder::unknown)))
    }

    #[must_use]
    pub(crate) fn doing(&self) -> String {
        let Holder { pid, program, since, work } = self;
        match work {
            _ if *pid == 0 => format!("{program} has just begun"),
            Work::Update => format!("{program} (process {pid}) has been updating since {since}"),
            Work::BootState => {
                format!("{program} (process {pid}) has been changing the boot state since {since}")
            }
        }
    }

    /// Whether to refuse at once, and not to wait for its end.
    pub(super) fn lasts(&self) -> bool {
        self.work == Work::Update && self.pid != 0
    }

    /// The remedy for a program that finds the lock held.
    #[must_use]
    pub(crate) const fn advice(&self) -> &'static str {
        match self.work {
            Work::Update if self.pid != 0 => "wait until that update has ended, or stop it",
            Work::Update | Work::BootState => "wait until it has ended",
        }
    }

    pub(super) fn busy(&self) -> Error {
        Error::new(Code::Busy, format!("cannot begin: {}", self.doing())).with_hint(self.advice())
    }

    /// The holder has not written its name yet.
    fn unknown() -> Holder {
        Holder { pid: 0, program: "another program".to_owned(), since: String::new(), work: Work::default() }
    }

    fn read(file: &mut File) -> Option<Holder> {
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        let text = serde_json::to_string(self)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{text}\n").as_bytes())
    }
}

/// Tries twice: [`Holder::of`] takes the lock for a moment.
fn take_soon(file: &File) -> io::Result<bool> {
    for _ in 0..4 {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(25)),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Ok(false)
}

fn is_free(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_second_learns_who_holds_it_and_the_third_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        assert_eq!(Holder::of(&paths).unwrap(), None);
        let lock = Lock::take(&paths, "first", Work::Update).unwrap();
        let e = Lock::take(&paths, "second", Work::Update).unwrap_err();
        assert_eq!(e.code(), Code::Busy);
        let pid = std::process::id();
        let expected = format!("cannot begin: first (process {pid}) has been updating since 20");
        assert!(e.message().starts_with(&expected), "{e}");
        assert!(e.hint().ends_with("or stop it"), "{e}");
        assert_eq!(Holder::of(&paths).unwrap().unwrap().program, "first");
        lock.release();
        assert_eq!(Holder::of(&paths).unwrap(), None);
        drop(Lock::take(&paths, "third", Work::Update).unwrap());
        assert_eq!(Holder::of(&paths).unwrap(), None);
    }

    #[test]
    fn an_update_waits_for_a_change_of_the_boot_state_and_for_no_other_update() {
        const LONG: Duration = Duration::from_secs(600);
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let take = |limit| Lock::take_for_update(&paths, "update", limit);
        let lock = Lock::take(&paths, "copal-boot-check", Work::BootState).unwrap();
        let e = take(Duration::ZERO).unwrap_err();
        assert!(e.code() == Code::Busy && e.message().contains("copal-boot-check"), "{e}");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take(LONG));
            // Not before: it would have the lock.
            assert!(!waiting.is_finished());
            lock.release();
            waiting.join().unwrap().unwrap().release();
        });
        let lock = Lock::take(&paths, "another", Work::Update).unwrap();
        assert_eq!(take(LONG).unwrap_err().code(), Code::Busy);
        lock.release();
    }

    #[test]
    fn its_folder_is_for_root_alone_also_one_that_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let mode = || fs::metadata(paths.run_files()).unwrap().permissions().mode() & 0o7777;
        drop(Lock::take(&paths, "first", Work::Update).unwrap());
        assert_eq!(mode(), 0o700);
        fs::set_permissions(paths.run_files(), Permissions::from_mode(0o777)).unwrap();
        drop(Lock::take(&paths, "second", Work::Update).unwrap());
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn a_verdict_is_not_reported_as_an_update() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let lock = Lock::take(&paths, "rollback-health", Work::BootState).unwrap();
        let e = Lock::take(&paths, "mark-good", Work::BootState).unwrap_err();
        assert!(
            !e.message().contains("updat") && e.message().contains(" changing the boot state since 20"),
            "{e}"
        );
        assert_eq!(e.hint(), "wait until it has ended");
        lock.release();
        let old: Holder = serde_json::from_str(r#"{"pid":7,"program":"p","since":"s"}"#).unwrap();
        assert_eq!(old.doing(), "p (process 7) has been updating since s");
    }

    #[test]
    fn no_other_user_can_open_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let mode = || fs::metadata(lock_file(&paths)).unwrap().permissions().mode() & 0o777;
        drop(Lock::take(&paths, "first", Work::Update).unwrap());
        assert_eq!(mode(), 0o600);
        fs::set_permissions(lock_file(&paths), Permissions::from_mode(0o644)).unwrap();
        drop(Lock::take(&paths, "second", Work::Update).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn one_without_a_name_is_held_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let lock = Lock::take(&paths, "first", Work::Update).unwrap();
        lock.file.set_len(0).unwrap();
        let e = Lock::take(&paths, "second", Work::Update).unwrap_err();
        assert_eq!(e.message(), "cannot begin: another program has just begun");
        assert_eq!(e.hint(), "wait until it has ended");
        assert_eq!(Holder::of(&paths).unwrap().unwrap().pid, 0);
    }
}
