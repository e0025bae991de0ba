//! Entries for systemd's journal, in its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
//!
//! Our own, not `tracing-journald`: that one waits for a journal that has stopped reading, for ever, and knows its
//! socket at one place only. A flash must not wait, and tests need another place.

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

const SOCKET: &str = "run/systemd/journal/socket";

/// In a container stderr is the engine's, whose log driver hands it to the host's journal; the host's `/run` may be
/// there as well, and everything would appear twice.
const CONTAINER: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// The journal of the running system.
pub(super) struct Journal {
    path: PathBuf,
    socket: Mutex<UnixDatagram>,
    lost: AtomicU64,
}

impl Journal {
    /// The journal below `root`; `None` in a container, and where there is none.
    pub(super) fn below(root: &Path) -> Option<Self> {
        if CONTAINER.iter().any(|mark| root.join(mark).exists()) {
            return None;
        }
        let path = root.join(SOCKET);
        let socket = Mutex::new(connect(&path).ok()?);
        Some(Journal { path, socket, lost: AtomicU64::new(0) })
    }

    /// Hands over an entry without waiting. What the journal did not take is counted, and the number told with the next
    /// entry that it takes.
    pub(super) fn send(&self, entry: &JournalEntry) -> io::Result<()> {
        let mut lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.hand_over(entry.about_lost(lost).bytes()).is_ok() {
            lost = 0;
        }
        let result = self.hand_over(entry.bytes());
        self.lost.fetch_add(lost + u64::from(result.is_err()), Ordering::Relaxed);
        result
    }

    /// [`Journal::send`] for the last entry: a busy journal is waited for, up to `timeout` in all. Room for the word about
    /// what was lost is not yet room for the entry, so each is waited for.
    pub(super) fn send_last(&self, entry: &JournalEntry, timeout: Duration) -> io::Result<()> {
        let until = Instant::now() + timeout;
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.hand_over_until(until, entry.about_lost(lost).bytes()).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        self.hand_over_until(until, entry.bytes())
    }

    /// [`Journal::hand_over`], and once more whenever there is room, at least once and until then.
    fn hand_over_until(&self, until: Instant, entry: &[u8]) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.wait_for_room(left);
            match self.hand_over(entry) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && !left.is_zero() => {}
                other => return other,
            }
        }
    }

    fn wait_for_room(&self, timeout: Duration) {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever comes of it: the attempt tells more.
        let _ready = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], timeout);
    }

    fn hand_over(&self, entry: &[u8]) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match deliver(&socket, entry) {
            // The other end was closed: another one may be at its place by now.
            Err(e) if is_gone(&e) => {
                *socket = connect(&self.path)?;
                deliver(&socket, entry)
            }
            other => other,
        }
    }
}

/// Connected, so that it can be waited for, and never waiting by itself.
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
        // Larger than a datagram may be: as a file instead.
        Err(e) if e.raw_os_error() == Some(Errno::EMSGSIZE as i32) => deliver_file(socket, entry),
        other => other.map(drop),
    }
}

/// Sends the descriptor of a file in memory, sealed, as the journal demands before it maps it.
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

/// An entry being made.
pub(super) struct JournalEntry {
    identifier: &'static str,
    bytes: Vec<u8>,
}

impl JournalEntry {
    /// An entry in the name of the program `identifier`.
    pub(super) fn new(identifier: &'static str, level: Level, message: &str) -> Self {
        let mut entry = JournalEntry { identifier, bytes: Vec::with_capacity(256) };
        entry.field("MESSAGE", message);
        entry.field("PRIORITY", priority(level));
        entry.field("SYSLOG_IDENTIFIER", identifier);
        entry
    }

    /// Adds a field; `name` is one that the journal takes.
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

/// The levels of syslog.
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
