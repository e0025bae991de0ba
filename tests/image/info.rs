//! What `copal info` and `copal digest` say of images and archives.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::support::{Bench, MIB, put, run, text};
use crate::kit::image_archive::{Made, digest, elf, pack, tar_of};
use crate::kit::needs::{needs, tools};
use crate::kit::terminal::{WIDTHS, assert_fits, printed, shown};

const COPAL: &str = env!("CARGO_BIN_EXE_copal");

const DEVICE_TYPE: &str = r#"{"slug": "board-64", "name": "A Board (64 bits)", "arch": "amd64"}"#;

const RELEASE: &str =
    "ID=\"balena-os\"\nVERSION=\"2023.1.0\"\nMETA_BALENA_VERSION=\"6.1.2\"\nSLUG=\"other-board\"\n";

fn copal(folder: &Path, args: &[&str]) -> Output {
    Command::new(COPAL).args(args).current_dir(folder).env_remove("COPAL_LOG").output().unwrap()
}

/// For a shell: without the progress.
fn quietly(folder: &Path, args: &str) -> String {
    format!("cd {} && exec {COPAL} {args} 2>/dev/null", text(folder))
}

/// The value under `key` in the last line.
fn json(folder: &Path, key: &str, args: &[&str]) -> Value {
    let out = copal(folder, &[args, &["--json"]].concat());
    let stdout = String::from_utf8(out.stdout).unwrap();
    let mut last: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["ok"], true, "{stdout}");
    last[key].take()
}

/// The file is refused with this exit code and error code.
fn refused(folder: &Path, args: &[&str], exit: i32, code: &str) {
    let out = copal(folder, args);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(exit), &b""[..]), "{said}");
    assert!(said.contains(&format!("[{code}]")), "{said}");
}

/// Puts a file into the root folder of a FAT file system.
fn add(bench: &Bench, fat: &Path, name: &str, content: &str) {
    let file = bench.write("file", content.as_bytes());
    run("mcopy", &["-o", "-i", text(fat), text(&file), &format!("::{name}")], None);
}

/// A disk of one partition, with this content.
fn disk_of(bench: &Bench, name: &str, partition: &Path) {
    let size = fs::metadata(partition).unwrap().len();
    let disk = bench.sparse(name, size + 2 * MIB);
    run("sfdisk", &["-q", text(&disk)], Some(&format!("label: gpt\n2048,{},U\n", size / 512)));
    put(&disk, MIB, &fs::read(partition).unwrap());
}

#[test]
fn the_system_is_read_from_every_kind_of_boot_partition() {
    needs!(tools);
    let bench = Bench::new();
    let folder = bench.dir.path();
    // Many clusters, which are not side by side.
    let long = format!("{RELEASE}{}", "# a comment\n".repeat(3000));
    for (mib, args) in
        [(2, &["-F", "12"][..]), (20, &["-F", "16"]), (40, &["-F", "32"]), (40, &["-S", "4096"])]
    {
        let fat = bench.fat("boot", mib * MIB, &[args, &["-n", "resin-boot"]].concat());
        for i in 0..30 {
            add(&bench, &fat, &format!("before-{i}.file"), "x");
        }
        run("mdel", &["-i", text(&fat), "::before-1?.file"], None);
        add(&bench, &fat, "os-release.old", "VERSION=\"1.0\"\n");
        add(&bench, &fat, "OS-Release", &long);
        disk_of(&bench, "os.img", &fat);
        run("zstd", &["-qf1", text(&bench.at("os.img"))], None);
        for file in ["os.img", "os.img.zst"] {
            let info = json(folder, "info", &["info", file]);
            let found = ["version", "board", "board_name"].map(|key| info[key].as_str());
            assert_eq!(found, [Some("6.1.2"), Some("other-board"), None], "{args:?} {file}");
        }
        // That of the board comes before what its system says.
        add(&bench, &fat, "device-type.json", DEVICE_TYPE);
        disk_of(&bench, "os.img", &fat);
        let info = json(folder, "info", &["info", "os.img"]);
        let found = ["version", "board", "board_name"].map(|key| info[key].as_str());
        assert_eq!(found, [Some("6.1.2"), Some("board-64"), Some("A Board (64 bits)")], "{args:?}");
    }
}

