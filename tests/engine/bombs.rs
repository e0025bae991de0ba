//! Small archives that would be large in memory, or never end.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use copal::engine::archive;
use copal::error::Code;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::json;

use crate::archives::{filter, look};
use crate::calls::fails;
use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::image_archive::{Made, digest, elf, tar_of};
use crate::kit::needs::{needs, test_name, tools};
use crate::kit::process::HANG;
use crate::kit::stub_engine::{Script, Stub};
use crate::kit::{needs, old_kernel, prove};

/// Memory limit of the program, in KiB: 24 MiB for a release. Unoptimised builds (the dev profile and `quick`) are three times as large and take
/// up to 38 MiB.
fn most() -> u64 {
    const LARGEST_RELEASE: u64 = 8 << 20;
    let size = std::fs::metadata(old_kernel::program()).unwrap().len();
    if size > LARGEST_RELEASE { 48 << 10 } else { 24 << 10 }
}

/// Bytes of what is kept in memory by a reader without bounds.
const LONG: usize = 64 << 20;

/// A member as it is in a tar, whatever its content says.
fn member(kind: u8, name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// An archive of `docker save` with this as its one layer, whatever its digest is.
fn around(layer: &[u8]) -> Vec<u8> {
    let config = json!({ "rootfs": { "diff_ids": [format!("sha256:{}", "0".repeat(64))] } }).to_string();
    let manifest = json!([{ "Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l"] }]).to_string();
    let mut all = member(b'0', "c.json", config.as_bytes());
    all.extend(member(b'0', "l", layer));
    all.extend(member(b'0', "manifest.json", manifest.as_bytes()));
    all.resize(all.len() + 1024, 0);
    all
}

/// An index that names one other index again and again, `depth` times over.
fn indexes(times: usize, depth: usize) -> Vec<u8> {
    let entry = |kind: &str, digest: &str| json!({ "mediaType": kind, "digest": format!("sha256:{digest}") });
    let list = |entry: serde_json::Value| json!({ "manifests": vec![entry; times] }).to_string();
    let mut all = Vec::new();
    let mut below = list(entry("manifest", "00"));
    for _ in 0..depth {
        let name = digest(below.as_bytes());
        all.extend(member(b'0', &format!("blobs/sha256/{name}"), below.as_bytes()));
        below = list(entry("index", &name));
    }
    all.extend(member(b'0', "index.json", below.as_bytes()));
    all
}

/// zstd with a window of 8 MiB that is full: four documents, which are kept, and `block`, which is longer than a block may be.
fn long_block(block: &[u8]) -> Vec<u8> {
    let head = |last: u32, kind: u32, size: usize| {
        let size = u32::try_from(size).unwrap();
        (last | kind << 1 | size << 3).to_le_bytes()[..3].to_vec()
    };
    let raw = |bytes: &[u8]| [head(0, 0, bytes.len()), bytes.to_vec()].concat();
    let run = |byte: u8, times: usize| [head(0, 1, times), vec![byte]].concat();
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3];
    for i in 0..4 {
        // Of the content of a document only its size is in the header.
        let document = member(b'0', &format!("{i}.json"), &vec![0; 250 << 10]);
        frame.extend(
            [raw(&document[..512]), raw(b"{"), run(b' ', 125 << 10), run(b' ', (125 << 10) - 2), raw(b"}")]
                .concat(),
        );
    }
    let large = member(b'0', "x", &vec![0; 20 << 20]);
    frame.extend([raw(&large[..512]), run(b'a', 128 << 10).repeat(70)].concat());
    frame.extend([head(0, 2, block.len()), block.to_vec(), head(1, 0, 0)].concat());
    frame
}

/// Literals of a MiB: one byte and how often it comes.
const LONG_LITERALS: [u8; 5] = [0xfd, 0xff, 0xff, b'b', 0];

/// Literals of 128 KiB, and two sequences that each repeat 64 KiB, the second one two bytes more.
const LONG_SEQUENCES: [u8; 17] =
    [0x0d, 0, 0x20, b'b', 2, 0x54, 35, 0, 51, 0, 0, 0xff, 0x7f, 0, 0x80, 0xfe, 0x7f];

/// How many there are.
const BOMBS: usize = 37;

