//! The owner's device trees, from the medium to the internal disk: `extra_uEnv.txt`, and the files that it names.
//!
//! Not in an installation with secure boot: none of these files is signed.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::boot_files::install::{BootPartition, Contents, Files};
use crate::boot_files::{Destination, Walk, failed};
use crate::boot_state::uenv::Uenv;
use crate::boot_state::{self, EXTRA_FILE};
use crate::config::paths::Paths;
use crate::device_tree::{self, Key, Place, pins};
use crate::disk::partition::{Partition, Table};
use crate::error::{Code, Error, Result};
use crate::image::digest::Digest256;
use crate::slot::{Slot, hostapp};
use crate::sys::file::Content;

/// A larger `extra_uEnv.txt` is not searched for carriage returns.
const MOST_BYTES: u64 = 1 << 20;
/// Beside the internal boot partition.
const ROOT_POINT: &str = "/tmp/internal_root";

/// The boot folder of the medium's own system: its bootloader has found there what `extra_uEnv.txt` names.
const OWN_BOOT: &str = "/boot";

/// Which file the internal disk gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The medium's boot partition.
    BootPartition,
    /// The boot folder of the medium's system, if the image has no such file.
    Root,
    /// The image has it, or nothing has.
    Image,
}

/// A file that the medium's `extra_uEnv.txt` names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tree {
    name: String,
    #[serde(skip)]
    path: PathBuf,
    origin: Origin,
    #[serde(skip)]
    place: Place,
}

/// A device tree on the internal disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Carried {
    pub name: String,
    pub origin: Origin,
    /// Whether it is on the boot partition, and not in the root.
    pub on_boot_partition: bool,
    pub size: u64,
    pub sha256: Digest256,
}

/// Plans what the medium's `extra_uEnv.txt` asks for: adds it, and the files that belong onto the boot partition, to `contents`.
/// Returns what it names. Without the file, or with an empty one, which images bring, nothing is added. `table` is the image's.
pub(super) fn plan(paths: &Paths, contents: &mut Contents, table: Option<&Table>) -> Result<Vec<Tree>> {
    let boot = paths.boot();
    let setting = boot.join(EXTRA_FILE);
    if !std::fs::metadata(&setting).is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
        return Ok(Vec::new());
    }
    let content = crate::sys::file::read_bytes(&setting, MOST_BYTES).unwrap_or_default();
    for warning in boot_state::returns(&setting, &Uenv::parse(&content)) {
        tracing::warn!("{warning}");
    }
    let expected = device_tree::expected_files(paths);
    for refused in &expected.refused {
        tracing::warn!(
            "{}: {}={} is no plain path below the boot folder, and is not copied",
            setting.display(),
            refused.key,
            refused.name
        );
    }
    let has = |folder: &Path, name: &Path| Files::of(folder)?.add(name);
    let mut trees: Vec<Tree> = Vec::new();
    // The other settings are the medium's own.
    for named in
        expected.named.iter().filter(|n| !matches!(n.key, Key::Fdt | Key::DeviceTree | Key::Dtoverlay))
    {
        if trees.iter().any(|tree| tree.path == named.path) {
            continue;
        }
        if pins::never(&named.path).is_some() {
            let (setting, name) = (setting.display(), named.path.display());
            tracing::warn!("{setting}: {}={name} is no device tree, and is not copied", named.key);
            continue;
        }
        let origin = if has(&boot, &named.path)? {
            Origin::BootPartition
        } else if named.is_in_root() && has(&paths.at(OWN_BOOT), &named.path).unwrap_or(false) {
            Origin::Root
        } else if expected.required && expected.named.iter().any(|n| n.path == named.path && n.counts) {
            return Err(missing(&setting, &named.path, &boot));
        } else {
            Origin::Image
        };
        let name = named.path.to_string_lossy().into_owned();
        let tree = Tree { name, path: named.path.clone(), origin, place: named.place };
        if tree.is_for_boot_partition() {
            contents.files.add(&tree.path)?;
        }
        trees.push(tree);
    }
    if trees.iter().any(Tree::is_for_root) && table.is_some_and(lacks_root) {
        return Err(no_root("it has no such partition"));
    }
    // A pointer comes after the files that it names.
    contents.files.add(Path::new(EXTRA_FILE))?;
    Ok(trees)
}

/// Whether it is certain. In a single pass most of the image has not been read yet.
fn lacks_root(table: &Table) -> bool {
    let is_other = |p: &Partition| match &p.label {
        Some(label) => Slot::of_label(label) != Some(Slot::A),
        None => p.file_system.is_some(),
    };
    table.partitions.iter().all(is_other)
}

fn missing(setting: &Path, name: &Path, boot: &Path) -> Error {
    let (setting, name, boot) = (setting.display(), name.display(), boot.display());
    let message = format!(
        "{setting} names the device tree {name}, and this board does not boot without it; it is neither in {boot} nor in {OWN_BOOT}"
    );
    Error::new(Code::DeviceTreeMissing, message)
        .object(name)
        .with_hint("copy the file onto the medium's boot partition, or remove its name from extra_uEnv.txt")
}

impl Tree {
    fn is_for_boot_partition(&self) -> bool {
        self.origin == Origin::BootPartition && self.place != Place::Root
    }

    /// Whether the root has to be looked at.
    fn is_for_root(&self) -> bool {
        self.place != Place::Boot && !self.is_for_boot_partition()
    }
}

