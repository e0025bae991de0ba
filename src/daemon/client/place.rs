//! Whether an update may be handed over at all.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::daemon::IN_DAEMON;
use crate::sys::mount;
use crate::update::{self, Request};

/// Marks of a container, as in `sys::log`.
const CONTAINER: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// Why this process is the one that has to do it; `None`: the daemon may.
pub(super) fn stays(request: &Request) -> Option<&'static str> {
    let paths = &request.paths;
    if std::env::var_os(IN_DAEMON).is_some() {
        return Some("this is the daemon's own job");
    }
    if paths.root() != Path::new("/") {
        return Some("the device is a folder");
    }
    // The daemon is the host's, to whom none of our paths need mean anything.
    if CONTAINER.iter().any(|mark| Path::new(mark).exists()) {
        return Some("this is a container");
    }
    if is_elsewhere() {
        return Some("the first process sees other files");
    }
    update::is_build(request).then_some("an image is being built")
}

/// Whether root folder or mounts are others than those of the first process, or that cannot be told.
fn is_elsewhere() -> bool {
    let identity = |path: &str| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let same = |a: &str, b: &str| identity(a).is_some_and(|a| Some(a) == identity(b));
    // The root may be the same folder in another place, without what is mounted below it.
    let mounted = |process: &str| {
        let mounts = mount::read_mounts(format!("/proc/{process}/mountinfo").as_ref()).ok()?;
        mounts.iter().rfind(|m| m.point == Path::new("/")).map(|m| m.id)
    };
    let same_mount = mounted("1").is_some_and(|id| Some(id) == mounted("self"));
    !(same("/proc/1/root/.", "/.") && same_mount && mount::is_host_namespace())
}