#[test]
fn what_is_unknown_is_no_error() {
    needs!(tools);
    let bench = Bench::new();
    let folder = bench.dir.path();
    let unknown = |file: &str| {
        let info = json(folder, "info", &["info", file]);
        assert!(info["version"].is_null() && info["board"].is_null(), "{info}");
        info
    };
    // No system, a file that is too long, one that is not what its name says.
    let fat = bench.fat("boot", 4 * MIB, &["-n", "flash-boot"]);
    disk_of(&bench, "os.img", &fat);
    assert_eq!(unknown("os.img")["is_flasher"], true);
    add(&bench, &fat, "os-release", &"#\n".repeat(40_000));
    add(&bench, &fat, "device-type.json", "{\"slug\": 7");
    disk_of(&bench, "os.img", &fat);
    unknown("os.img");
    // A damaged table, and none.
    put(&bench.at("os.img"), 512, &[0; 64]);
    assert_eq!(unknown("os.img")["table"], Value::Null);
    bench.write("text", b"no image at all\n");
    let none = printed(&["sh", "-c", &quietly(folder, "info text")]);
    assert!(none.contains("\ntable      none: "), "{none}");
}

/// As a small file that would be decoded for minutes.
#[test]
fn an_image_that_goes_on_after_its_table_is_not_read_to_its_end() {
    needs!(tools);
    let bench = Bench::new();
    let folder = bench.dir.path();
    bench.disk("os.img");
    for (name, pack) in [("os.img.zst", "zstd -q1"), ("os.img.gz", "gzip -1"), ("os.img.bz2", "bzip2 -1")] {
        let script = format!("cd {} && (cat os.img; head -c 400M /dev/zero) | {pack} >{name}", text(folder));
        run("sh", &["-ec", &script], None);
        let info = json(folder, "info", &["info", name]);
        assert_eq!(
            (&info["goes_on"], &info["sha256"], &info["chunk_digest"]),
            (&true.into(), &Value::Null, &Value::Null)
        );
        assert_eq!(info["table"]["partitions"][0]["label"], "resin-boot");
        let read = info["size"].as_u64().unwrap();
        assert!((88 * MIB..=90 * MIB).contains(&read), "{read}");
        let said = printed(&["sh", "-c", &quietly(folder, &format!("info {name}"))]);
        assert!(said.contains("goes on after the end of its partition table"), "{said}");
    }
    // Padding is usual.
    run("sh", &["-ec", "cd $0 && truncate -s +60M os.img && zstd -qf1 os.img", text(folder)], None);
    let info = json(folder, "info", &["info", "os.img.zst"]);
    assert_eq!((&info["goes_on"], info["size"].as_u64()), (&false.into(), Some(84 * MIB)));
    assert!(info["sha256"].is_string());
}

/// Of less than a GiB.
fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (unit, exponent) = if bytes < MIB { ("KiB", 10) } else { ("MiB", 20) };
    let tenths = (bytes * 10) >> exponent;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Lines of labels and texts.
fn labelled(rows: &[(&str, &str)]) -> String {
    rows.iter().map(|(label, text)| format!("{label:<11}{text}\n")).collect()
}

