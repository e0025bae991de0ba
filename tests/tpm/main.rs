//! Commands to a TPM: to an emulated one (swtpm), and to one whose answers are wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "../kit"]
mod kit {
    pub mod emulated_tpm;
    pub mod needs;
    pub mod prepared;
    pub mod prove;
}

mod answers;
mod emulated;
mod sealing;
mod starts;
