//! Blocks the signals that ask the program to end while it must not end.

use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

/// Sent by users, service managers and lost terminals. By default all of them end the program.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

static CAME: AtomicI32 = AtomicI32::new(0);

static HUNG_UP: AtomicBool = AtomicBool::new(false);

/// The end for writing of the pipe of [`wake`].
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// A pipe that can be read as soon as a signal came that a [`SignalGuard`] records. For the one that waits in this process.
pub(crate) fn wake() -> io::Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    WAKE.store(write.into_raw_fd(), Ordering::Relaxed);
    Ok(read)
}

#[allow(unsafe_code)]
extern "C" fn note(signal: nix::libc::c_int) {
    CAME.store(signal, Ordering::Relaxed);
    if signal == nix::libc::SIGHUP {
        HUNG_UP.store(true, Ordering::Relaxed);
    }
    let wake = WAKE.load(Ordering::Relaxed);
    if wake >= 0 {
        let before = Errno::last_raw();
        // SAFETY: an open pipe that does not block; write(2) is async-signal-safe, and errno is put back.
        unsafe { nix::libc::write(wake, [1u8].as_ptr().cast(), 1) };
        Errno::set_raw(before);
    }
}

/// SIGTERM then ends the program at once, as a success: while the power goes off, the service manager stops all services.
#[allow(unsafe_code)]
pub(crate) fn term_is_success() -> io::Result<()> {
    extern "C" fn end(_signal: nix::libc::c_int) {
        // SAFETY: async-signal-safe, unlike `exit`: nothing of the program runs any more.
        unsafe { nix::libc::_exit(0) }
    }
    let action = SigAction::new(SigHandler::Handler(end), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing but end the process.
    unsafe { sigaction(Signal::SIGTERM, &action) }?;
    Ok(())
}

/// A write beyond the limit of a file's size (`ulimit -f`) then fails with `EFBIG`, which is reported, where the signal would end the program without a
/// word. Programs that it starts get the default again: a handler does not outlive `execve`, as ignoring does.
#[allow(unsafe_code)]
pub fn survive_file_limit() {
    extern "C" fn nothing(_signal: nix::libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    if let Err(e) = unsafe { sigaction(Signal::SIGXFSZ, &action) } {
        tracing::debug!("SIGXFSZ: {e}");
    }
}

/// From now on a lost terminal ends neither this program nor its children.
#[allow(unsafe_code)]
pub(crate) fn ignore_hangup() -> io::Result<()> {
    let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGHUP, &ignored) }?;
    Ok(())
}

/// How many guards exist, and the signal actions before the first.
static HELD: Mutex<(usize, Vec<(Signal, SigAction)>)> = Mutex::new((0, Vec::new()));

/// While one exists, SIGTERM, SIGINT, SIGHUP and SIGQUIT are only recorded, in all threads. An ignored signal stays ignored.
#[derive(Debug)]
#[must_use = "signals stay blocked until `release`"]
pub struct SignalGuard(());

impl SignalGuard {
    #[allow(unsafe_code)]
    pub fn begin() -> io::Result<SignalGuard> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, former) = &mut *held;
        if *count == 0 {
            CAME.store(0, Ordering::Relaxed);
            HUNG_UP.store(false, Ordering::Relaxed);
            // Interrupted system calls continue.
            let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
            for signal in ENDING {
                // SAFETY: the handler does nothing but store to an atomic, which is async-signal-safe.
                match unsafe { sigaction(signal, &action) } {
                    // It stays ignored: under `nohup` a lost terminal requests nothing.
                    Ok(before) if matches!(before.handler(), SigHandler::SigIgn) => {
                        restore(&mut vec![(signal, before)]);
                        forget(signal);
                    }
                    Ok(before) => former.push((signal, before)),
                    Err(e) => {
                        restore(former);
                        return Err(e.into());
                    }
                }
            }
        }
        *count += 1;
        Ok(SignalGuard(()))
    }

    /// Restores the signal actions, and sends a signal that came meanwhile again, which by default ends the program here. Returns if
    /// the caller ignores or handles it.
    pub fn release(self) {
        if self.end()
            && let Some(signal) = came()
            && let Err(e) = raise(signal)
        {
            tracing::warn!("cannot pass {signal} on: {e}");
        }
    }

    /// Restores the signal actions, if this is the last guard, and returns whether it is. A signal that came meanwhile ends nothing any
    /// more: the work is done.
    pub(crate) fn end(self) -> bool {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, former) = &mut *held;
        *count = count.saturating_sub(1);
        if *count > 0 {
            return false;
        }
        restore(former);
        true
    }
}

/// Drops a signal that came just before it was ignored again.
fn forget(signal: Signal) {
    // Another one, which counts, may have come since.
    let _other = CAME.compare_exchange(signal as i32, 0, Ordering::Relaxed, Ordering::Relaxed);
}

#[allow(unsafe_code)]
fn restore(former: &mut Vec<(Signal, SigAction)>) {
    for (signal, before) in former.drain(..) {
        // SAFETY: the handler is the earlier one, with its own flags and mask.
        if let Err(e) = unsafe { sigaction(signal, &before) } {
            tracing::warn!("cannot restore the action of {signal}: {e}");
        }
    }
}

/// Whether SIGHUP came: then the other signals may come from the end of its session.
#[must_use]
pub(crate) fn hung_up() -> bool {
    HUNG_UP.load(Ordering::Relaxed)
}

/// The signal that came, if any.
#[must_use]
pub fn came() -> Option<Signal> {
    Signal::try_from(CAME.load(Ordering::Relaxed)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_signal_waits_and_then_does_what_it_did() {
        static SEEN: AtomicI32 = AtomicI32::new(0);
        extern "C" fn see(signal: nix::libc::c_int) {
            SEEN.store(signal, Ordering::Relaxed);
        }
        let own = SigAction::new(SigHandler::Handler(see), SaFlags::empty(), SigSet::empty());
        // SAFETY: stores to an atomic only.
        let before = unsafe { sigaction(Signal::SIGHUP, &own) }.unwrap();
        let off = SignalGuard::begin().unwrap();
        raise(Signal::SIGHUP).unwrap();
        assert_eq!((came(), SEEN.load(Ordering::Relaxed)), (Some(Signal::SIGHUP), 0));
        assert!(hung_up());
        off.release();
        assert_eq!(SEEN.load(Ordering::Relaxed), Signal::SIGHUP as i32);

        // One test for both: they share the signal actions of the process.
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: nothing is run.
        unsafe { sigaction(Signal::SIGHUP, &ignored) }.unwrap();
        let off = SignalGuard::begin().unwrap();
        raise(Signal::SIGHUP).unwrap();
        assert_eq!((came(), hung_up()), (None, false), "what is ignored stays so");
        off.release();
        // SAFETY: the action that was there before.
        unsafe { sigaction(Signal::SIGHUP, &before) }.unwrap();
    }
}
