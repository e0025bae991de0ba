//! Each backend on files as they are found on devices.

use copal::boot_state::envblock::Damage;
use copal::boot_state::{self, Keep, Named, retire_others};
use copal::error::Code;
use copal::slot::Slot;

use super::support::{Device, block, root, state, unselected};

#[test]
fn a_fresh_device_with_uboot() {
    let device = Device::new(&[]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.name(), "U-Boot");
    assert_eq!(backend.read().unwrap(), unselected(Named::Index(2), None));
    backend.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(device.text("resinOS_uEnv.txt"), "resin_root_part=3\nupgrade_available=1\n");
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, true));
    assert_eq!(device.names(), ["resinOS_uEnv.txt"]);
}

#[test]
fn uboot_takes_the_partition_after_the_boot_partition() {
    let device = Device::new(&[]);
    let file = |path: &str, text: &str| {
        let path = device.paths.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    file("/proc/self/mountinfo", "30 1 179:9 / /mnt/boot rw shared:1 - vfat /dev/mmcblk0p9 rw\n");
    file("/sys/class/block/mmcblk0p9/dev", "179:9\n");
    file("/sys/class/block/mmcblk0p9/partition", "9\n");
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap().root, Named::Index(10));
    backend.set(&root(Slot::B, 11), true).unwrap();
    assert_eq!(device.text("resinOS_uEnv.txt"), "resin_root_part=b\nupgrade_available=1\n");
    assert_eq!(backend.read().unwrap().root, Named::Index(11));
}

/// Else a device with GRUB, running from root B, would be taken for one with U-Boot that selects root A.
#[test]
fn a_boot_partition_that_is_not_mounted_is_no_fresh_device() {
    let device = Device::new(&[]);
    let table = device.paths.at("/proc/self/mountinfo");
    std::fs::create_dir_all(table.parent().unwrap()).unwrap();
    std::fs::write(&table, "29 1 179:2 / / rw - ext4 /dev/mmcblk0p2 rw\n").unwrap();
    for find in [boot_state::detect, boot_state::uboot, boot_state::grub, boot_state::balena] {
        assert_eq!(find(&device.paths).err().unwrap().code(), Code::BootMountFailed);
    }
    std::fs::write(&table, "30 1 179:9 / /mnt/boot rw - vfat /dev/mmcblk0p9 rw\n").unwrap();
    assert_eq!(boot_state::detect(&device.paths).unwrap().name(), "U-Boot");
    // The encrypted boot partition alone: GRUB's files are on the other one.
    std::os::unix::fs::symlink("../efi/EFI", device.at("EFI")).unwrap();
    assert_eq!(boot_state::detect(&device.paths).err().unwrap().code(), Code::BootMountFailed);
    let efi = device.paths.at("/mnt/efi/EFI/BOOT");
    std::fs::create_dir_all(&efi).unwrap();
    std::fs::write(efi.join("grubenv"), block("upgrade_available=0\nresin_root_part=3\n")).unwrap();
    assert_eq!(boot_state::detect(&device.paths).unwrap().name(), "GRUB");
}

/// As images of balenaOS 2.46.0 have it: GRUB runs these lines before it loads `grubenv`, which has the count only.
#[test]
fn a_selection_in_the_configuration_is_read_and_written_there() {
    let config = "insmod loadenv\nresin_root_part=3\nupgrade_available=1\nload_env\n\
        if [ ${upgrade_available} = 1 ] ; then\n save_env bootcount\nfi\n\
        if [ ${resin_root_part} = 2 ] ; then\n linux root=LABEL=resin-rootA\nelse\n linux root=LABEL=resin-rootB\nfi\n";
    let device = Device::new(&[
        ("EFI/BOOT/grub.cfg", config.as_bytes()),
        ("EFI/BOOT/grubenv", &block("bootcount=1\n")),
    ]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert!(backend.file().ends_with("EFI/BOOT/grub.cfg"));
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 1, true));
    backend.clear_bootcount().unwrap();
    assert_eq!(device.read("EFI/BOOT/grubenv"), block("bootcount=0\n"));
    backend.set(&root(Slot::A, 2), false).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(2), 0, false));
    let wanted = config
        .replace("resin_root_part=3\nupgrade_available=1\n", "resin_root_part=2\nupgrade_available=0\n");
    assert_eq!(device.text("EFI/BOOT/grub.cfg"), wanted);
    assert_eq!(
        device.read("EFI/BOOT/grubenv"),
        block("bootcount=0\n"),
        "it gets no selection, which would count instead"
    );
    // What the environment has counts: GRUB loads it after the lines.
    device.write("EFI/BOOT/grubenv", &block("bootcount=0\nresin_root_part=3\nupgrade_available=0\n"));
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, false));
    // A root that no line of GRUB compares with.
    device.write("EFI/BOOT/grubenv", &block("bootcount=0\n"));
    device.write("EFI/BOOT/grub.cfg", wanted.replace("part=2\n", "part=\n").as_bytes());
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), unselected(Named::Slot(Slot::B), Some(Damage::NoRoot)));
    backend.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, true));
}

