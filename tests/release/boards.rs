//! The configurations of board layers in the field, value by value: each must read, check and name the disks it means.

use crate::kit::needs::{needs, tools};
use std::fs;
use std::path::{Path, PathBuf};

use copal::config::flasher_conf::{FlasherConf, RawConf};
use copal::config::pattern;
use copal::error::Code;
use serde_json::Value;

/// What a board layer sets. An empty text is a variable that is not set.
#[derive(Default, Clone, Copy)]
struct Board {
    name: &'static str,
    kernel: &'static str,
    config: &'static str,
    path: &'static str,
    legacy: &'static str,
    write: Option<Write>,
    second: Option<Write>,
    /// Lines after those of the recipe.
    more: &'static str,
    /// What `kernel` finds in [`dev`], in the order of preference.
    finds: &'static [&'static str],
    luks: Option<bool>,
}

/// Device, image, block size, blocks skipped, and the byte where that begins.
type Write = (&'static str, &'static str, &'static str, &'static str, u64);

const MMC: [&str; 3] = ["mmcblk0", "mmcblk1", "mmcblk2"];

/// Boards that name one eMMC or SD device and nothing else.
const PLAIN: &[(&str, &str)] = &[
    ("balena-beaglebone, ai64", "mmcblk0"),
    ("balena-iot-gate-imx8", "mmcblk2"),
    ("balena-fsl-arm, some machines", "mmcblk2"),
    ("balena-fsl-arm, other machines", "mmcblk0"),
    ("balena-variscite-mx8, imx8m", "mmcblk0"),
    ("balena-variscite-mx8, imx8mm", "mmcblk2"),
    ("balena-variscite-mx8, imx8mp", "mmcblk2"),
    ("balena-compulab", "mmcblk0"),
    ("balena-coral", "mmcblk0"),
    ("balena-advantech-ecu1370", "mmcblk0"),
    ("balena-jetson", "mmcblk0"),
    ("balena-radxa", "mmcblk0"),
    ("balena-rockpi", "mmcblk1"),
    ("balena-nanopc-t4", "mmcblk1"),
    ("balena-asus-tinker-board", "mmcblk1"),
    ("balena-allwinner", "mmcblk2"),
    ("balena-toradex", "mmcblk0"),
    ("balena-compulab-imx9", "mmcblk0"),
];

fn boards() -> Vec<Board> {
    let none = Board::default();
    let mut boards = vec![
        Board {
            name: "balena-generic",
            kernel: "md/balena{,_*} nvme?n? sd? mmcblk? vd?",
            config: "grub.cfg_internal",
            path: "/EFI/BOOT/grub.cfg",
            finds: &[
                "md/balena",
                "md/balena_0",
                "nvme0n1",
                "nvme1n1",
                "sda",
                "sdb",
                "mmcblk0",
                "mmcblk1",
                "mmcblk2",
                "vda",
            ],
            ..none
        },
        Board {
            name: "balena-intel",
            kernel: "nvme0n1 sda sdb mmcblk0 mmcblk1",
            config: "grub.cfg_internal",
            path: "/EFI/BOOT/grub.cfg",
            legacy: "/grub/grub.cfg",
            finds: &["nvme0n1", "sda", "sdb", "mmcblk0", "mmcblk1"],
            ..none
        },
        Board {
            name: "balena-intel-quark",
            kernel: "mmcblk0",
            path: "/boot/grub/grub.conf",
            finds: &["mmcblk0"],
            ..none
        },
        Board { name: "balena-raspberrypi", ..none },
        Board { name: "meta-balena-rpi-sb", kernel: "mmcblk?", finds: &MMC, ..none },
        Board {
            name: "balena-beaglebone, bbb",
            kernel: "mmcblk1",
            config: "uEnv.txt_internal",
            path: "/uEnv.txt",
            finds: &["mmcblk1"],
            ..none
        },
        Board {
            name: "balena-ts, ts4900",
            kernel: "mmcblk2",
            write: Some(("mtdblock0", "u-boot.imx", "1024", "1", 1024)),
            finds: &["mmcblk2"],
            ..none
        },
        Board {
            name: "meta-balena-hab",
            kernel: "mmcblk?",
            more: "USE_LUKS=1\nUSE_LUKS=0\n",
            luks: Some(false),
            finds: &MMC,
            ..none
        },
        Board {
            name: "documentation example",
            write: Some(("mtdblock0", "u-boot.imx", "1024", "3", 3072)),
            ..none
        },
        Board {
            name: "SPL first, U-Boot second",
            kernel: "mmcblk0",
            write: Some(("mmcblk0", "MLO", "131072", "1", 131_072)),
            second: Some(("mmcblk0", "u-boot.img", "393216", "1", 393_216)),
            finds: &["mmcblk0"],
            ..none
        },
    ];
    boards.extend(PLAIN.iter().map(|&(name, kernel)| {
        let finds = std::slice::from_ref(MMC.iter().find(|m| **m == kernel).unwrap());
        Board { name, kernel, finds, ..none }
    }));
    boards
}

