//! Limits of this process, which its children inherit.

use nix::sys::resource::{Resource, setrlimit};

/// From now on no core dump of this process, or of a program that it starts, can have a secret in it.
pub(crate) fn no_core_dumps() {
    if let Err(e) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        tracing::warn!("cannot forbid core dumps: {e}");
    }
}
