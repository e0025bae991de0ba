//! Entries for systemd's journal, in its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
//!
//! copal's own code, because `tracing-journald` waits for ever for a journal that has stopped reading, and has a fixed socket
//! path. A flash must not wait, and tests need another path.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tracing::Level;

const JOURNAL_SOCKET: &str = "run/systemd/journal/socket";

/// In a container stderr goes to the engine, whose log driver sends it to the host's journal; the host's `/run` may also be
/// visible, and then every entry would appear twice.
const CONTAINER_MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

pub(super) struct Journal {
    path: PathBuf,
    socket: Mutex<UnixDatagram>,
    lost: AtomicU64,
}

impl Journal {
    /// The journal below `root`; `None` in a container, and where there is none.
    pub(super) fn below(root: &Path) -> Option<Self> {
        if CONTAINER_MARKS.iter().any(|mark| root.join(mark).exists()) {
            return None;
        }
        let path = root.join(JOURNAL_SOCKET);
        let socket = Mutex::new(connect(&path).ok()?);
        Some(Journal { path, socket, lost: AtomicU64::new(0) })
    }

    /// Sends an entry without waiting. Lost entries are counted; the next entry that succeeds reports the number.
    pub(super) fn send(&self, entry: &JournalEntry) -> io::Result<()> {
        let mut lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.hand_over(entry.about_lost(lost).bytes()).is_ok() {
            lost = 0;
        }
        let result = self.hand_over(entry.bytes());
        self.lost.fetch_add(lost + u64::from(result.is_err()), Ordering::Relaxed);
        result
    }

    /// [`Journal::send`] for the last entry: waits for a busy journal, up to `timeout` in all. Waits before the report of lost entries
    /// and again before the entry, because there may be space for only one of them.
    pub(super) fn send_last(&self, entry: &JournalEntry, timeout: Duration) -> io::Result<()> {
        let until = Instant::now() + timeout;
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.hand_over_until(until, entry.about_lost(lost).bytes()).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        self.hand_over_until(until, entry.bytes())
    }

    /// [`Journal::hand_over`] at least once, and again whenever the socket is writable, until `until`.
    fn hand_over_until(&self, until: Instant, entry: &[u8]) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.wait_for_space(left);
            match self.hand_over(entry) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && !left.is_zero() => {}
                other => return other,
            }
        }
    }

    fn wait_for_space(&self, timeout: Duration) {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // The attempt to send reports a failure better.
        let _ready = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], timeout);
    }

    fn hand_over(&self, entry: &[u8]) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match deliver(&socket, entry) {
            // The other end was closed; another journal may have the path now.
            Err(e) if is_gone(&e) => {
                *socket = connect(&self.path)?;
                deliver(&socket, entry)
            }
            other => other,
        }
    }
}

/// Connected, so that `poll` works; non-blocking.
fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

fn is_gone(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
    )
}

fn deliver(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    match socket.send(entry) {
        // Larger than a datagram may be: sent as a file.
        Err(e) if e.raw_os_error() == Some(Errno::EMSGSIZE as i32) => deliver_file(socket, entry),
        other => other.map(drop),
    }
}

/// Sends the descriptor of a sealed file in memory: the journal requires the seals before it maps it.
fn deliver_file(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"copal-journal", flags)?);
    file.write_all(entry)?;
    let seals =
        SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    let descriptors = [file.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&[])], &message, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

pub(super) struct JournalEntry {
    identifier: &'static str,
    bytes: Vec<u8>,
}

impl JournalEntry {
    pub(super) fn new(identifier: &'static str, level: Level, message: &str) -> Self {
        let mut entry = JournalEntry { identifier, bytes: Vec::with_capacity(256) };
        entry.field("MESSAGE", message);
        entry.field("PRIORITY", priority(level));
        entry.field("SYSLOG_IDENTIFIER", identifier);
        entry
    }

    pub(super) fn field(&mut self, name: &str, value: &str) {
        self.bytes.extend(name.as_bytes());
        if value.contains('\n') {
            self.bytes.push(b'\n');
            self.bytes.extend((value.len() as u64).to_le_bytes());
        } else {
            self.bytes.push(b'=');
        }
        self.bytes.extend(value.as_bytes());
        self.bytes.push(b'\n');
    }

    fn about_lost(&self, n: u64) -> Self {
        JournalEntry::new(
            self.identifier,
            Level::WARN,
            &format!("{n} entries before this one were lost: the journal was busy"),
        )
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_several_lines_carries_its_length() {
        let mut entry = JournalEntry::new("fatrw", Level::WARN, "x");
        entry.field("COPAL_DEVICE", "a=b");
        entry.field("TEXT", "1\n2=3");
        let head = b"MESSAGE=x\nPRIORITY=4\nSYSLOG_IDENTIFIER=fatrw\nCOPAL_DEVICE=a=b\nTEXT\n\x05\0\0\0\0\0\0\x001\n2=3\n";
        assert_eq!(entry.bytes(), head);
    }

    #[test]
    fn levels_have_the_numbers_of_syslog() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(all.map(priority), ["3", "4", "6", "7", "7"]);
    }
}
