use std::io::IsTerminal;
use std::os::fd::AsRawFd;

mod raw {
    nix::ioctl_read_bad!(window_size, nix::libc::TIOCGWINSZ, nix::libc::winsize);
}

#[must_use]
pub(crate) fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// `None` where there is no terminal, or where it does not know its width (serial consoles).
#[must_use]
#[allow(unsafe_code)]
pub(crate) fn stderr_width() -> Option<u16> {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ fills the structure that it is given, which lives until the call returns; other descriptors than a terminal
    // give ENOTTY.
    unsafe { raw::window_size(std::io::stderr().as_raw_fd(), &raw mut size) }.ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}