/// Those that are wanted, by their numbers, each with its name and what is said of it.
fn bombs(wanted: &BTreeSet<usize>) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let (mut bombs, mut number) = (Vec::new(), 0);
    let mut add = |name, make: &dyn Fn() -> Vec<u8>, words| {
        if wanted.contains(&number) {
            bombs.push((name, make(), words));
        }
        number += 1;
    };
    let long = vec![b'a'; LONG];
    let records = b"30 key=a value of some length\n".repeat(LONG / 30);
    let headers = [
        ("a name", b'L', &long),
        ("a name", b'K', &long),
        ("a PAX header", b'x', &long),
        ("a PAX header", b'g', &long),
    ];
    for (what, kind, content) in headers {
        let all = member(kind, "x", content);
        for program in ["xz", "gzip"] {
            add("in the archive", &|| filter(program, &all), what);
        }
        for (inside, platform) in [("gzip", "xz"), ("bzip2", "xz"), ("gzip", "zstd")] {
            add("in a layer", &|| filter(platform, &around(&filter(inside, &all))), what);
        }
    }
    add("PAX records", &|| filter("xz", &member(b'x', "x", &records)), "a PAX header");
    add("a long name in zstd", &|| filter("zstd", &member(b'L', "x", &long)), "a name");
    add("a long name in bzip2", &|| filter("bzip2", &member(b'L', "x", &long)), "a name");
    let named = |i: usize| {
        let name = format!("{i:08}{}", "/n".repeat(2000));
        [member(b'L', "x", name.as_bytes()), member(b'K', "x", name.as_bytes()), member(b'2', "x", b"")]
            .concat()
    };
    add("members", &|| filter("xz", &(0..4000).flat_map(named).collect::<Vec<_>>()), "names and JSON");
    let empty = |i: usize| member(b'0', &format!("{i}"), b"");
    add("empty members", &|| filter("xz", &(0..50_000).flat_map(empty).collect::<Vec<_>>()), "4096 members");
    let document = [&b"{"[..], &[b' '; 200 << 10], b"}"].concat();
    let documents = (0..200).flat_map(|i| member(b'0', &format!("{i}.json"), &document));
    add("documents", &|| filter("xz", &documents.clone().collect::<Vec<_>>()), "names and JSON");
    let save = |config: &str, manifest: &str| {
        filter(
            "xz",
            &[member(b'0', "c", config.as_bytes()), member(b'0', "manifest.json", manifest.as_bytes())]
                .concat(),
        )
    };
    let many = "\"\",".repeat(80_000) + "\"\"";
    let config = format!("{{\"rootfs\":{{\"diff_ids\":[{many}]}}}}");
    add("layers", &|| save(&config, &format!("[{{\"Config\":\"c\",\"Layers\":[{many}]}}]")), "more than 125");
    let entries = "{\"Config\":\"c\",\"Layers\":[\"\"]},".repeat(8000);
    add("images", &|| save("{}", &format!("[{}]", entries.trim_end_matches(','))), "several images");
    add("depth", &|| save("{}", &"[".repeat(200 << 10)), "manifest.json: ");
    add("a word", &|| save("{}", &format!("[{{\"Config\":\"{}\"}}]", "c".repeat(200 << 10))), "it names");
    let large = "{\"rootfs\":\"".to_owned() + &"c".repeat(600 << 10);
    add(
        "a large configuration",
        &|| save(&large, "[{\"Config\":\"c\"}]"),
        "not a JSON document of at most 256 KiB",
    );
    add("an index of many", &|| filter("xz", &indexes(1500, 1)), "several images");
    add("indexes of indexes", &|| filter("xz", &indexes(100, 10)), "several images");
    let nothing = json!({ "manifests": [] }).to_string();
    let of_nothing = json!({ "manifests": vec![json!({ "mediaType": "index", "digest": format!("sha256:{}", digest(nothing.as_bytes())) }); 1000] });
    let none = [
        member(b'0', &format!("blobs/sha256/{}", digest(nothing.as_bytes())), nothing.as_bytes()),
        member(b'0', "index.json", of_nothing.to_string().as_bytes()),
    ];
    add("indexes of nothing", &|| filter("xz", &none.concat()), "more than 16 indexes");
    add("literals", &|| long_block(&LONG_LITERALS), "is damaged");
    add("sequences", &|| long_block(&LONG_SEQUENCES), "is damaged");
    add(
        "a layer in zstd in bzip2",
        &|| filter("zstd", &around(&filter("bzip2", b"x"))),
        "and the archive with zstd",
    );
    assert_eq!(number, BOMBS);
    bombs
}

