//! What a device's settings name, as the bootloader of its board reads them.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use copal::config::paths::Paths;
use copal::config::update_conf::{self, UpdateConf};
use copal::device_tree::{self, ExpectedFiles, Key};

use crate::kit::process::HANG;
use crate::state::unescaped;

fn paths(conf: &str, files: &[(&str, &[u8])]) -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let write = |path: &str, content: &[u8]| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    fs::create_dir_all(dir.path().join("mnt/boot")).unwrap();
    write(update_conf::FILE.trim_start_matches('/'), conf.as_bytes());
    for (name, content) in files {
        write(&format!("mnt/boot/{name}"), content);
    }
    let paths = Paths::new(dir.path());
    (dir, paths)
}

fn expected_files(conf: &str, files: &[(&str, &[u8])]) -> ExpectedFiles {
    device_tree::expected_files(&paths(conf, files).1)
}

/// Each expected file: its setting, where the bootloader looks for it in its order (`root:` and `boot:`), and `!` where it does not boot
/// without it, `?` where the setting does not count.
fn said(expected: &ExpectedFiles) -> Vec<String> {
    let paths = Paths::new("/");
    let place = |path: &std::path::Path| match path.strip_prefix("/mnt/boot") {
        Ok(rest) => format!("boot:{}", rest.display()),
        Err(_) => format!("root:{}", path.strip_prefix("/root-boot").unwrap().display()),
    };
    let say = |n: &device_tree::Named| {
        let places: Vec<_> = n.places(&paths, "/root-boot".as_ref()).iter().map(|p| place(p)).collect();
        let sign = match (expected.is_required(n), n.counts) {
            (true, _) => "!",
            (false, true) => "",
            (false, false) => "?",
        };
        format!("{} {}{sign}", n.key, places.join(" "))
    };
    expected.named.iter().map(say).collect()
}

/// A family, its lines of update.conf, the owner's files on its boot partition, and what is expected of them.
type Family<'t> = (&'t str, &'t str, &'t [(&'t str, &'t [u8])], &'t [&'t str]);

