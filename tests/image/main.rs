//! Image files: finding, opening, decoding and inspecting them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod disk;
    pub mod image_archive;
    pub mod needs;
    pub mod prove;
    pub mod terminal;
}

mod bmap;
mod decode;
mod fat;
mod info;
mod inspect;
mod new_tables;
mod openpgp;
mod owner_key;
mod signature;
mod support;
mod tables;