/// Whole images whose decoders need as much memory as they may.
fn large() -> Vec<(&'static str, Vec<u8>)> {
    let mut random = vec![0; 24 << 20];
    fastrand::Rng::with_seed(3).fill(&mut random);
    let made = Made::new(vec![tar_of(&[("boot/init", 0o755, b"#!/bin/sh\n"), ("large", 0o644, &random)])]);
    let with_layer = |program: &str| {
        let mut members = made.members(&["a:1"]);
        members[1].1 = filter(program, &members[1].1);
        crate::kit::image_archive::pack(&members)
    };
    vec![
        ("xz, bzip2 in it", filter("xz", &with_layer("bzip2"))),
        ("zstd, gzip in it", filter("zstd --zstd=wlog=23", &with_layer("gzip"))),
        ("bzip2, bzip2 in it", filter("bzip2", &with_layer("bzip2"))),
    ]
}

#[test]
fn no_bomb_goes_off() {
    needs!(tools);
    let start = Instant::now();
    for (name, bytes, words) in bombs(&prove::cases("engine", "no_bomb_goes_off", BOMBS, 5)) {
        assert!(bytes.len() < 300 << 10, "{name} has {} bytes", bytes.len());
        let began = Instant::now();
        let error = look(&bytes).unwrap_err();
        assert_eq!(error.code(), Code::ImageArchiveInvalid, "{name}: {error}");
        assert!(error.message().contains(words), "{name}: {error}");
        assert!(error.message().len() < 2500, "{name}: {} bytes", error.message().len());
        assert!(began.elapsed() < HANG, "{name}: {:?}", began.elapsed());
    }
    eprintln!("{:?}", start.elapsed());
}

#[test]
fn windows_above_8_mib_are_refused() {
    needs!(tools);
    let mut random = vec![0; 100 << 10];
    fastrand::Rng::with_seed(4).fill(&mut random);
    let tar = Made::new(vec![tar_of(&[("x", 0o644, &random)])]).archive(&["a:1"]);
    for (program, is_read) in [
        ("xz -6", true),
        ("xz --lzma2=dict=8MiB", true),
        ("xz -7", false),
        ("xz --lzma2=dict=9MiB", false),
        ("zstd --zstd=wlog=23", true),
        ("zstd --zstd=wlog=24", false),
        ("bzip2 -9", true),
        ("gzip -9", true),
    ] {
        let found = look(&filter(program, &tar));
        if is_read {
            assert_eq!(found.unwrap().layers, 1, "{program}");
        } else {
            fails(found, Code::WindowTooLarge, &["more than 8 MiB"]);
        }
    }
}

/// Processor time of this process.
fn worked() -> Duration {
    let time = getrusage(UsageWho::RUSAGE_SELF).unwrap().user_time();
    Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap())
}

/// In a process of its own: what is compared is the time that it works.
#[test]
fn what_unpacks_to_more_than_the_slot_holds_is_not_read_to_its_end() {
    if !prove::runs("engine", "what_unpacks_to_more_than_the_slot_holds_is_not_read_to_its_end") {
        return;
    }
    if !is_alone() {
        in_own_process(test_name!(), &[]);
        return;
    }
    // A layer of 2 GiB of zeroes in 2 MB, which is nothing in xz; and the archive itself.
    let packed = |zeroes: u64| {
        let mut child =
            Command::new("gzip").arg("-1c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let writing = std::thread::spawn(move || {
            let mut header = tar::Header::new_gnu();
            header.set_size(zeroes);
            header.set_path("zeroes").unwrap();
            header.set_cksum();
            input.write_all(header.as_bytes()).unwrap();
            std::io::copy(&mut std::io::repeat(0).take(zeroes), &mut input).unwrap();
        });
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        output.stdout
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.tar");
    let bomb = packed(2 << 30);
    for bytes in [filter("xz", &around(&bomb)), bomb] {
        std::fs::write(&path, bytes).unwrap();
        let began = worked();
        fails(
            archive::inspect(&archive::open(&path).unwrap(), 64 << 20, &[]),
            Code::SlotFull,
            &["unpacks to more than 64 MiB"],
        );
        let partly = worked() - began;
        let began = worked();
        fails(
            archive::inspect(&archive::open(&path).unwrap(), u64::MAX, &[]),
            Code::ImageArchiveInvalid,
            &["image.tar"],
        );
        // A thirtieth is read.
        let whole = worked() - began;
        assert!(partly < whole / 4, "{partly:?}, and the whole {whole:?}");
    }
}