/// The lines of docs/integrating.md.
const FAMILIES: &[Family<'_>] = &[
    (
        "Jetson Nano, TX1, TX2, TX2 NX",
        "DEVICE_TREE_KEYS=custom_fdt_file",
        &[("extra_uEnv.txt", b"custom_fdt_file=mine.dtb\n")],
        &["custom_fdt_file root:mine.dtb"],
    ),
    ("Jetson Xavier, Xavier NX", "DEVICE_TREE_KEYS=", &[("extra_uEnv.txt", b"custom_fdt_file=mine.dtb\n")], &["custom_fdt_file root:mine.dtb?"]),
    (
        "Jetson Orin",
        "",
        &[("extra_uEnv.txt", b"custom_fdt_file=mine.dtb\noverlay_files=/boot/a.dtbo,/boot/dt/b.dtbo\n#custom_fdt_file=last.dtb")],
        &["custom_fdt_file root:mine.dtb", "overlay_files root:a.dtbo", "overlay_files root:dt/b.dtbo", "custom_fdt_file root:last.dtb?"],
    ),
    (
        "Jetson Thor",
        "",
        &[("extra_uEnv.txt", b"\xff\xfec\0u\0s\0t\0o\0m\0_\0f\0d\0t\0_\0f\0i\0l\0e\0=\0m\0.\0d\0t\0b\0\r\0\n\0")],
        &["custom_fdt_file root:m.dtb?"],
    ),
    (
        "iot-gate-imx8plus",
        "DEVICE_TREE_KEYS=custom_fdt_file\nDEVICE_TREE_PLACE=boot-first",
        &[("extra_uEnv.txt", b"custom_fdt_file=mine.dtb\n")],
        &["custom_fdt_file boot:mine.dtb root:mine.dtb"],
    ),
    (
        "Variscite 8M, 8M Mini",
        "DEVICE_TREE_KEYS='custom_fdt_file fdt_file'\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"# custom_fdt_file=old.dtb\ncustom_fdt_file=first.dtb\ncustom_fdt_file=mine.dtb\n#")],
        &["custom_fdt_file root:mine.dtb!"],
    ),
    (
        "Variscite 8M Mini PLT",
        "DEVICE_TREE_KEYS='custom_fdt_file fdt_file'\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdt_file=mine.dtb\n# custom_fdt_file=old.dtb\n")],
        &["fdt_file root:mine.dtb!", "custom_fdt_file root:old.dtb?"],
    ),
    (
        "kontron-mx8mm",
        "DEVICE_TREE_KEYS=fdt_file\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdt_file=kontron/mine.dtb\nfdtfile=other.dtb\n")],
        &["fdt_file root:kontron/mine.dtb!", "fdtfile root:other.dtb?"],
    ),
    (
        "eg5120-imx8mp",
        "DEVICE_TREE_KEYS=fdt_file\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdt_file=mine.dtb")],
        &["fdt_file root:mine.dtb!"],
    ),
    (
        "iotdin-imx8p",
        "DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdtfile=mine.dtb\nfdtofile=boot/own.dtbo\n")],
        &["fdtfile root:mine.dtb!", "fdtofile root:own.dtbo?"],
    ),
    (
        "ucm-imx93",
        "DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b" fdtfile=mine.dtb\n")],
        &["fdtfile root:mine.dtb!"],
    ),
    (
        "iot-link",
        "ALWAYS_READ_SLOT=A\nDEVICE_TREE_KEYS=",
        &[("extra_uEnv.txt", b"fdtfile=mine.dtb\n")],
        &["fdtfile root:mine.dtb?"],
    ),
    (
        "coral-dev, asus-tinker-edge-t",
        "DEVICE_TREE_KEYS=fdt_file\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdt_file=mine.dtb\n=x\nfdt_file=unread.dtb\n")],
        &["fdt_file root:mine.dtb!"],
    ),
    (
        "imx8mq-ecu1370",
        "DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdtfile=deleted.dtb\nfdtfile\n")],
        &[],
    ),
    ("isg-503", "DEVICE_TREE_KEYS=", &[], &[]),
    (
        "BeagleBone (AM335x)",
        "DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1",
        &[
            ("uEnv.txt", b"fdtfile=older.dtb\n"),
            ("extra_uEnv.txt", b"fdtfile=mine.dtb\nuboot_overlay_addr4=own.dtbo\nuboot_overlay_addr0=/lib/firmware/x.dtbo\n"),
        ],
        &["fdtfile root:older.dtb?", "fdtfile root:mine.dtb!", "uboot_overlay_addr root:overlays/own.dtbo?"],
    ),
    (
        "beaglebone-ai64",
        "DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1",
        &[("extra_uEnv.txt", b"fdtfile=mine.dtb\n")],
        &["fdtfile root:mine.dtb!"],
    ),
    (
        "Raspberry Pi, 0 to 4",
        "DEVICE_TREE_KEYS='device_tree dtoverlay'\nDEVICE_TREE_PLACE=boot",
        &[("config.txt", b"device_tree=mine.dtb\ndtoverlay=own,x=1\n[pi4]\ndtoverlay=fan\n[none]\ndtoverlay=off\n[all]\ndtoverlay=i2c:y=2\n")],
        &[
            "device_tree boot:mine.dtb",
            "dtoverlay boot:overlays/own.dtbo",
            "dtoverlay boot:overlays/fan.dtbo?",
            "dtoverlay boot:overlays/i2c.dtbo",
        ],
    ),
    (
        "raspberrypi5",
        "DEVICE_TREE_KEYS='device_tree dtoverlay'\nDEVICE_TREE_PLACE=boot",
        &[
            ("config.txt", b"include more.txt\r\nos_prefix=new/\r\ndtoverlay=own\r\n"),
            ("more.txt", b"device_tree=mine.dtb\r\n"),
            ("new/mine.dtb", b""),
            ("new/overlays/README", b""),
        ],
        &["device_tree boot:new/mine.dtb", "dtoverlay boot:new/overlays/own.dtbo"],
    ),
];

#[test]
fn each_family_of_boards_wants_what_its_bootloader_loads() {
    for (family, conf, files, expected) in FAMILIES {
        assert_eq!(said(&expected_files(conf, files)), *expected, "{family}");
    }
    assert_eq!(FAMILIES.len(), 19);
}

