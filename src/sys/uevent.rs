//! Kernel events of devices that appear and disappear, and whether udev has processed them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};

/// The kernel's own multicast group; udev sends to another one.
const KERNEL_GROUP: u32 = 1;

/// Longer than any event: the kernel limits its environment to 2048 bytes.
const MAX_EVENT_BYTES: usize = 8192;

/// Events of block devices from the kernel; they do not need udev.
#[derive(Debug)]
pub struct Uevents {
    socket: OwnedFd,
}

impl Uevents {
    /// Receives from now on. Open it first, then check what exists, then wait: so no event is missed.
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        Ok(Uevents { socket })
    }

    /// Waits for an event of a block device (`true`) or for `deadline` (`false`). Consumes all events so far: check everything again.
    pub fn wait(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            if self.drain()? {
                return Ok(true);
            }
            if !readable(self.socket.as_fd(), deadline)? {
                return Ok(false);
            }
        }
    }

    fn drain(&self) -> io::Result<bool> {
        let mut buffer = [0; MAX_EVENT_BYTES];
        let mut found = false;
        loop {
            match recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
                // Root's processes may send to the group as well; the kernel's address is 0.
                Ok((n, sender)) => {
                    let from_kernel = sender.is_some_and(|s| s.pid() == 0);
                    found |= from_kernel && buffer.get(..n).is_some_and(is_about_a_disk);
                }
                Err(Errno::EAGAIN) => return Ok(found),
                Err(Errno::EINTR) => {}
                // The socket's buffer overflowed: a lost event may have been of a block device.
                Err(Errno::ENOBUFS) => found = true,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// `ACTION@DEVPATH`, then `KEY=value`, each ended by a zero byte.
fn is_about_a_disk(event: &[u8]) -> bool {
    event.split(|b| *b == 0).any(|field| field == b"SUBSYSTEM=block")
}

pub(super) fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: a wait of zero just before the deadline would spin.
        let left = left.saturating_add(Duration::from_micros(999));
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(0) if Instant::now() >= deadline => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e.into()),
        }
    }
}

/// How long udev must be idle. A kernel event comes before udev shows that it is busy; `udevadm settle` asks the daemon, by a
/// protocol that changes between releases.
const IDLE_TIME: Duration = Duration::from_millis(200);

/// Waits until udev was idle for a moment, so that the links in `/dev/disk` exist; `false` after `deadline`. Without udev `true`.
#[must_use]
pub(crate) fn udev_settled(root: &Path, deadline: Instant) -> bool {
    let folder = root.join("run/udev");
    if !folder.join("control").exists() {
        return true;
    }
    settled(&folder, deadline).unwrap_or_else(|e| {
        tracing::debug!("cannot watch {}: {e}", folder.display());
        !folder.join("queue").exists()
    })
}

fn settled(folder: &Path, deadline: Instant) -> io::Result<bool> {
    let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let changes = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE_SELF;
    watch.add_watch(folder, changes)?;
    // The file exists while the queue has events. It is watched first and checked then.
    let queue = folder.join("queue");
    let mut idle_since = Instant::now();
    loop {
        let busy = queue.exists();
        let until = if busy { deadline } else { deadline.min(idle_since + IDLE_TIME) };
        if !readable(watch.as_fd(), until)? {
            return Ok(!busy && Instant::now() >= idle_since + IDLE_TIME);
        }
        if take(&watch)? {
            idle_since = Instant::now();
        }
    }
}

/// Consumes the events; returns whether one was of the queue.
fn take(watch: &Inotify) -> io::Result<bool> {
    match watch.read_events() {
        Ok(events) => Ok(events.iter().any(|e| e.name.as_ref().is_none_or(|n| n == "queue"))),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[test]
    fn events_are_distinguished() {
        assert!(is_about_a_disk(
            b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=block\0SEQNUM=1\0"
        ));
        assert!(!is_about_a_disk(b"add@/devices/x\0ACTION=add\0DEVPATH=/x\0SUBSYSTEM=bdi\0SEQNUM=1\0"));
        assert!(!is_about_a_disk(b"libudev\0\xfe\xed\xca\xfe"));
        assert!(!is_about_a_disk(b""));
    }

    #[test]
    fn without_udev_there_is_nothing_to_wait_for() {
        let root = tempfile::tempdir().unwrap();
        assert!(udev_settled(root.path(), Instant::now()));
        std::fs::create_dir_all(root.path().join("run/udev")).unwrap();
        std::fs::write(root.path().join("run/udev/queue"), "").unwrap();
        assert!(udev_settled(root.path(), Instant::now()));
    }

    #[test]
    fn udev_is_waited_for_until_its_queue_stays_empty() {
        let root = tempfile::tempdir().unwrap();
        let udev = root.path().join("run/udev");
        std::fs::create_dir_all(&udev).unwrap();
        std::fs::write(udev.join("control"), "").unwrap();
        let began = Instant::now();
        assert!(udev_settled(root.path(), soon(5000)));
        assert!(began.elapsed() >= IDLE_TIME);
        assert!(!udev_settled(root.path(), soon(20)), "not idle for long enough, as far as can be known");

        let queue = udev.join("queue");
        std::fs::write(&queue, "").unwrap();
        assert!(!udev_settled(root.path(), soon(400)));

        // Removed, created and removed again: as when udev processes the events of many partitions.
        let began = Instant::now();
        let worker = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(100));
                let empty = Instant::now();
                std::fs::remove_file(&queue).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                std::fs::write(&queue, "").unwrap();
                longest = longest.max(empty.elapsed());
            }
            std::fs::remove_file(&queue).unwrap();
            longest
        });
        assert!(udev_settled(root.path(), soon(300_000)));
        let took = began.elapsed();
        // On a machine with much else to do it may have been empty for long enough earlier.
        let is_in_time = worker.join().unwrap() < IDLE_TIME;
        assert!(!is_in_time || took >= Duration::from_millis(360) + IDLE_TIME, "{took:?}");
    }
}