#[test]
fn uboot_keeps_what_it_does_not_know() {
    let before = "# by hand\nextra=1\\\n2\nresin_root_part=2 \nupgrade_available=0 \nlast";
    let device =
        Device::new(&[("resinOS_uEnv.txt", before.as_bytes()), ("bootcount.env", b"bootcount=a\n\0")]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(2), 10, false));
    assert!(backend.is_exceeded(10));
    backend.set(&root(Slot::B, 3), true).unwrap();
    let after = "# by hand\nextra=1\\\n2\nresin_root_part=3\nupgrade_available=1\nlast";
    assert_eq!(device.text("resinOS_uEnv.txt"), after);
    assert_eq!(device.names(), ["resinOS_uEnv.txt"]);
}

#[test]
fn uboot_clears_every_count() {
    let side = ".bootcount.env.0123abcd.00112233445566778899aabbccddeeff.md5sum";
    for names in [
        &["bootcount.env"][..],
        &["bootcount.env", "bootcount.env~1"],
        &["BOOTCOUNT.ENV"],
        &["xbootcount.env.bak", side],
    ] {
        let device = Device::new(&[("resinOS_uEnv.txt", b"resin_root_part=2\n")]);
        names.iter().for_each(|name| device.write(name, b"bootcount=1\n\0"));
        boot_state::detect(&device.paths).unwrap().clear_bootcount().unwrap();
        assert_eq!(device.names(), ["resinOS_uEnv.txt"], "{names:?}");
    }
    let device = Device::new(&[("bootcount.env", b"bootcount=0\n\0")]);
    boot_state::uboot(&device.paths).unwrap().clear_bootcount().unwrap();
    assert_eq!(device.names(), ["bootcount.env"]);
}

/// It makes no difference to U-Boot, and must not keep a device from being updated.
#[test]
fn a_folder_that_is_named_like_the_count_stays() {
    let device = Device::new(&[("bootcount.env.d/x", b""), ("bootcount.env", b"bootcount=2\n\0")]);
    boot_state::detect(&device.paths).unwrap().set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(device.names(), ["bootcount.env.d", "resinOS_uEnv.txt"]);
}

#[test]
fn the_limit_of_uboot() {
    let device = Device::new(&[]);
    let backend = boot_state::uboot(&device.paths).unwrap();
    assert_eq!((backend.limit(), backend.is_exceeded(3), backend.is_exceeded(4)), (3, false, true));
    device.write("extra_uEnv.txt", b"custom_fdt_file=x.dtb\nos_bc_lim=1\n");
    assert_eq!((backend.limit(), backend.is_exceeded(1), backend.is_exceeded(2)), (1, false, true));
}

/// A loader that reads U-Boot's files may compare in another way, and with another limit than the files say.
#[test]
fn the_count_at_which_the_board_says_that_its_loader_falls_back() {
    let device = Device::new(&[("extra_uEnv.txt", b"os_bc_lim=7\n")]);
    for (line, limit, exceeded) in [
        ("FALLBACK_COUNT=3\n", 3, [false, true, true, true]),
        ("FALLBACK_COUNT=0\n", 7, [false, false, false, true]),
        ("FALLBACK_COUNT=three\n", 7, [false, false, false, true]),
        ("COUNT=3\n", 7, [false, false, false, true]),
    ] {
        let conf = device.paths.at("/etc/copal/rollback.conf");
        std::fs::create_dir_all(conf.parent().unwrap()).unwrap();
        std::fs::write(conf, line).unwrap();
        let backend = boot_state::uboot(&device.paths).unwrap();
        assert_eq!(
            (backend.limit(), [2, 3, 7, 8].map(|n| backend.is_exceeded(n))),
            (limit, exceeded),
            "{line}"
        );
    }
}

