//! What the firmware says the device is.

use std::path::Path;

/// Of DMI (`/sys/class/dmi/id`) or the device tree (`/proc/device-tree`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) model: Option<String>,
    pub(crate) serial: Option<String>,
}

/// What makers leave in DMI who write no serial number; in lower case.
const PLACEHOLDERS: [&str; 9] = [
    "to be filled by o.e.m.",
    "default string",
    "system serial number",
    "not specified",
    "not applicable",
    "none",
    "n/a",
    "123456789",
    "0123456789",
];

impl Machine {
    #[must_use]
    pub(crate) fn below(root: &Path) -> Self {
        let first = |files: &[&str]| files.iter().find_map(|file| text(&root.join(file)));
        Machine {
            model: first(&["proc/device-tree/model", "sys/class/dmi/id/product_name"]),
            serial: first(&[
                "proc/device-tree/serial-number",
                "sys/class/dmi/id/product_serial",
                "sys/class/dmi/id/board_serial",
            ]),
        }
    }
}

/// Without the zero byte of the device tree.
fn text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let says_something = text.chars().any(|c| !matches!(c, '0' | ' ' | '-' | '.'))
        && !PLACEHOLDERS.contains(&text.to_lowercase().as_str());
    says_something.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_may_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(Machine::below(root), Machine::default());
        let dmi = root.join("sys/class/dmi/id");
        std::fs::create_dir_all(&dmi).unwrap();
        std::fs::write(dmi.join("product_name"), "NUC7i5BNH\n").unwrap();
        for nothing in ["To be filled by O.E.M.\n", "\n", "00000000\n", "Default string\n"] {
            std::fs::write(dmi.join("product_serial"), nothing).unwrap();
            assert_eq!(Machine::below(root).serial, None, "{nothing:?}");
        }
        std::fs::write(dmi.join("board_serial"), "BTW1\n").unwrap();
        let pc = Machine { model: Some("NUC7i5BNH".to_owned()), serial: Some("BTW1".to_owned()) };
        assert_eq!(Machine::below(root), pc);
        let tree = root.join("proc/device-tree");
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::write(tree.join("model"), "Raspberry Pi 5 Model B Rev 1.0\0").unwrap();
        std::fs::write(tree.join("serial-number"), "5b8b1c0e7d2f4a61\0").unwrap();
        let pi = Machine::below(root);
        assert_eq!(pi.model.as_deref(), Some("Raspberry Pi 5 Model B Rev 1.0"));
        assert_eq!(pi.serial.as_deref(), Some("5b8b1c0e7d2f4a61"));
    }
}
