//! Files on a mounted boot partition, for the flasher and for an update: [`Destination`] never leads out of it, [`Budgets`] say
//! beforehand whether everything fits.

mod destination;
pub mod fatrw;
pub mod install;
mod names;
mod space;

pub use destination::{Destination, Walk, failed};
pub use names::refused_by_fat;
pub use space::Budgets;
