//! Medium and old partition in, new partition out.

use super::support::{Rig, tree};

const CONF: &str = "INTERNAL_DEVICE_BOOTLOADER_CONFIG=grub.cfg_internal\n\
    INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=/EFI/BOOT/grub.cfg\n\
    INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH=/old/place/grub.cfg\n";

#[test]
fn folders_are_merged_or_replaced_and_files_copied() {
    let rig = Rig::new(
        &[
            ("splash/logo.png", "new logo"),
            ("splash/more/frame.png", "frame"),
            ("system-connections/home", "new home"),
            ("system-connections/deep/er/vpn", "vpn"),
            ("dispatcher.d/", ""),
            ("grub.cfg_internal", "internal"),
            ("grub.cfg_internal.sig", "signature"),
            ("resinOS_uEnv.txt", "resin_root_part=2\r\n# mine\r\n"),
            ("vmlinuz", "the medium's own"),
            ("config.json", "the medium's own"),
        ],
        &[
            ("splash/logo.png", "old logo"),
            ("splash/kept.png", "kept"),
            ("system-connections/home", "old home"),
            ("system-connections/cafe", "gone"),
            ("system-connections/old/folder/file", "gone"),
            ("system-connections/deep", "a file in the way of a folder"),
            ("dispatcher.d/hook", "gone"),
            ("system-proxy/redsocks.conf", "not on the medium, so it stays"),
            ("EFI/BOOT/grub.cfg", "external"),
            ("vmlinuz", "kernel"),
        ],
    );
    let contents = rig.gather(CONF).unwrap();
    let dest = rig.open();
    contents.check(&dest, 0).unwrap();
    contents.deploy(&dest).unwrap();
    let wanted = tree(&[
        ("splash/", ""),
        ("splash/logo.png", "new logo"),
        ("splash/more/", ""),
        ("splash/more/frame.png", "frame"),
        ("splash/kept.png", "kept"),
        ("system-connections/", ""),
        ("system-connections/home", "new home"),
        ("system-connections/deep/", ""),
        ("system-connections/deep/er/", ""),
        ("system-connections/deep/er/vpn", "vpn"),
        ("dispatcher.d/", ""),
        ("system-proxy/", ""),
        ("system-proxy/redsocks.conf", "not on the medium, so it stays"),
        ("EFI/", ""),
        ("EFI/BOOT/", ""),
        ("EFI/BOOT/grub.cfg", "internal"),
        ("EFI/BOOT/grub.cfg.sig", "signature"),
        ("old/", ""),
        ("old/place/", ""),
        ("old/place/grub.cfg", "internal"),
        // For U-Boot a carriage return belongs to the value.
        ("resinOS_uEnv.txt", "resin_root_part=2\n# mine\n"),
        ("vmlinuz", "kernel"),
    ]);
    assert_eq!(rig.see(), wanted);

    // Again: everything is there, nothing is written.
    let again = contents.deploy(&dest).unwrap();
    assert_eq!((again.written, again.removed), (0, 0));
    assert_eq!(again.unchanged, 8);
    assert_eq!(rig.see(), wanted);
}

#[test]
fn an_empty_medium_leaves_everything_as_it_is() {
    let old = [("splash/logo.png", "old"), ("system-connections/cafe", "x"), ("resinOS_uEnv.txt", "y")];
    let rig = Rig::new(&[], &old);
    let before = rig.see();
    let contents = rig.gather(CONF).unwrap();
    assert!(contents.files.items.is_empty());
    contents.check(&rig.open(), 0).unwrap();
    contents.deploy(&rig.open()).unwrap();
    assert_eq!(rig.see(), before);
}

/// What is neither a file nor a folder, and what an interrupted write left on the medium.
#[test]
fn only_files_and_folders_are_copied() {
    let side = ".home.0123abcd.00112233445566778899aabbccddeeff.md5sum";
    let rig = Rig::new(
        &[
            ("system-connections/home", "h"),
            (&format!("system-connections/{side}"), "h"),
            ("system-connections/CPL0A0B1.TMP", "half"),
        ],
        &[],
    );
    let fifo = rig.medium.join("system-connections/pipe");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let contents = rig.gather("").unwrap();
    contents.check(&rig.open(), 0).unwrap();
    contents.deploy(&rig.open()).unwrap();
    assert_eq!(rig.see(), tree(&[("system-connections/", ""), ("system-connections/home", "h")]));
}

/// Links and special files in a folder that is replaced go; what they lead to stays.
#[test]
fn a_replaced_folder_is_removed_without_following_links() {
    let rig = Rig::new(
        &[("system-connections/home", "h"), ("system-connections/sub/x", "x")],
        &[
            ("system-connections/link", "-> ../vmlinuz"),
            ("system-connections/out", "-> ../outside"),
            ("system-connections/home", "-> ../vmlinuz"),
            ("system-connections/sub", "-> ../outside"),
            ("outside/file", "stays"),
            ("vmlinuz", "kernel"),
        ],
    );
    let contents = rig.gather("").unwrap();
    contents.check(&rig.open(), 0).unwrap();
    contents.deploy(&rig.open()).unwrap();
    assert_eq!(
        rig.see(),
        tree(&[
            ("system-connections/", ""),
            ("system-connections/home", "h"),
            ("system-connections/sub/", ""),
            ("system-connections/sub/x", "x"),
            ("outside/", ""),
            ("outside/file", "stays"),
            ("vmlinuz", "kernel"),
        ])
    );
}

/// A large file goes through in pieces, and is compared in pieces.
#[test]
fn a_large_file_is_copied_and_a_changed_byte_found() {
    let big: String = (0..200_000).map(|n| format!("{n:05} ")).collect();
    let rig = Rig::new(&[("splash/big", &big)], &[]);
    let contents = rig.gather("").unwrap();
    contents.deploy(&rig.open()).unwrap();
    let copy = rig.dest.join("splash/big");
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), big);
    for at in [0, 262_144, big.len() - 1] {
        let mut data = big.clone().into_bytes();
        data[at] ^= 1;
        std::fs::write(&copy, &data).unwrap();
        assert_eq!(contents.deploy(&rig.open()).unwrap().written, 1, "byte {at}");
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), big);
    }
}
