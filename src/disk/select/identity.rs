//! The identity of a disk: the checked disk must be the written disk.

use std::path::PathBuf;

use super::{Target, TargetKind};
use crate::disk::{Dev, Device, Facts};
use crate::error::{Code, Error, Result};

/// The write engine compares this with the disk that it has opened: between check and write a disk can be pulled, and
/// another can take its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub dev: Dev,
    pub size: u64,
    pub serial: Option<String>,
}

impl Identity {
    /// The serial number may have appeared since: udev reads it some time after the kernel has added the disk.
    #[must_use]
    pub(crate) fn is_still(&self, later: &Identity) -> bool {
        (self.dev, self.size) == (later.dev, later.size)
            && (self.serial.is_none() || self.serial == later.serial)
    }
}

impl Target {
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let dev = self.dev.filter(|_| self.kind == TargetKind::Block)?;
        Some(Identity { dev, size: self.size, serial: self.serial.clone() })
    }

    /// Compares the opened disk with the checked disk. Files have no identity.
    pub fn reverify(&self, opened: &Identity) -> Result<()> {
        let Some(checked) = self.identity() else { return Ok(()) };
        if checked.is_still(opened) {
            return Ok(());
        }
        let differs = if checked.dev != opened.dev {
            let ((a, b), (c, d)) = (checked.dev, opened.dev);
            format!("its device number was {a}:{b} and is {c}:{d}")
        } else if checked.size != opened.size {
            format!("its size was {} bytes and is {}", checked.size, opened.size)
        } else {
            let text = |s: &Option<String>| s.clone().unwrap_or_else(|| "none".into());
            format!("its serial number was {} and is {}", text(&checked.serial), text(&opened.serial))
        };
        let name = self.name.display();
        Err(Error::new(Code::TargetChanged, format!("{name} is not the disk that was checked: {differs}"))
            .object(name))
    }
}

/// The most specific link in `/dev/disk/by-id`: not an interface number where there is another link.
pub(super) fn by_id(facts: &Facts, device: &Device) -> Option<PathBuf> {
    let folder = PathBuf::from("/dev/disk/by-id");
    let entries = std::fs::read_dir(facts.paths().at(&folder)).into_iter().flatten().flatten();
    let links = entries.map(|e| folder.join(e.file_name()));
    let mut links: Vec<PathBuf> =
        links.filter(|l| facts.device_at(l).is_some_and(|d| d.dev == device.dev)).collect();
    links.sort_by_key(|link| {
        let name = link.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        (["wwn-", "nvme-eui.", "nvme-uuid.", "nvme-nvme."].iter().any(|p| name.starts_with(p)), name)
    });
    links.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_difference_is_found_and_named() {
        let target = Target {
            name: "/dev/sda".into(),
            node: "/dev/sda".into(),
            kind: TargetKind::Block,
            dev: Some((8, 0)),
            size: 4096,
            block_size: 512,
            by_id: None,
            model: None,
            serial: Some("S1".into()),
        };
        let same = target.identity().unwrap();
        target.reverify(&same).unwrap();
        for (other, word) in [
            (Identity { dev: (8, 16), ..same.clone() }, "8:16"),
            (Identity { size: 8192, ..same.clone() }, "8192"),
            (Identity { serial: None, ..same.clone() }, "none"),
            (Identity { serial: Some("S2".into()), ..same.clone() }, "S2"),
        ] {
            let e = target.reverify(&other).unwrap_err();
            assert_eq!(e.code(), Code::TargetChanged);
            assert!(e.message().contains(word), "{e}");
        }
        // udev had not finished at the time of the check.
        let early = Target { serial: None, ..target.clone() };
        early.reverify(&same).unwrap();
        early.reverify(&Identity { dev: (8, 16), ..same.clone() }).unwrap_err();
        let file = Target { kind: TargetKind::File, dev: None, ..target };
        assert_eq!(file.identity(), None);
        file.reverify(&same).unwrap();
    }
}
