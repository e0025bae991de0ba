//! What is done to the boot partition, over a small trait, so that a test can stop it anywhere.

use std::ffi::OsStr;
use std::fs::FileTimes;
use std::io;
use std::time::SystemTime;

use crate::sys::file::{self, Content, Folder, Outcome};

/// The changes that a deployment makes. Each is durable when it returns.
#[allow(clippy::missing_errors_doc)] // as the operating system says, all of them
pub trait Hands {
    /// Makes a file hold something.
    fn replace(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
        file::replace(folder, name, content)
    }

    /// Makes a file that is there hold something without a second copy of it. The last resort: a cut leaves a mix.
    fn overwrite(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
        file::overwrite(folder, name, content)
    }

    /// Removes a file; whether there was one.
    fn remove(&self, folder: &Folder, name: &OsStr) -> io::Result<bool> {
        file::remove(folder, name)
    }

    /// Makes a folder.
    fn make_folder(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        file::make_folder(folder, name)
    }

    /// Removes a folder with nothing in it but what an interrupted write has left.
    fn remove_folder(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        file::sweep(&folder.enter(name)?)?;
        file::remove_folder(folder, name)
    }

    /// Gives a file the present time. On FAT that is one sector of its folder, written as it was save for the time; it need not
    /// last through a cut.
    fn touch(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        let now = SystemTime::now();
        folder.open_file(name)?.set_times(FileTimes::new().set_accessed(now).set_modified(now))
    }
}

/// Those of a device.
#[derive(Debug, Clone, Copy)]
pub struct OwnHands;

impl Hands for OwnHands {}
