//! Names of images.

/// The name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference;
