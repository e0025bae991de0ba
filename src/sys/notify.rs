//! Status text of the service for `systemctl status`: `sd_notify(3)`.
//!
//! copal's own code, because the libraries for it block when systemd does not read, and do not support abstract sockets, which
//! containers and older releases use.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// systemd sets it to its socket if it accepts notifications.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Longer texts are cut; systemd accepts 4096 bytes for a whole message.
const MAX_STATUS_BYTES: usize = 512;

/// Reports the current activity to systemd, if it started this program. Never waits.
pub fn status(text: &str) {
    // A lost report does not matter: the next one replaces it.
    notify(|socket| status_to(socket, text));
}

pub fn state(state: ServiceState) {
    notify(|socket| send(socket, state.assignment()));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceState {
    Ready,
    /// It is about to end by itself: a request from now on starts a new service after this one has ended.
    Stopping,
    /// Due within the interval of [`watchdog`].
    Alive,
}

impl ServiceState {
    fn assignment(self) -> &'static str {
        match self {
            ServiceState::Ready => "READY=1\n",
            ServiceState::Stopping => "STOPPING=1\n",
            ServiceState::Alive => "WATCHDOG=1\n",
        }
    }
}

/// The interval in which systemd expects [`ServiceState::Alive`], if any: `sd_watchdog_enabled(3)`.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|&us| ours && us > 0).map(Duration::from_micros)
}

fn notify(send: impl Fn(&OsStr) -> io::Result<()>) {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).filter(|s| !s.is_empty()) else { return };
    if let Err(e) = send(&socket) {
        tracing::debug!("{SOCKET_VARIABLE}={}: {e}", socket.to_string_lossy());
    }
}

/// `socket`: a path, or `@` and the name of an abstract socket.
fn status_to(socket: &OsStr, text: &str) -> io::Result<()> {
    // A line break would start another assignment, such as READY=1.
    let line: String =
        text.chars().take(MAX_STATUS_BYTES / 4).map(|c| if c.is_control() { ' ' } else { c }).collect();
    send(socket, &format!("STATUS={line}\n"))
}

fn send(socket: &OsStr, assignment: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(assignment.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(from: &UnixDatagram) -> String {
        let mut buffer = [0; 8192];
        let n = from.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    #[test]
    fn a_socket_in_a_folder_and_an_abstract_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let reader = UnixDatagram::bind(&path).unwrap();
        status_to(path.as_os_str(), "write 12 %\nREADY=1").unwrap();
        assert_eq!(received(&reader), "STATUS=write 12 % READY=1\n");

        let name = format!("copal-test-{}", std::process::id());
        let reader = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        status_to(OsStr::new(&format!("@{name}")), &"ü".repeat(9999)).unwrap();
        assert!(received(&reader).len() < 4096);
    }

    #[test]
    fn no_reader_costs_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        assert!(status_to(path.as_os_str(), "x").is_err());
        let _deaf = UnixDatagram::bind(&path).unwrap();
        let last = (0..5000).map(|_| status_to(path.as_os_str(), "x")).find_map(Result::err);
        assert_eq!(last.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