/// Copies `trees` into the boot folder of the root, before the boot partition gets the files that name them. `root` finds the
/// partition, and is called only where one of them belongs there.
pub(super) fn carry(
    trees: &[Tree],
    paths: &Paths,
    boot: &Destination,
    root: impl FnOnce() -> Result<PathBuf>,
) -> Result<Vec<Carried>> {
    say_if_replaced(boot, Path::new(EXTRA_FILE), &paths.boot())?;
    let mut carried = Vec::new();
    if trees.iter().any(Tree::is_for_root) {
        let mounted = BootPartition::mount(&root()?, &paths.at(ROOT_POINT))?;
        let done = into_root(trees, paths, mounted.point(), &mut carried).map_err(Error::after_write);
        mounted.unmount().and(done)?;
    }
    Ok(carried)
}

fn into_root(trees: &[Tree], paths: &Paths, root: &Path, carried: &mut Vec<Carried>) -> Result<()> {
    let folder = boot_folder(root)?;
    let dest = Destination::open(&folder, None)?;
    let of = |origin| trees.iter().filter(move |t| t.is_for_root() && t.origin == origin);

    let mut files = Files::of(&paths.boot())?;
    for tree in of(Origin::BootPartition) {
        say_if_replaced(&dest, &tree.path, &paths.boot())?;
        files.add(&tree.path)?;
    }
    files.check(&dest)?;
    files.deploy(&dest)?;

    let lacking: Vec<&Tree> = of(Origin::Root).filter(|t| !folder.join(&t.path).is_file()).collect();
    if !lacking.is_empty() {
        let mut files = Files::of(&paths.at(OWN_BOOT))?;
        for tree in &lacking {
            files.add(&tree.path)?;
        }
        files.check(&dest)?;
        files.deploy(&dest)?;
    }
    for tree in trees.iter().filter(|t| t.is_for_root()) {
        let is_image_s = tree.origin == Origin::Root && !lacking.contains(&tree);
        let origin = if is_image_s { Origin::Image } else { tree.origin };
        carried.extend(Carried::of(tree, origin, &folder, false)?);
    }
    Ok(())
}

/// The boot folder of the root's hostapp, which is a link into a volume of the engine.
fn boot_folder(root: &Path) -> Result<PathBuf> {
    let folder = hostapp::container(root).and_then(|_| std::fs::canonicalize(root.join("current/boot")).ok());
    folder.filter(|folder| folder.starts_with(root)).ok_or_else(|| no_root("it has no folder current/boot"))
}

fn no_root(why: &str) -> Error {
    let label = Slot::A.label();
    Error::new(
        Code::DeviceTreeMissing,
        format!("cannot look for device trees in {label} of the image: {why}"),
    )
    .object(label)
    .with_hint("use an image of balenaOS, or remove their names from extra_uEnv.txt on the medium")
}

/// The owner's file counts, and not the one that the image brings.
fn say_if_replaced(dest: &Destination, name: &Path, source: &Path) -> Result<()> {
    let Ok(source) = File::open(source.join(name)) else { return Ok(()) };
    let (Walk::There(folder), file) = dest.parent(name)? else { return Ok(()) };
    let io = |e| failed(&folder, file, e);
    let is_there = folder.entry(file).map_err(io)?.is_some_and(|e| e.size > 0);
    if is_there && !folder.holds(file, &Content::File(&source)).map_err(io)? {
        tracing::warn!("{} of the medium replaces the image's, which differs", name.display());
    }
    Ok(())
}

/// Reports what is on the internal boot partition once it is complete, and names what is nowhere.
pub(super) fn report(trees: &[Tree], boot: &Path, mut carried: Vec<Carried>) -> Result<Vec<Carried>> {
    for tree in trees {
        let origin = if tree.is_for_boot_partition() { tree.origin } else { Origin::Image };
        if tree.place != Place::Root
            && let Some(found) = Carried::of(tree, origin, boot, true)?
        {
            // The bootloader looks here first.
            carried.retain(|c| c.name != tree.name);
            carried.push(found);
        }
        match carried.iter().find(|c| c.name == tree.name) {
            Some(Carried { name, size, sha256, .. }) => {
                tracing::info!("device tree {name}: {size} bytes, SHA-256 {sha256}");
            }
            None => tracing::warn!(
                "{EXTRA_FILE} names the device tree {}, which is neither on the medium nor in the image: the bootloader will not find it",
                tree.name
            ),
        }
    }
    Ok(carried)
}

impl Carried {
    /// `None` where `folder` has no such file.
    fn of(tree: &Tree, origin: Origin, folder: &Path, on_boot_partition: bool) -> Result<Option<Carried>> {
        let path = folder.join(&tree.path);
        let fail = |e: io::Error| {
            Error::new(Code::BootCopyFailed, format!("cannot read {}", path.display()))
                .object(path.display())
                .because(e)
                .after_write()
        };
        if !path.is_file() {
            return Ok(None);
        }
        let device_tree::Content { size, sha256 } = device_tree::content(&path).map_err(fail)?;
        Ok(Some(Carried { name: tree.name.clone(), origin, on_boot_partition, size, sha256 }))
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, label) = (&self.name, Slot::A.label());
        match self.origin {
            Origin::BootPartition if self.is_for_boot_partition() => {
                write!(f, "device tree {name}: on the boot partition")
            }
            Origin::BootPartition => write!(f, "copy the device tree {name} to boot/ of {label}"),
            Origin::Root => write!(
                f,
                "copy the device tree {name} of the running system to boot/ of {label}, if the image has none"
            ),
            Origin::Image => write!(f, "device tree {name}: not on the medium; it has to be in the image"),
        }
    }
}
