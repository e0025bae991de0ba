//! Compressed and raw images: what comes out, and that nothing but an error comes out of damaged ones.
#![allow(clippy::cast_possible_truncation)]

use std::fs;

use super::support::{Bench, MIB, content, noise, put, refused};
use crate::kit::needs::{needs, tools};
use crate::kit::prove;
use copal::error::Code;
use copal::image::chunks::Piece;
use copal::image::digest::Digest256;
use copal::image::{Format, Image, digest_file};
use copal::progress::Silent;

/// Name, format, command.
const PACKERS: &[(&str, Format, &str)] = &[
    ("a.gz", Format::Gzip, "gzip -6"),
    ("b.gz", Format::Gzip, "sh -c 'head -c 1500000 | gzip; gzip' "),
    ("c.gz", Format::Gzip, "sh -c 'gzip; head -c 1000 /dev/zero'"),
    ("a.xz", Format::Xz, "xz -T1 -3"),
    ("b.xz", Format::Xz, "xz -T2 --block-size=300000 --check=sha256"),
    (
        "c.xz",
        Format::Xz,
        "sh -c 'head -c 1500000 | xz --check=crc32; head -c 8 /dev/zero; xz --check=none; head -c 4 /dev/zero'",
    ),
    ("d.xz", Format::Xz, "xz --x86 --lzma2=preset=3"),
    ("e.xz", Format::Xz, "xz --arm64 --lzma2=preset=3"),
    ("f.xz", Format::Xz, "xz --delta=dist=4 --arm --lzma2=dict=64MiB"),
    ("a.bz2", Format::Bzip2, "bzip2 -9"),
    ("b.bz2", Format::Bzip2, "sh -c 'head -c 1500000 | bzip2 -1; bzip2 -3'"),
    (
        "c.bz2",
        Format::Bzip2,
        "sh -c 'printf \"\" | bzip2; head -c 1500000 | bzip2 -1; bzip2 -3; printf \"\" | bzip2'",
    ),
    ("a.zst", Format::Zstd, "zstd -3"),
    ("b.zst", Format::Zstd, "zstd -19 --long=26 --no-check"),
    (
        "c.zst",
        Format::Zstd,
        "sh -c \"printf '\\\\120\\\\052\\\\115\\\\030\\\\003\\\\000\\\\000\\\\000abc'; head -c 1500000 | zstd -1; printf '' | zstd; zstd -5; printf '\\\\137\\\\052\\\\115\\\\030\\\\000\\\\000\\\\000\\\\000'\"",
    ),
];

fn payload() -> Vec<u8> {
    let mut data = noise(2 * MIB, 1);
    data.extend(vec![0; 2 * MIB as usize]);
    data.extend(fs::read("/bin/sh").unwrap());
    data.extend(noise(70_001, 2));
    data
}

#[test]
fn every_packer_gives_the_same_bytes() {
    needs!(tools);
    let bench = Bench::new();
    let data = payload();
    let raw = bench.write("raw", &data);
    let plain = digest_file(&raw, false, &Silent).unwrap();
    assert_eq!(plain.size, data.len() as u64);
    let chunks: Vec<_> = data.chunks(MIB as usize).map(Digest256::of).collect();
    assert_eq!(plain.chunks, copal::image::digest::root(&chunks));
    for (name, format, command) in PACKERS {
        let path = bench.pack(&raw, name, command);
        let image = Image::open(&path).unwrap();
        assert_eq!(image.format, *format, "{name}");
        assert!(content(&image).unwrap() == data, "{name}");
        assert_eq!(digest_file(&path, false, &Silent).unwrap(), plain, "{name}");
    }
}

#[test]
fn bzip2_of_any_content() {
    needs!(tools);
    let bench = Bench::new();
    // Runs of every length up to more than a run may have; bytes that do not repeat; and what ends within a run.
    let runs: Vec<u8> = (1..300usize).flat_map(|n| vec![n as u8; n]).collect();
    let all: Vec<u8> = (0..=255).collect();
    for (i, data) in [
        vec![],
        vec![1],
        all,
        runs,
        vec![0; 3_000_000],
        b"abab".repeat(500_000),
        noise(1_000_001, 9),
        vec![5; 4],
        vec![5; 259],
    ]
    .into_iter()
    .enumerate()
    {
        let raw = bench.write("raw", &data);
        for level in ["-1", "-9"] {
            let path = bench.pack(&raw, "packed.bz2", &format!("bzip2 {level}"));
            assert!(content(&Image::open(&path).unwrap()).unwrap() == data, "{i} {level}");
        }
    }
}

