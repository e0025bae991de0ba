//! Block maps of bmaptool, of copal, and maps that do not fit.
#![allow(clippy::cast_possible_truncation)]

use std::fs;
use std::path::Path;

use super::support::{Bench, MIB, look, put, refused, run, text};
use crate::kit::needs::{needs, tools};
use copal::error::Code;
use copal::image::bmap::{Bmap, Checksum, MAX_BYTES, Range};
use proptest::prelude::*;

fn create(image: &Path, map: &Path) {
    run("bmaptool", &["-q", "create", text(image), "-o", text(map)], None);
}

#[test]
fn maps_of_bmaptool_fit_and_are_found_under_each_name() {
    needs!(tools);
    let bench = Bench::new();
    let image = bench.disk("disk.img");
    for name in ["disk.img.bmap", "disk.bmap"] {
        let map = bench.at(name);
        create(&image, &map);
        let parsed = Bmap::parse(&fs::read(&map).unwrap()).unwrap();
        assert_eq!((parsed.version, parsed.image_size, parsed.block_size), ((2, 0), 24 * MIB, 4096));
        assert_eq!(parsed.checksum, Some(Checksum::Sha256));
        assert!(parsed.ranges.iter().all(|r| r.checksum.is_some()) && parsed.mapped() < parsed.blocks());
        assert_eq!(Bmap::parse(parsed.print().as_bytes()).unwrap(), parsed);
        assert!(look(&image).unwrap().digests.is_some());
        for packed in
            [bench.pack(&image, "disk.img.gz", "gzip -1"), bench.pack(&image, "disk.img.zst", "zstd")]
        {
            look(&packed).unwrap();
        }
        // That the map was used at all.
        let mut other = parsed.clone();
        other.ranges[0].checksum = Some("0".repeat(64));
        bench.write(name, other.print().as_bytes());
        refused(look(&image), Code::BmapMismatch, &image, &[text(&map), "blocks 0"]);
        fs::remove_file(&map).unwrap();
    }
    let packed = bench.pack(&image, "disk.img.xz", "xz -0");
    bench.write("disk.img.xz.bmap", b"none");
    refused(look(&packed), Code::BmapInvalid, &bench.at("disk.img.xz.bmap"), &["XML"]);
}

#[test]
fn maps_of_other_versions_fit() {
    needs!(tools);
    let bench = Bench::new();
    let image = bench.disk("disk.img");
    let map = bench.at("disk.img.bmap");
    create(&image, &map);
    let good = Bmap::parse(&fs::read(&map).unwrap()).unwrap();
    let bytes = fs::read(&image).unwrap();
    for (version, checksum) in [
        ((1, 2), None),
        ((1, 3), Some(Checksum::Sha1)),
        ((1, 4), Some(Checksum::Sha1)),
        ((1, 4), Some(Checksum::Sha256)),
        ((2, 0), Some(Checksum::Sha1)),
        ((2, 7), Some(Checksum::Sha256)),
    ] {
        let mut other = Bmap { version, checksum, ..good.clone() };
        for range in &mut other.ranges {
            let part = &bytes[range.first as usize * 4096..(range.last as usize + 1) * 4096];
            range.checksum = checksum.map(|kind| {
                let mut hasher = kind.hasher();
                hasher.update(part);
                hasher.hex()
            });
        }
        bench.write("disk.img.bmap", other.print().as_bytes());
        look(&image).unwrap();
        // bmaptool itself takes it.
        run("bmaptool", &["-q", "copy", "--bmap", text(&map), text(&image), text(&bench.at("copy"))], None);
    }
}

