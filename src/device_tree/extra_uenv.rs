//! `extra_uEnv.txt`: U-Boot imports it into its environment.

use std::path::Path;

use super::Key;
use crate::boot_state::EXTRA_FILE;
use crate::boot_state::uenv::Uenv;
use crate::boot_state::variables::Variables;
use crate::sys::file::{self, Folder};

const KEYS: [Key; 5] =
    [Key::CustomFdtFile, Key::OverlayFiles, Key::FdtFileUnderscore, Key::Fdtfile, Key::Fdtofile];

pub(super) fn names(boot: &Path) -> Vec<(Key, String)> {
    let content = Folder::open_to_read(boot).and_then(|f| file::current_content(&f, EXTRA_FILE.as_ref()));
    let content = content.ok().flatten().unwrap_or_default();
    let mut read = Variables::default();
    // What stands before the end of the import counts.
    let _what_counts_of_it = read.import(&Uenv::parse(&content));
    let value = |key: Key| read.get(key.as_str()).filter(|v| !v.is_empty());
    KEYS.into_iter()
        .filter_map(|key| Some((key, String::from_utf8_lossy(value(key)?).into_owned())))
        .collect()
}