#[test]
fn wrong_checksums_of_bzip2_are_refused() {
    needs!(tools);
    let bench = Bench::new();
    let raw = bench.write("raw", &noise(10_000, 3));
    let good = fs::read(bench.pack(&raw, "a.bz2", "bzip2")).unwrap();
    // The block's checksum. After it, the bit for randomised data (bzip2 before 0.9.5): the data would have another checksum.
    // The stream's checksum ends within the last byte.
    for (at, bit) in [(10, 1), (13, 1), (14, 0x80), (good.len() - 2, 1)] {
        let mut bad = good.clone();
        bad[at] ^= bit;
        let path = bench.write("bad.bz2", &bad);
        refused(content(&Image::open(&path).unwrap()), Code::ImageDamaged, &path, &["near byte"]);
    }
}

#[test]
fn truncated_at_any_point_is_damaged() {
    needs!(tools);
    let bench = Bench::new();
    let raw = bench.write("raw", &noise(400_000, 3));
    for (name, _, command) in PACKERS {
        let full = fs::read(bench.pack(&raw, name, command)).unwrap();
        let mut rng = fastrand::Rng::with_seed(5);
        let mut lengths: Vec<usize> = (0..40).map(|_| rng.usize(6..full.len())).collect();
        lengths.extend(full.len().saturating_sub(12)..full.len());
        for len in lengths {
            let path = bench.write("cut", &full[..len]);
            // What may be missing without harm: padding, and whole frames or members at the end.
            match content(&Image::open(&path).unwrap()) {
                Ok(found) => assert!(
                    name.starts_with('c') || name.starts_with('b') && found.is_empty(),
                    "{name} cut to {len} of {} accepted",
                    full.len()
                ),
                Err(e) => {
                    assert_eq!(e.code(), Code::ImageDamaged, "{name} {len}: {e}");
                    assert!(e.message().contains("near byte"), "{e}");
                }
            }
        }
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    needs!(tools);
    let bench = Bench::new();
    let raw = bench.write("raw", &noise(300_000, 3));
    for (name, _, command) in PACKERS {
        for tail in [&b"rubbish behind the end"[..], b"x", b"\x1f\x8b", b"\0\0\0\0x"] {
            let mut bytes = fs::read(bench.pack(&raw, name, command)).unwrap();
            bytes.extend_from_slice(tail);
            let path = bench.write(name, &bytes);
            refused(content(&Image::open(&path).unwrap()), Code::ImageDamaged, &path, &["near byte"]);
        }
    }
}

#[test]
fn large_windows_are_refused_before_they_are_allocated() {
    needs!(tools);
    let bench = Bench::new();
    // The header has the requested window only if the data can use it, or if the size of the data is unknown.
    let raw = bench.write("raw", &noise(100_000, 3));
    for (name, command, fits) in [
        ("a.zst", "cat | zstd --long=27 -", false),
        ("b.zst", "cat | zstd --long=31 --ultra -22 -", false),
        ("c.zst", "cat | zstd --long=26 -", true),
        ("a.xz", "xz --lzma2=dict=128MiB", false),
        ("b.xz", "xz --lzma2=dict=1536MiB", false),
        ("c.xz", "xz -9", true),
        ("d.xz", "xz --lzma2=dict=65MiB", false),
    ] {
        let command = format!("sh -c '{command}'");
        let path = bench.pack(&raw, name, &command);
        let got = content(&Image::open(&path).unwrap());
        if fits {
            assert_eq!(got.unwrap().len(), 100_000, "{name}");
        } else {
            refused(got, Code::WindowTooLarge, &path, &["64 MiB"]);
        }
    }
}

#[test]
fn zstd_dictionary_is_not_supported() {
    needs!(tools);
    let bench = Bench::new();
    for i in 0..200 {
        bench.write(&format!("s{i}"), format!("sample {i} of some text {}", i * 7919).repeat(9).as_bytes());
    }
    let dir = super::support::text(bench.dir.path()).to_owned();
    super::support::run(
        "sh",
        &["-c", &format!("cd {dir} && zstd -q --train s* -o dict --maxdict=4096")],
        None,
    );
    let raw = bench.write("raw", &noise(1000, 1));
    let path = bench.pack(&raw, "d.zst", &format!("zstd -D {dir}/dict"));
    refused(content(&Image::open(&path).unwrap()), Code::UnsupportedCompression, &path, &["dictionary"]);
}

#[test]
fn zstd_checksum_and_size_are_compared() {
    needs!(tools);
    let bench = Bench::new();
    let raw = bench.write("raw", &noise(100_000, 3));
    let good = fs::read(bench.pack(&raw, "a.zst", "zstd")).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    let path = bench.write("b.zst", &bad);
    refused(content(&Image::open(&path).unwrap()), Code::ImageDamaged, &path, &["checksum"]);
    let sized = bench.at("sized.zst");
    super::support::run(
        "zstd",
        &["-q", "--no-check", super::support::text(&raw), "-o", super::support::text(&sized)],
        None,
    );
    let mut bad = fs::read(&sized).unwrap();
    // Descriptor: single segment, four bytes of size behind it.
    assert_eq!(bad[4], 0xa0);
    bad[5] ^= 1;
    let path = bench.write("c.zst", &bad);
    refused(content(&Image::open(&path).unwrap()), Code::ImageDamaged, &path, &["size"]);
}

#[test]
fn mutated_files_give_the_same_bytes_or_an_error() {
    needs!(tools);
    let bench = Bench::new();
    let mut data = noise(40_000, 4);
    data.extend(fs::read("/bin/sh").unwrap().into_iter().take(60_000));
    data.extend(vec![0; 50_000]);
    let raw = bench.write("raw", &data);
    for (name, _, command) in PACKERS {
        let good = fs::read(bench.pack(&raw, name, command)).unwrap();
        let rounds = prove::draws("inputs", "mutated_files_give_the_same_bytes_or_an_error", 400, 15);
        for (round, mut rng) in rounds.into_iter().enumerate() {
            let bad = mutate(&good, &mut rng);
            let path = bench.write("mutated", &bad);
            let Ok(image) = Image::open(&path) else { continue };
            if image.format == Format::Raw {
                continue;
            }
            match content(&image) {
                // Without a checksum, other bytes cannot be told; fields that mean nothing (names, times, padding) may change.
                Ok(found) if !command.contains("no-check") && !command.contains("check=none") => {
                    assert!(data.starts_with(&found), "{name} round {round}: other bytes passed");
                }
                Ok(_) => {}
                Err(e) => assert!(
                    matches!(
                        e.code(),
                        Code::ImageDamaged | Code::WindowTooLarge | Code::UnsupportedCompression
                    ),
                    "{e}"
                ),
            }
        }
    }
}

fn mutate(good: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut bad = good.to_vec();
    for _ in 0..rng.usize(1..4) {
        // Headers are where decoders stumble.
        let reach = if rng.bool() { bad.len().min(64) } else { bad.len() };
        let at = rng.usize(..reach);
        match rng.u8(..6) {
            0 => bad[at] ^= 1 << rng.u8(..8),
            1 => bad[at] = rng.u8(..),
            2 => bad[at] = *rng.choice(&[0, 0xff, 0x7f, 0x80]).unwrap(),
            3 => drop(bad.splice(at..at, std::iter::repeat_with(|| 0).take(3))),
            4 => drop(bad.drain(at..(at + 5).min(bad.len()))),
            _ => {
                let from = rng.usize(..bad.len());
                let piece: Vec<u8> = bad[from..(from + 16).min(bad.len())].to_vec();
                let end = (at + piece.len()).min(bad.len());
                bad.splice(at..end, piece);
            }
        }
        if bad.is_empty() {
            bad.push(0);
        }
    }
    bad
}

#[test]
fn holes_of_raw_images_are_not_read() {
    let bench = Bench::new();
    let path = bench.sparse("raw", 20 * MIB + 100);
    put(&path, 3 * MIB + 5000, &noise(10_000, 1));
    put(&path, 9 * MIB - 10, &noise(20, 2));
    let image = Image::open(&path).unwrap();
    let mut source = image.source().unwrap();
    let mut buffer = vec![0; MIB as usize];
    let mut pieces = Vec::new();
    loop {
        match source.next(&mut buffer).unwrap() {
            Piece::End => break,
            piece => pieces.push(piece),
        }
    }
    let data = Piece::Data(MIB as usize);
    assert_eq!(
        pieces,
        [Piece::Zero(3 * MIB), data, Piece::Zero(4 * MIB), data, data, Piece::Zero(10 * MIB + 100)]
    );
    assert!(content(&image).unwrap() == fs::read(&path).unwrap());
    assert_eq!(digest_file(&path, false, &Silent).unwrap().size, 20 * MIB + 100);
    // Data up to the end, and nothing but a hole.
    put(&path, 20 * MIB + 99, b"x");
    assert!(content(&Image::open(&path).unwrap()).unwrap() == fs::read(&path).unwrap());
    let hole = bench.sparse("hole", 5 * MIB + 1);
    let zeroes = bench.write("zeroes", &vec![0; 5 * MIB as usize + 1]);
    assert_eq!(digest_file(&hole, false, &Silent).unwrap(), digest_file(&zeroes, false, &Silent).unwrap());
}

#[test]
fn an_image_that_changes_its_size_is_noticed() {
    let bench = Bench::new();
    let path = bench.write("raw", &noise(3 * MIB, 1));
    let image = Image::open(&path).unwrap();
    let mut source = image.source().unwrap();
    let mut buffer = vec![0; MIB as usize];
    assert_eq!(source.next(&mut buffer).unwrap(), Piece::Data(MIB as usize));
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB + 5).unwrap();
    refused(source.next(&mut buffer), Code::ImageChanged, &path, &[]);
    refused(image.source().map(|_| ()), Code::ImageChanged, &path, &[]);
}
