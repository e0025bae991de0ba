//! The board's rules for updates: `/etc/copal/update.conf`, a [shell fragment](super::shell_conf).

use super::paths::Paths;
use super::read::shown;
use super::shell_conf::RawConf;
use crate::error::Result;

pub const FILE: &str = "/etc/copal/update.conf";

/// `A` or `B`: the slot from which the bootloader reads files, such as the device tree, at every boot, whichever slot is selected.
/// Without it, the bootloader reads the selected slot only.
const ALWAYS_READ_SLOT: &str = "ALWAYS_READ_SLOT";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateConf {
    /// The letter of the slot.
    pub always_read_slot: Option<&'static str>,
}

impl UpdateConf {
    /// Without the file, the defaults.
    pub fn read(paths: &Paths) -> Result<Self> {
        let Some(raw) = RawConf::load_if_there(&paths.at(FILE))? else { return Ok(Self::default()) };
        raw.report_unknown(|key| key == ALWAYS_READ_SLOT);
        let always_read_slot = match raw.get(ALWAYS_READ_SLOT).unwrap_or_default() {
            "" => None,
            "A" => Some("A"),
            "B" => Some("B"),
            odd => {
                let what = format!("`{}` is neither A nor B", shown(odd));
                return Err(raw.invalid(ALWAYS_READ_SLOT, &what, "write A or B"));
            }
        };
        Ok(UpdateConf { always_read_slot })
    }
}

#[cfg(test)]
mod tests {
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
}
