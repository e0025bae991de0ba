//! `extra_uEnv.txt`: U-Boot imports it into its environment, and the UEFI of Jetson Orin and Thor searches its text.

use super::{Files, Found, Key};
use crate::boot_state::EXTRA_FILE;
use crate::boot_state::uenv::Uenv;
use crate::boot_state::variables::Variables;
use crate::config::paths::Paths;
use crate::sys::file::read_bytes;

/// The BeagleBone imports it before the other one.
const OLDER_FILE: &str = "uEnv.txt";

const KEYS: [Key; 5] =
    [Key::CustomFdtFile, Key::OverlayFiles, Key::FdtFileUnderscore, Key::Fdtfile, Key::Fdtofile];

/// The keys that the UEFI also has.
const SEARCHED: [Key; 2] = [Key::CustomFdtFile, Key::OverlayFiles];

/// Overlays of the BeagleBone, by number.
const ADDRESSES: std::ops::RangeInclusive<u8> = b'0'..=b'7';

/// In bytes: names of some boards and a processor.
const MAX_COMPATIBLE_BYTES: u64 = 4096;

/// As much of a line as the UEFI keeps (`MAX_DTB_PATH_LEN` of the patch, in two-byte characters, with the zero at the end).
const LONGEST_LINE: usize = 511;

/// `is_searched`: the UEFI of a Tegra reads it, for which the last line with a key counts, also in a comment. U-Boot does not read it then.
pub(super) fn read(files: &mut Files<'_>, is_searched: bool, found: &mut dyn FnMut(Found)) {
    for (file, sure) in [(OLDER_FILE, false), (EXTRA_FILE, !is_searched)] {
        let content = files.read(file);
        let mut read = Variables::default();
        // What stands before the end of the import counts.
        let _what_counts_of_it = read.import(&Uenv::parse(&content));
        // With the carriage return of a line, and blanks in front: with them U-Boot looks for another file.
        let value = |name: &str| {
            let (_, value) = read.iter().filter(|(n, _)| *n == name.as_bytes()).last()?;
            Some(String::from_utf8_lossy(value).trim_end_matches([' ', '\t']).to_owned())
        };
        for key in KEYS {
            say(key, &value(key.as_str()).unwrap_or_default(), sure, found);
        }
        for number in ADDRESSES {
            let name = format!("{}{}", Key::UbootOverlayAddr, char::from(number));
            let value = value(&name).unwrap_or_default();
            // Others are in the release's own folder of firmware.
            if !value.is_empty() && !value.contains('/') {
                found(Found { key: Key::UbootOverlayAddr, name: format!("overlays/{value}"), sure });
            }
        }
        if file == EXTRA_FILE {
            let text = text(&content);
            for key in SEARCHED {
                // On a board with U-Boot it may be a comment.
                say(key, searched(&text, key.as_str()).unwrap_or_default().trim(), is_searched, found);
            }
        }
    }
}

/// Whether the UEFI of a Tegra has started this system: by the live tree, and by the variables that other firmware does not have.
pub(super) fn is_searched(paths: &Paths) -> bool {
    const COMPATIBLE: &str = "/sys/firmware/devicetree/base/compatible";
    const VARIABLES: &str = "/sys/firmware/efi/efivars";
    let compatible = read_bytes(&paths.at(COMPATIBLE), MAX_COMPATIBLE_BYTES).unwrap_or_default();
    paths.at(VARIABLES).is_dir()
        && compatible.split(|byte| *byte == 0).any(|name| name.starts_with(b"nvidia,tegra"))
}

fn say(key: Key, value: &str, sure: bool, found: &mut dyn FnMut(Found)) {
    let list = key == Key::OverlayFiles;
    let names = value.split(|c: char| list && matches!(c, ',' | ' ' | '\t')).filter(|name| !name.is_empty());
    for name in names {
        found(Found { key, name: name.to_owned(), sure });
    }
}

/// Either character set of the UEFI (EDK2, `FileHandleReturnLine`).
fn text(content: &[u8]) -> String {
    match content.strip_prefix(b"\xff\xfe") {
        None => String::from_utf8_lossy(content).into_owned(),
        Some(wide) => {
            let units = wide.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair));
            char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
    }
}

/// The rest of the last line with `key=` in it, also in a comment or in another name (balena-jetson-orin, `ProcessExtrauEnv`). The UEFI
/// leaves out carriage returns.
fn searched(text: &str, key: &str) -> Option<String> {
    text.split('\n').rev().find_map(|line| {
        let line = line.chars().filter(|c| *c != '\r').take_while(|c| *c != '\0').take(LONGEST_LINE);
        let line: String = line.collect();
        line.split_once(&format!("{key}=")).map(|(_, value)| value.to_owned())
    })
}
