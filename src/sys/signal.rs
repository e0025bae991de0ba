//! Signals that ask the program to end, put off while it must not.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

/// What a user, a service manager or a lost terminal sends. All of them end the program where nobody catches them.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// The last one that came; 0 for none.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Whether one of them was SIGHUP.
static HUNG_UP: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: nix::libc::c_int) {
    CAME.store(signal, Ordering::Relaxed);
    if signal == nix::libc::SIGHUP {
        HUNG_UP.store(true, Ordering::Relaxed);
    }
}

/// From now on SIGTERM ends the program at once, as a success: for when all is done but waiting for the power to go, and
/// the service manager ends everybody on the way there.
///
/// # Errors
/// As the operating system says; then everything is as before.
#[allow(unsafe_code)]
pub fn term_is_success() -> io::Result<()> {
    extern "C" fn end(_signal: nix::libc::c_int) {
        // SAFETY: async-signal-safe, unlike `exit`: nothing of the program runs any more.
        unsafe { nix::libc::_exit(0) }
    }
    let action = SigAction::new(SigHandler::Handler(end), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing but end the process.
    unsafe { sigaction(Signal::SIGTERM, &action) }?;
    Ok(())
}

/// From now on a lost terminal ends neither this program nor what it starts.
///
/// # Errors
/// As the operating system says.
#[allow(unsafe_code)]
pub fn ignore_hangup() -> io::Result<()> {
    let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGHUP, &ignored) }?;
    Ok(())
}

/// How many hold them off, and what the signals did before the first.
static HELD: Mutex<(usize, Vec<(Signal, SigAction)>)> = Mutex::new((0, Vec::new()));

/// As long as one is held, SIGTERM, SIGINT, SIGHUP and SIGQUIT are only noted, in whichever thread they arrive.
/// One that was ignored before still is.
#[derive(Debug)]
#[must_use = "signals stay put off until `release`"]
pub struct SignalGuard(());

impl SignalGuard {
    /// Begins.
    ///
    /// # Errors
    /// As the operating system says; then everything is as before.
    #[allow(unsafe_code)]
    pub fn begin() -> io::Result<SignalGuard> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, former) = &mut *held;
        if *count == 0 {
            CAME.store(0, Ordering::Relaxed);
            HUNG_UP.store(false, Ordering::Relaxed);
            // Interrupted system calls go on by themselves.
            let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
            for signal in ENDING {
                // SAFETY: the handler does nothing but store to an atomic, which is async-signal-safe.
                match unsafe { sigaction(signal, &action) } {
                    // Ignored it stays: under `nohup` a lost terminal asks for nothing.
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

    /// Ends: signals mean what they meant before, and one that came in the meantime is sent again, which by default ends
    /// the program here. Where the caller ignores or handles it, this returns.
    pub fn release(self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, former) = &mut *held;
        *count = count.saturating_sub(1);
        if *count > 0 {
            return;
        }
        restore(former);
        drop(held);
        if let Some(signal) = came()
            && let Err(e) = raise(signal)
        {
            tracing::warn!("cannot pass {signal} on: {e}");
        }
    }
}

/// It came in the moment in which it was not ignored.
fn forget(signal: Signal) {
    // Another one may have come since, which counts.
    let _other = CAME.compare_exchange(signal as i32, 0, Ordering::Relaxed, Ordering::Relaxed);
}

#[allow(unsafe_code)]
fn restore(former: &mut Vec<(Signal, SigAction)>) {
    for (signal, before) in former.drain(..) {
        // SAFETY: the handler is the one that was there before, with its own flags and mask.
        if let Err(e) = unsafe { sigaction(signal, &before) } {
            tracing::warn!("cannot restore what {signal} does: {e}");
        }
    }
}

/// Whether a lost terminal was among the signals that are put off: then the others may be nobody's wish, but the end of its session.
#[must_use]
pub fn hung_up() -> bool {
    HUNG_UP.load(Ordering::Relaxed)
}

/// The signal that is put off, if one has come.
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

        // One test for both: they share what the process does with signals.
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
