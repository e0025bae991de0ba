//! The board's rules for updates: `/etc/copal/update.conf`, a [shell fragment](super::shell_conf).

use std::fmt;
use std::path::PathBuf;

use super::paths::Paths;
use super::read::shown;
use super::shell_conf::RawConf;
use crate::error::Result;

pub const FILE: &str = "/etc/copal/update.conf";

/// `A` or `B`: the slot from which the bootloader reads files, such as the device tree, at every boot, whichever slot is selected.
/// Without it, the bootloader reads the selected slot only.
const ALWAYS_READ_SLOT: &str = "ALWAYS_READ_SLOT";
/// The settings, separated by blanks, that make the board's bootloader load a device tree of the owner.
const DEVICE_TREE_KEYS: &str = "DEVICE_TREE_KEYS";
/// Where the board's bootloader looks for such a device tree: `root`, `boot-first` or `boot`.
const DEVICE_TREE_PLACE: &str = "DEVICE_TREE_PLACE";
/// `1`: the board's bootloader does not boot without the named device tree. `0`, the default: it takes its own.
const DEVICE_TREE_REQUIRED: &str = "DEVICE_TREE_REQUIRED";
/// The tree in the boot folder that the board's bootloader takes where the owner names none, or one that is missing.
const DEVICE_TREE_DEFAULT: &str = "DEVICE_TREE_DEFAULT";
/// Other files of the boot folder, separated by blanks, that an update carries into the new one.
const CARRY_BOOT: &str = "CARRY_BOOT";
/// `1`: an update may change the key of the loader, although a power cut meanwhile leaves a device that does not start. `0`, the default: it is refused.
const ACCEPT_LOADER_KEY: &str = "ACCEPT_LOADER_KEY";
/// In the order of the documentation.
pub const KEYS: [&str; 7] = [
    ALWAYS_READ_SLOT,
    DEVICE_TREE_KEYS,
    DEVICE_TREE_PLACE,
    DEVICE_TREE_REQUIRED,
    DEVICE_TREE_DEFAULT,
    CARRY_BOOT,
    ACCEPT_LOADER_KEY,
];

/// A setting on the boot partition that names device trees or overlays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceTreeKey {
    CustomFdtFile,
    OverlayFiles,
    FdtFileUnderscore,
    Fdtfile,
    Fdtofile,
    /// The first part of `uboot_overlay_addr0` to `7`: overlays in the folder `overlays`.
    UbootOverlayAddr,
    /// Of `extlinux/extlinux.conf`.
    Fdt,
    /// Of `config.txt`, as [`Dtoverlay`](Self::Dtoverlay).
    DeviceTree,
    Dtoverlay,
}

impl DeviceTreeKey {
    pub const ALL: [DeviceTreeKey; 9] = [
        DeviceTreeKey::CustomFdtFile,
        DeviceTreeKey::OverlayFiles,
        DeviceTreeKey::FdtFileUnderscore,
        DeviceTreeKey::Fdtfile,
        DeviceTreeKey::Fdtofile,
        DeviceTreeKey::UbootOverlayAddr,
        DeviceTreeKey::Fdt,
        DeviceTreeKey::DeviceTree,
        DeviceTreeKey::Dtoverlay,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            DeviceTreeKey::CustomFdtFile => "custom_fdt_file",
            DeviceTreeKey::OverlayFiles => "overlay_files",
            DeviceTreeKey::FdtFileUnderscore => "fdt_file",
            DeviceTreeKey::Fdtfile => "fdtfile",
            DeviceTreeKey::Fdtofile => "fdtofile",
            DeviceTreeKey::UbootOverlayAddr => "uboot_overlay_addr",
            DeviceTreeKey::Fdt => "FDT",
            DeviceTreeKey::DeviceTree => "device_tree",
            DeviceTreeKey::Dtoverlay => "dtoverlay",
        }
    }

    /// Whether it names a tree, not overlays.
    #[must_use]
    pub const fn is_tree(self) -> bool {
        match self {
            DeviceTreeKey::CustomFdtFile
            | DeviceTreeKey::FdtFileUnderscore
            | DeviceTreeKey::Fdtfile
            | DeviceTreeKey::Fdt
            | DeviceTreeKey::DeviceTree => true,
            DeviceTreeKey::OverlayFiles
            | DeviceTreeKey::Fdtofile
            | DeviceTreeKey::UbootOverlayAddr
            | DeviceTreeKey::Dtoverlay => false,
        }
    }

    fn named(word: &str) -> Option<DeviceTreeKey> {
        Self::ALL.into_iter().find(|key| key.as_str() == word)
    }
}