#[test]
fn maps_of_other_images_are_refused() {
    needs!(tools);
    let bench = Bench::new();
    let image = bench.disk("disk.img");
    let map = bench.at("disk.img.bmap");
    create(&image, &map);
    let good = Bmap::parse(&fs::read(&map).unwrap()).unwrap();
    let packed = bench.pack(&image, "disk.img.gz", "gzip -1");
    let both = |words: &[&str]| {
        for file in [&image, &packed] {
            refused(look(file), Code::BmapMismatch, file, words);
        }
    };
    // A gap over data.
    let first = 12 * MIB / 4096;
    let mut other = good.clone();
    for range in &mut other.ranges {
        if range.first <= first && first < range.last {
            range.last = first;
            range.checksum = None;
        }
    }
    bench.write("disk.img.bmap", other.print().as_bytes());
    both(&["data at byte 12587", "leaves out"]);
    // Larger, smaller.
    for delta in [MIB, 0u64.wrapping_sub(MIB)] {
        let mut other = Bmap { checksum: None, version: (1, 0), ..good.clone() };
        other.image_size = other.image_size.wrapping_add(delta);
        let blocks = other.blocks();
        other.ranges = vec![Range { first: 0, last: blocks - 1, checksum: None }];
        bench.write("disk.img.bmap", other.print().as_bytes());
        both(&[]);
    }
    // Other content.
    bench.write("disk.img.bmap", good.print().as_bytes());
    put(&image, 13 * MIB, b"!");
    refused(look(&image), Code::BmapMismatch, &image, &["another checksum"]);
    look(&packed).unwrap();
}

#[test]
fn malformed_maps_are_refused() {
    let range = |first, last| Range { first, last, checksum: None };
    let good = Bmap {
        version: (2, 0),
        image_size: 100_000,
        block_size: 4096,
        checksum: Some(Checksum::Sha256),
        ranges: vec![range(0, 3), range(7, 7)],
    };
    let text = good.print();
    assert_eq!(Bmap::parse(text.as_bytes()), Ok(good.clone()));
    let plain = Bmap { version: (1, 2), checksum: None, ..good.clone() }.print();
    let deep = format!("{}{}", "<a>".repeat(90_000), "</a>".repeat(90_000));
    let with = |ranges: Vec<Range>| Bmap { ranges, checksum: None, version: (1, 0), ..good.clone() }.print();
    for (bad, words) in [
        (text.replace("2.0", "3.0"), "3.0"),
        (text.replace("2.0", "two"), "two"),
        (text.replace("0-3", "0-4"), "own checksum"),
        (text.replace("> sha256", "> sha512"), "sha512"),
        (text.replace("<BmapFileChecksum>", "<BmapFileChecksum>0"), "not a checksum"),
        (text.replace("BmapFileChecksum", "Other"), "BmapFileChecksum"),
        (plain.replace("100000", "many"), "many"),
        (plain.replace("100000", "+100000"), "+100000"),
        (plain.replace("100000", "200000"), "counts 25 blocks"),
        (plain.replace("100000", "0"), "cannot be"),
        (plain.replace("4096", "0"), "cannot be"),
        (plain.replace("> 5 <", "> 6 <"), "counts 6 mapped"),
        (plain.replace("0-3", "3-0"), "3-0"),
        (plain.replace("0-3", "0-99999999999999999999"), "not a range"),
        (plain.replace("0-3", "0-18446744073709551615"), "out of order"),
        (plain.replace("0-3", ""), "not a range"),
        (plain.replace("<BlockMap>", "<Block>").replace("</BlockMap>", "</Block>"), "BlockMap"),
        (plain.replace("bmap", "html"), "html"),
        (with(vec![range(3, 5), range(5, 6)]), "out of order"),
        (with(vec![range(30, 31)]), "out of order"),
        (String::new(), "XML"),
        ("<!DOCTYPE x [<!ENTITY a \"b\">]><bmap/>".into(), "XML"),
        (deep, ""),
    ] {
        let e = Bmap::parse(bad.as_bytes()).unwrap_err();
        assert!(e.contains(words), "`{words}` is not in `{e}`");
    }
    assert!(Bmap::parse(b"\xff").unwrap_err().contains("not text"));
    // However long the words are that are wrong.
    for bad in [plain.replace("0-3", &"9".repeat(100_000)), plain.replace("bmap", &"b".repeat(100_000))] {
        let e = Bmap::parse(bad.as_bytes()).unwrap_err();
        assert!(e.len() < 400, "{} bytes", e.len());
    }
}

