//! The TPM 2.0: the few commands that keep the passphrase of an encrypted disk, sent to it without a library.
//!
//! After "Trusted Platform Module Library" of the TCG, revision 1.59: part 1 (architecture), 2 (structures), 3 (commands).

mod call;
mod command;
mod crypto;
mod device;
pub mod policy;
mod session;
pub mod store;

pub use device::Tpm;
