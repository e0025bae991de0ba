//! What is shown of a damaged file is what the bootloader makes of it; what is written, it reads.

use copal::boot_state::envblock::Damage;
use copal::boot_state::uenv::Uenv;
use copal::boot_state::variables::Variables;
use copal::boot_state::{self, BootState, Named};
use copal::error::Code;
use copal::slot::Slot;

use super::support::{Device, block, root, state, unselected};

const HEADER: &str = "# GRUB Environment Block\n";

fn read(files: &[(&str, &[u8])]) -> BootState {
    boot_state::detect(&Device::new(files).paths).unwrap().read().unwrap()
}

/// GRUB takes its default root, and the balena bootloader finds none. Text in the rest of the block is never selected.
#[test]
fn a_damaged_header_hides_the_selection_and_a_repair_takes_nothing_of_it() {
    let whole = block("bootcount=1\nresin_root_part=2\nupgrade_available=1\nmine=x\n");
    let named = block("bootcount=1\nresin_root_part=A\nupgrade_available=1\nmine=x\n");
    for at in 0..HEADER.len() {
        for (name, whole, default) in [
            ("EFI/BOOT/grubenv", &whole, Named::Slot(Slot::B)),
            ("bootenv", &named, Named::Other(String::new())),
        ] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let device = Device::new(&[(name, &damaged)]);
            let backend = boot_state::detect(&device.paths).unwrap();
            assert_eq!(
                backend.read().unwrap(),
                unselected(default, Some(Damage::Header)),
                "{name}, byte {at}"
            );
            // Other changes leave the selection as the bootloader sees it.
            backend.clear_bootcount().unwrap();
            assert_eq!(device.read(name), damaged, "{name}, byte {at}");
            backend.set_variables(&[("mine", Some("y"))]).unwrap();
            let seen = backend.read().unwrap();
            assert_eq!((seen.selected, seen.damage), (false, Some(Damage::NoRoot)), "{name}, byte {at}");
            backend.set(&root(Slot::B, 3), false).unwrap();
            assert!(backend.read().unwrap().selects(&root(Slot::B, 3)), "{name}, byte {at}");
            assert_eq!(backend.variable("mine").unwrap().as_deref(), Some("y"), "{name}, byte {at}");
        }
    }
}

/// On an encrypted disk GRUB's configuration is another one.
#[test]
fn the_default_root_is_that_of_the_configuration() {
    let config = b"load_env resin_root_part\nset balena_root=resin-rootA\n";
    let seen = read(&[("EFI/BOOT/grub.cfg", config), ("EFI/BOOT/grubenv", b"damaged")]);
    assert_eq!(seen, unselected(Named::Slot(Slot::A), Some(Damage::Size(7))));
    // Images come with 2, which is the boot partition of an encrypted disk.
    for (part, expected) in [
        ("2", Named::Slot(Slot::A)),
        ("3", Named::Index(3)),
        ("4", Named::Index(4)),
        ("7", Named::Slot(Slot::A)),
    ] {
        let environment = block(&format!("bootcount=0\nresin_root_part={part}\nupgrade_available=0\n"));
        let seen = read(&[("EFI/BOOT/grub.cfg", config), ("EFI/BOOT/grubenv", &environment)]);
        assert_eq!(seen, state(expected, 0, false), "{part}");
    }
}

#[test]
fn what_only_grub_does_not_see() {
    let grub = |lines: &str| read(&[("grub/grubenv", &block(lines))]);
    let hidden = grub("# by hand\\\nresin_root_part=2\nupgrade_available=1\n");
    let default = unselected(Named::Slot(Slot::B), Some(Damage::Comment));
    assert_eq!(hidden, BootState { upgrade_available: true, ..default });
    let words = grub("words\nresin_root_part=2\n");
    assert_eq!(words, unselected(Named::Slot(Slot::B), Some(Damage::Line)));
    // GRUB reads the last value and counts in the first one.
    let twice = grub("bootcount=2\nresin_root_part=2\nresin_root_part=3\nbootcount=0\n");
    assert_eq!(twice, BootState { damage: Some(Damage::Twice), ..state(Named::Index(3), 0, false) });
}