impl Board {
    fn keys(&self) -> Vec<(String, &'static str)> {
        let mut keys = vec![
            ("INTERNAL_DEVICE_KERNEL".to_owned(), self.kernel),
            ("INTERNAL_DEVICE_BOOTLOADER_CONFIG".to_owned(), self.config),
            ("INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH".to_owned(), self.path),
            ("INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH".to_owned(), self.legacy),
            ("BALENA_IMAGE".to_owned(), "balena-image-board.balenaos-img"),
        ];
        for (write, suffix) in [(self.write, ""), (self.second, "_1")] {
            let (device, image, block, skip, _) = write.unwrap_or_default();
            keys.push((format!("BOOTLOADER_FLASH_DEVICE{suffix}"), device));
            keys.push((format!("BOOTLOADER_IMAGE{suffix}"), image));
            keys.push((format!("BOOTLOADER_BLOCK_SIZE_OFFSET{suffix}"), block));
            keys.push((format!("BOOTLOADER_SKIP_OUTPUT_BLOCKS{suffix}"), skip));
        }
        keys
    }

    /// The ways in which such a file is written: as the recipe does (the patterns quoted, the rest not, unset variables
    /// empty), by hand with single quotes and comments, and with what has no blanks unquoted and nothing empty.
    fn texts(&self) -> Vec<String> {
        let write = |line: &dyn Fn(&str, &str) -> String| {
            let lines: String = self.keys().iter().map(|(key, value)| line(key, value)).collect();
            lines + self.more
        };
        vec![
            write(&|key, value| match key {
                "INTERNAL_DEVICE_KERNEL" => format!("{key}=\"{value}\"\n"),
                _ => format!("{key}={value}\n"),
            }),
            write(&|key, value| format!("  export {key}='{value}'\t# as by hand\r\n")),
            write(&|key, value| match value {
                "" => String::new(),
                v if v.contains(' ') => format!("{key}={}\n", v.replace(' ', "\\ ")),
                v => format!("{key}=old\n{key}={v}\n"),
            }),
        ]
    }
}

/// What the Yocto layer makes of each set of variables: the file, or what it stops the build with.
fn layer<K: AsRef<str>>(sets: &[Vec<(K, &str)>]) -> Vec<Result<String, String>> {
    let sets: Vec<Value> = sets
        .iter()
        .map(|set| set.iter().map(|(key, value)| (key.as_ref().to_owned(), Value::from(*value))).collect())
        .collect();
    let one = |answer: Value| match answer["wrong"].as_array() {
        Some(wrong) if wrong.is_empty() => Ok(answer["conf"].as_str().unwrap().to_owned()),
        _ => Err(answer["wrong"].to_string()),
    };
    crate::layer::answers("flasher_conf.py", &sets).into_iter().map(one).collect()
}

/// A device folder with the nodes that a kernel makes, all disks that the boards name at once.
fn dev() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("md")).unwrap();
    for node in [
        "mmcblk0",
        "mmcblk0boot0",
        "mmcblk0boot1",
        "mmcblk0rpmb",
        "mmcblk0p1",
        "mmcblk0p2",
        "mmcblk1",
        "mmcblk1p1",
        "mmcblk2",
        "mmcblk2boot0",
        "mmcblk2boot1",
        "mtd0",
        "mtdblock0",
        "nvme0",
        "nvme0n1",
        "nvme0n1p1",
        "nvme1n1",
        "sda",
        "sda1",
        "sdb",
        "sdb1",
        "sr0",
        "vda",
        "vda1",
        "loop0",
        "md127",
        "md/balena",
        "md/balena_0",
        "md/other",
    ] {
        fs::write(dir.path().join(node), "").unwrap();
    }
    dir
}

fn found(list: &str, dev: &Path) -> Vec<String> {
    let relative = |p: PathBuf| p.strip_prefix(dev).unwrap().to_str().unwrap().to_owned();
    pattern::expand(list).unwrap().iter().flat_map(|p| p.matches(dev).unwrap()).map(relative).collect()
}

