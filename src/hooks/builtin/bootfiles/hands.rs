//! The writes to the boot partition, as a trait, so that a test can interrupt each of them.

use std::ffi::OsStr;
use std::fs::FileTimes;
use std::io;
use std::time::SystemTime;

use crate::sys::file::{self, Content, Folder, Outcome};

/// Each write is durable on return.
#[allow(clippy::missing_errors_doc)]
pub trait Hands {
    fn replace(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
        file::replace(folder, name, content)
    }

    /// Overwrites an existing file without a second copy. The last resort: a power cut leaves a mix of both.
    fn overwrite(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
        file::overwrite(folder, name, content)
    }

    fn remove(&self, folder: &Folder, name: &OsStr) -> io::Result<bool> {
        file::remove(folder, name)
    }

    fn make_folder(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        file::make_folder(folder, name)
    }

    /// Removes a folder that holds at most temporary files of interrupted writes.
    fn remove_folder(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        file::sweep(&folder.enter(name)?)?;
        file::remove_folder(folder, name)
    }

    /// Sets the time of a file to now. On FAT this rewrites one sector of its folder, with only the time changed; it need not outlast a
    /// power cut.
    fn touch(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        let now = SystemTime::now();
        folder.open_file(name)?.set_times(FileTimes::new().set_accessed(now).set_modified(now))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct OwnHands;

impl Hands for OwnHands {}
