//! The container that holds a host OS.

use std::path::PathBuf;

use super::{Engine, Image};
use crate::error::{Code, Error, Result};

/// A host OS as the engine keeps it: a container that is never started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostapp {
    /// The container's ID.
    pub id: String,
    /// Where the engine keeps its volume `/boot`.
    pub boot: PathBuf,
}

impl Engine {
    /// Creates the container of the host OS `image`.
    ///
    /// # Errors
    /// The engine refuses, or does not say where `/boot` is.
    pub fn create_hostapp(&self, image: &Image) -> Result<Hostapp> {
        Err(Error::new(Code::NotInThisBuild, format!("cannot create {}", image.id)))
    }
}