fn parse(text: &str) -> copal::error::Result<FlasherConf> {
    FlasherConf::from_raw(RawConf::parse(text, Path::new("/etc/resin-init-flasher.conf"))?)
}

#[test]
fn every_board_gets_what_it_configured() {
    needs!(tools);
    let dev = dev();
    let boards = boards();
    let by_the_layer = layer(&boards.iter().map(Board::keys).collect::<Vec<_>>());
    assert_eq!(by_the_layer.len(), boards.len());
    for (board, by_the_layer) in boards.iter().zip(by_the_layer) {
        let by_the_layer =
            by_the_layer.unwrap_or_else(|wrong| panic!("{}: {wrong}", board.name)) + board.more;
        for text in board.texts().into_iter().chain([by_the_layer]) {
            let what = format!("{}:\n{text}", board.name);
            let conf = parse(&text).unwrap_or_else(|e| panic!("{what}{e}"));
            let set = |v: &'static str| (!v.is_empty()).then_some(v);
            let file = |v: &'static str| set(v).map(|v| PathBuf::from(v.trim_start_matches('/')));
            assert_eq!(conf.internal_device.as_deref(), set(board.kernel), "{what}");
            assert_eq!(conf.bootloader_config, file(board.config), "{what}");
            assert_eq!(conf.bootloader_config_path, file(board.path), "{what}");
            assert_eq!(conf.bootloader_legacy_config_path, file(board.legacy), "{what}");
            assert_eq!(conf.balena_image.as_deref(), Some("balena-image-board.balenaos-img"), "{what}");
            assert_eq!(conf.use_luks, board.luks, "{what}");
            assert!(!conf.postinstall_reboot, "{what}");
            let writes: Vec<Write> = [board.write, board.second].into_iter().flatten().collect();
            assert_eq!(conf.bootloader_writes.len(), writes.len(), "{what}");
            for (write, (device, image, block, skip, offset)) in conf.bootloader_writes.iter().zip(writes) {
                assert_eq!(
                    (write.device.as_str(), write.image.as_path()),
                    (device, Path::new(image)),
                    "{what}"
                );
                assert_eq!(
                    (write.block_size.to_string(), write.skip_blocks.to_string()),
                    (block.into(), skip.into())
                );
                assert_eq!(write.offset(), Some(offset), "{what}");
            }
            assert_eq!(
                found(conf.internal_device.as_deref().unwrap_or_default(), dev.path()),
                board.finds,
                "{what}"
            );
        }
    }
}

#[test]
fn a_sequence_in_braces_is_refused_and_a_list_is_expanded() {
    let dev = dev();
    for list in ["sd{a..c}", "sda nvme{0..1}n1", "mmcblk{00..04..2}"] {
        let e = pattern::expand(list).unwrap_err();
        assert_eq!(e.code().as_str(), "target-pattern", "{list}");
        assert!(e.to_string().contains("a sequence"), "{e}");
    }
    assert_eq!(found("{sda,mmcblk0}", dev.path()), ["mmcblk0", "sda"]);
}

#[test]
fn only_words_for_arrays_ask_for_arrays() {
    let words = pattern::expand("md/balena{,_*} nvme?n? sd? mmcblk? vd?").unwrap();
    let arrays: Vec<&str> = words.iter().filter(|p| p.is_md()).map(pattern::Pattern::text).collect();
    assert_eq!(arrays, ["md/balena{,_*}"]);
    assert_eq!(words[0].alternatives().collect::<Vec<_>>(), ["md/balena", "md/balena_*"]);
}

/// The recipe's own lines after those of the board; secure boot and a migration add theirs at the end.
#[test]
fn lines_that_the_recipe_and_the_migration_append_are_understood() {
    let text = boards()[0].texts()[0].clone()
        + "USE_LUKS=1\nINTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS=grub.cfg_internal_luks\n\
           BALENA_SPLASH_CONFIG=splash\nBALENA_BOOTLOADER_CONFIG=resinOS_uEnv.txt\nBALENA_NM_CONFIG=system-connections\n\
           BALENA_NM_DISPATCHER=dispatcher.d\nBALENA_PROXY_CONFIG=system-proxy\nPOSTINSTALL_REBOOT=1";
    let conf = parse(&text).unwrap();
    assert_eq!(conf.bootloader_config_luks.as_deref(), Some(Path::new("grub.cfg_internal_luks")));
    assert_eq!((conf.use_luks, conf.postinstall_reboot), (Some(true), true));
    assert_eq!(conf.names, copal::config::flasher_conf::BootNames::default());
}

