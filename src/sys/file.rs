//! Replacing, removing and reading back files so that power may fail between any two instructions.
//!
//! FAT has no journal, and its directory entries, its table and its data reach the medium in any order. What is done here,
//! and in which order, is what a write log of a real vfat bears out (`docs/boot-partition.md`); on other file systems the
//! same steps are merely more than needed.

mod append;
mod commit;
mod content;
mod flush;
mod folder;
mod in_place;
mod leftovers;
mod overwrite;
mod replace;
#[cfg(test)]
pub(crate) mod seen;
mod side;

pub use append::{append, reserve, tail};
pub use commit::{
    commit_side_files, commit_side_files_by, current_content, open_current, open_current_by,
    rename_side_file, rename_side_file_by,
};
pub use content::Content;
pub use flush::{flush_node, sync_file_system};
pub use folder::{Entry, Folder, Kind, Space};
pub use in_place::{InPlace, SECTOR, change_in_place, differing};
pub use leftovers::{Leftover, Swept, is_leftover, sweep};
pub use overwrite::{Overwrite, overwrite, overwrite_by};
pub use replace::{Outcome, Steps, make_folder, remove, remove_folder, replace, replace_by, try_by};
pub use side::is_side_file;

use std::io;

/// Says in an error which step failed on what; the kind is kept.
fn at<T>(result: io::Result<T>, step: &str, name: &std::ffi::OsStr) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("{step} {}: {e}", name.to_string_lossy())))
}
