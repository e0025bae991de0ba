//! Output that nobody has to read: progress and log must not stop a job whose disk is half written.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long a reader may leave a pipe or terminal full before it is taken for gone.
const PATIENCE_MS: u16 = 1000;

/// The same before the program's last line, which is worth more.
const LAST_PATIENCE_MS: u16 = 10_000;

/// Bytes that a pipe takes at once when it is writable at all (`PIPE_BUF` of Linux).
const AT_ONCE: usize = 4096;

/// A description that is written only when it takes the bytes. After a reader has let it wait once, it no longer waits
/// for that reader, until it reads again.
pub struct Patient<F> {
    out: F,
    deaf: AtomicBool,
}

impl<F: AsFd> Patient<F> {
    /// Writes to `out`.
    pub const fn new(out: F) -> Self {
        Patient { out, deaf: AtomicBool::new(false) }
    }

    /// Whether somebody takes a line now. Waits for a reader who was not late before.
    pub fn is_open(&self) -> bool {
        let wait = if self.deaf.load(Ordering::Relaxed) { 0 } else { PATIENCE_MS };
        let open = is_writable(self.out.as_fd(), wait).unwrap_or(false);
        self.deaf.store(!open, Ordering::Relaxed);
        open
    }

    /// Writes a line as a whole, or not at all, as long as it has at most [`AT_ONCE`] bytes.
    ///
    /// # Errors
    /// `WouldBlock` when nobody reads; else those of `write(2)`.
    pub fn line(&self, text: &[u8]) -> io::Result<()> {
        self.parts(text, Patient::is_open)
    }

    /// [`Patient::line`] for the last word of the program: waits ten seconds, whoever was late before.
    ///
    /// # Errors
    /// As [`Patient::line`].
    pub fn last_line(&self, text: &[u8]) -> io::Result<()> {
        self.parts(text, |this| is_writable(this.out.as_fd(), LAST_PATIENCE_MS).unwrap_or(false))
    }

    fn parts(&self, text: &[u8], is_open: impl Fn(&Self) -> bool) -> io::Result<()> {
        let fd = self.out.as_fd();
        for part in text.chunks(AT_ONCE) {
            if !is_open(self) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut rest = part;
            while !rest.is_empty() {
                let n = nix::unistd::write(fd, rest)?;
                rest = rest.get(n..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

impl<F: AsFd> Write for Patient<F> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.line(text)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_writable(fd: BorrowedFd<'_>, wait_ms: u16) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    match poll(&mut fds, PollTimeout::from(wait_ms)) {
        Ok(n) => Ok(n > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::{Duration, Instant};

    #[test]
    fn a_reader_who_sleeps_costs_a_second_once() {
        let (mut reader, writer) = io::pipe().unwrap();
        let out = Patient::new(writer);
        let line = [b'x'; 1000];
        let began = Instant::now();
        let written = (0..1000).filter(|_| out.line(&line).is_ok()).count();
        assert!(began.elapsed() < Duration::from_secs(10), "it waits for every line");
        assert!((16..1000).contains(&written), "{written}");
        // Whole lines only; and once there is room again, they come again.
        let mut got = vec![0; written * 1000];
        reader.read_exact(&mut got).unwrap();
        out.line(&line).unwrap();
        drop(out);
        got.clear();
        assert_eq!(reader.read_to_end(&mut got).unwrap(), 1000);
    }
}
