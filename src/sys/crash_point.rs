//! Points at which a test observes, fails or cuts off the calling thread: a power cut is every point failing from one on.
//!
//! Only the tests' own builds have the feature `crash-points`. Without it a point compiles to nothing (`tests/release/static_build.rs`).

#[cfg(feature = "crash-points")]
use std::{cell::RefCell, error, ffi::OsString, fmt, io, os::unix::process::CommandExt as _, path::Path};

/// `crash_point!(path, "step {}", argument)`: the path that the next call changes, and what that call does.
macro_rules! crash_point {
    ($path:expr, $step:literal $(, $argument:expr)*) => {
        #[cfg(feature = "crash-points")]
        $crate::sys::crash_point::reach(&$path, &format!(concat!("crash-point ", $step) $(, $argument)*))?;
    };
}
pub(crate) use crash_point;

#[cfg(feature = "crash-points")]
type Handler = Box<dyn FnMut(&str, &Path) -> io::Result<()>>;

#[cfg(feature = "crash-points")]
thread_local! {
    static HANDLER: RefCell<Option<Handler>> = const { RefCell::new(None) };
}

/// Disarms the points when it is dropped.
#[cfg(feature = "crash-points")]
#[must_use]
pub struct Armed;

#[cfg(feature = "crash-points")]
impl Drop for Armed {
    fn drop(&mut self) {
        HANDLER.take();
    }
}

/// Hands each point that this thread reaches to `handler`. Its error becomes the result of the next call, which is not made.
/// What the handler itself calls reaches no point.
#[cfg(feature = "crash-points")]
pub fn arm(handler: impl FnMut(&str, &Path) -> io::Result<()> + 'static) -> Armed {
    HANDLER.replace(Some(Box::new(handler)));
    Armed
}

#[cfg(feature = "crash-points")]
pub(crate) fn reach(path: &Path, step: &str) -> io::Result<()> {
    let Some(mut handler) = HANDLER.take() else { return Ok(()) };
    let result = handler(step.strip_prefix("crash-point ").unwrap_or(step), path);
    HANDLER.replace(Some(handler));
    result
}

/// If this thread has a handler, it is called with the step "exec" in the child, between its fork and its program.
#[cfg(feature = "crash-points")]
#[allow(unsafe_code)]
pub(crate) fn reach_in_child(command: &mut std::process::Command) {
    if HANDLER.with_borrow(Option::is_some) {
        // SAFETY: what a test's handler does there is for the test to know; no other build has this.
        unsafe { command.pre_exec(|| reach(Path::new(""), "exec")) };
    }
}

/// An error of the handler that becomes the result of the next call: only a FAT after a power cut gives it.
#[cfg(feature = "crash-points")]
#[derive(Debug)]
pub struct Answer(pub OsString);

#[cfg(feature = "crash-points")]
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer {:?}", self.0)
    }
}

#[cfg(feature = "crash-points")]
impl error::Error for Answer {}
