//! `60-data-breadcrumb`: without this file the next boot purges the data partition.

use std::fs;

use super::support::split;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::sys::file::{self, Content, Folder};

/// `resin-data-reset` of the OS empties the data partition where the file is missing.
const BREADCRUMB: &str = "remove_me_to_reset";

pub(super) fn run(context: &Context) -> Result<()> {
    let path = context.paths.data().join(BREADCRUMB);
    let (folder, name) = split(&path);
    if let Err(e) = Folder::open(folder).and_then(|folder| file::sweep(&folder)) {
        tracing::warn!("cannot clean up {}: {e}", folder.display());
    }
    // The next boot tests with `[ -f … ]`: through links, and only a file counts.
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
