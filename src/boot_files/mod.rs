//! Files on a mounted boot partition, for the flasher and for an update: [`Destination`] never leads out of it, [`Budgets`] say
//! beforehand whether everything fits.

pub mod deploy;
mod destination;
pub mod fatrw;
pub mod install;
mod names;
pub(crate) mod recovered;
mod space;

use std::fmt;

use serde::Serialize;

pub use destination::{Destination, Walk, failed};
pub use names::refused_by_fat;
pub use space::Budgets;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Deployed {
    pub written: u64,
    pub unchanged: u64,
    pub removed: u64,
}

impl fmt::Display for Deployed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} written, {} unchanged, {} removed", self.written, self.unchanged, self.removed)
    }
}
