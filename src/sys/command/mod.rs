//! The one way to run a program.
//!
//! Its standard input is `/dev/null`, what it says arrives line by line, and it runs in a process group of its own, so
//! that it can be ended with everything it started. Nothing it does can keep this program waiting for longer than was
//! agreed: not silence, not output without end, not a child that it left behind with its output open.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

mod apart;
mod lines;
mod logged;
mod running;
mod script;

pub use apart::{Apart, Mark};
pub use lines::{LONGEST, Splitter};
pub use logged::{Ended, NOT_PASSED_ON, Speaker, because, keep, seconds, told, warn_of_silence};
pub use running::{Event, Running};
use script::is_executable;
pub use script::{Script, Start};

/// Silence that is worth a warning.
pub const SILENCE: Duration = Duration::from_secs(300);

/// Which output a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; with both in one, standard error as well.
    Out,
    /// Standard error.
    Err,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It was ended, since it took longer than this.
    TooLong(Duration),
}

impl End {
    /// Exit status 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == End::Status(0)
    }
}

/// "it …"
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

/// A program to be run.
pub struct Command {
    inner: process::Command,
    limit: Option<Duration>,
    silence: Duration,
    apart: bool,
    input: bool,
}

impl Command {
    /// A program: a path, or a name that is looked for in `PATH`. The environment is inherited.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = process::Command::new(program);
        inner.process_group(0);
        Command { inner, limit: None, silence: SILENCE, apart: false, input: false }
    }

    /// A program that somebody else wrote, which may be a script that names no interpreter: that one is run by bash. The
    /// kernel refuses it (ENOEXEC), while the shell that used to start such programs ran it by itself.
    ///
    /// # Errors
    /// It cannot be read, is no plain file, is not executable though it needs to be, or its interpreter is missing.
    pub fn script(path: &Path) -> io::Result<Self> {
        Ok(match interpreter(path)? {
            None => Command::new(path),
            Some(bash) => Command::new(bash).arg(path),
        })
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.inner.arg(arg);
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.inner.args(args);
        self
    }

    /// Another name as `argv[0]`.
    #[must_use]
    pub fn called(mut self, name: impl AsRef<OsStr>) -> Self {
        self.inner.arg0(name);
        self
    }

    /// Exports variables.
    #[must_use]
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.inner.envs(variables);
        self
    }

    /// Exports these variables, and none of our own.
    #[must_use]
    pub fn only<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.inner.env_clear();
        self.envs(variables)
    }

    /// Does not pass a variable on.
    #[must_use]
    pub fn without(mut self, variable: impl AsRef<OsStr>) -> Self {
        self.inner.env_remove(variable);
        self
    }

    /// Runs it in a root folder of its own, which is its working folder, too: the program is looked for there. It is asked to end
    /// (SIGTERM) when the thread that started it does, be it by SIGKILL: nobody else knows of that root.
    ///
    /// # Errors
    /// The path has a zero byte.
    #[allow(unsafe_code)]
    pub fn in_root(mut self, root: &Path) -> io::Result<Self> {
        let root = CString::new(root.as_os_str().as_bytes())?;
        let enter = move || {
            nix::unistd::chroot(root.as_c_str())?;
            nix::unistd::chdir(c"/")?;
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            Ok(())
        };
        // SAFETY: three system calls, with nothing allocated: the path has its zero byte already.
        unsafe { self.inner.pre_exec(enter) };
        Ok(self)
    }

    /// Ends it, with its whole process group, after this time: SIGTERM, five seconds later SIGKILL.
    #[must_use]
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// After how much silence, and each time as much again, [`Event::Silent`] comes; [`SILENCE`] otherwise.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Keeps standard output and standard error apart. Their lines then come in an order that may not be theirs.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Gives it an input: [`Running::say`].
    #[must_use]
    pub fn with_input(mut self) -> Self {
        self.input = true;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
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
        self.inner.stdin(if self.input { Stdio::piped() } else { Stdio::null() });
        let child = self.inner.spawn()?;
        // With the builder go our own copies of the pipes' ends: nobody but the program holds them from here on.
        drop(self.inner);
        Running::follow(child, outputs, self.limit, self.silence)
    }

    /// Runs it to its end, handing on its lines as they come, and a [`Duration`] where it was silent for long.
    ///
    /// # Errors
    /// It cannot be started or followed.
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

/// What a program lets be known of itself while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Said<'a> {
    /// A line.
    Line(Stream, &'a str),
    /// Nothing, for this long.
    Nothing(Duration),
}

/// Whether [`Command::script`] would find `path` fit to be run.
///
/// # Errors
/// As there.
pub fn check_script(path: &Path) -> io::Result<()> {
    interpreter(path).map(drop)
}

/// Whether there is a process of this number, anybody's, that has not ended. By asking again and again: a descriptor for
/// it (`pidfd_open`) needs Linux 5.3.
#[must_use]
pub fn is_running(pid: i32) -> bool {
    let here = !matches!(
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None),
        Err(nix::errno::Errno::ESRCH)
    );
    // One that has ended and that nobody has asked for its status has a number, too.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    here && !state.rsplit(')').next().is_some_and(|s| s.starts_with(" Z"))
}

/// bash, where it is installed.
#[must_use]
pub fn bash() -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders = ["/bin", "/usr/bin"].into_iter().map(PathBuf::from).chain(std::env::split_paths(&search));
    folders.map(|folder| folder.join("bash")).find(|path| is_executable(path))
}

/// What has to run `path`: bash, or nothing but the kernel.
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
