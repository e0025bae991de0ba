//! Going back: the hooks of the old system in its own root, with every mount undone whatever happens, and its kernel override.

mod ends;
mod failures;
mod kernel;
mod place;
mod rig;
