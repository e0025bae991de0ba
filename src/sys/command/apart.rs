use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Command, End};

/// A process. Its start time distinguishes it from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Mark {
    pub pid: u32,
    /// In clock ticks since the system started (field 22 of `/proc/PID/stat`, proc(5)).
    pub began: u64,
}

impl Mark {
    /// The process that has the number now; `None` where there is none, or one that has ended.
    #[must_use]
    pub(crate) fn of(pid: u32) -> Option<Mark> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name is in parentheses, and may contain blanks and parentheses.
        let mut fields = text.rsplit(')').next()?.split_ascii_whitespace();
        let state = fields.next()?;
        let began = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Mark { pid, began })
    }

    fn is_running(self) -> bool {
        Mark::of(self.pid) == Some(self)
    }
}

/// A running program that outlives this one.
#[derive(Debug)]
pub(crate) struct Apart {
    mark: Mark,
    child: Option<Child>,
    end: Option<Option<End>>,
}

impl Command {
    /// Writes its standard output to `out`; standard error is inherited.
    pub(crate) fn start_apart(mut self, out: File) -> io::Result<Apart> {
        self.inner.stdin(Stdio::null()).stdout(out).stderr(Stdio::inherit());
        let child = self.inner.spawn()?;
        // A process that has ended keeps its number until it is reaped.
        let mark = Mark::of(child.id()).unwrap_or(Mark { pid: child.id(), began: 0 });
        Ok(Apart { mark, child: Some(child), end: None })
    }
}

impl Apart {
    /// A process that an earlier one has started. Its exit status is unknown.
    #[must_use]
    pub(crate) fn found(mark: Mark) -> Self {
        Apart { mark, child: None, end: None }
    }

    #[must_use]
    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// `None` while it runs; then its exit, if that is known.
    pub(crate) fn ended(&mut self) -> Option<Option<End>> {
        if self.end.is_none() {
            self.end = match &mut self.child {
                Some(child) => match child.try_wait() {
                    Ok(None) => None,
                    Ok(Some(status)) => Some(match (status.code(), status.signal()) {
                        (Some(code), _) => Some(End::Status(code)),
                        (None, signal) => signal.map(End::Signal),
                    }),
                    Err(e) => {
                        tracing::debug!("process {}: {e}", self.mark.pid);
                        (!self.mark.is_running()).then_some(None)
                    }
                },
                None => (!self.mark.is_running()).then_some(None),
            };
        }
        self.end
    }

    /// Sends SIGTERM to the process itself; it ends its own children.
    pub(crate) fn ask_to_end(&mut self) -> io::Result<()> {
        if self.ended().is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.mark.pid).map_err(io::Error::other)?;
        match kill(Pid::from_raw(pid), Signal::SIGTERM) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn end(apart: &mut Apart) -> Option<End> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(end) = apart.ended() {
                return end;
            }
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn it_writes_to_its_file_and_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let file = File::create(&path).unwrap();
        let command = Command::new("/bin/sh")
            .args(["-c", "echo $A-$HOME; trap 'exit 7' TERM; while :; do sleep 0.05; done"]);
        let command = command.only([("A", "b"), ("PATH", "/usr/bin:/bin")]);
        let mut first = command.start_apart(file).unwrap();
        let mut second = Apart::found(first.mark());
        assert_eq!((first.ended(), second.ended()), (None, None));
        let mut other = Apart::found(Mark { began: first.mark().began + 1, ..first.mark() });
        assert_eq!(other.ended(), Some(None), "another process of the same number is not it");
        let until = Instant::now() + Duration::from_secs(20);
        while std::fs::read_to_string(&path).unwrap() != "b-\n" {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
        // The shell sets the trap a moment after the line.
        std::thread::sleep(Duration::from_millis(100));
        second.ask_to_end().unwrap();
        assert_eq!(end(&mut first), Some(End::Status(7)));
        assert_eq!(end(&mut second), None);
        second.ask_to_end().unwrap();
    }
}
