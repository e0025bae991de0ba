use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::bootloader::NamedDevice;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::block::major_minor;
use crate::sys::mtd::{BLOCK_MAJOR, CHAR_MAJOR, WRITEABLE};

/// Prefix for the label of an MTD device, as on the kernel's command line.
pub(crate) const BY_NAME: &str = "mtd:";

/// As sysfs describes it (`Documentation/ABI/testing/sysfs-class-mtd`).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Chip {
    /// N of `/dev/mtdN`.
    pub index: u32,
    pub name: String,
    /// `nor`, `nand`, `ram`, …
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
    pub erase_size: u64,
    pub write_size: u64,
    pub writeable: bool,
}

impl Chip {
    pub(super) fn read(paths: &Paths, index: u32) -> Option<Chip> {
        let folder = paths.at(format!("/sys/class/mtd/mtd{index}"));
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|t| t.trim().to_owned());
        let number = |name: &str| text(name)?.parse::<u64>().ok();
        let flags = u32::from_str_radix(text("flags")?.trim_start_matches("0x"), 16).ok()?;
        Some(Chip {
            index,
            name: text("name").unwrap_or_default(),
            kind: text("type")?,
            size: number("size")?,
            erase_size: number("erasesize")?,
            write_size: number("writesize")?,
            writeable: flags & WRITEABLE != 0,
        })
    }
}

#[must_use]
pub fn list(paths: &Paths) -> Vec<Chip> {
    let entries = fs::read_dir(paths.at("/sys/class/mtd")).into_iter().flatten().flatten();
    let indices = entries.filter_map(|e| index_of(e.file_name().to_str()?));
    // `mtd0ro` is the same device as `mtd0`.
    let indices: std::collections::BTreeSet<u32> = indices.collect();
    indices.into_iter().filter_map(|index| Chip::read(paths, index)).collect()
}

/// The number in `mtd0`, `mtdblock0` and their read-only twins.
fn index_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("mtdblock").or(name.strip_prefix("mtd"))?;
    let digits = rest.strip_suffix("ro").unwrap_or(rest);
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(super) fn index(named: &NamedDevice<'_>) -> Result<Option<u32>> {
    if let Some(label) = named.name.strip_prefix(BY_NAME) {
        return by_label(label, named.paths).map(Some);
    }
    let Some(node) = named.node() else { return Ok(None) };
    if let Ok(meta) = fs::metadata(&node) {
        match (meta.file_type(), major_minor(meta.rdev())) {
            (t, (BLOCK_MAJOR, minor)) if t.is_block_device() => return Ok(Some(minor)),
            // Each device has two nodes, the second one read-only.
            (t, (CHAR_MAJOR, minor)) if t.is_char_device() => return Ok(Some(minor / 2)),
            _ => {}
        }
    }
    Ok(node.file_name().and_then(|n| n.to_str()).and_then(index_of))
}

fn by_label(label: &str, paths: &Paths) -> Result<u32> {
    let all = list(paths);
    let found: Vec<u32> = all.iter().filter(|c| c.name == label).map(|c| c.index).collect();
    let missing = |why: String| {
        Error::new(Code::FlashDeviceMissing, format!("cannot find device {BY_NAME}{label}: {why}"))
            .object(format!("{BY_NAME}{label}"))
    };
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
            let names = if names.is_empty() { "there are none".into() } else { names.join(", ") };
            Err(missing(format!("no MTD device has that name ({names})")))
        }
        several => Err(missing(format!("{} MTD devices have that name", several.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mtd_devices() {
        for (name, index) in [("mtd0", 0), ("mtd12", 12), ("mtd3ro", 3), ("mtdblock0", 0), ("mtdblock7ro", 7)]
        {
            assert_eq!(index_of(name), Some(index), "{name}");
        }
        for name in ["mtd", "mtdblock", "mtdx", "mtd0p1", "mtd-1", "sda", "mtd+1"] {
            assert_eq!(index_of(name), None, "{name}");
        }
    }
}
