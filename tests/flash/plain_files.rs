//! A plain file as the target.

use std::fs::File;

use crate::support::*;

/// As a loop device shows such a file: without the part of a sector at its end.
#[test]
fn the_old_backup_table_of_a_file_that_ends_within_a_sector_goes() {
    let dir = folder();
    for more in [0, 100, 511] {
        let target = dir.path().join(format!("disk-{more}"));
        let made = File::create(&target).unwrap();
        made.set_len(100 * MIB).unwrap();
        tool(&["sgdisk", "-n", "1:0:0", target.to_str().unwrap()]);
        made.set_len(100 * MIB + more).unwrap();
        poke(&target, 100 * MIB - 34 * 512, b"before");
        assert_eq!(read(&target, 100 * MIB - 512, 8), b"EFI PART");
        flashed(os_image(), &target, &[]);
        assert_equal(os_image(), &target);
        assert!(read(&target, 100 * MIB - 33 * 512, 33 * 512).iter().all(|b| *b == 0), "{more}");
        assert_eq!(read(&target, 100 * MIB - 34 * 512, 6), b"before", "{more}: only the table goes");
    }
}
