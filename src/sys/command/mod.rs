//! The one way to run a program.
//!
//! Standard input is `/dev/null`, output arrives line by line, and the program has its own process group, so that it can be
//! killed with everything that it started. Nothing makes this program wait longer than agreed: not silence, not endless output,
//! not a child that keeps the output open.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

mod lines;
mod logged;
mod running;
mod script;
mod starts;

pub use lines::MAX_LINE_BYTES;
pub(crate) use lines::Splitter;
pub use logged::{Ended, keep, seconds};
pub(crate) use logged::{SERVICE_PROTOCOL, Speaker, because, level_and_text, warn_of_silence};
pub use running::{Event, Running};
use script::is_executable;
pub use script::{Script, Start};
pub(crate) use starts::wait_for_starts;

/// A longer silence gives a warning.
pub(crate) const SILENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; with both outputs in one, standard error as well.
    Out,
    Err,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Status(i32),
    Signal(i32),
    /// Killed, because it took longer than this.
    TooLong(Duration),
}

impl End {
    #[must_use]
    pub fn is_success(self) -> bool {
        self == End::Status(0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Status(code) => write!(f, "it ended with status {code}"),
            End::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "it was ended by {signal}"),
                Err(_) => write!(f, "it was ended by signal {number}"),
            },
            End::TooLong(limit) => {
                write!(f, "it was ended, having taken longer than {} s", limit.as_secs_f64())
            }
        }
    }
}

pub struct Command {
    inner: process::Command,
    limit: Option<Duration>,
    silence: Duration,
    apart: bool,
    input: Stdio,
}

impl Command {
    /// A path, or a name that is looked up in `PATH`. The environment is inherited.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = process::Command::new(program);
        inner.process_group(0);
        Command { inner, limit: None, silence: SILENCE, apart: false, input: Stdio::null() }
    }

    /// A foreign program. bash runs a script without `#!`, as the shell did that used to start it; the kernel refuses it (ENOEXEC).
    pub fn script(path: &Path) -> io::Result<Self> {
        Ok(match interpreter(path)? {
            None => Command::new(path),
            Some(bash) => Command::new(bash).arg(path),
        })
    }

    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.inner.arg(arg);
        self
    }

    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.inner.args(args);
        self
    }

    #[must_use]
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.inner.envs(variables);
        self
    }

    #[must_use]
    pub fn without(mut self, variable: impl AsRef<OsStr>) -> Self {
        self.inner.env_remove(variable);
        self
    }

    /// With the default action of each signal, also of those that the caller of this program ignores. It is in a process group of its own, so that the end of
    /// a terminal does not reach it.
    #[must_use]
    #[allow(unsafe_code)]
    pub(crate) fn with_default_signals(mut self) -> Self {
        let reset = || {
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            for signal in
                Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP))
            {
                // SAFETY: no handler is installed.
                unsafe { sigaction(signal, &default) }?;
            }
            Ok(())
        };
        // SAFETY: system calls only, no allocation.
        unsafe { self.inner.pre_exec(reset) };
        self
    }

    /// Its root is also its working folder, where the program is looked up. It gets SIGTERM when the starting thread ends, even by
    /// SIGKILL: no other process knows that root.
    #[allow(unsafe_code)]
    pub(crate) fn in_root(mut self, root: &Path) -> io::Result<Self> {
        let root = CString::new(root.as_os_str().as_bytes())?;
        let enter = move || {
            nix::unistd::chroot(root.as_c_str())?;
            nix::unistd::chdir(c"/")?;
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            Ok(())
        };
        // SAFETY: three system calls, no allocation: the path already has its zero byte.
        unsafe { self.inner.pre_exec(enter) };
        Ok(self)
    }

    /// After this time its whole process group gets SIGTERM, five seconds later SIGKILL.
    #[must_use]
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// Sends [`Event::Silent`] after each such silence; default is [`SILENCE`].
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Separates standard output and standard error. The order of their lines may then be wrong.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    #[must_use]
    pub fn with_input(mut self) -> Self {
        self.input = Stdio::piped();
        self
    }

    /// It reads this file, and no other program gets what is in it.
    #[must_use]
    pub(crate) fn with_file(mut self, file: File) -> Self {
        self.input = file.into();
        self
    }

    /// It also inherits this file, under the same number.
    #[must_use]
    #[allow(unsafe_code)]
    pub(crate) fn with_another_file(mut self, file: File) -> Self {
        let keep = move || {
            fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))?;
            Ok(())
        };
        // SAFETY: one system call, no allocation.
        unsafe { self.inner.pre_exec(keep) };
        self
    }

    pub fn start(mut self) -> io::Result<Running> {
        let (out, out_end) = io::pipe()?;
        let mut outputs = vec![(Stream::Out, out)];
        let err_end = if self.apart {
            let (err, err_end) = io::pipe()?;
            outputs.push((Stream::Err, err));
            err_end
        } else {
            out_end.try_clone()?
        };
        self.inner.stdout(out_end).stderr(err_end);
        self.inner.stdin(self.input);
        #[cfg(feature = "crash-points")]
        super::crash_point::reach_in_child(&mut self.inner);
        let child = {
            let _starting = starts::begin();
            self.inner.spawn()?
        };
        // Drops this process's copies of the pipe ends: only the program holds them from here on.
        drop(self.inner);
        Running::follow(child, outputs, self.limit, self.silence)
    }

    /// Runs it to its end. Passes on its lines as they come, and a [`Duration`] after long silence.
    pub fn run(self, mut said: impl FnMut(Said<'_>)) -> io::Result<End> {
        let mut running = self.start()?;
        loop {
            match running.next(None)? {
                Event::Line(stream, line) => said(Said::Line(stream, &line)),
                Event::Silent(time) => said(Said::Nothing(time)),
                Event::Ended(end) => return Ok(end),
                Event::Waited => {}
            }
        }
    }
}

