//! `60-data-breadcrumb`: the file without which the next boot takes the data partition for one that its owner wants purged.

use std::fs;

use super::support::split;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::sys::file::{self, Content, Folder};

/// `resin-data-reset` of the OS empties the data partition when this is missing.
const NAME: &str = "remove_me_to_reset";

/// Creates the file when it is missing.
///
/// # Errors
/// `DataUnwritable`.
pub(super) fn run(context: &Context) -> Result<()> {
    let path = context.paths.data().join(NAME);
    let (folder, name) = split(&path);
    if let Err(e) = Folder::open(folder).and_then(|folder| file::sweep(&folder)) {
        tracing::warn!("cannot clean up {}: {e}", folder.display());
    }
    // As `[ -f … ]` does, which is what the next boot asks: through links, and nothing but a file counts.
    if fs::metadata(&path).is_ok_and(|m| m.is_file()) {
        return Ok(());
    }
    tracing::info!("creating {}", path.display());
    let made = Folder::open(folder).and_then(|folder| file::replace(&folder, name, &Content::Bytes(b"")));
    made.map(drop).map_err(|e| {
        let text = format!("cannot create {}, without which the data partition is purged", path.display());
        Error::new(Code::DataUnwritable, text).object(path.display()).because(e)
    })
}