impl fmt::Display for DeviceTreeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the board's bootloader looks for a device tree of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceTreePlace {
    /// The folder `boot` of the selected root.
    #[default]
    Root,
    /// The boot partition, and then the folder `boot` of the selected root.
    BootFirst,
    /// The boot partition only.
    Boot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateConf {
    /// The letter of the slot.
    pub always_read_slot: Option<&'static str>,
    pub device_tree_keys: Vec<DeviceTreeKey>,
    pub device_tree_place: DeviceTreePlace,
    pub device_tree_required: bool,
    /// A plain path below the boot folder.
    pub device_tree_default: Option<PathBuf>,
    /// Plain paths below the boot folder.
    pub carry_boot: Vec<PathBuf>,
    pub accept_loader_key: bool,
}

impl Default for UpdateConf {
    fn default() -> Self {
        UpdateConf {
            always_read_slot: None,
            device_tree_keys: vec![DeviceTreeKey::CustomFdtFile, DeviceTreeKey::OverlayFiles],
            device_tree_place: DeviceTreePlace::default(),
            device_tree_required: false,
            device_tree_default: None,
            carry_boot: Vec::new(),
            accept_loader_key: false,
        }
    }
}

impl UpdateConf {
    /// Without the file, the defaults.
    pub fn read(paths: &Paths) -> Result<Self> {
        let Some(raw) = RawConf::load_if_there(&paths.at(FILE))? else { return Ok(Self::default()) };
        for e in raw.unknown_keys(|key| KEYS.contains(&key)) {
            tracing::warn!("{} is ignored", e.message());
        }
        let slots = [("A", "A"), ("B", "B")];
        let always_read_slot = one_of(&raw, ALWAYS_READ_SLOT, "A or B", &slots)?;
        let mut conf = UpdateConf { always_read_slot, ..Self::default() };
        if let Some(keys) = raw.get(DEVICE_TREE_KEYS) {
            let key = |word| {
                DeviceTreeKey::named(word).ok_or_else(|| {
                    let what = format!("`{}` is not a setting that names a device tree", shown(word));
                    let all = DeviceTreeKey::ALL.map(DeviceTreeKey::as_str).join(" ");
                    raw.invalid(DEVICE_TREE_KEYS, &what, &format!("write some of {all}"))
                })
            };
            conf.device_tree_keys = keys.split_whitespace().map(key).collect::<Result<_>>()?;
        }
        let places = [
            ("root", DeviceTreePlace::Root),
            ("boot-first", DeviceTreePlace::BootFirst),
            ("boot", DeviceTreePlace::Boot),
        ];
        conf.device_tree_place =
            one_of(&raw, DEVICE_TREE_PLACE, "root, boot-first or boot", &places)?.unwrap_or_default();
        let switch = [("0", false), ("1", true)];
        conf.device_tree_required =
            one_of(&raw, DEVICE_TREE_REQUIRED, "0 or 1", &switch)?.unwrap_or_default();
        conf.accept_loader_key = one_of(&raw, ACCEPT_LOADER_KEY, "0 or 1", &switch)?.unwrap_or_default();
        let path = |key, word| {
            plain_path(word).ok_or_else(|| {
                let what = format!("`{}` is not a plain path", shown(word));
                raw.invalid(key, &what, "write paths below the boot folder, without `..` and `/` in front")
            })
        };
        let default = raw.get(DEVICE_TREE_DEFAULT).filter(|text| !text.is_empty());
        conf.device_tree_default = default.map(|word| path(DEVICE_TREE_DEFAULT, word)).transpose()?;
        let carried = raw.get(CARRY_BOOT).unwrap_or_default().split_whitespace();
        conf.carry_boot = carried.map(|word| path(CARRY_BOOT, word)).collect::<Result<_>>()?;
        Ok(conf)
    }
}

/// `None` where the key has no value.
fn one_of<T: Copy>(raw: &RawConf, key: &str, all: &str, values: &[(&str, T)]) -> Result<Option<T>> {
    let Some(text) = raw.get(key).filter(|text| !text.is_empty()) else { return Ok(None) };
    match values.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(Some(*value)),
        None => {
            Err(raw.invalid(key, &format!("`{}` is none of {all}", shown(text)), &format!("write {all}")))
        }
    }
}

