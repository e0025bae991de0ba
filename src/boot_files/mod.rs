//! A mounted boot partition as something that files are put on: by the flasher, and by an update.
//!
//! [`Destination`] never leads out of it, [`Budgets`] tell beforehand whether it all fits.

mod destination;
pub mod fatrw;
pub mod install;
mod names;
mod space;

pub use destination::{Destination, Walk, failed};
pub use names::refused_by_fat;
pub use space::Budgets;