/// Both override syntaxes of recipes resolve to the plain key. Where one reaches the file all the same, it never counts: as a
/// variable name it is one more unknown key, and otherwise no shell takes it either.
#[test]
fn overrides_never_stand_in_for_the_plain_key() {
    let conf =
        parse("INTERNAL_DEVICE_KERNEL_machine=\"mmcblk2\"\nINTERNAL_DEVICE_KERNEL=\"mmcblk0\"\n").unwrap();
    assert_eq!(conf.internal_device.as_deref(), Some("mmcblk0"));
    assert_eq!(conf.raw().get("INTERNAL_DEVICE_KERNEL_machine"), Some("mmcblk2"));
    assert_eq!(parse("INTERNAL_DEVICE_KERNEL_machine=mmcblk2").unwrap().internal_device, None);
    for line in [
        "INTERNAL_DEVICE_KERNEL_asus-tinker-board-s = \"mmcblk1\"",
        "INTERNAL_DEVICE_KERNEL_asus-tinker-board-s=mmcblk1",
        "INTERNAL_DEVICE_KERNEL:machine=mmcblk2",
        "INTERNAL_DEVICE_KERNEL:machine = \"mmcblk2\"",
        "INTERNAL_DEVICE_KERNEL ?= \"mmcblk?\"",
        "INTERNAL_DEVICE_KERNEL ??= mmcblk?",
    ] {
        let e = parse(&format!("INTERNAL_DEVICE_KERNEL=mmcblk0\n{line}\n")).expect_err(line);
        assert_eq!(
            (e.code(), e.subject()),
            (Code::ConfSyntax, Some("/etc/resin-init-flasher.conf:2:1")),
            "{e}"
        );
        assert!(e.hint().contains("belong in the recipe"), "{e}");
    }
}

#[test]
fn the_layer_stops_a_build_for_what_the_program_would_refuse() {
    needs!(tools);
    const DEVICE: (&str, &str) = ("BOOTLOADER_FLASH_DEVICE", "mmcblk0");
    const IMAGE: (&str, &str) = ("BOOTLOADER_IMAGE", "u-boot.img");
    const BLOCK: (&str, &str) = ("BOOTLOADER_BLOCK_SIZE_OFFSET", "1024");
    const SKIP: (&str, &str) = ("BOOTLOADER_SKIP_OUTPUT_BLOCKS", "69");
    let rows: &[(&[(&str, &str)], &str)] = &[
        (
            &[("INTERNAL_DEVICE_BOOTLOADER_CONFIG", "grub.cfg_internal")],
            "needs INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH",
        ),
        (&[DEVICE, BLOCK, SKIP], "BOOTLOADER_FLASH_DEVICE needs BOOTLOADER_IMAGE\""),
        (&[DEVICE, IMAGE, SKIP], "BOOTLOADER_FLASH_DEVICE needs BOOTLOADER_BLOCK_SIZE_OFFSET\""),
        (&[DEVICE, IMAGE, BLOCK], "BOOTLOADER_FLASH_DEVICE needs BOOTLOADER_SKIP_OUTPUT_BLOCKS\""),
        (
            &[("BOOTLOADER_FLASH_DEVICE_1", "mmcblk0")],
            "needs BOOTLOADER_IMAGE_1, BOOTLOADER_BLOCK_SIZE_OFFSET_1\"",
        ),
        (&[DEVICE, IMAGE, ("BOOTLOADER_BLOCK_SIZE_OFFSET", "0k"), SKIP], "a block has at least 1 byte"),
        (&[DEVICE, IMAGE, BLOCK, ("BOOTLOADER_SKIP_OUTPUT_BLOCKS", "0x45")], "is not a number"),
        (&[("INTERNAL_DEVICE_KERNEL", "$(lsblk -nd)")], "a shell would act upon"),
        (&[("BALENA_IMAGE", "two words")], "is not one plain word"),
    ];
    let answers = layer(&rows.iter().map(|(variables, _)| variables.to_vec()).collect::<Vec<_>>());
    assert_eq!(answers.len(), rows.len());
    for ((variables, wrong), said) in rows.iter().zip(answers) {
        let said = said.expect_err(wrong);
        assert!(said.contains(wrong), "{variables:?}: {said}");
    }
    let whole =
        layer(&[vec![DEVICE, IMAGE, ("BOOTLOADER_BLOCK_SIZE_OFFSET", "1k"), SKIP]]).remove(0).unwrap();
    assert_eq!(parse(&whole).unwrap().bootloader_writes[0].offset(), Some(70_656));
}