/// The program, run where an image is built: with an engine, and without a device.
struct Build {
    dir: tempfile::TempDir,
    _engine: Stub,
}

/// What came of a run.
struct Ended {
    status: i32,
    /// The most memory that the program had, in KiB.
    peak: u64,
    said: String,
}

impl Build {
    fn new() -> Build {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["run", "mnt/sysroot/inactive/balena", "boot"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("boot/init"), "#!/bin/sh\n").unwrap();
        let script = Script {
            boot: dir.path().join("boot"),
            ..Script::new(dir.path().join("mnt/sysroot/inactive/balena"))
        };
        let engine = Stub::start(&dir.path().join("run/balena-host.sock"), script);
        Build { dir, _engine: engine }
    }

    /// Ends after five minutes at the latest.
    fn update(&self, archive: &[u8]) -> Ended {
        // A small process is between: memory from before an exec also counts.
        const MEASURE: &str = "import resource, subprocess, sys\n\
            ended = subprocess.run(sys.argv[1:], timeout=300)\n\
            print(ended.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
        const PLACE: &str =
            "mount --bind \"$1/run\" /run && mount --bind \"$1/mnt\" /mnt && shift && exec \"$@\"";
        let path = self.dir.path().join("image.tar");
        std::fs::write(&path, archive).unwrap();
        let output = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", PLACE, "sh"])
            .arg(self.dir.path())
            .args(["python3", "-c", MEASURE])
            .arg(old_kernel::program())
            .args(["update", "-n", "--no-daemon", "-f"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().last().unwrap_or_else(|| panic!("{said}"));
        let (status, peak) = last.split_once(' ').unwrap_or_else(|| panic!("{text}{said}"));
        Ended { status: status.parse().unwrap(), peak: peak.parse().unwrap(), said }
    }
}

#[test]
fn the_program_needs_24_mib_at_most_for_any_archive() {
    let test = "the_program_needs_24_mib_at_most_for_any_archive";
    needs!(needs::can_run);
    let build = Build::new();
    for (name, bytes, words) in bombs(&prove::cases("engine", test, BOMBS, 3)) {
        let Ended { status, peak, said } = build.update(&bytes);
        assert!(status == 3 && said.contains(words), "{name}: {status}: {said}");
        assert!(peak < most(), "{name}: {peak} KiB, of {} bytes", bytes.len());
    }
    // Making them takes most of the time.
    for (name, bytes) in if prove::is_requested("engine") { large() } else { Vec::new() } {
        let Ended { status, peak, said } = build.update(&bytes);
        assert_eq!(status, 0, "{name}: {said}");
        assert!(peak < most(), "{name}: {peak} KiB");
        eprintln!("{name}: {peak} KiB");
    }
}

#[test]
fn an_image_of_another_machine_is_built() {
    needs!(needs::can_run);
    let build = Build::new();
    for machine in [183, 40, 62, 243] {
        let made = Made::new(vec![tar_of(&[("boot/init", 0o755, &elf(machine))])]);
        let Ended { status, said, .. } = build.update(&made.archive(&["a:1"]));
        assert_eq!(status, 0, "{machine}: {said}");
    }
    // An image that starts nothing is also refused there.
    let Ended { status, said, .. } =
        build.update(&Made::new(vec![tar_of(&[("x", 0o644, b"")])]).archive(&["a:1"]));
    assert!(status == 3 && said.contains("[image-not-host-os]"), "{status}: {said}");
}
