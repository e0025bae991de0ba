//! The current hostapp of a root partition, and its files, without starting or mounting it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

use crate::config::os_release::OsRelease;
use crate::config::paths::Paths;
use crate::sys::file::read_text;

/// Limit in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most links from one to the next.
const MAX_LINKS: usize = 8;

/// `None` where the hostapp is missing or incomplete.
#[must_use]
pub fn container(root: &Path) -> Option<String> {
    let link = fs::read_link(root.join("current")).ok()?;
    let id = link.file_name()?.to_str()?.to_owned();
    let in_place = link.parent() == Some(Path::new("hostapps")) && root.join("current/boot").is_dir();
    in_place.then_some(id)
}

/// Whether only root may see the hostapp: the engine's folders are not for every user.
pub(crate) fn needs_root(root: &Path) -> bool {
    fs::metadata(root.join("current/boot")).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// The higher of two counters is the later installation.
#[must_use]
pub fn counter(root: &Path) -> Option<u64> {
    read_text(&root.join("counter"), MAX_FILE_BYTES).ok()?.trim().parse().ok()
}

/// A file of the release, in its layers. Volumes, such as the boot folder, are not layers.
pub(crate) fn release_file(root: &Path, path: &Path) -> Option<PathBuf> {
    find(&layers(root, &container(root)?)?, path)
}

#[must_use]
pub fn os_release(root: &Path) -> Option<OsRelease> {
    let file = release_file(root, Path::new("etc/os-release"))?;
    Some(OsRelease::parse(&read_text(&file, MAX_FILE_BYTES).ok()?))
}

#[must_use]
pub fn version(root: &Path) -> Option<String> {
    os_release(root)?.version().map(str::to_owned)
}

/// Whether a container's image has the file at `path`, which is below its root.
pub(crate) fn has_file(root: &Path, container: &str, path: &Path) -> bool {
    layers(root, container).is_some_and(|layers| find(&layers, path).is_some())
}

/// The running release needs no engine folders for it.
#[must_use]
pub(crate) fn running_version(paths: &Paths) -> Option<String> {
    version(&paths.active()).or_else(|| running_release(paths)?.version().map(str::to_owned))
}

/// That of the system in which this program runs.
pub(crate) fn running_release(paths: &Paths) -> Option<OsRelease> {
    Some(OsRelease::parse(&read_text(&paths.at("/etc/os-release"), MAX_FILE_BYTES).ok()?))
}

/// The layer folders of a container, top first, as the engine's driver `overlay2` keeps them: `mount-id` names the top one; its file
/// `lower` lists short links to the others (moby, `daemon/graphdriver/overlay2`).
fn layers(root: &Path, container: &str) -> Option<Vec<PathBuf>> {
    let engine = root.join("balena");
    let id = engine.join("image/overlay2/layerdb/mounts").join(container).join("mount-id");
    let id = read_text(&id, MAX_FILE_BYTES).ok()?;
    let overlay = engine.join("overlay2");
    let top = overlay.join(Path::new(id.trim()).file_name()?);
    let lower = read_text(&top.join("lower"), MAX_FILE_BYTES).unwrap_or_default();
    let lower = lower.trim().split(':').filter(|l| !l.is_empty()).map(|l| overlay.join(l));
    Some(std::iter::once(top.join("diff")).chain(lower).collect())
}

/// Follows links; each layer is searched from the top.
fn find(layers: &[PathBuf], path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let found = layers.iter().map(|l| l.join(&path)).find(|p| p.symlink_metadata().is_ok())?;
        let kind = found.symlink_metadata().ok()?.file_type();
        // A whiteout of overlayfs: an upper layer has removed the file.
        if kind.is_char_device() {
            return None;
        }
        if !kind.is_symlink() {
            return kind.is_file().then_some(found);
        }
        path = inside(path.parent()?, &fs::read_link(&found).ok()?);
    }
    None
}

/// The target of a link in `folder`, below the root that holds it; never outside.
fn inside(folder: &Path, link: &Path) -> PathBuf {
    let mut path = if link.is_absolute() { PathBuf::new() } else { folder.to_owned() };
    for part in link.components() {
        match part {
            Component::Normal(name) => path.push::<&OsStr>(name),
            Component::ParentDir => drop(path.pop()),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn root() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let r = dir.path();
        fs::create_dir_all(r.join("balena/volumes/v/_data")).unwrap();
        fs::create_dir_all(r.join("hostapps/c0ffee")).unwrap();
        symlink("../../balena/volumes/v/_data", r.join("hostapps/c0ffee/boot")).unwrap();
        symlink("hostapps/c0ffee", r.join("current")).unwrap();
        write(&r.join("balena/image/overlay2/layerdb/mounts/c0ffee/mount-id"), "top");
        write(&r.join("balena/overlay2/top/lower"), "l/UP:l/LOW");
        fs::create_dir_all(r.join("balena/overlay2/top/diff")).unwrap();
        fs::create_dir_all(r.join("balena/overlay2/l")).unwrap();
        symlink("../up/diff", r.join("balena/overlay2/l/UP")).unwrap();
        symlink("../low/diff", r.join("balena/overlay2/l/LOW")).unwrap();
        fs::create_dir_all(r.join("balena/overlay2/up/diff/etc")).unwrap();
        symlink("../usr/lib/os-release", r.join("balena/overlay2/up/diff/etc/os-release")).unwrap();
        write(&r.join("balena/overlay2/low/diff/usr/lib/os-release"), "VERSION=\"2.0.0\"\n");
        write(&r.join("balena/overlay2/low/diff/etc/os-release"), "VERSION=\"1.0.0\"\n");
        dir
    }

    #[test]
    fn the_release_is_read_from_the_layers() {
        let dir = root();
        assert_eq!(container(dir.path()).as_deref(), Some("c0ffee"));
        assert_eq!(os_release(dir.path()).unwrap().version(), Some("2.0.0"));
        write(&dir.path().join("balena/overlay2/top/diff/etc/os-release"), "VERSION=\"3.0.0\"\n");
        assert_eq!(os_release(dir.path()).unwrap().version(), Some("3.0.0"));
    }

    #[test]
    fn no_link_leads_out_of_the_layers() {
        let dir = root();
        let link = dir.path().join("balena/overlay2/up/diff/etc/os-release");
        for to in ["/etc/os-release", "../../../../../../../../etc/os-release"] {
            fs::remove_file(&link).unwrap();
            symlink(to, &link).unwrap();
            assert_eq!(os_release(dir.path()), None, "{to}");
        }
    }

    #[test]
    fn half_a_hostapp_is_none() {
        let dir = root();
        fs::remove_dir(dir.path().join("balena/volumes/v/_data")).unwrap();
        assert_eq!(container(dir.path()), None);
        let dir = root();
        fs::remove_file(dir.path().join("current")).unwrap();
        symlink("/hostapps/c0ffee", dir.path().join("current")).unwrap();
        assert_eq!(container(dir.path()), None);
    }

    #[test]
    fn counters() {
        let dir = root();
        assert_eq!(counter(dir.path()), None);
        fs::write(dir.path().join("counter"), "41\n").unwrap();
        assert_eq!(counter(dir.path()), Some(41));
        fs::write(dir.path().join("counter"), "x").unwrap();
        assert_eq!(counter(dir.path()), None);
    }
}