#[test]
fn what_the_uefi_of_a_tegra_finds_counts_there_and_nowhere_else() {
    let text = b"custom_fdt_file=mine.dtb\noverlay_files=a.dtbo\n# custom_fdt_file=last.dtb\n";
    let (unsure, found) = (
        ["custom_fdt_file root:mine.dtb", "overlay_files root:a.dtbo", "custom_fdt_file root:last.dtb?"],
        ["custom_fdt_file root:mine.dtb?", "overlay_files root:a.dtbo", "custom_fdt_file root:last.dtb"],
    );
    let orin = &b"nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0"[..];
    for (compatible, uefi, expected) in [
        (orin, true, found),
        // U-Boot, as on the Nano and the TX2.
        (orin, false, unsure),
        // UEFI of another board.
        (&b"acme,board\0nvidia-tegra\0"[..], true, unsure),
        (b"", true, unsure),
    ] {
        let (dir, paths) = paths("", &[("extra_uEnv.txt", text)]);
        let base = dir.path().join("sys/firmware/devicetree/base");
        fs::create_dir_all(&base).unwrap();
        fs::write(base.join("compatible"), compatible).unwrap();
        if uefi {
            fs::create_dir_all(dir.path().join("sys/firmware/efi/efivars")).unwrap();
        }
        assert_eq!(
            said(&device_tree::expected_files(&paths)),
            expected,
            "{}, {uefi}",
            compatible.escape_ascii()
        );
    }
}

