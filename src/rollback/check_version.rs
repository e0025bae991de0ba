//! Whether the previous system is new enough to go back to.
//!
//! Before 2.30.0 a system had no hooks that take a device back to it (meta-balena, `rollback-check-version`). The script there
//! looked for any `etc/os-release` in the other root, took several for none, and 2.30.0 itself for too old.

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::slot::hostapp;
use crate::version::Version;

/// The first release that a device can go back to.
const FIRST: Version = Version::new(2, 30, 0);

/// What is known of the previous system's age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Age {
    /// It can be gone back to.
    NewEnough(Version),
    /// It is older than 2.30.0.
    TooOld(Version),
    /// Its version cannot be read, for this reason. Only a system that is known to be too old costs a trial its tests.
    Unknown(String),
}

/// The version that the other slot's current hostapp gives itself, as it is written there: that of meta-balena, where the
/// product counts its own. `None` where there is no such hostapp, or it gives none.
#[must_use]
pub fn previous(paths: &Paths) -> Option<String> {
    // Through an automount: what is looked up below it gets mounted.
    hostapp::os_release(&paths.inactive())?.version().map(str::to_owned)
}

/// What is known of the previous system's age. Reads only.
#[must_use]
pub fn age(paths: &Paths) -> Age {
    let Some(text) = previous(paths) else {
        return Age::Unknown(format!(
            "there is no os-release in the hostapp of {}",
            paths.inactive().display()
        ));
    };
    match text.parse::<Version>() {
        // By the numbers alone: a draft or a pre-release of 2.30.0 can do what 2.30.0 can.
        Ok(version) if version.numbers() < FIRST.numbers() => Age::TooOld(version),
        Ok(version) => Age::NewEnough(version),
        Err(e) => Age::Unknown(format!("{text:?} is no version: {e}")),
    }
}

/// Whether a trial may end with a way back. `false` only for a system that is known to be too old: a version that cannot be read
/// neither commits a system without tests, nor switches the way back off.
#[must_use]
pub fn is_new_enough(paths: &Paths) -> bool {
    match age(paths) {
        Age::NewEnough(_) => true,
        Age::TooOld(_) => false,
        Age::Unknown(why) => {
            tracing::warn!("the previous system counts as new enough to go back to: {why}");
            true
        }
    }
}

/// `rollback-check-version`: a line that says so, where the previous system can be gone back to.
///
/// # Errors
/// `PreviousTooOld`.
pub fn line(paths: &Paths) -> Result<String> {
    match age(paths) {
        Age::NewEnough(version) => Ok(format!("rollbacks: the previous OS, {version}, can be gone back to")),
        Age::Unknown(why) => {
            Ok(format!("rollbacks: the previous OS counts as one that can be gone back to: {why}"))
        }
        Age::TooOld(version) => Err(Error::new(
            Code::PreviousTooOld,
            format!("cannot go back to the previous OS: it is {version}, older than {FIRST}"),
        )
        .object(version)),
    }
}
