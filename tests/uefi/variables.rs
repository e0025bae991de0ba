//! Variables, as files below a root folder. What only a real firmware does is tested on a virtual board.

use copal::config::paths::Paths;
use copal::error::Code;
use copal::uefi::Guid;
use copal::uefi::variables::{Firmware, Variable};

fn with(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir().unwrap();
    let variables = dir.path().join("sys/firmware/efi/efivars");
    std::fs::create_dir_all(&variables).unwrap();
    for (name, bytes) in files {
        std::fs::write(variables.join(format!("{name}-{}", Guid::GLOBAL)), bytes).unwrap();
    }
    let paths = Paths::new(dir.path());
    (dir, paths)
}

#[test]
fn a_device_without_uefi_has_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Firmware::find(&Paths::new(dir.path())).unwrap().is_none());
}

#[test]
fn flags_are_read_after_their_attributes() {
    let (_dir, paths) = with(&[
        ("SecureBoot", &[6, 0, 0, 0, 1]),
        ("SetupMode", &[6, 0, 0, 0, 0]),
        ("PK", &[0x27, 0, 0, 0, 1, 2, 3]),
    ]);
    let firmware = Firmware::find(&paths).unwrap().unwrap();
    assert_eq!(firmware.flag(Variable::SECURE_BOOT).unwrap(), Some(true));
    assert_eq!(firmware.flag(Variable::SETUP_MODE).unwrap(), Some(false));
    assert_eq!(firmware.flag(Variable::KEK).unwrap(), None);
    assert_eq!(firmware.read(Variable::PK).unwrap(), Some(vec![1, 2, 3]));
    assert_eq!(firmware.names(Guid::GLOBAL).unwrap(), ["PK", "SecureBoot", "SetupMode"]);
    assert!(firmware.names(Guid::DATABASE).unwrap().is_empty());
}

#[test]
fn a_variable_that_cannot_be_understood_is_not_zero() {
    let (_dir, paths) = with(&[("SecureBoot", &[])]);
    let refused = Firmware::find(&paths).unwrap().unwrap().flag(Variable::SECURE_BOOT);
    assert_eq!(
        refused.unwrap(),
        None,
        "the kernel leaves an empty file where the firmware has refused a variable"
    );
    for bytes in [&[6, 0, 0][..], &[6, 0, 0, 0], &[6, 0, 0, 0, 2], &[6, 0, 0, 0, 1, 1]] {
        let (_dir, paths) = with(&[("SecureBoot", bytes)]);
        let firmware = Firmware::find(&paths).unwrap().unwrap();
        let e = firmware.flag(Variable::SECURE_BOOT).unwrap_err();
        assert_eq!((e.code(), e.subject()), (Code::FirmwareVariableFailed, Some("SecureBoot")), "{bytes:?}");
    }
}
