use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;

use super::at;
use super::folder::Folder;
use super::side::owners;

/// What was in a folder, for all files that are replaced in it: listed for each of them, a folder of thousands would take minutes.
///
/// A side file that another process leaves meanwhile stays, as one does that comes after the file was replaced.
#[derive(Debug)]
pub struct Listing {
    names: BTreeSet<OsString>,
    owners: BTreeSet<OsString>,
}

impl Listing {
    pub fn of(folder: &Folder) -> io::Result<Listing> {
        let names = at(folder.names(), "list", folder.path().as_os_str())?;
        let owners = names.iter().flat_map(|n| owners(n)).map(|n| folder.fold(n)).collect();
        Ok(Listing { names: names.iter().map(|n| folder.fold(n)).collect(), owners })
    }

    pub(super) fn has(&self, folder: &Folder, name: &OsStr) -> bool {
        self.names.contains(&folder.fold(name))
    }

    /// Whether a side file of `name` was there.
    #[must_use]
    pub fn has_side_file(&self, folder: &Folder, name: &OsStr) -> bool {
        self.owners.contains(&folder.fold(name))
    }
}
