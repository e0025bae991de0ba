//! Reading and writing as `fatrw` does: side files, writing in place, and the program itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[allow(unreachable_pub)]
#[path = "../common/needs.rs"]
mod needs;

mod commit;
mod in_place;
#[allow(unreachable_pub)]
#[path = "../common/let_go.rs"]
mod let_go;
mod program;
mod rig;
