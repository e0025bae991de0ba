//! Whether the running kernel got the device tree that the owner names.
//!
//! Some bootloaders take their default in silence. The two trees are distinguished by the properties that the default lacks, or has with another
//! value. A bootloader may edit any of them (memory, serial number, `/chosen`), so that those count which the kernel got unchanged before an update.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::blob::Blob;
use super::{Named, expected_files, running_boot};
use crate::config::paths::Paths;
use crate::config::update_conf::UpdateConf;
use crate::sys::file;

/// The tree as the bootloader handed it over. Kernels have it since Linux 4.0, and only root may read it.
const LIVE_TREE: &str = "/sys/firmware/fdt";

/// Limit of a tree in bytes. U-Boot has some 100 KiB for it; the largest in the kernel's source has 250 KiB.
const MAX_LIVE_BYTES: u64 = 4 << 20;

/// Limit in bytes of all paths and values together: short names of deep nodes add up.
const MAX_PROPERTY_BYTES: usize = 16 << 20;

/// Values by the path of the node and the name of the property.
type Properties = BTreeMap<String, Vec<u8>>;

/// The tree that the owner names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTree {
    pub path: PathBuf,
    pub is_there: bool,
    /// The properties that the bootloader's default lacks, or has with another value.
    own: Properties,
}

impl NamedTree {
    /// `None` where no tree is named that the bootloader is sure to take. The error says what is not known.
    pub fn of(paths: &Paths) -> Result<Option<NamedTree>, String> {
        let Some(named) = named(paths) else { return Ok(None) };
        let conf = UpdateConf::read(paths).map_err(|e| e.message())?;
        let Some(default) = conf.device_tree_default else {
            return Err("the board does not say which tree its bootloader takes by default".to_owned());
        };
        let boot = running_boot(paths);
        let places = named.places(paths, &boot);
        let Some(tree) = places.iter().find(|place| place.is_file()) else {
            return Ok(Some(NamedTree { path: named.path, is_there: false, own: Properties::new() }));
        };
        let own = difference(&properties(tree)?, &properties(&boot.join(default))?);
        Ok(Some(NamedTree { path: named.path, is_there: true, own }))
    }

    /// The properties that the running kernel got as the tree has them.
    pub fn found(&self, paths: &Paths) -> Result<BTreeSet<String>, String> {
        let live = properties(&paths.at(LIVE_TREE))?;
        let got = self.own.iter().filter(|(place, value)| live.get(*place) == Some(value));
        Ok(got.map(|(place, _)| place.clone()).collect())
    }

    /// Of `before`, those that the tree still has.
    pub fn still_own<'b>(&self, before: &'b BTreeSet<String>) -> Vec<&'b str> {
        before.iter().map(String::as_str).filter(|place| self.own.contains_key(*place)).collect()
    }
}

/// The tree that the owner names, if the bootloader is sure to take it.
pub fn named(paths: &Paths) -> Option<Named> {
    expected_files(paths).named.into_iter().find(|named| named.counts && named.key.is_tree())
}

/// The tree of the running kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Live {
    /// The text of `/model`.
    pub model: Option<String>,
    /// The tree that a setting names, if one does.
    pub named: Option<String>,
    /// Whether the kernel got that one; `None` where that is not known.
    pub is_named: Option<bool>,
}

impl Live {
    /// `None` on a device without device trees.
    pub fn read(paths: &Paths) -> io::Result<Option<Live>> {
        let file = paths.at(LIVE_TREE);
        let bytes = match file::read_bytes(&file, MAX_LIVE_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let live = in_bytes(&bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let model = live.get("/model");
        let model = model.map(|text| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
        let named = named(paths).map(|named| named.path.display().to_string());
        // A bootloader edits some properties; of its default, none is as the named tree has it.
        let is_named = NamedTree::of(paths).ok().flatten().filter(|asked| !asked.own.is_empty());
        let is_named =
            is_named.map(|asked| asked.own.iter().any(|(place, value)| live.get(place) == Some(value)));
        Ok(Some(Live { model, named, is_named }))
    }
}

fn difference(tree: &Properties, default: &Properties) -> Properties {
    let own = tree.iter().filter(|(place, value)| default.get(*place) != Some(value));
    own.map(|(place, value)| (place.clone(), value.clone())).collect()
}

fn properties(path: &Path) -> Result<Properties, String> {
    let bytes =
        file::read_bytes(path, MAX_LIVE_BYTES).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    in_bytes(&bytes).map_err(|why| format!("{} is not a device tree: {why}", path.display()))
}

fn in_bytes(bytes: &[u8]) -> Result<Properties, &'static str> {
    let (mut all, mut size) = (Properties::new(), 0usize);
    Blob::check(bytes)?.properties(&mut |nodes, property| {
        size +=
            nodes.iter().map(|name| name.len()).sum::<usize>() + property.name.len() + property.value.len();
        if size > MAX_PROPERTY_BYTES {
            return;
        }
        let mut place = nodes.join(&b'/');
        // The root has no name.
        place.push(b'/');
        place.extend(property.name);
        all.insert(String::from_utf8_lossy(&place).into_owned(), property.value.to_vec());
    });
    if size > MAX_PROPERTY_BYTES { Err("it is too large") } else { Ok(all) }
}
