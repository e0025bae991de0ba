use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::config::paths::Paths;
use crate::job::{Source, UpdateSpec};
use crate::sys::{mount, systemd};
use crate::update::preflight;

/// Files that exist in a container, as in `sys::log`.
const CONTAINER_MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// Why this process must run the update itself; `None` if a job may run it.
pub(super) fn forbids_job(spec: &UpdateSpec, paths: &Paths) -> Option<&'static str> {
    if paths.root() != Path::new("/") {
        return Some("the root is a folder");
    }
    // systemd runs on the host and does not see the paths of a container.
    if CONTAINER_MARKS.iter().any(|mark| Path::new(mark).exists()) {
        return Some("this is a container");
    }
    if !systemd::is_running(paths.root()) {
        return Some("systemd does not run");
    }
    if is_elsewhere() {
        return Some("the first process sees other files");
    }
    // The request is JSON text.
    if matches!(&spec.source, Source::File(file) if file.to_str().is_none()) {
        return Some("the name of its source is not UTF-8");
    }
    preflight::is_build(spec, paths).then_some("an image is being built")
}

/// Whether the root folder or the mounts differ from those of the first process, or are unknown.
fn is_elsewhere() -> bool {
    let identity = |path: &str| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let same = |a: &str, b: &str| identity(a).is_some_and(|a| Some(a) == identity(b));
    // The root may be the same folder in another place, without the mounts below it.
    let mounted = |process: &str| {
        let mounts = mount::read_mounts(format!("/proc/{process}/mountinfo").as_ref()).ok()?;
        mounts.iter().rfind(|m| m.point == Path::new("/")).map(|m| m.id)
    };
    let same_mount = mounted("1").is_some_and(|id| Some(id) == mounted("self"));
    !(same("/proc/1/root/.", "/.") && same_mount && mount::is_host_namespace())
}
