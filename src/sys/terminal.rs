use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NONBLOCK};

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