#[test]
fn an_image_is_described_as_wide_as_the_terminal() {
    needs!(tools);
    let bench = Bench::new();
    let folder = bench.dir.path();
    let disk = bench.disk("os.img");
    let boot = bench.at("part.fat");
    add(&bench, &boot, "os-release", RELEASE);
    add(&bench, &boot, "device-type.json", DEVICE_TYPE);
    put(&disk, MIB, &fs::read(&boot).unwrap());
    run(
        "sh",
        &[
            "-c",
            &format!(
                "cd {} && zstd -q1 os.img && sha256sum os.img.zst >os.img.zst.sha256 && bmaptool -q create -o os.img.bmap os.img && printf x >os.img.sig",
                text(folder)
            ),
        ],
        None,
    );
    let stored = fs::metadata(bench.at("os.img.zst")).unwrap().len();
    let chunks = json(folder, "digest", &["digest", "os.img"])["chunks"].as_str().unwrap().to_owned();
    let sha256 = run("sha256sum", &[text(&disk)], None)[..64].to_owned();
    let info = json(folder, "info", &["info", "os.img.zst"]);
    assert_eq!(
        (&info["kind"], &info["size"], &info["stored_size"]),
        (&"image".into(), &(24 * MIB).into(), &stored.into())
    );
    let mapped = info["block_map"]["mapped"].as_u64().unwrap();
    assert!((3 * MIB..24 * MIB).contains(&mapped), "{mapped}");
    let compressed = format!("os.img.zst, compressed with zstd to {}", size(stored));
    let map = format!("os.img.bmap, version 2.0: {} of 24.0 MiB hold data; the image", size(mapped));
    let common = |image: &str, map: &str, checksum: &str| {
        labelled(&[
            ("image", image),
            ("size", "24.0 MiB, 25165824 bytes"),
            ("version", "6.1.2"),
            ("board", "board-64 (A Board (64 bits))"),
            ("table", "GPT, sectors of 512 bytes"),
            ("", "  1  resin-boot            4.0 MiB FAT"),
            ("", "  2  resin-rootA           4.0 MiB ext"),
            ("", "  3  -                     8.0 MiB unknown"),
            ("digest", &chunks),
            ("SHA-256", &sha256),
            ("block map", map),
            ("", "agrees"),
            ("checksum", checksum),
            ("signature", "os.img.sig: not checked without --verify-signature"),
        ])
    };
    let command = quietly(folder, "info os.img.zst");
    let argv = ["sh", "-c", &command];
    assert_eq!(printed(&argv), common(&compressed, &map, "os.img.zst.sha256: right"));
    let plain = printed(&["sh", "-c", &quietly(folder, "info os.img")]);
    assert_eq!(plain, common("os.img, not compressed", &map, "none"));
    for columns in WIDTHS {
        let text = shown(columns, &[], &argv);
        assert_fits(&text, columns);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(&printed(&argv)), "{columns}");
    }
    let narrow = shown(20, &[], &argv);
    assert!(narrow.contains("\nboard\n  board-64 (A Board\n  (64 bits))\ntable\n  GPT, sectors of\n  512 bytes\n  1 resin-boot 4.0\n"), "{narrow}");

    // What contradicts the image is an error, as in a flash.
    run(
        "sh",
        &[
            "-c",
            &format!(
                "cd {} && cp os.img.zst.sha256 os.img.sha256 && sed -i s/.zst// os.img.sha256",
                text(folder)
            ),
        ],
        None,
    );
    refused(folder, &["info", "os.img"], 3, "image-digest-mismatch");
    put(&disk, 12 * MIB, b"other");
    fs::remove_file(bench.at("os.img.sha256")).unwrap();
    refused(folder, &["info", "os.img"], 3, "bmap-mismatch");
    let whole = fs::read(bench.at("os.img.zst")).unwrap();
    bench.write("cut.img.zst", &whole[..whole.len() / 2]);
    refused(folder, &["info", "cut.img.zst"], 3, "image-damaged");
    refused(folder, &["info", "nothing.img"], 3, "image-missing");
}

#[test]
fn an_archive_is_described_as_wide_as_the_terminal() {
    let bench = Bench::new();
    let folder = bench.dir.path();
    let release = |version: &str| format!("VERSION=\"{version}\"\nMACHINE=\"board-64\"\n").into_bytes();
    let mut with_link = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    with_link.append_link(&mut header, "etc/os-release", "../usr/lib/os-release").unwrap();
    let link = with_link.into_inner().unwrap();
    let program = elf(62);
    let (old, new) = (release("5.0.0"), release("6.1.2"));
    let base = tar_of(&[
        ("bin/sh", 0o755, &program),
        ("etc/os-release", 0o644, &old),
        ("usr/lib/os-release", 0o644, &old),
    ]);
    let image = Made::new(vec![base.clone(), link, tar_of(&[("usr/lib/os-release", 0o644, &new)])]);
    image.save(&bench.at("update.tar"), &["balena/os:6.1.2"]);
    run("gzip", &["-k", text(&bench.at("update.tar"))], None);
    let bytes = fs::metadata(bench.at("update.tar")).unwrap().len();
    let stored = fs::metadata(bench.at("update.tar.gz")).unwrap().len();
    let (named, sized) = (
        format!("update.tar.gz, compressed with gzip to {}", size(stored)),
        format!("{}, {bytes} bytes", size(bytes)),
    );
    let rows = [
        ("archive", named.as_str()),
        ("size", &sized),
        ("layers", "3, 17.2 KiB unpacked"),
        ("version", "6.1.2"),
        ("board", "board-64"),
        ("processor", "x86, 64 bits"),
        ("image", &image.id()["sha256:".len()..]),
        ("", "named balena/os:6.1.2"),
        ("format", "docker save: every engine loads it"),
    ];
    let command = quietly(folder, "info update.tar.gz");
    let argv = ["sh", "-c", &command];
    assert_eq!(printed(&argv), labelled(&rows));
    for columns in WIDTHS {
        assert_fits(&shown(columns, &[], &argv), columns);
    }
    // Without the file in the upper layer; without any; in the other layout.
    let described = |made: &Made, oci: bool| {
        let bytes = if oci { pack(&made.oci(false, &[])) } else { made.archive(&[]) };
        bench.write("other.tar", &bytes);
        json(folder, "info", &["info", "other.tar"])
    };
    let lower = described(&Made::new(vec![base.clone()]), true);
    assert_eq!((&lower["version"], &lower["layout"]), (&"5.0.0".into(), &"oci".into()));
    let removed = tar_of(&[("etc/.wh.os-release", 0o644, b""), ("usr/.wh.lib", 0o644, b"")]);
    assert_eq!(described(&Made::new(vec![base, removed]), false)["version"], Value::Null);
    // A delta: what it makes, and of what.
    let target = r#"{"rootfs":{"type":"layers","diff_ids":[]}}"#;
    let delta = described(&Made::delta(&image.id(), target), false)["delta"].take();
    let expected = [&image.id()["sha256:".len()..], &digest(target.as_bytes())];
    assert_eq!([&delta["base"], &delta["target"]], expected);
    refused(folder, &["info", "update.tar", "--verify-signature", "x"], 2, "usage");
    bench.write("cut.tar", &fs::read(bench.at("update.tar")).unwrap()[..3000]);
    refused(folder, &["info", "cut.tar"], 3, "image-archive-invalid");
}