#[test]
fn grub_in_both_of_its_folders() {
    for folder in ["EFI/BOOT", "grub"] {
        let name = format!("{folder}/grubenv");
        let before = block("bootcount=2\nresin_root_part=2\nupgrade_available=1\nmine=x\n");
        let device = Device::new(&[(&name, &before)]);
        let backend = boot_state::detect(&device.paths).unwrap();
        assert_eq!((backend.name(), backend.file()), ("GRUB", device.at(&name).as_path()));
        assert_eq!(backend.read().unwrap(), state(Named::Index(2), 2, true));
        assert_eq!((backend.limit(), [1, 2, 3].map(|n| backend.is_exceeded(n))), (2, [false, true, false]));
        backend.set(&root(Slot::B, 12), false).unwrap();
        let after = block("bootcount=0\nresin_root_part=12\nupgrade_available=0\nmine=x\n");
        assert_eq!(device.read(&name), after);
        assert_eq!(backend.read().unwrap(), state(Named::Index(12), 0, false));
    }
}

#[test]
fn the_balena_bootloader() {
    let before = block("resin_root_part=A\nupgrade_available=0\nkernel_override_abi=9\n");
    let device = Device::new(&[("bootenv", &before), ("EFI/BOOT/grubenv", &block("resin_root_part=2\n"))]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Slot(Slot::A), 0, false));
    assert_eq!((backend.limit(), backend.is_exceeded(2), backend.is_exceeded(3)), (3, false, true));
    backend.set(&root(Slot::B, 3), true).unwrap();
    let after = block("resin_root_part=B\nupgrade_available=1\nkernel_override_abi=9\nbootcount=0\n");
    assert_eq!(device.read("bootenv"), after);
}

#[test]
fn others_are_retired_at_the_top_only() {
    let all: &[(&str, &[u8])] =
        &[("resinOS_uEnv.txt", b"x"), ("grubenv", b"x"), ("EFI/BOOT/grubenv", b"x"), ("bootenv", b"x")];
    let device = Device::new(all);
    retire_others(&device.paths, Keep::Balena).unwrap();
    assert_eq!(device.names(), ["EFI", "bootenv"]);
    assert_eq!(device.read("EFI/BOOT/grubenv"), b"x");
    let device = Device::new(all);
    retire_others(&device.paths, Keep::UbootOrGrub).unwrap();
    assert_eq!(device.names(), ["EFI", "grubenv", "resinOS_uEnv.txt"]);
}

#[test]
fn an_old_grub_has_the_label_in_its_configuration() {
    let config =
        "default=boot\nmenuentry 'boot'{\nsearch --label resin-rootA\nlinux /x root=LABEL=resin-rootA\n}\n";
    let device = Device::new(&[("EFI/BOOT/grub.cfg", config.as_bytes()), ("EFI/BOOT/grubenv", &block(""))]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert!(!backend.counts() && !backend.is_exceeded(9));
    assert_eq!(backend.read().unwrap(), state(Named::Slot(Slot::A), 0, false));
    backend.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(device.text("EFI/BOOT/grub.cfg"), config.replace("rootA", "rootB"));
    assert_eq!(backend.read().unwrap(), state(Named::Slot(Slot::B), 0, false));
    assert_eq!(device.read("EFI/BOOT/grubenv"), block(""));
}

#[test]
fn grub_is_not_made_up() {
    let device = Device::new(&[]);
    let e = boot_state::grub(&device.paths).err().unwrap();
    assert_eq!(e.code(), Code::BootStateInvalid);
}

/// A new release has moved from U-Boot to another bootloader, whose loader is there already: both are told, and the other one decides.
#[test]
fn a_rollback_sets_the_bootloader_that_is_there_by_now() {
    let device = Device::new(&[("resinOS_uEnv.txt", b"resin_root_part=2\nupgrade_available=0\n")]);
    let before = boot_state::detect(&device.paths).unwrap();
    std::fs::remove_file(device.at("resinOS_uEnv.txt")).unwrap();
    device.write("bootenv", &block("bootcount=1\nresin_root_part=B\nupgrade_available=1\n"));
    copal::update::undo::select(&device.paths, &*before, &root(Slot::A, 2)).unwrap();
    let told = boot_state::balena(&device.paths).unwrap().read().unwrap();
    assert_eq!(told, state(Named::Slot(Slot::A), 0, false));
    assert_eq!(before.read().unwrap(), state(Named::Index(2), 0, false));
}