/// The running program.
pub(crate) const SELF: &str = "/proc/self/exe";

/// Becomes this program, called as `copal`, with `out` as standard output and no other environment. Returns only on failure.
pub(crate) fn become_copal(
    args: &[OsString],
    environment: Vec<(OsString, OsString)>,
    out: File,
) -> io::Error {
    let mut command = process::Command::new(SELF);
    command.arg0("copal").args(args).env_clear().envs(environment).stdin(Stdio::null()).stdout(out).exec()
}

#[derive(Debug, Clone, Copy)]
pub enum Said<'a> {
    Line(Stream, &'a str),
    /// No output for this long.
    Nothing(Duration),
}

pub fn check_script(path: &Path) -> io::Result<()> {
    interpreter(path).map(drop)
}

/// Whether any process of this number runs. For polling: a descriptor for it (`pidfd_open`) needs Linux 5.3.
#[must_use]
pub fn is_running(pid: i32) -> bool {
    let here = !matches!(
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None),
        Err(nix::errno::Errno::ESRCH)
    );
    // A process that has ended keeps its number until it is reaped.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    here && !state.rsplit(')').next().is_some_and(|s| s.starts_with(" Z"))
}

/// Whether the process of this number has started this one, perhaps through others, or is it.
pub(crate) fn is_self_or_ancestor(pid: u32) -> bool {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it may contain anything.
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    // No tree of processes is deeper; numbers may be used again while it is read.
    let line = std::iter::successors(Some(process::id()), |&pid| parent(pid)).take(1000);
    line.take_while(|&p| p != 0).any(|p| p == pid)
}

#[must_use]
pub fn bash() -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders = ["/bin", "/usr/bin"].into_iter().map(PathBuf::from).chain(std::env::split_paths(&search));
    folders.map(|folder| folder.join("bash")).find(|path| is_executable(path))
}

/// What must run `path`: bash, or the kernel alone.
fn interpreter(path: &Path) -> io::Result<Option<PathBuf>> {
    let script = Script::of(path)?;
    let error = |kind, why: &str| Err(io::Error::new(kind, why.to_owned()));
    script.check_interpreter()?;
    match (script.start, script.executable) {
        (Start::Named(..) | Start::Binary, true) => Ok(None),
        (Start::Named(..) | Start::Binary, false) => {
            error(io::ErrorKind::PermissionDenied, "it is not executable (chmod +x)")
        }
        // bash only reads it, as `bash FILE` did.
        (Start::Text, _) => match bash() {
            Some(bash) => Ok(Some(bash)),
            None => error(io::ErrorKind::NotFound, "it names no interpreter, and bash is missing"),
        },
    }
}