/// A path below a folder that a bootloader and the kernel read alike: without `..`, and with nothing that one of them takes for something
/// else (a backslash is a separator for UEFI).
#[must_use]
pub fn plain_path(text: &str) -> Option<PathBuf> {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\\\"'$*?<>|".contains(c);
    if text.starts_with('/') || !text.chars().all(plain) {
        return None;
    }
    let parts = || text.split('/').filter(|part| !matches!(*part, "" | "."));
    if text.ends_with('/') || parts().any(|part| part == "..") || parts().next().is_none() {
        return None;
    }
    Some(parts().collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::error::Code;

    fn read(text: &str) -> Result<UpdateConf> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc/copal")).unwrap();
        std::fs::write(root.path().join("etc/copal/update.conf"), text).unwrap();
        UpdateConf::read(&Paths::new(root.path()))
    }

    #[test]
    fn a_slot_is_a_or_b_or_none() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(UpdateConf::read(&Paths::new(empty.path())).unwrap(), UpdateConf::default());
        for (text, slot) in [
            ("# none\nALWAYS_READ_SLOT=\n", None),
            ("OTHER=1\n", None),
            ("ALWAYS_READ_SLOT=B\nALWAYS_READ_SLOT='A' # the last one counts\n", Some("A")),
            ("export ALWAYS_READ_SLOT=\"B\"\n", Some("B")),
        ] {
            assert_eq!(read(text).unwrap().always_read_slot, slot, "{text}");
        }
        for (text, code) in [
            ("ALWAYS_READ_SLOT=a\n", Code::ConfInvalid),
            ("ALWAYS_READ_SLOT=AB\n", Code::ConfInvalid),
            ("ALWAYS_READ_SLOT=$slot\n", Code::ConfExpansion),
            ("ALWAYS_READ_SLOT = A\n", Code::ConfSyntax),
        ] {
            assert_eq!(read(text).unwrap_err().code(), code, "{text}");
        }
    }

    #[test]
    fn device_trees_by_the_boards_keys() {
        let conf = read(
            "DEVICE_TREE_KEYS=\"fdt_file  FDT\"\nDEVICE_TREE_PLACE=boot-first\nDEVICE_TREE_REQUIRED=1\n\
             CARRY_BOOT='cal.bin fw//./a.bin'\n",
        )
        .unwrap();
        assert_eq!(conf.device_tree_keys, [DeviceTreeKey::FdtFileUnderscore, DeviceTreeKey::Fdt]);
        assert_eq!(conf.device_tree_place, DeviceTreePlace::BootFirst);
        assert!(conf.device_tree_required);
        assert_eq!(conf.carry_boot, [Path::new("cal.bin"), Path::new("fw/a.bin")]);

        let default = read("DEVICE_TREE_PLACE=\nDEVICE_TREE_REQUIRED=\nCARRY_BOOT=\n").unwrap();
        assert_eq!(default, UpdateConf::default());
        assert!(read("DEVICE_TREE_KEYS=\n").unwrap().device_tree_keys.is_empty());

        for wrong in [
            "DEVICE_TREE_KEYS=fdt\n",
            "DEVICE_TREE_KEYS='custom_fdt_file,fdtfile'\n",
            "DEVICE_TREE_PLACE=data\n",
            "DEVICE_TREE_REQUIRED=yes\n",
            "CARRY_BOOT=/boot/cal.bin\n",
            "CARRY_BOOT='cal.bin ../x'\n",
        ] {
            assert_eq!(read(wrong).unwrap_err().code(), Code::ConfInvalid, "{wrong}");
        }
    }

    #[test]
    fn plain_paths() {
        for (text, path) in
            [("a.dtb", "a.dtb"), ("a/b.dtb", "a/b.dtb"), ("./a", "a"), ("a//b", "a/b"), ("..a", "..a")]
        {
            assert_eq!(plain_path(text).as_deref(), Some(Path::new(path)), "{text}");
        }
        for text in
            ["", ".", "/", "/a", "..", "a/..", "../a", "a/", "a b", "a\\b", "a\r", "a\0b", "${x}", "*"]
        {
            assert_eq!(plain_path(text), None, "{text}");
        }
    }
}
