//! Which tests run: a guest takes long, and `./dev test` has only some of them.

use crate::kit::prove;

/// Two of these run in `./dev test`, all in `./dev prove guests`.
const SLOW: &[&str] = &[
    "the_write_log_of_a_disk_leads_to_its_contents",
    "a_guest_may_have_an_init_of_its_own_and_restart",
    "a_guest_that_hangs_is_ended_and_its_console_shown",
    "a_guest_has_disks_of_every_kind",
    "a_small_guest_can_encrypt",
    "a_system_guest_can_encrypt",
    "a_device_is_flashed_from_beginning_to_end",
    "a_board_with_luks_gets_each_partition_encrypted_and_verified",
    "what_cannot_be_encrypted_is_refused_before_the_disk_is_touched",
    "a_failure_after_the_disk_was_touched_leaves_no_table_and_nothing_open",
    "the_passphrase_is_left_nowhere",
    "what_secure_boot_cannot_have_is_refused_with_firmware_tpm_and_disk_as_they_were",
    "a_device_with_the_keys_is_installed_without_enrolling_and_a_failure_empties_the_tpm",
    "the_partitions_of_one_disk_are_opened_or_none",
    "the_owner_recovers_a_disk_after_another_firmware_and_after_another_tpm",
    "a_board_with_a_cipher_of_its_own_is_installed_by_the_service_on_4096_byte_sectors",
    "the_medium_takes_its_own_boot_partition",
    "waits_are_no_longer_than_needed_and_failures_leave_no_half_system",
    "the_screen_tells_each_stage",
    "raw_flash_of_other_drivers",
    "a_nor_flash_is_the_file_of_the_host",
    "an_emmc_has_boot_partitions_in_the_file_of_the_host",
    "a_system_on_trial_goes_or_stays",
    "a_job_reboots_a_system_whose_shutdown_hangs",
    "a_job_survives_its_client_the_service_and_the_bus_and_ends_in_order",
    "a_system_boots_from_a_stick_and_switches_off",
    "hooks_and_health_checks_do_all_they_need_below_each_unit",
    "a_board_program_does_all_it_needs_below_the_flasher",
    "a_disk_is_migrated_and_restarted",
    "an_initramfs_without_a_wish_is_powered_off",
];

/// One of these, which look at the disks that power cuts leave; all in `./dev prove cuts`.
const CUTS: &[&str] = &[
    "uboot_survives_every_power_cut_of_an_update",
    "grub_survives_every_power_cut_of_an_update",
    "a_power_cut_after_the_image_leaves_files_and_loader_old_or_new",
    "a_power_cut_leaves_no_half_loader_on_nor_flash",
];

/// These build a program of their own for the guest.
const CUTS_WITH_A_BUILD: &[&str] = &["a_fat16_survives_every_power_cut", "a_fat32_survives_every_power_cut"];

/// Whether a test runs; says so where it does not.
pub(crate) fn runs(test: &str) -> bool {
    if SLOW.contains(&test) {
        prove::is_drawn("guests", SLOW, test, 2)
    } else if CUTS.contains(&test) {
        prove::is_drawn("cuts", CUTS, test, 1)
    } else if CUTS_WITH_A_BUILD.contains(&test) {
        prove::runs("cuts", test)
    } else {
        true
    }
}
