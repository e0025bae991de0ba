//! Whether the previous system is new enough for a rollback.
//!
//! Before 2.30.0 a system had no hooks for that (meta-balena, `rollback-check-version`). The script looked for any `etc/os-release` in the
//! other root, took several for none, and 2.30.0 itself for too old.

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::slot::hostapp;
use crate::version::Version;

const FIRST_WITH_ROLLBACKS: Version = Version::new(2, 30, 0);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Age {
    NewEnough(Version),
    TooOld(Version),
    /// Why the version is unknown. Only a system known to be too old costs a trial its tests.
    Unknown(String),
}

/// The version of meta-balena in the os-release of the inactive hostapp, also where a product has its own version. `None` without
/// hostapp or version.
#[must_use]
pub fn previous(paths: &Paths) -> Option<String> {
    // A look-up below an automount mounts it.
    hostapp::os_release(&paths.inactive())?.version().map(str::to_owned)
}

#[must_use]
pub fn age(paths: &Paths) -> Age {
    let Some(text) = previous(paths) else {
        return Age::Unknown(format!(
            "there is no os-release in the hostapp of {}",
            paths.inactive().display()
        ));
    };
    match text.parse::<Version>() {
        // Without the suffix: a draft or a pre-release of 2.30.0 can do what 2.30.0 can.
        Ok(version) if version.numbers() < FIRST_WITH_ROLLBACKS.numbers() => Age::TooOld(version),
        Ok(version) => Age::NewEnough(version),
        Err(e) => Age::Unknown(format!("{text:?} is not a version: {e}")),
    }
}

/// Whether a trial may end with a rollback. `false` only for a system known to be too old: an unknown version neither commits a system
/// without tests nor disables the rollback.
#[must_use]
pub fn is_new_enough(paths: &Paths) -> bool {
    match age(paths) {
        Age::NewEnough(_) => true,
        Age::TooOld(_) => false,
        Age::Unknown(why) => {
            tracing::warn!("the previous system counts as new enough for a rollback: {why}");
            true
        }
    }
}

pub fn line(paths: &Paths) -> Result<String> {
    match age(paths) {
        Age::NewEnough(version) => Ok(format!("rollbacks: the previous OS, {version}, is new enough")),
        Age::Unknown(why) => Ok(format!("rollbacks: the previous OS counts as new enough: {why}")),
        Age::TooOld(version) => Err(Error::new(
            Code::PreviousTooOld,
            format!(
                "cannot roll back to the previous OS: it is {version}, older than {FIRST_WITH_ROLLBACKS}"
            ),
        )
        .object(version)),
    }
}
