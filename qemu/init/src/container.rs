//! The container of a slot, as the engine's `overlay2` driver stores it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

/// Layers of the slot's current container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// The driver's folder, below which all layers are.
    store: PathBuf,
    /// Name of the container's own layer there.
    layer: String,
    /// The layers below it, topmost first: links relative to `store`.
    lower: String,
}

/// An error that names the path.
fn at(path: &Path, e: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {e}", path.display()))
}

/// One word of one line, as the engine writes identities.
fn word(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path).map_err(|e| at(path, e))?;
    let word = text.trim();
    if word.is_empty() || word.contains(['/', ',', ':', '\\']) || word.contains(char::is_whitespace) {
        return Err(at(path, format!("{word:?} is no identity: the slot is damaged, install it again")));
    }
    Ok(word.to_owned())
}

/// The container that `current` of this slot names.
pub(crate) fn current(slot: &Path) -> io::Result<Container> {
    let link = slot.join("current");
    let target = std::fs::read_link(&link)
        .map_err(|e| at(&link, format!("{e}: it must lead to the hostapp to start; install one")))?;
    let id = target.file_name().and_then(|name| name.to_str()).ok_or_else(|| at(&link, "leads nowhere"))?;
    let engine = slot.join("balena");
    let container = engine.join("image/overlay2/layerdb/mounts").join(id);
    let layer = word(&container.join("mount-id"))?;
    let store = engine.join("overlay2");
    let file = store.join(&layer).join("lower");
    let text = std::fs::read_to_string(&file).map_err(|e| at(&file, e))?;
    // Between the image's layers and the container's an engine puts one of its own, with /.dockerenv and empty files for what it
    // binds into containers. A system with that takes itself for a container.
    let own = match container.join("init-id") {
        file if file.exists() => Some(format!("l/{}", word(&store.join(word(&file)?).join("link"))?)),
        _ => None,
    };
    let parts: Vec<&str> = text.trim().split(':').filter(|part| own.as_deref() != Some(*part)).collect();
    let lower = parts.join(":");
    // A comma or backslash would end up as an option of the mount.
    if lower.is_empty() || lower.contains([',', '\\']) {
        return Err(at(&file, format!("{lower:?} are no layers: the slot is damaged, install it again")));
    }
    for part in lower.split(':') {
        let path = store.join(part);
        if part.is_empty() || !path.is_dir() {
            return Err(at(&path, "no such layer: the slot is damaged, install it again"));
        }
    }
    Ok(Container { store, layer, lower })
}

impl Container {
    fn options(&self) -> String {
        let Self { lower, layer, .. } = self;
        format!("lowerdir={lower},upperdir={layer}/diff,workdir={layer}/work")
    }

    /// Mounts it on a folder.
    pub(crate) fn mount(&self, on: &Path) -> io::Result<()> {
        // From inside the store, because paths relative to it are short: all options must fit a page.
        std::env::set_current_dir(&self.store).map_err(|e| at(&self.store, e))?;
        let options = std::ffi::CString::new(self.options())?;
        let outcome = rustix::mount::mount("overlay", on, "overlay", MountFlags::empty(), options.as_c_str());
        std::env::set_current_dir("/")?;
        outcome.map_err(|e| {
            let what = format!("cannot mount the layers {} there: {e}", self.options());
            at(
                on,
                format!("{what}; the kernel needs overlayfs, and {} must be writable", self.store.display()),
            )
        })
    }

    /// Mounts it where the engine would.
    pub(crate) fn mount_in_place(&self) -> io::Result<PathBuf> {
        let on = self.store.join(&self.layer).join("merged");
        std::fs::create_dir_all(&on).map_err(|e| at(&on, e))?;
        self.mount(&on)?;
        Ok(on)
    }

    /// Mounts it on a folder of its own: an engine that uses the slot keeps no strange mounts below its data.
    pub(crate) fn mount_beside(&self) -> io::Result<PathBuf> {
        let on = fresh_folder(&[Path::new("/run"), &std::env::temp_dir()])?;
        self.mount(&on).inspect_err(|_| drop(std::fs::remove_dir(&on)))?;
        Ok(on)
    }
}