/// It compares what `grub-editenv` prints, line by line.
#[test]
fn what_only_the_balena_bootloader_does_not_see() {
    let balena = |lines: &str| read(&[("bootenv", &block(lines))]);
    let twice = balena("resin_root_part=A\nresin_root_part=B\n");
    assert_eq!(twice, unselected(Named::Other("A\nB".into()), Some(Damage::Twice)));
    let in_a_value = balena("resin_root_part=A\nx=1\\\nresin_root_part=B\n");
    assert_eq!(in_a_value, unselected(Named::Other("A\nB".into()), Some(Damage::NoRoot)));
    // Whatever is written above or below that line, it stays.
    let hidden = block("resin_root_part=A\nx=1\\\nresin_root_part=B\n");
    let device = Device::new(&[("bootenv", &hidden)]);
    let e = boot_state::detect(&device.paths).unwrap().set(&root(Slot::A, 2), true).unwrap_err();
    assert_eq!(e.code(), Code::BootStateUnwritable);
    assert!(e.message().contains("the bootloader would not read resin_root_part=A"), "{e}");
    assert_eq!(device.read("bootenv"), hidden);
}

#[test]
fn what_only_uboot_does_not_see() {
    let uboot = |text: &str| read(&[("resinOS_uEnv.txt", text.as_bytes())]);
    let nameless = Some(Damage::Nameless);
    for line in ["=x\n", "  =x\n", "\t=x\n", "==\n", "=\\\n"] {
        let seen = uboot(&format!("{line}resin_root_part=3\nupgrade_available=1\n"));
        assert_eq!(seen, unselected(Named::Index(2), nameless), "{line:?}");
        let seen = uboot(&format!("resin_root_part=3\n{line}upgrade_available=1\n"));
        assert_eq!(seen, BootState { damage: nameless, ..state(Named::Index(3), 0, false) }, "{line:?}");
    }
    // No end of reading: an empty line, one without a key and a value, comments.
    for line in ["\n", "=\n", "#=x\n", "word\n", " \t# =x\n", "\r\n"] {
        let seen = uboot(&format!("{line}resin_root_part=3\nupgrade_available=1\n"));
        assert_eq!(seen, state(Named::Index(3), 0, true), "{line:?}");
    }
    assert_eq!(uboot("resin_root_part=\\3\n"), state(Named::Index(3), 0, false));
    assert_eq!(uboot("\rresin_root_part=3\n"), unselected(Named::Index(2), None));
    // A zero byte ends the name; U-Boot goes on after it.
    let zero = uboot("re\0in_root_part=3\nupgrade_available=1\n");
    assert_eq!(zero, BootState { upgrade_available: true, ..unselected(Named::Index(2), None) });
    // It compares texts.
    for text in ["0x3", "+3", "03", "A", "3 4"] {
        let seen = uboot(&format!("resin_root_part={text}\nupgrade_available=1\n"));
        let other = unselected(Named::Other(text.into()), Some(Damage::NoRoot));
        assert_eq!(seen, BootState { upgrade_available: true, ..other }, "{text}");
    }
    assert_eq!(uboot("resin_root_part=a \nupgrade_available=1 \n"), state(Named::Index(10), 0, true));
    // A carriage return belongs to the value.
    let returns = Some(Damage::Return);
    let both = uboot("resin_root_part=3\r\nupgrade_available=1\r\n");
    assert_eq!(both, unselected(Named::Other("3\r".into()), returns));
    let one = uboot("resin_root_part=3\nupgrade_available=1\r\n");
    assert_eq!(one, BootState { damage: returns, ..state(Named::Index(3), 0, false) });
    // It is deleted again.
    let deleted = unselected(Named::Other(String::new()), Some(Damage::NoRoot));
    assert_eq!(uboot("resin_root_part=3\nresin_root_part\n"), deleted);
}

/// Of a count and of its limit the digits count, for U-Boot's `test -gt`.
#[test]
fn a_carriage_return_after_a_number_is_no_part_of_it() {
    let device = Device::new(&[
        ("resinOS_uEnv.txt", b"resin_root_part=3\nupgrade_available=1\n"),
        ("extra_uEnv.txt", b"os_bc_lim=5\r\ncustom_fdt_file=a.dtb\r\n"),
        ("bootcount.env", b"bootcount=4\r\n"),
    ]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!((backend.read().unwrap().bootcount, backend.limit()), (4, 5));
    let warnings = backend.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[1].0.contains("extra_uEnv.txt, line 2: ") && warnings[1].0.ends_with(" of custom_fdt_file")
    );
    for (limit, read) in [("0x10", 16), ("7 x", 7), ("", 3), ("x", 3)] {
        device.write("extra_uEnv.txt", format!("os_bc_lim={limit}\n").as_bytes());
        assert_eq!(backend.limit(), read, "{limit}");
    }
}