#[test]
fn a_digest_is_for_people_or_for_sha256sum() {
    needs!(tools);
    let bench = Bench::new();
    let folder = bench.dir.path();
    bench.write("os.img", &super::support::noise(3 * MIB + 5, 1));
    run("xz", &["-k0", text(&bench.at("os.img"))], None);
    let digest = json(folder, "digest", &["digest", "os.img"]);
    assert_eq!(digest["sha256"], Value::Null);
    let chunks = digest["chunks"].as_str().unwrap();
    let rows = [("image", "os.img.xz"), ("size", "3.0 MiB, 3145733 bytes"), ("digest", chunks)];
    let command = quietly(folder, "digest os.img.xz");
    let argv = ["sh", "-c", &command];
    assert_eq!(printed(&argv), labelled(&rows));
    assert_eq!(
        shown(20, &[], &argv),
        format!("image\n  os.img.xz\nsize\n  3.0 MiB, 3145733\n  bytes\ndigest\n  {chunks}\n")
    );
    for name in ["os.img", "a b\\c.img", "line\nbreak.img", "return\r.img", "./os.img"] {
        if !bench.at(name).exists() {
            fs::copy(bench.at("os.img"), bench.at(name)).unwrap();
        }
        let expected = Command::new("sha256sum").arg(name).current_dir(folder).output().unwrap();
        let found = copal(folder, &["digest", "--sha256", name]);
        assert_eq!(String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&expected.stdout));
    }
    // Of what is in it.
    let plain = String::from_utf8(copal(folder, &["digest", "--sha256", "os.img"]).stdout).unwrap();
    let packed = String::from_utf8(copal(folder, &["digest", "--sha256", "os.img.xz"]).stdout).unwrap();
    assert_eq!(packed, plain.replace("os.img", "os.img.xz"));
    assert_eq!(json(folder, "digest", &["digest", "--sha256", "os.img"])["sha256"], plain[..64]);
}

#[test]
fn the_keys_are_those_of_the_page() {
    needs!(tools);
    let bench = Bench::new();
    let folder = bench.dir.path();
    bench.disk("os.img");
    Made::new(vec![tar_of(&[("a", 0o644, b"")])]).save(&bench.at("update.tar"), &[]);
    let text = include_str!("../../docs/info.md").split_once("## Keys").unwrap().1;
    // Of both kinds, of an image, of an archive.
    let tables: Vec<Vec<&str>> = text
        .split("| key | type | meaning |")
        .skip(1)
        .map(|table| table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |")))
        .map(|rows| rows.flat_map(|(cell, _)| cell.trim_end_matches('`').split("`, `")).collect())
        .collect();
    for (file, own) in [("os.img", 1), ("update.tar", 2)] {
        let info = json(folder, "info", &["info", file]);
        let found: BTreeSet<&str> = info.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, tables[0].iter().chain(&tables[own]).copied().collect(), "{file}");
    }
}
