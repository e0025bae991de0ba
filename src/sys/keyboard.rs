//! Key presses at the device itself, also where another program reads the terminal.
//!
//! From the event devices of the kernel (`Documentation/input/event-codes.rst` and `input.rst`), which need no virtual terminal, and share no
//! press with a login prompt.

use std::collections::BTreeMap;
use std::ffi::{OsString, c_ulong};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc::{O_CLOEXEC, O_NONBLOCK};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const EV_KEY: u16 = 1;
const KEY_ENTER: u16 = 28;
const KEY_KPENTER: u16 = 96;
/// From here on the codes are those of mice, pads and touch screens.
const BTN_MISC: u16 = 0x100;

/// One event: a time of two words of the kernel, a type, a code, a value (`linux/input.h`).
const TIME: usize = 2 * size_of::<c_ulong>();
const EVENT: usize = TIME + 8;

/// How late a keyboard is noticed that has just been plugged in.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Enter,
    Other,
}

/// All keyboards: input devices that have a key Enter, as far as they can be read.
pub(crate) struct Keyboards {
    root: PathBuf,
    open: BTreeMap<OsString, File>,
}

impl Keyboards {
    /// Those below `root`. Only what is pressed from now on counts.
    #[must_use]
    pub(crate) fn open(root: &Path) -> Self {
        let mut keyboards = Keyboards { root: root.to_owned(), open: BTreeMap::new() };
        keyboards.look();
        keyboards
    }

    /// Whether there is none.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens those that have come.
    pub(crate) fn look(&mut self) {
        let Ok(entries) = std::fs::read_dir(self.root.join("sys/class/input")) else { return };
        for name in entries.flatten().map(|entry| entry.file_name()) {
            let is_event = name.to_string_lossy().starts_with("event");
            if !is_event || self.open.contains_key(&name) || !has_enter(&self.root, &name) {
                continue;
            }
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(O_NONBLOCK | O_CLOEXEC);
            match options.open(self.root.join("dev/input").join(&name)) {
                Ok(file) => drop(self.open.insert(name, file)),
                // udev may not have made the node yet.
                Err(e) => tracing::debug!("cannot open the keyboard {}: {e}", name.display()),
            }
        }
    }

    /// The first key that is pressed until `deadline`.
    pub(crate) fn pressed(&mut self, deadline: Instant) -> Option<Key> {
        loop {
            self.look();
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = left.min(LOOK_AGAIN);
            if let Some(key) = self.poll(wait) {
                return Some(key);
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    fn poll(&mut self, wait: Duration) -> Option<Key> {
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
        let mut fds: Vec<PollFd> =
            self.open.values().map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN)).collect();
        if fds.is_empty() {
            std::thread::sleep(wait);
            return None;
        }
        // A signal ends the wait early, which its caller repeats.
        poll(&mut fds, timeout).ok()?;
        let mut first = None;
        self.open.retain(|name, file| match read(file) {
            Some(key) => {
                first = first.or(key);
                true
            }
            None => {
                tracing::debug!("the keyboard {} is gone", name.display());
                false
            }
        });
        first
    }
}

/// Whether the bit of Enter is set in its `capabilities/key`: words in hex, the lowest last.
fn has_enter(root: &Path, name: &OsString) -> bool {
    let file = root.join("sys/class/input").join(name).join("device/capabilities/key");
    let keys = std::fs::read_to_string(file).unwrap_or_default();
    let lowest = keys.split_whitespace().next_back().and_then(|word| u64::from_str_radix(word, 16).ok());
    lowest.is_some_and(|bits| bits >> KEY_ENTER & 1 == 1)
}

/// The first key among what waits to be read; `None` when the device is gone.
fn read(mut file: &File) -> Option<Option<Key>> {
    let mut events = [0; EVENT * 64];
    let mut first = None;
    loop {
        match file.read(&mut events) {
            Ok(0) => return None,
            Ok(n) => {
                let all = events.get(..n).unwrap_or_default().chunks_exact(EVENT);
                first = first.or(all.filter_map(key).next());
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Some(first),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// The key that this event says was pressed: neither let go nor repeated because it is held.
fn key(event: &[u8]) -> Option<Key> {
    let (_, event) = event.split_at_checked(TIME)?;
    let &[a, b, c, d, e, f, g, h] = event else { return None };
    let (kind, code) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    let pressed = i32::from_ne_bytes([e, f, g, h]) == 1;
    match code {
        KEY_ENTER | KEY_KPENTER if kind == EV_KEY && pressed => Some(Key::Enter),
        1..BTN_MISC if kind == EV_KEY && pressed => Some(Key::Other),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::io::Write as _;

    const A: u16 = 30;

    /// The keys of a PC, from its sysfs.
    pub(crate) const KEYS: &str = "402000000 3803078f800d001 feffffdfffefffff fffffffffffffffe\n";

    /// What a keyboard sends when this key is pressed.
    pub(crate) fn press(enter: bool) -> Vec<u8> {
        event(EV_KEY, if enter { KEY_ENTER } else { A }, 1)
    }

    fn event(kind: u16, code: u16, value: i32) -> Vec<u8> {
        [&[0; TIME], &kind.to_ne_bytes()[..], &code.to_ne_bytes(), &value.to_ne_bytes()].concat()
    }

    /// A device with these keys: a pipe, and its end for the keys.
    pub(crate) fn device(root: &Path, name: &str, keys: &str) -> File {
        let caps = root.join(format!("sys/class/input/{name}/device/capabilities"));
        std::fs::create_dir_all(&caps).unwrap();
        std::fs::create_dir_all(root.join("dev/input")).unwrap();
        std::fs::write(caps.join("key"), keys).unwrap();
        let node = root.join("dev/input").join(name);
        nix::unistd::mkfifo(&node, Mode::S_IRWXU).unwrap();
        OpenOptions::new().read(true).write(true).open(node).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn presses_of_keyboards_count() {
        let dir = tempfile::tempdir().unwrap();
        // A power button, and a mouse.
        let _button = device(dir.path(), "event0", "10000000000000 0\n");
        let _mouse = device(dir.path(), "event1", "ff0000 0 0 0 0\n");
        let mut keyboards = Keyboards::open(dir.path());
        assert!(keyboards.is_empty());
        assert_eq!(keyboards.pressed(soon()), None);
        let mut pipe = device(dir.path(), "event2", KEYS);
        // Plugged in now.
        assert_eq!(keyboards.pressed(soon()), None);
        assert!(!keyboards.is_empty());
        for (events, expected) in [
            // The scan code before it, let go, held, a button of a mouse.
            (vec![event(4, 4, 28), event(EV_KEY, A, 0), event(EV_KEY, A, 2), event(EV_KEY, 0x110, 1)], None),
            (vec![event(4, 4, 30), press(false), event(0, 0, 0)], Some(Key::Other)),
            (vec![press(true)], Some(Key::Enter)),
            (vec![event(EV_KEY, KEY_KPENTER, 1)], Some(Key::Enter)),
            (vec![press(false), press(true)], Some(Key::Other)),
        ] {
            pipe.write_all(&events.concat()).unwrap();
            assert_eq!(keyboards.pressed(soon()), expected);
        }
        drop(pipe);
        assert_eq!(keyboards.pressed(soon()), None);
    }
}
