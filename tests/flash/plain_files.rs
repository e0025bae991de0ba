//! A plain file as the target.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::kit::needs::{is_root, needs, tools};
use crate::kit::process::stderr;
use crate::support::*;

/// As a loop device shows such a file: without the part of a sector at its end.
#[test]
fn the_old_backup_table_of_a_file_that_ends_within_a_sector_goes() {
    needs!(tools);
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

/// Whoever runs it may lack the rights, or the space.
#[test]
fn what_a_file_cannot_take_is_reported_and_a_new_file_goes() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk");
    let limited = |limit: &str, image: &Path, target: &Path| {
        let script = format!("ulimit -f {limit} && exec \"$0\" flash \"$1\" \"$2\"");
        let mut flash = std::process::Command::new("bash");
        flash.args(["-c", &script, env!("CARGO_BIN_EXE_copal")]).args([image, target]).output().unwrap()
    };
    // Blocks of 1 KiB.
    let out = limited("20480", os_image(), &target);
    let text = stderr(&out);
    assert!(!out.status.success() && out.status.code().is_some() && text.contains("os error 27"), "{text}");
    assert!(!target.exists(), "{text}");
    needs!(is_root);
    // Below a directory that this user may enter, with the program.
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
    let (program, image) = (open.path().join("copal"), open.path().join("os.img"));
    tool(&["cp", env!("CARGO_BIN_EXE_copal"), program.to_str().unwrap()]);
    tool(&["cp", "--sparse=always", os_image().to_str().unwrap(), image.to_str().unwrap()]);
    let file = open.path().join("of-root");
    std::fs::write(&file, "kept").unwrap();
    let mut flash = std::process::Command::new("setpriv");
    flash.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).arg("flash");
    let out = flash.args([&image, &file]).output().unwrap();
    let text = stderr(&out);
    assert!(text.contains("[not-root]") && !text.contains("write protection"), "{text}");
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}
