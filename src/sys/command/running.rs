use std::collections::VecDeque;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::lines::Splitter;
use super::{End, Stream};

const TERM_TIMEOUT: Duration = Duration::from_secs(5);
/// After SIGKILL, a program that hangs in the kernel is abandoned.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// After the program's end, for the last lines of a child that keeps the output open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Line(Stream, String),
    /// No line for this long.
    Silent(Duration),
    /// The program has ended; all its lines came before.
    Ended(End),
    /// The timeout is over.
    Waited,
}

enum Phase {
    Runs,
    /// SIGTERM was sent; SIGKILL follows at this time.
    Asked(Instant),
    /// SIGKILL was sent; at this time the program is abandoned.
    Killed(Instant),
}

struct Output {
    stream: Stream,
    pipe: PipeReader,
    splitter: Splitter,
}

/// On drop before its end, it is killed with its process group.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    outputs: Vec<Output>,
    /// End of file means that the program has ended and can be reaped.
    exit: Option<PipeReader>,
    lines: VecDeque<(Stream, String)>,
    started: Instant,
    limit: Option<Duration>,
    phase: Phase,
    /// When the program ended, and the deadline for the rest of its output.
    grace: Option<Instant>,
    silence: Duration,
    heard: Instant,
    warned: Instant,
    end: Option<End>,
}

impl Running {
    pub(super) fn follow(
        mut child: Child,
        outputs: Vec<(Stream, PipeReader)>,
        limit: Option<Duration>,
        silence: Duration,
    ) -> io::Result<Self> {
        let exit = match announce_exit(&child) {
            Ok(exit) => exit,
            Err(e) => {
                drop(child.kill().and_then(|()| child.wait()));
                return Err(e);
            }
        };
        let now = Instant::now();
        let outputs = outputs.into_iter();
        Ok(Running {
            input: child.stdin.take(),
            child,
            outputs: outputs
                .map(|(stream, pipe)| Output { stream, pipe, splitter: Splitter::default() })
                .collect(),
            exit: Some(exit),
            lines: VecDeque::new(),
            started: now,
            limit,
            phase: Phase::Runs,
            grace: None,
            silence,
            heard: now,
            warned: now,
            end: None,
        })
    }

