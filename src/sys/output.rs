//! Output that may have no reader: progress and log must not stop a job whose disk is half written.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A reader that leaves a pipe or terminal full for this long counts as gone.
const TIMEOUT_MS: u16 = 1000;

/// For the program's last line, which matters more.
const LAST_TIMEOUT_MS: u16 = 10_000;

/// How often a descriptor may refuse bytes that it was ready for.
const MAX_REFUSALS: u32 = 100;

/// Bytes that a writable pipe accepts at once (`PIPE_BUF` of Linux).
const AT_ONCE: usize = 4096;

/// Writes only when the descriptor accepts the bytes. After one timeout, it does not wait for the reader again until that
/// reads.
pub(crate) struct BoundedOutput<F> {
    out: F,
    timed_out: AtomicBool,
}

impl<F: AsFd> BoundedOutput<F> {
    pub(crate) const fn new(out: F) -> Self {
        BoundedOutput { out, timed_out: AtomicBool::new(false) }
    }

    /// Whether the reader accepts a line now. Waits only for a reader that was not late before.
    pub(crate) fn is_open(&self) -> bool {
        let wait = if self.timed_out.load(Ordering::Relaxed) { 0 } else { TIMEOUT_MS };
        let open = is_writable(self.out.as_fd(), wait).unwrap_or(false);
        self.timed_out.store(!open, Ordering::Relaxed);
        open
    }

    /// Writes a line of at most [`AT_ONCE`] bytes as a whole, or not at all.
    pub(crate) fn line(&self, text: &[u8]) -> io::Result<()> {
        self.parts(text, BoundedOutput::is_open)
    }

    /// [`BoundedOutput::line`] for the program's last line: always waits up to ten seconds.
    pub(crate) fn last_line(&self, text: &[u8]) -> io::Result<()> {
        self.parts(text, |this| is_writable(this.out.as_fd(), LAST_TIMEOUT_MS).unwrap_or(false))
    }

    fn parts(&self, text: &[u8], is_open: impl Fn(&Self) -> bool) -> io::Result<()> {
        let fd = self.out.as_fd();
        let mut refusals = 0;
        for part in text.chunks(AT_ONCE) {
            if !is_open(self) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut rest = part;
            while !rest.is_empty() {
                match nix::unistd::write(fd, rest) {
                    Ok(n) => rest = rest.split_at(n).1,
                    // A descriptor that does not wait takes what it has space for.
                    Err(nix::errno::Errno::EAGAIN) if refusals < MAX_REFUSALS && is_open(self) => {
                        refusals += 1;
                    }
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }
}

impl<F: AsFd> Write for BoundedOutput<F> {
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
        let out = BoundedOutput::new(writer);
        let line = [b'x'; 1000];
        let began = Instant::now();
        let written = (0..1000).filter(|_| out.line(&line).is_ok()).count();
        assert!(began.elapsed() < Duration::from_secs(300), "it waits for every line");
        assert!((16..1000).contains(&written), "{written}");
        // Whole lines only; they continue when there is space again.
        let mut got = vec![0; written * 1000];
        reader.read_exact(&mut got).unwrap();
        out.line(&line).unwrap();
        drop(out);
        got.clear();
        assert_eq!(reader.read_to_end(&mut got).unwrap(), 1000);
    }
}