/// The lines at which U-Boot stops are all that goes.
#[test]
fn a_selection_is_written_so_that_uboot_reads_it() {
    let before = "# by hand\n=x\nmine=1\nresin_root_part=2\n =y\nupgrade_available\n";
    let device = Device::new(&[("resinOS_uEnv.txt", before.as_bytes())]);
    let backend = boot_state::detect(&device.paths).unwrap();
    backend.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(
        device.text("resinOS_uEnv.txt"),
        "# by hand\nmine=1\nresin_root_part=3\nupgrade_available=1\n"
    );
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, true));
}

/// U-Boot imports the owner's file after the selection. copal does not change that file.
#[test]
fn a_selection_that_the_owners_file_reverses_is_refused_with_nothing_written() {
    let before: &[(&str, &[u8])] = &[
        ("resinOS_uEnv.txt", b"resin_root_part=2\nupgrade_available=0\n"),
        ("bootcount.env", b"bootcount=1\n\0"),
    ];
    for extra in
        ["resin_root_part=2\n", "upgrade_available=0\n", "resin_root_part\n", " upgrade_available=\n"]
    {
        let device = Device::new(before);
        device.write("extra_uEnv.txt", extra.as_bytes());
        let backend = boot_state::detect(&device.paths).unwrap();
        let e = backend.set(&root(Slot::B, 3), true).unwrap_err();
        assert_eq!(e.code(), Code::BootStateUnwritable, "{extra:?}");
        assert!(e.message().contains("extra_uEnv.txt sets resin_root_part or upgrade_available"), "{e}");
        for (name, content) in before {
            assert_eq!(device.read(name), *content, "{extra:?}: {name}");
        }
        assert_eq!(device.names(), ["bootcount.env", "extra_uEnv.txt", "resinOS_uEnv.txt"], "{extra:?}");
    }
    // What it sets counts, and another line of it, or one that U-Boot does not reach, does not.
    let device = Device::new(before);
    device.write("extra_uEnv.txt", b"resin_root_part=3\n");
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 1, false));
    backend.set(&root(Slot::B, 3), true).unwrap();
    device.write("extra_uEnv.txt", b"os_bc_lim=1\n=x\nresin_root_part=2\n");
    backend.set(&root(Slot::B, 3), false).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, false));
}

/// Bytes of the table: `\n`, `\\` and `\xNN` are escapes.
pub(crate) fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        bytes.push(match (c, (c == '\\').then(|| rest.next()).flatten()) {
            (_, None) => u8::try_from(c).unwrap(),
            (_, Some('n')) => b'\n',
            (_, Some('x')) => {
                let digits: String = rest.by_ref().take(2).collect();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            (_, Some(other)) => u8::try_from(other).unwrap(),
        });
    }
    bytes
}

/// The real GRUB and the real U-Boot are held against the same table, on the virtual boards.
#[test]
fn copal_reads_what_the_bootloaders_read() {
    let mut rows = 0;
    for line in
        include_str!("readings.tsv").lines().filter(|l| !l.starts_with('#') && !l.starts_with("u-boot-trees"))
    {
        let [parser, content, expected @ ..] = &line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let mut content = unescaped(content);
        let read = if *parser == "grub" {
            content.resize(1024, b'#');
            Variables::of_block(&content).unwrap_or_default()
        } else {
            let mut read = Variables::default();
            let _what_counts_of_it = read.import(&Uenv::parse(&content));
            read
        };
        // With the blanks that a shell drops.
        let value = |name: &str| read.iter().filter(|(n, _)| *n == name.as_bytes()).last().map(|(_, v)| v);
        let found = ["resin_root_part", "bootcount", "upgrade_available"].map(value);
        let wanted: Vec<_> = expected.iter().map(|e| (*e != "-").then(|| unescaped(e))).collect();
        assert_eq!(found.map(|v| v.map(<[u8]>::to_vec)).as_slice(), wanted, "{line}");
        rows += 1;
    }
    assert!(rows > 270, "{rows}");
}