/// A new folder in the first of these that takes one.
fn fresh_folder(places: &[&Path]) -> io::Result<PathBuf> {
    let mut last = io::Error::other("nowhere to mount it");
    for place in places {
        for n in 0..1000 {
            let mut name = OsString::from("hostapp-");
            name.push(format!("{}.{n}", std::process::id()));
            let path = place.join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    last = at(&path, e);
                    break;
                }
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A slot as the engine leaves it, without contents.
    fn slot(lower: &str) -> tempfile::TempDir {
        let slot = tempfile::tempdir().unwrap();
        let mounts = slot.path().join("balena/image/overlay2/layerdb/mounts/c0ffee");
        let store = slot.path().join("balena/overlay2");
        fs::create_dir_all(&mounts).unwrap();
        fs::write(mounts.join("mount-id"), "1234").unwrap();
        for dir in ["1234/diff", "1234/work", "l", "aaa/diff", "bbb/diff"] {
            fs::create_dir_all(store.join(dir)).unwrap();
        }
        symlink("../aaa/diff", store.join("l/AAA")).unwrap();
        symlink("../bbb/diff", store.join("l/BBB")).unwrap();
        fs::write(store.join("1234/lower"), lower).unwrap();
        symlink("hostapps/c0ffee", slot.path().join("current")).unwrap();
        slot
    }

    #[test]
    fn layers_are_found_by_the_link_alone() {
        let slot = slot("l/AAA:l/BBB");
        let container = current(slot.path()).unwrap();
        assert_eq!(container.store, slot.path().join("balena/overlay2"));
        assert_eq!(container.options(), "lowerdir=l/AAA:l/BBB,upperdir=1234/diff,workdir=1234/work");
    }

    #[test]
    fn the_layer_of_the_engine_itself_is_left_out() {
        let slot = slot("l/III:l/AAA:l/BBB");
        let engine = slot.path().join("balena");
        fs::write(engine.join("image/overlay2/layerdb/mounts/c0ffee/init-id"), "1234-init").unwrap();
        fs::create_dir_all(engine.join("overlay2/1234-init/diff")).unwrap();
        fs::write(engine.join("overlay2/1234-init/link"), "III").unwrap();
        assert_eq!(current(slot.path()).unwrap().lower, "l/AAA:l/BBB");
    }

    #[test]
    fn a_slot_without_a_hostapp_is_an_error_that_says_so() {
        let empty = tempfile::tempdir().unwrap();
        let e = current(empty.path()).unwrap_err().to_string();
        assert!(e.contains("/current: ") && e.contains("install one"), "{e}");
    }

    #[test]
    fn a_container_unknown_to_the_engine() {
        let slot = slot("l/AAA");
        fs::remove_dir_all(slot.path().join("balena/image")).unwrap();
        let e = current(slot.path()).unwrap_err().to_string();
        assert!(e.contains("mounts/c0ffee/mount-id"), "{e}");
    }

    #[test]
    fn damaged_metadata_never_becomes_an_option_of_the_mount() {
        for lower in ["", "\n", "l/AAA:", "l/AAA:l/CCC", "l/AAA,upperdir=/", "l/AAA\\"] {
            let slot = slot(lower);
            let e = current(slot.path()).unwrap_err().to_string();
            assert!(e.contains("install it again"), "{lower:?}: {e}");
        }
        for id in ["", "a b", "../1234", "1234,ro"] {
            let slot = slot("l/AAA");
            fs::write(slot.path().join("balena/image/overlay2/layerdb/mounts/c0ffee/mount-id"), id).unwrap();
            assert!(current(slot.path()).is_err(), "{id:?}");
        }
    }

    #[test]
    fn folders_are_fresh() {
        let place = tempfile::tempdir().unwrap();
        let missing = place.path().join("missing");
        let places = [missing.as_path(), place.path()];
        let (one, two) = (fresh_folder(&places).unwrap(), fresh_folder(&places).unwrap());
        assert!(one != two && one.is_dir() && two.is_dir());
        assert!(fresh_folder(&[&missing]).unwrap_err().to_string().contains("missing/hostapp-"));
    }
}
