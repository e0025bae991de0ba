//! Updates that are killed after every single change of a file system, from the first to the last.
//!
//! Before the switch the running slot must be the one that boots, after it the new one on trial, never half of either; and the
//! next update must succeed from whatever was left, in the same boot and after a reboot.

mod always_read;
mod calls;
mod carried;
mod failures;
mod judge;
mod rig;
mod shim;
mod system;
mod tree;
mod updates;

use crate::kit::{needs, prove};

/// Two of these run in `./dev test`, all in `./dev prove cuts`.
const KILLS: &[&str] = &[
    "the_device_tree_of_the_slot_is_there_after_every_change",
    "a_new_release_that_can_boot_has_the_tree_after_every_change",
    "a_hook_that_fails_anywhere_is_undone_with_u_boot",
    "a_hook_that_fails_anywhere_is_undone_with_grub",
    "killed_after_any_change_of_an_update_with_u_boot",
    "killed_after_any_change_of_an_update_with_grub",
    "killed_after_any_change_of_an_update_with_the_balena_bootloader",
    "killed_while_an_earlier_update_is_undone_with_u_boot",
    "killed_while_an_earlier_update_is_undone_with_grub",
];

/// Whether one of these runs; says so where it does not.
fn runs(test: &str) -> bool {
    assert!(KILLS.contains(&test), "{test} is in no list");
    prove::is_drawn("cuts", KILLS, test, 2) && needs::can_run(test) && shim::can_run(test)
}