/// The cells of each row of each table.
fn rows_of(page: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(format!("{}/docs/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let cells = |line: &str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect();
    text.lines().filter(|l| l.starts_with("| ")).map(cells).collect()
}

/// What is between backticks.
fn words(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_pages_have_each_key_each_setting_and_the_lines_of_each_family() {
    let rows = rows_of("update.md");

    let is_key =
        |word: &String| word.chars().all(|c| c.is_ascii_uppercase() || c == '_') && word.contains('_');
    let whole = |row: &Vec<String>| Some(row[0].strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let keys: Vec<String> = rows.iter().filter_map(whole).filter(is_key).collect();
    assert_eq!(keys, update_conf::KEYS);
    let default = UpdateConf::default();
    let of_key = |key: &str| rows.iter().find(|row| row[0] == format!("`{key}`")).unwrap();
    let joined = default.device_tree_keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" ");
    assert_eq!(words(&of_key("DEVICE_TREE_KEYS")[1]), [joined]);
    assert_eq!(words(&of_key("DEVICE_TREE_REQUIRED")[1]), ["0"]);
    for key in ["DEVICE_TREE_PLACE", "DEVICE_TREE_REQUIRED", "ALWAYS_READ_SLOT"] {
        for value in words(&of_key(key)[2]) {
            let (_dir, paths) = paths(&format!("{key}={value}\n"), &[]);
            let conf = UpdateConf::read(&paths).unwrap();
            assert_eq!(conf == default, words(&of_key(key)[1]).contains(&value), "{key}={value}");
        }
    }

    let settings: BTreeSet<String> = rows
        .iter()
        .filter(|row| words(&row[1]).first().is_some_and(|file| file.contains('.')))
        .flat_map(|row| words(&row[0]))
        .collect();
    assert_eq!(settings, Key::ALL.iter().map(ToString::to_string).collect());

    let guide = rows_of("integrating.md");
    for (family, conf, ..) in FAMILIES {
        let row = guide.iter().find(|row| row[0] == *family).unwrap_or_else(|| panic!("{family}"));
        let plain = |line: &str| line.replace(['\'', '"'], "");
        let documented: BTreeSet<String> = words(&row[1]).iter().map(|line| plain(line)).collect();
        assert_eq!(documented, conf.lines().map(plain).collect(), "{family}");
    }
}

#[test]
fn without_a_line_of_the_board_two_settings_count_and_none_refuses() {
    let all: &[(&str, &[u8])] = &[
        ("extra_uEnv.txt", b"custom_fdt_file=a.dtb\noverlay_files=b.dtbo c.dtbo\nfdt_file=d.dtb\nfdtfile=e.dtb\nfdtofile=f.dtbo\n"),
        ("extlinux/extlinux.conf", b"LABEL l\nFDT /boot/g.dtb\n"),
        ("config.txt", b"device_tree=h.dtb\ndtoverlay=i\n"),
    ];
    let expected = [
        "custom_fdt_file root:a.dtb",
        "overlay_files root:b.dtbo",
        "overlay_files root:c.dtbo",
        "fdt_file root:d.dtb?",
        "fdtfile root:e.dtb?",
        "fdtofile root:f.dtbo?",
        "FDT root:g.dtb?",
        "device_tree boot:h.dtb?",
        "dtoverlay boot:overlays/i.dtbo?",
    ];
    assert_eq!(said(&expected_files("", all)), expected);
    // A mistake in the board's file costs its lines, not the device.
    assert_eq!(said(&expected_files("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_PLACE=none\n", all)), expected);
    assert!(said(&expected_files("", &[])).is_empty());
}

#[test]
fn a_name_that_is_no_plain_path_is_refused_and_named() {
    let files: &[(&str, &[u8])] = &[
        (
            "extra_uEnv.txt",
            b"custom_fdt_file=../x.dtb\nfdt_file=/x.dtb\nfdtfile=a b.dtb\noverlay_files=ok.dtbo,/etc/x,${y}\n# custom_fdt_file=see the manual\n",
        ),
        ("extlinux/extlinux.conf", b"LABEL l\nFDT ../../x.dtb\n"),
        ("config.txt", b"device_tree=a/../../x.dtb\ndtoverlay=../x\n"),
    ];
    let expected = expected_files("", files);
    let refused: Vec<_> = expected.refused.iter().map(|r| format!("{} {}", r.key, r.name)).collect();
    assert_eq!(
        refused,
        [
            "custom_fdt_file ../x.dtb",
            "overlay_files /etc/x",
            "overlay_files ${y}",
            "fdt_file /x.dtb",
            "fdtfile a b.dtb",
            "FDT extlinux/../../x.dtb",
            "device_tree a/../../x.dtb",
            "dtoverlay overlays/../x.dtbo",
        ]
    );
    assert_eq!(said(&expected), ["overlay_files root:ok.dtbo"]);
}

/// U-Boot keeps the return of a line, and looks for a file with it in its name; the UEFI does not.
#[test]
fn lines_of_another_system_are_read_as_each_loader_reads_them() {
    let files: &[(&str, &[u8])] =
        &[("extra_uEnv.txt", b"custom_fdt_file=mine.dtb\r\nfdt_file=other.dtb\r\n")];
    let expected = expected_files("DEVICE_TREE_KEYS='custom_fdt_file fdt_file'\n", files);
    assert_eq!(said(&expected), ["custom_fdt_file root:mine.dtb?"]);
    let refused: Vec<_> = expected.refused.iter().map(|r| &*r.name).collect();
    assert_eq!(refused, ["mine.dtb\r", "other.dtb\r"]);
}

/// The real U-Boot is held against the same rows (qemu/farm/tests/test_readings.py).
#[test]
fn extra_uenv_as_u_boot_reads_it() {
    let conf = UpdateConf { device_tree_keys: Key::ALL.to_vec(), ..UpdateConf::default() };
    let mut rows = 0;
    for line in include_str!("state/readings.tsv").lines() {
        let Some(row) = line.strip_prefix("u-boot-trees\t") else { continue };
        let cells: Vec<Vec<u8>> = row.split('\t').map(unescaped).collect();
        let (content, expected) = cells.split_first().unwrap();
        let read_files = ExpectedFiles::of_files(&conf, false, &mut |path| {
            Ok((path == "extra_uEnv.txt").then(|| content.clone()))
        });
        let keys = [Key::CustomFdtFile, Key::OverlayFiles, Key::FdtFileUnderscore, Key::Fdtfile];
        assert_eq!(expected.len(), keys.len(), "{line}");
        for (key, value) in keys.iter().zip(expected) {
            let named = read_files.named.iter().filter(|n| n.key == *key && n.counts);
            let mut read: BTreeSet<String> = named.map(|n| n.path.display().to_string()).collect();
            read.extend(read_files.refused.iter().filter(|r| r.key == *key).map(|r| r.name.clone()));
            let value = String::from_utf8(value.clone()).unwrap();
            let value = if value == "-" { "" } else { value.trim_end_matches(' ') };
            let list = *key == Key::OverlayFiles;
            let names = value.split(|c| list && [' ', ','].contains(&c)).filter(|n| !n.is_empty());
            assert_eq!(read, names.map(str::to_owned).collect(), "{key}: {line}");
        }
        rows += 1;
    }
    assert!(rows > 20, "{rows}");
}

/// U-Boot takes the default label, the first `FDT` of it, and paths from the file's own folder or from the top of the partition.
#[test]
fn extlinux_as_u_boot_reads_it() {
    let conf = "DEVICE_TREE_KEYS=FDT\nDEVICE_TREE_REQUIRED=1\n";
    for (text, expected) in [
        ("LABEL a\nFDT /boot/a.dtb\n", &["FDT root:a.dtb!"][..]),
        ("label a\n\tdevicetree\t/boot/a.dtb \r\n", &["FDT root:a.dtb!"]),
        (
            "DEFAULT b\nLABEL a\nFDT /boot/a.dtb\nLABEL b\nFDT /boot/b.dtb\n",
            &["FDT root:a.dtb?", "FDT root:b.dtb!"],
        ),
        (
            "DEFAULT none\nLABEL a\nFDT /boot/a.dtb\nLABEL b\nFDT /boot/b.dtb\n",
            &["FDT root:a.dtb!", "FDT root:b.dtb?"],
        ),
        ("LABEL a\nLABEL b\nMENU default\nFDT /boot/b.dtb\n", &["FDT root:b.dtb!"]),
        ("LABEL a\nFDT /boot/a.dtb\nFDT /boot/b.dtb\n", &["FDT root:b.dtb?", "FDT root:a.dtb!"]),
        // An unknown word ends the label.
        ("LABEL a\nOVERLAYS x\nFDT /boot/a.dtb\n", &["FDT root:a.dtb?"]),
        ("LABEL a\nFDT a.dtb\n", &["FDT root:extlinux/a.dtb!"]),
        ("LABEL a\nFDT ../a.dtb\n", &["FDT root:a.dtb!"]),
        ("LABEL a\nFDT /a.dtb\n", &["FDT boot:a.dtb!"]),
        ("LABEL a\nFDT default\nFDTDIR /boot\n", &[]),
        ("LABEL a\n#FDT /boot/a.dtb\nFDT # none\nFDT -\n", &[]),
        ("LABEL a\nFDT /boot/a.dtb\n\0LABEL a\nFDT /boot/b.dtb\n", &["FDT root:a.dtb!"]),
        ("FDT", &[]),
    ] {
        let files: &[(&str, &[u8])] = &[("extlinux/extlinux.conf", text.as_bytes())];
        assert_eq!(said(&expected_files(conf, files)), expected, "{text:?}");
    }
    let on_boot = "DEVICE_TREE_KEYS=FDT\nDEVICE_TREE_PLACE=boot\n";
    let files: &[(&str, &[u8])] = &[("extlinux/extlinux.conf", b"LABEL a\nFDT /boot/a.dtb\n")];
    assert_eq!(said(&expected_files(on_boot, files)), ["FDT boot:boot/a.dtb"]);
}

#[test]
fn config_txt_as_the_firmware_documents_it() {
    let conf = "DEVICE_TREE_KEYS='device_tree dtoverlay'\nDEVICE_TREE_PLACE=boot\nDEVICE_TREE_REQUIRED=1\n";
    let long = format!("dtoverlay={}\n", "x".repeat(200));
    let cut = format!("dtoverlay boot:overlays/{}.dtbo!", "x".repeat(88));
    for (text, expected) in [
        ("device_tree=a.dtb\ndevice_tree=b.dtb\n", &["device_tree boot:b.dtb!"][..]),
        ("device_tree=a.dtb\ndevice_tree=\n", &[]),
        (
            "device_tree=a.dtb\n[board-type=0x14]\ndevice_tree=b.dtb\n",
            &["device_tree boot:a.dtb?", "device_tree boot:b.dtb?"],
        ),
        ("[gpio4=1]\ndevice_tree=b.dtb\n[all]\ndevice_tree=a.dtb\n", &["device_tree boot:a.dtb!"]),
        ("[none]\ndtoverlay=a\n[0x12345678]\ndtoverlay=b\n[all]\n", &["dtoverlay boot:overlays/b.dtbo?"]),
        (" [EDID=VSC-TD2220]\n  dtoverlay=a\n", &["dtoverlay boot:overlays/a.dtbo?"]),
        ("#dtoverlay=a\ndtoverlay=\ndtoverlay =b\ndtoverlays=c\n", &[]),
        (
            "os_prefix=new/\ndevice_tree=a.dtb\ndtoverlay=b\n",
            &["device_tree boot:a.dtb!", "dtoverlay boot:overlays/b.dtbo!"],
        ),
        (
            "os_prefix=there/\ndevice_tree=a.dtb\ndtoverlay=b\n",
            &["device_tree boot:there/a.dtb!", "dtoverlay boot:there/overlays/b.dtbo!"],
        ),
        ("os_prefix=there/\ndevice_tree=/a.dtb\n", &["device_tree boot:a.dtb!"]),
        ("overlay_prefix=own/x-\ndtoverlay=b\n", &["dtoverlay boot:own/x-b.dtbo!"]),
        ("[pi4]\noverlay_prefix=own/\n[all]\ndtoverlay=b\n", &["dtoverlay boot:own/b.dtbo?"]),
        ("include more.txt\ninclude none.txt\ninclude ../x\n", &["dtoverlay boot:overlays/more.dtbo!"]),
        ("include config.txt\ndtoverlay=a\n", &["dtoverlay boot:overlays/a.dtbo!"]),
        // It has another name in the map, or depends on the model.
        ("dtoverlay=renamed\ndtoverlay=rename\n", &["dtoverlay boot:overlays/rename.dtbo!"]),
        (&long, &[&cut]),
    ] {
        let files: &[(&str, &[u8])] = &[
            ("config.txt", text.as_bytes()),
            ("more.txt", b"dtoverlay=more\n"),
            ("there/a.dtb", b""),
            ("there/overlays/README", b""),
            ("overlays/overlay_map.dtb", b"\xd0\x0d\xfe\xed\0\0\0\x01\0\0\0\0\0\0\0\x01renamed\0\0\0\0\x03"),
        ];
        assert_eq!(said(&expected_files(conf, files)), expected, "{text:?}");
    }
}

#[test]
fn what_cannot_be_read_names_nothing_and_hides_nothing() {
    let (_dir, paths) = paths("", &[("extra_uEnv.txt", b"custom_fdt_file=a.dtb\n")]);
    fs::create_dir_all(paths.boot().join("extlinux/extlinux.conf")).unwrap();
    let config = paths.boot().join("config.txt");
    fs::write(&config, vec![b'\n'; (1 << 20) + 1]).unwrap();
    let expected = device_tree::expected_files(&paths);
    assert_eq!(said(&expected), ["custom_fdt_file root:a.dtb"]);
    assert_eq!(expected.unread.len(), 2, "{:?}", expected.unread);
    // No link leads out of the boot partition.
    fs::remove_file(&config).unwrap();
    fs::write(paths.at("/elsewhere"), "dtoverlay=x\n").unwrap();
    std::os::unix::fs::symlink("../../elsewhere", &config).unwrap();
    let expected = device_tree::expected_files(&paths);
    assert_eq!(said(&expected), ["custom_fdt_file root:a.dtb"]);
    assert_eq!(expected.unread.len(), 2, "{:?}", expected.unread);
}

/// Files as large as one that is read may be.
#[test]
fn no_file_takes_long_or_names_without_end() {
    let lines = |line: &dyn Fn(usize) -> String| -> Vec<u8> {
        (0..20_000).flat_map(|n| line(n).into_bytes()).collect()
    };
    let (uenv, config) =
        (lines(&|n| format!("overlay_files={n}.dtbo,..\n")), lines(&|n| format!("dtoverlay={n}\n")));
    let list: Vec<u8> = [b"overlay_files=".to_vec(), lines(&|n| format!("{n}.dtbo,"))].concat();
    for uenv in [&uenv, &list] {
        let files: &[(&str, &[u8])] = &[
            ("extra_uEnv.txt", uenv),
            ("config.txt", &config),
            ("overlays/overlay_map.dtb", &[0, 1].repeat(1 << 19)),
        ];
        let start = Instant::now();
        let expected = expected_files("", files);
        assert_eq!(expected.named.len() + expected.refused.len(), 512);
        assert_eq!(expected.unread.len(), 1, "{:?}", expected.unread);
        assert!(start.elapsed() < HANG, "{:?}", start.elapsed());
    }
}

#[test]
fn every_key_of_the_board_has_a_reader() {
    let files: &[(&str, &[u8])] = &[
        (
            "extra_uEnv.txt",
            b"custom_fdt_file=x\noverlay_files=x\nfdt_file=x\nfdtfile=x\nfdtofile=x\nuboot_overlay_addr7=x\n",
        ),
        ("extlinux/extlinux.conf", b"LABEL a\nFDT x\n"),
        ("config.txt", b"device_tree=x\ndtoverlay=x\n"),
    ];
    for key in Key::ALL {
        let expected = expected_files(&format!("DEVICE_TREE_KEYS={key}"), files);
        let counting: Vec<_> = expected.named.iter().filter(|n| n.counts).map(|n| n.key).collect();
        assert_eq!(counting, [key]);
    }
}
