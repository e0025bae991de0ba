//! Which tests run: a guest takes long, and `./dev test` has the few that show that guests work, with the first case of each driver.

use crate::kit::prove;

const OF_TEST: &[&str] = &[
    "a_small_guest_runs_copal_and_writes_a_vfat_disk",
    "nor_flash_gets_the_loader_and_keeps_the_rest",
    "an_emmc_boot_partition_is_protected_again",
];

/// What looks at the disks that power cuts leave is in `./dev prove cuts`, all others in `./dev prove guests`.
const CUTS: &[&str] = &[
    "uboot_survives_every_power_cut_of_an_update",
    "grub_survives_every_power_cut_of_an_update",
    "a_power_cut_after_the_image_leaves_files_and_loader_old_or_new",
    "a_power_cut_leaves_no_half_loader_on_nor_flash",
    "a_power_cut_leaves_no_half_loader_on_a_disk",
    "a_fat16_survives_every_power_cut",
    "a_fat32_survives_every_power_cut",
    "a_file_and_its_signature_are_old_or_new_together_after_every_power_cut",
    "a_temporary_that_begins_inside_a_file_stays_and_the_file_is_whole",
];

/// Whether a test runs; says so where it does not.
pub(crate) fn runs(test: &str) -> bool {
    OF_TEST.contains(&test) || prove::runs(if CUTS.contains(&test) { "cuts" } else { "guests" }, test)
}