/// As many ranges as a map of the largest size has, each of one block, with a gap before the next.
fn map_of(ranges: u64, version: (u32, u32), checksum: Option<Checksum>) -> Bmap {
    let sum = checksum.map(|_| "a".repeat(64));
    let ranges = (0..ranges).map(|n| Range {
        first: 1_000_000 + 2 * n,
        last: 1_000_000 + 2 * n,
        checksum: sum.clone(),
    });
    Bmap { version, image_size: 1 << 40, block_size: 4096, checksum, ranges: ranges.collect() }
}

#[test]
fn maps_of_up_to_1_mib_are_read() {
    for (ranges, version, checksum) in [(9_300, (2, 0), Some(Checksum::Sha256)), (29_000, (1, 2), None)] {
        let map = map_of(ranges, version, checksum);
        let text = map.print();
        assert!(text.len() > MAX_BYTES * 9 / 10 && text.len() <= MAX_BYTES, "{}", text.len());
        assert_eq!(Bmap::parse(text.as_bytes()), Ok(map));
    }
    let map = map_of(1, (1, 2), None);
    let text = map.print();
    let padded = |size: usize| format!("{text}{}", " ".repeat(size - text.len()));
    assert_eq!(Bmap::parse(padded(MAX_BYTES).as_bytes()), Ok(map.clone()));
    assert!(Bmap::parse(padded(MAX_BYTES + 1).as_bytes()).unwrap_err().contains("more than 1048576 bytes"));
}

/// What an XML reader takes long for, or much memory: seconds to hours, and gigabytes.
#[test]
fn what_costs_too_much_to_read_is_refused() {
    let attributes = |n: usize| (0..n).map(|n| format!(" a{n}=''")).collect::<String>();
    let nested: String = (0..20_000).map(|n| format!("<a xmlns:p{n}='u{n}'>")).collect();
    for (map, words) in [
        (format!("<bmap><Range{}/></bmap>", attributes(60_000)), "100 attributes in one element"),
        (format!("<bmap>{}</bmap>", format!("<Range{}/>", attributes(100)).repeat(201)), "20000 in all"),
        (format!("<bmap>{nested}{}</bmap>", "</a>".repeat(20_000)), "namespaces"),
        (format!("<bmap>{}</bmap>", "<a/>".repeat(200_000)), "elements"),
        (format!("<bmap>{}{}</bmap>", "<a>".repeat(120_000), "</a>".repeat(120_000)), "elements"),
    ] {
        assert!(map.len() <= MAX_BYTES, "{words}: {}", map.len());
        let e = Bmap::parse(map.as_bytes()).unwrap_err();
        assert!(e.contains(words), "`{words}` is not in `{e}`");
    }
}

prop_compose! {
    fn maps()(
        sum in 0..6usize,
        block_size in prop::sample::select(vec![1u64, 512, 4096, 1 << 20]),
        cuts in prop::collection::btree_set(0u64..100_000, 0..40),
        tail in 0u64..100_000,
        with_sums in any::<bool>(),
    ) -> Bmap {
        let (version, checksum) = [
            ((1, 0), None),
            ((1, 2), None),
            ((1, 3), Some(Checksum::Sha1)),
            ((1, 4), Some(Checksum::Sha1)),
            ((2, 0), Some(Checksum::Sha256)),
            ((2, 1), Some(Checksum::Sha1)),
        ][sum];
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let sum_of = |first: u64| checksum.filter(|_| with_sums).map(|kind| {
            let mut hasher = kind.hasher();
            hasher.update(&first.to_le_bytes());
            hasher.hex()
        });
        let ranges: Vec<Range> = cuts.chunks(2).map(|pair| Range {
            first: pair[0],
            last: pair.last().copied().unwrap(),
            checksum: sum_of(pair[0]),
        }).collect();
        let blocks = ranges.last().map_or(0, |r| r.last) + 1 + tail;
        Bmap { version, image_size: blocks * block_size - tail % block_size, block_size, checksum, ranges }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn what_is_printed_is_read_again(map in maps()) {
        prop_assert_eq!(Bmap::parse(map.print().as_bytes()), Ok(map));
    }

    #[test]
    fn edited_maps_never_panic(map in maps(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = Bmap { checksum: None, version: (1, 0), ..map }.print().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(parsed) = Bmap::parse(&bytes) {
            prop_assert!(parsed.mapped() <= parsed.blocks());
        }
    }
}
