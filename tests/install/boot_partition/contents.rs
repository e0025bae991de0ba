//! What is listed, in which order.

use copal::boot_files::install::{Contents, Install};
use copal::error::{Code, Effect};

use super::support::{Rig, parse};

const ALL: &[(&str, &str)] = &[
    ("resinOS_uEnv.txt", "u"),
    ("grub.cfg", "external"),
    ("internal.cfg", "plain"),
    ("internal.cfg.sig", "s"),
    ("luks.cfg", "encrypted"),
    ("system-proxy/p", "p"),
    ("dispatcher.d/d", "d"),
    ("system-connections/c", "c"),
    ("splash/s", "s"),
];

const CONF: &str = "INTERNAL_DEVICE_BOOTLOADER_CONFIG=internal.cfg\n\
    INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=grub.cfg\n\
    INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH=a/b/grub.cfg\n\
    INTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS=luks.cfg\n";

fn list(contents: &Contents) -> Vec<String> {
    contents
        .files
        .items
        .iter()
        .map(|i| format!("{} > {}", i.source.display(), i.destination.display()))
        .collect()
}

#[test]
fn the_order_is_fixed_and_only_what_is_there_is_listed() {
    let rig = Rig::new(ALL, &[]);
    let contents = rig.gather(CONF).unwrap();
    assert_eq!(
        list(&contents),
        [
            "splash > splash",
            "system-connections > system-connections",
            "dispatcher.d > dispatcher.d",
            "system-proxy > system-proxy",
            "internal.cfg > grub.cfg",
            "internal.cfg.sig > grub.cfg.sig",
            "internal.cfg > a/b/grub.cfg",
            "resinOS_uEnv.txt > resinOS_uEnv.txt",
        ]
    );
    std::fs::remove_file(rig.medium.join("internal.cfg")).unwrap();
    std::fs::remove_dir_all(rig.medium.join("dispatcher.d")).unwrap();
    let fewer = list(&rig.gather(CONF).unwrap());
    assert_eq!(fewer.len(), 4, "{fewer:?}");
}

/// Only an encrypted install takes the other configuration, and only where it is on the medium.
#[test]
fn an_encrypted_install_has_its_own_bootloader_configuration() {
    let rig = Rig::new(ALL, &[]);
    let gather =
        || Contents::gather(&rig.medium, &parse(CONF).unwrap(), &rig.config, Install::Encrypted).unwrap();
    assert_eq!(list(&gather())[4..6], ["luks.cfg > grub.cfg", "luks.cfg > a/b/grub.cfg"]);
    std::fs::remove_file(rig.medium.join("luks.cfg")).unwrap();
    assert_eq!(list(&gather())[4], "internal.cfg > grub.cfg");
}

#[test]
fn names_come_from_the_configuration() {
    let rig = Rig::new(&[("logos/x", "x"), ("wifi/y", "y"), ("splash/z", "z"), ("env", "e")], &[]);
    let conf = "BALENA_SPLASH_CONFIG=logos\nBALENA_NM_CONFIG=wifi\nBALENA_BOOTLOADER_CONFIG=env\n";
    assert_eq!(list(&rig.gather(conf).unwrap()), ["logos > logos", "wifi > wifi", "env > env"]);
}

#[test]
fn a_file_in_a_folders_place_and_a_folder_in_a_files_are_not_copied() {
    let rig =
        Rig::new(&[("splash", "file"), ("resinOS_uEnv.txt/x", "folder"), ("internal.cfg/x", "folder")], &[]);
    assert!(rig.gather(CONF).unwrap().files.items.is_empty());
}

/// As by `*` in a shell, which leaves out dot files of that folder and no others. A folder that is replaced was copied as a whole.
#[test]
fn dot_files_of_a_merged_folder_are_not_copied() {
    let files =
        [("splash/.hidden", "h"), ("splash/.d/x", "x"), ("splash/d/.y", "y"), ("system-proxy/.z", "z")];
    let rig = Rig::new(&files, &[]);
    let contents = rig.gather("").unwrap();
    let from = contents.files.items.iter().flat_map(|i| &i.files).map(|f| f.from.to_str().unwrap());
    assert_eq!(from.collect::<Vec<_>>(), ["splash/d/.y", "system-proxy/.z"]);
}

#[test]
fn a_configuration_without_its_destination_is_refused() {
    let rig = Rig::new(ALL, &[]);
    let e = rig.gather("INTERNAL_DEVICE_BOOTLOADER_CONFIG=internal.cfg\n").unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::ConfInvalid, Effect::Refused));
    assert!(e.message().contains("INTERNAL_DEVICE_BOOTLOADER_CONFIG"), "{e}");
}

#[test]
fn the_plan_shows_every_write() {
    let rig = Rig::new(&[("splash/a", "12345"), ("splash/b/c", "1"), ("resinOS_uEnv.txt", "xy")], &[]);
    let contents = rig.gather("").unwrap();
    let config = rig.config.display();
    assert_eq!(
        contents.to_string(),
        format!(
            "add the 2 files of splash/ to splash/ (6 bytes)\n\
             copy resinOS_uEnv.txt to resinOS_uEnv.txt (2 bytes)\n\
             copy {config} to config.json, without `installer`\n"
        )
    );
    let json = serde_json::to_value(&contents).unwrap();
    assert_eq!(json["items"][0]["action"], "merge-folder");
    assert_eq!(json["items"][0]["files"][1]["from"], "splash/b/c");
    assert_eq!(json["items"][1]["files"][0]["size"], 2);
    assert_eq!(json["config_json"], rig.config.to_str().unwrap());
    assert_eq!(contents.bytes(), 8 + 14);
}

/// vfat without the `utf8` option hands out bytes of some old character set.
#[test]
fn names_that_are_not_utf8_are_copied_and_shown() {
    use std::os::unix::ffi::OsStrExt;
    let rig = Rig::new(&[("splash/a", "a")], &[]);
    let name = std::ffi::OsStr::from_bytes(b"B\xfcro");
    std::fs::write(rig.medium.join("splash").join(name), "x").unwrap();
    let contents = rig.gather("").unwrap();
    assert!(serde_json::to_string(&contents).unwrap().contains("splash/B\u{fffd}ro"));
    contents.check(&rig.open(), 0).unwrap();
    contents.deploy(&rig.open()).unwrap();
    assert_eq!(std::fs::read(rig.dest.join("splash").join(name)).unwrap(), b"x");
}

#[test]
fn what_cannot_fit_is_refused_before_anything_is_written() {
    let rig = Rig::new(&[("splash/a", &"x".repeat(5000))], &[]);
    let contents = rig.gather("").unwrap();
    contents.check_size(5014).unwrap();
    let e = contents.check_size(5013).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BootPartitionFull, Effect::Refused));
    assert!(e.message().contains("5014") && e.message().contains("5013"), "{e}");
}
