//! Writing to the devices that a loader or an image goes to.

pub mod io;
