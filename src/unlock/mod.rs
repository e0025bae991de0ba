//! What a device with UEFI and a TPM needs to unlock its encrypted disk at the next start.

mod ask;
mod check;
mod in_place;
mod narrow;
pub mod next_start;
mod partitions;
mod pending;
pub mod policies;
mod programs;
mod recover;
pub mod release;
pub mod seal;
pub mod way;

pub(crate) use ask::entered as recovery_entered;
pub(crate) use check::{
    LOADER_KEY_ACCEPTED, accepts_loader_key, after_hooks, before_hooks, before_update, check_release,
    has_other_loader, look, reasons_against, settle_spare,
};
pub(crate) use in_place::{encryption, signatures};
pub(crate) use narrow::{settle, why_scripts_may_unlock};
pub(crate) use partitions::{Opened, open_partitions};
pub(crate) use pending::{apply as apply_pending, count as pending_lists};
pub(crate) use programs::put_in_place;
pub(crate) use recover::recover;
pub(crate) use way::Direction;
