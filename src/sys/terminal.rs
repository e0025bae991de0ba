use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NONBLOCK};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, InputFlags, LocalFlags, SetArg, Termios, tcflush, tcgetattr, tcsetattr};

use super::signal;

mod raw {
    nix::ioctl_read_bad!(window_size, nix::libc::TIOCGWINSZ, nix::libc::winsize);
    // VT_ACTIVATE of linux/vt.h.
    nix::ioctl_write_int_bad!(activate, 0x5606);
}

#[must_use]
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

#[must_use]
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// `None` where there is no terminal, or where it does not know its width (serial consoles).
#[must_use]
pub(crate) fn stderr_width() -> Option<u16> {
    width(io::stderr())
}

/// As [`stderr_width`].
#[must_use]
pub(crate) fn stdout_width() -> Option<u16> {
    width(io::stdout())
}

#[must_use]
#[allow(unsafe_code)]
pub(crate) fn width(terminal: impl AsFd) -> Option<u16> {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ fills the structure that it is given, which lives until the call returns; other descriptors than a terminal
    // give ENOTTY.
    unsafe { raw::window_size(terminal.as_fd().as_raw_fd(), &raw mut size) }.ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// The first virtual terminal below `root`, to write to. It does not become this program's own.
pub(crate) fn first(root: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    let terminal = options.open(root.join("dev/tty1"))?;
    if terminal.is_terminal() { Ok(terminal) } else { Err(io::Error::other("it is not a terminal")) }
}

/// Shows the first virtual terminal on the screen, whichever was shown before.
#[allow(unsafe_code)]
pub(crate) fn show_first(terminal: &File) -> io::Result<()> {
    // SAFETY: VT_ACTIVATE takes a number and no pointer; other terminals give ENOTTY.
    unsafe { raw::activate(terminal.as_raw_fd(), 1) }?;
    Ok(())
}

/// Standard input, to ask on; `None` where it is not a terminal.
pub(crate) fn of_stdin() -> Option<File> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let mut options = OpenOptions::new();
    // A shell may have opened it for reading only.
    // One that takes nothing more must not hold up a start.
    options
        .read(true)
        .write(true)
        .custom_flags(O_NOCTTY | O_CLOEXEC | O_NONBLOCK)
        .open("/proc/self/fd/0")
        .ok()
}

/// Shows a text, as far as the terminal takes it within some seconds: with flow control, one to which nothing is connected takes nothing.
pub(crate) fn put(mut terminal: &File, text: &str) -> io::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let deadline = Instant::now() + TIMEOUT;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match terminal.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.split_at(written).1,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                let mut fds = [PollFd::new(terminal.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut fds, PollTimeout::from(100u8)) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(e) => {
                // Else the end of the program waits for it.
                tcflush(terminal, FlushArg::TCOFLUSH)?;
                return Err(e);
            }
        }
    }
    Ok(())
}

/// Gives a terminal back its settings.
struct Settings<'a>(&'a File, Termios);

impl Drop for Settings<'_> {
    fn drop(&mut self) {
        if let Err(e) = tcsetattr(self.0, SetArg::TCSANOW, &self.1) {
            tracing::debug!("cannot give the terminal its settings back: {e}");
        }
    }
}

/// Whether a terminal shows what is typed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Echo {
    Shown,
    Hidden,
}

/// Asks, and puts the line that is typed then into `line`. Returns how much of `line` it fills, with its end; `None` where it does not come before
/// the deadline, before a signal that is held back, or never.
pub(crate) fn ask(
    terminal: &File,
    question: &str,
    echo: Echo,
    deadline: Instant,
    line: &mut [u8],
) -> io::Result<Option<usize>> {
    let settings = Settings(terminal, tcgetattr(terminal)?);
    let mut own = settings.1.clone();
    own.local_flags.set(LocalFlags::ECHO, echo == Echo::Shown);
    own.local_flags.remove(LocalFlags::ECHONL);
    // Lines as a whole, whatever a program has left there.
    own.local_flags.insert(LocalFlags::ICANON);
    own.input_flags.insert(InputFlags::ICRNL);
    // A byte on an open line would stop the output.
    own.input_flags.remove(InputFlags::IXON);
    tcsetattr(terminal, SetArg::TCSANOW, &own)?;
    // What was typed before the question does not answer it.
    tcflush(terminal, FlushArg::TCIFLUSH)?;
    put(terminal, question)?;
    let answer = loop {
        let mut fds = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(100u8)) {
            _ if signal::came().is_some() => break None,
            Ok(0) if deadline <= Instant::now() => break None,
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => match (&mut &*terminal).read(line) {
                Ok(length) => break Some(length).filter(|length| *length > 0),
                // Another program has read it.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
                Err(e) => return Err(e),
            },
            Err(e) => return Err(e.into()),
        }
    };
    // Of a line that is too long.
    tcflush(terminal, FlushArg::TCIFLUSH)?;
    if echo == Echo::Hidden || answer.is_none() {
        put(terminal, "\n")?;
    }
    Ok(answer)
}