    /// The process number, and the number of its process group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn say(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(format!("{line}\n").as_bytes())
    }

    pub fn hang_up(&mut self) {
        self.input = None;
    }

    pub fn limit(&mut self, limit: Option<Duration>) {
        self.started = Instant::now();
        self.limit = limit;
    }

    pub fn listen(&mut self) {
        self.heard = Instant::now();
        self.warned = self.heard;
    }

    /// The next event, at the latest at `until`. After [`Event::Ended`], that again.
    pub fn next(&mut self, until: Option<Instant>) -> io::Result<Event> {
        loop {
            if let Some((stream, line)) = self.lines.pop_front() {
                return Ok(Event::Line(stream, line));
            }
            if let Some(end) = self.end {
                return Ok(Event::Ended(end));
            }
            let now = Instant::now();
            self.press(now);
            if self.is_over(now) {
                self.conclude()?;
                continue;
            }
            if self.grace.is_none() && now.duration_since(self.warned) >= self.silence {
                self.warned = now;
                return Ok(Event::Silent(now.duration_since(self.heard)));
            }
            if until.is_some_and(|u| now >= u) && !self.is_ready()? {
                return Ok(Event::Waited);
            }
            self.wait(self.next_date(until))?;
        }
    }

    fn press(&mut self, now: Instant) {
        let late = |limit: &Duration| now.duration_since(self.started) >= *limit;
        match self.phase {
            Phase::Runs if self.grace.is_none() && self.limit.as_ref().is_some_and(late) => {
                self.signal(Signal::SIGTERM);
                self.phase = Phase::Asked(now + TERM_TIMEOUT);
            }
            Phase::Asked(kill_at) if now >= kill_at => {
                self.signal(Signal::SIGKILL);
                self.phase = Phase::Killed(now + KILL_TIMEOUT);
            }
            _ => {}
        }
    }

    /// To the whole group. Its number is still valid: the leader was not reaped.
    fn signal(&self, signal: Signal) {
        if let (Ok(pid), None) = (i32::try_from(self.child.id()), self.end) {
            match killpg(Pid::from_raw(pid), signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(e) => tracing::debug!("{signal} to process group {pid}: {e}"),
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        match (self.grace, &self.phase) {
            (Some(end), _) => self.outputs.is_empty() || now >= end,
            (None, Phase::Killed(end)) => now >= *end,
            (None, _) => false,
        }
    }

    fn next_date(&self, until: Option<Instant>) -> Option<Instant> {
        let pressing = match self.phase {
            Phase::Runs => {
                self.limit.filter(|_| self.grace.is_none()).and_then(|l| self.started.checked_add(l))
            }
            Phase::Asked(at) | Phase::Killed(at) => Some(at),
        };
        let silence = self.warned.checked_add(self.silence).filter(|_| self.grace.is_none());
        [pressing, silence, self.grace, until].into_iter().flatten().min()
    }

    fn is_ready(&self) -> io::Result<bool> {
        Ok(!ready(&self.outputs, self.exit.as_ref(), PollTimeout::ZERO)?.is_empty())
    }

    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let timeout = match until {
            None => PollTimeout::NONE,
            // Rounded up, so that the deadline has passed after the wait.
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            }
        };
        let ready = ready(&self.outputs, self.exit.as_ref(), timeout)?;
        for index in ready.iter().rev() {
            let Some(output) = self.outputs.get_mut(*index) else {
                self.leader_has_ended();
                continue;
            };
            if take(output, &mut self.lines)? {
                // Any byte counts: progress counters have no line ends.
                self.listen();
            } else {
                self.outputs.remove(*index);
            }
        }
        Ok(())
    }

    fn leader_has_ended(&mut self) {
        self.exit = None;
        if !matches!(self.phase, Phase::Runs) {
            // For processes of the group that ignored SIGTERM.
            self.signal(Signal::SIGKILL);
        }
        self.grace = Some(Instant::now() + OUTPUT_TIMEOUT);
    }

    fn conclude(&mut self) -> io::Result<()> {
        let too_long = !matches!(self.phase, Phase::Runs);
        // A process that hangs in the kernel is not waited for; init reaps it.
        let status = if self.exit.is_none() { Some(self.child.wait()?) } else { None };
        self.end = Some(match status {
            Some(status) if !too_long => end_of(status),
            _ => End::TooLong(self.limit.unwrap_or_default()),
        });
        for mut output in std::mem::take(&mut self.outputs) {
            self.lines.extend(output.splitter.end().map(|line| (output.stream, line)));
            // A child that still runs must not get SIGPIPE from its output. The thread ends with this program.
            drop(thread::Builder::new().spawn(move || io::copy(&mut output.pipe, &mut io::sink())));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.signal(Signal::SIGKILL);
            self.phase = Phase::Killed(Instant::now() + KILL_TIMEOUT);
            while matches!(self.next(None), Ok(Event::Line(..) | Event::Silent(_) | Event::Waited)) {}
        }
    }
}

/// A pipe that closes when the program ends. The program is not reaped, so its number stays valid.
fn announce_exit(child: &Child) -> io::Result<PipeReader> {
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let (exit, announcer) = io::pipe()?;
    thread::Builder::new().name("wait".to_owned()).spawn(move || {
        while waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
            == Err(Errno::EINTR)
        {}
        drop(announcer);
    })?;
    Ok(exit)
}

/// Indices of readable or closed outputs; the index after them means `exit`.
fn ready(outputs: &[Output], exit: Option<&PipeReader>, timeout: PollTimeout) -> io::Result<Vec<usize>> {
    let pipes = outputs.iter().map(|o| o.pipe.as_fd()).chain(exit.map(|e| e.as_fd()));
    let mut fds: Vec<PollFd<'_>> = pipes.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e.into()),
    }
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|r| !r.is_empty());
    Ok(fds.iter().enumerate().filter(|(_, fd)| happened(fd)).map(|(i, _)| i).collect())
}

fn take(output: &mut Output, lines: &mut VecDeque<(Stream, String)>) -> io::Result<bool> {
    let mut bite = [0; READ_BYTES];
    let stream = output.stream;
    match output.pipe.read(&mut bite) {
        Ok(0) => {
            lines.extend(output.splitter.end().map(|line| (stream, line)));
            Ok(false)
        }
        Ok(n) => {
            output.splitter.feed(bite.get(..n).unwrap_or_default(), |line| lines.push_back((stream, line)));
            Ok(true)
        }
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(e) => Err(e),
    }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Status(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}
