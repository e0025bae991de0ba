//! The internal boot partition on a real vfat, with the power going at every moment.
//!
//! A guest mounts a FAT with the files of an old installation and runs what the flasher runs. Every write and flush of its disk
//! is recorded. Then the disk is put together as it may be after a cut at any request, with the writes since the last flush
//! there or not, whole or in part, and looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::fat::{self, Node, Tree};
use crate::support::writelog::{self, Loss};
use crate::support::{Disk, Guest, LIMIT, folder, not_run, tool};

/// Contents of a file: text that tells old from new in every sector.
pub(crate) fn text(tag: &str, bytes: usize) -> Vec<u8> {
    (0..).flat_map(|n| format!("{tag} {n:06}\n").into_bytes()).take(bytes).collect()
}

/// A path with what is there before, and what shall be there afterwards.
pub(crate) struct Case {
    pub(crate) path: &'static str,
    pub(crate) old: Option<Vec<u8>>,
    pub(crate) new: Option<Vec<u8>>,
    /// On the medium.
    copied: bool,
}

fn case(path: &'static str, old: Option<usize>, new: Option<usize>) -> Case {
    Case {
        path,
        old: old.map(|n| text(&format!("old {path}"), n)),
        new: new.map(|n| text(&format!("new {path}"), n)),
        copied: new.is_some(),
    }
}

/// A file that nobody touches.
fn bystander(path: &'static str, bytes: usize) -> Case {
    let data = text(path, bytes);
    Case { path, old: Some(data.clone()), new: Some(data), copied: false }
}

const CONFIG: &str = "{\n  \"uuid\": \"abc\",\n  \"apiEndpoint\": \"https://api\"\n}\n";
const STALE: &str = ".config.json.0123abcd.00112233445566778899aabbccddeeff.md5sum";

fn cases() -> Vec<Case> {
    vec![
        bystander("vmlinuz", 200_000),
        bystander("splash/kept.png", 3000),
        case("splash/balena-logo.png", Some(5000), Some(9000)),
        case("splash/another picture.png", None, Some(7000)),
        case("system-connections/README.ignore", Some(700), Some(800)),
        case("system-connections/Old Wi-Fi.nmconnection", Some(600), None),
        case("system-connections/Home.nmconnection", None, Some(500)),
        case("system-connections/deep/er/vpn", None, Some(1500)),
        case("system-connections/Office.nmconnection", Some(900), Some(950)),
        case("system-connections/CAFÉ", Some(300), None),
        case("system-connections/café", None, Some(310)),
        case("dispatcher.d/gone", Some(400), None),
        case("dispatcher.d/inner/gone too", Some(400), None),
        case("dispatcher.d/90-hook", None, Some(2500)),
        case("system-proxy/redsocks.conf", None, Some(300)),
        case("EFI/BOOT/grub.cfg", Some(1200), Some(1300)),
        case("EFI/BOOT/grub.cfg.sig", None, Some(256)),
        case("grub/grub.cfg", None, Some(1300)),
        case("resinOS_uEnv.txt", Some(30), Some(40)),
        case("flash-receipt.json", None, None),
        case(STALE, Some(100), None),
        case("config.json", Some(900), None),
    ]
}

/// [`cases`] with what does not come from the medium as it is.
pub(crate) fn all_cases() -> Vec<Case> {
    let mut cases = cases();
    let bootloader = text("new bootloader config", 1300);
    for case in &mut cases {
        match case.path {
            "EFI/BOOT/grub.cfg" | "grub/grub.cfg" => {
                (case.new, case.copied) = (Some(bootloader.clone()), false);
            }
            "EFI/BOOT/grub.cfg.sig" => case.copied = false,
            "config.json" => case.new = Some(CONFIG.into()),
            "flash-receipt.json" => case.new = Some("{\"version\":1}\n".into()),
            _ => {}
        }
    }
    cases
}

/// The program of `examples/populate.rs` as a static binary, which shares everything with the one that is released; `None`
/// where it cannot be built.
fn populate() -> Option<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--quiet", "--example", "populate", "--target", TARGET])
        // With the settings of the released program, whose crates need not be built a second time then.
        .args(
            std::env::var_os("COPAL_STATIC_CONFIG")
                .iter()
                .flat_map(|config| ["--config".as_ref(), config.as_os_str()]),
        )
        .current_dir(here)
        .env("CARGO_TARGET_DIR", here.join("target"))
        // What a run for coverage sets would go into the guest's program too.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        // scripts/prove/suite.py sets it for the test programs; build scripts would run again.
        .env_remove("RUSTC_BOOTSTRAP")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    if errors.contains("may not be installed") {
        not_run("bootpart", "no Rust target for a static program");
        return None;
    }
    assert!(out.status.success(), "{errors}");
    Some(here.join("target").join(TARGET).join("release/examples/populate"))
}

/// A FAT with the old files.
pub(crate) fn old_disk(path: &Path, size: u64, format: &[&str]) -> Vec<u8> {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
    let image = path.to_str().unwrap();
    tool(&[&["mkfs.vfat", "-n", "resin-boot"], format, &[image]].concat());
    let dir = folder();
    let mut made = BTreeSet::new();
    for case in all_cases() {
        let Some(old) = &case.old else { continue };
        for parent in Path::new(case.path).ancestors().skip(1).collect::<Vec<_>>().iter().rev() {
            if !parent.as_os_str().is_empty() && made.insert(parent.to_owned()) {
                tool(&["mmd", "-i", image, &format!("::/{}", parent.display())]);
            }
        }
        let file = dir.path().join("file");
        std::fs::write(&file, old).unwrap();
        tool(&["mcopy", "-i", image, file.to_str().unwrap(), &format!("::/{}", case.path)]);
    }
    std::fs::read(path).unwrap()
}

/// The guest with the medium's boot files at `/medium`, a configuration for them at `/test/conf`, and what mounts a FAT.
pub(crate) fn with_medium(guest: Guest) -> Guest {
    let mut guest = guest
        .module("loop")
        .module("vfat")
        .module("nls_cp437")
        .module("nls_ascii")
        .module("nls_utf8")
        .text(
            "/test/conf",
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG=grub.cfg_internal\n\
             INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=/EFI/BOOT/grub.cfg\n\
             INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH=/grub/grub.cfg\n",
        )
        .text("/test/config.json", "");
    // FAT knows one file by names of any case; the medium here has another case than the disk.
    let medium = |path: &str| format!("/medium/{}", path.replace("Office", "OFFICE"));
    let as_text = |data: &[u8]| String::from_utf8(data.to_vec()).unwrap();
    for case in all_cases().into_iter().filter(|c| c.copied && c.new.is_some()) {
        guest = guest.text(&medium(case.path), &as_text(&case.new.unwrap()));
    }
    let sig = text("new EFI/BOOT/grub.cfg.sig", 256);
    guest
        .text(&medium("grub.cfg_internal"), &as_text(&text("new bootloader config", 1300)))
        .text(&medium("grub.cfg_internal.sig"), &as_text(&sig))
        .text(
            "/medium/config.json",
            "{\"uuid\": \"abc\", \"installer\": {\"secureboot\": false}, \"apiEndpoint\": \"https://api\"}",
        )
}

/// The same with the program, for a script that calls `populate_on NODE`.
fn guest_with_medium(guest: Guest, program: &Path, script: &str) -> Guest {
    with_medium(guest).file(program, "/usr/bin/populate").script(&format!(
        "populate_on() {{ populate /test/conf /medium /medium/config.json $1 /tmp/internal_boot; }}\n{script}"
    ))
}

/// Whether a name is one that an interrupted replacement leaves.
pub(crate) fn is_temporary(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap();
    name.len() == 12 && name.starts_with("CPL") && name.ends_with(".TMP")
}

/// A long name that a cut has separated from its entry, while it was made or removed: then the short name that the kernel had
/// made up shows, with the complete contents.
fn is_alias(path: &str) -> bool {
    path.rsplit('/').next().unwrap().contains('~')
}

/// What is wrong with a disk after a cut.
pub(crate) fn faults(tree: &Tree, cases: &[Case]) -> Vec<String> {
    let mut faults = Vec::new();
    for case in cases {
        let there = match tree.nodes.get(case.path) {
            None => None,
            Some(Node::File(Ok(data))) => Some(data),
            Some(other) => {
                faults.push(format!("{}: {other:?}", case.path));
                continue;
            }
        };
        if there != case.old.as_ref() && there != case.new.as_ref() {
            let what = there.map_or("lost".to_owned(), |d| format!("neither old nor new: {} bytes", d.len()));
            faults.push(format!("{}: {what}", case.path));
        }
    }
    for (path, node) in &tree.nodes {
        let known = cases.iter().any(|c| c.path == path || c.path.starts_with(&format!("{path}/")));
        let of_a_case = |data: &Vec<u8>| {
            cases.iter().any(|c| c.new.as_ref() == Some(data) || c.old.as_ref() == Some(data))
        };
        let inside_leftover = path.split('/').any(is_temporary);
        let alias = match node {
            Node::File(Ok(data)) => is_alias(path) && of_a_case(data),
            Node::File(Err(_)) => false,
            Node::Folder => is_alias(path),
        };
        if !known && !inside_leftover && !alias {
            faults.push(format!("{path} came from nowhere: {node:?}"));
        }
    }
    for (a, b) in &tree.shared {
        if !is_temporary(a) && !is_temporary(b) {
            faults.push(format!("{a} and {b} share clusters"));
        }
    }
    faults
}

pub(crate) fn check_done(tree: &Tree, cases: &[Case], what: &str) {
    for case in cases {
        let there = match tree.nodes.get(case.path) {
            Some(Node::File(Ok(data))) => Some(data),
            None => None,
            Some(other) => panic!("{what}: {}: {other:?}", case.path),
        };
        assert!(there == case.new.as_ref(), "{what}: {} is {there:?}", case.path);
    }
    let files = tree.nodes.iter().filter(|(_, n)| matches!(n, Node::File(_))).map(|(p, _)| p.as_str());
    let wanted: BTreeSet<&str> = cases.iter().filter(|c| c.new.is_some()).map(|c| c.path).collect();
    assert_eq!(files.collect::<BTreeSet<_>>(), wanted, "{what}");
}

/// Every disk that a cut may leave, with what it is; returns how many there were.
pub(crate) fn every_cut(
    before: &[u8],
    requests: &[writelog::Request],
    thorough: bool,
    mut see: impl FnMut(usize, Loss, &[u8]),
) -> usize {
    let mut seen = 0;
    // As `writelog::after_a_cut` makes it, without a copy of the whole disk for each.
    let mut cuts = Cuts::new(before, requests);
    for n in 0..=requests.len() {
        let since = requests[..n].iter().rposition(|r| r.flush).unwrap_or(0);
        let pending: Vec<usize> = (since..n).filter(|i| !requests[*i].data.is_empty()).collect();
        let mut losses = vec![Loss::All, Loss::None];
        if pending.len() > 1 {
            let (single, random) = if thorough { (12, 8) } else { (1, 2) };
            losses.extend(pending.iter().rev().take(single).flat_map(|&i| [Loss::Only(i), Loss::Without(i)]));
            losses.extend((0..random).map(|seed| Loss::Random(seed << 40)));
        }
        for loss in losses {
            cuts.with(since..n, |r, s| loss.keeps(r, s), |disk| see(n, loss, disk));
            seen += 1;
        }
    }
    seen
}

/// A disk, what is on it for certain, and the requests since then.
struct Cuts<'a> {
    requests: &'a [writelog::Request],
    safe: Vec<u8>,
    disk: Vec<u8>,
    done: usize,
}

impl<'a> Cuts<'a> {
    fn new(before: &[u8], requests: &'a [writelog::Request]) -> Self {
        Cuts { requests, safe: before.to_vec(), disk: before.to_vec(), done: 0 }
    }

    /// Shows the disk with everything before `pending`, and of those what `keep` says.
    fn with(&mut self, pending: Range<usize>, keep: impl Fn(usize, usize) -> bool, see: impl FnOnce(&[u8])) {
        for request in &self.requests[self.done..pending.start] {
            request.apply(&mut self.safe);
            request.apply(&mut self.disk);
        }
        self.done = pending.start;
        for i in pending.clone() {
            self.requests[i].apply_sectors(&mut self.disk, |s| keep(i, s));
        }
        see(&self.disk);
        for request in &self.requests[pending] {
            let at = usize::try_from(request.at).unwrap();
            let there = at..at + request.data.len();
            self.disk[there.clone()].copy_from_slice(&self.safe[there]);
        }
    }
}

/// `thorough`: with every way of losing writes, and two dozen restarts; else with a few.
fn survives_every_cut(test: &str, size: u64, format: &[&str], thorough: bool) {
    let Some(guest) = Guest::small(test) else { return };
    let Some(program) = populate() else { return };
    let dir = folder();
    let (image, log) = (dir.path().join("fat.img"), dir.path().join("log"));
    let before = old_disk(&image, size, format);
    let outcome = guest_with_medium(
        guest.disk(Disk::Virtio, &image, "fat").logged(&log),
        &program,
        "populate_on /dev/vda >/host/first; populate_on /dev/vda >/host/second",
    )
    .run(LIMIT)
    .ok();
    println!("{}{}", outcome.file("first"), outcome.file("second"));
    let after = std::fs::read(&image).unwrap();
    let cases = all_cases();
    check_done(&fat::read(&after), &cases, "after the run");
    tool(&["fsck.fat", "-n", image.to_str().unwrap()]);
    // Where nothing differs, nothing is written.
    assert!(outcome.file("second").contains("written: 0,"), "{}", outcome.file("second"));

    let requests = writelog::read(&log);
    let flushes = requests.iter().filter(|r| r.flush).count();
    // What has been reported as done is on the medium, whatever the drive's cache loses.
    check_done(
        &fat::read(&writelog::after_a_cut(&before, &requests, requests.len(), |_, _| false)),
        &cases,
        "after a cut at the end",
    );

    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let mut restarts: Vec<Vec<u8>> = Vec::new();
    let kept = if thorough { 100 } else { 4 };
    let mut rng = fastrand::Rng::with_seed(1);
    let mut twins: Vec<Vec<u8>> = Vec::new();
    let cuts = every_cut(&before, &requests, thorough, |n, loss, disk| {
        let tree = fat::read(disk);
        let faults = faults(&tree, &cases);
        assert!(faults.is_empty(), "cut after request {n} of {}, {loss:?}: {faults:#?}", requests.len());
        let leftovers = tree.nodes.keys().filter(|p| is_temporary(p)).count();
        *kinds.entry("with leftovers").or_default() += usize::from(leftovers > 0);
        *kinds.entry("with shared clusters").or_default() += usize::from(!tree.shared.is_empty());
        *kinds.entry("with lost clusters").or_default() += usize::from(tree.lost > 0);
        let twin_files = tree
            .shared
            .iter()
            .any(|(a, b)| [a, b].iter().all(|p| matches!(tree.nodes.get(*p), Some(Node::File(_)))));
        if twin_files && twins.len() < kept {
            twins.push(disk.to_vec());
        } else if leftovers > 0 && restarts.len() < kept && rng.u32(..40) == 0 {
            restarts.push(disk.to_vec());
        }
    });
    println!("{} requests, {flushes} flushes, {cuts} cuts; {kinds:?}", requests.len());
    assert!(
        kinds["with leftovers"] > 0 && kinds["with shared clusters"] > 0,
        "the cuts cut nothing: {kinds:?}"
    );

    rng.shuffle(&mut twins);
    rng.shuffle(&mut restarts);
    let most = if thorough { 12 } else { 2 };
    restarts.truncate(most);
    restarts.extend(twins.into_iter().take(most));
    starts_again(test, &program, &restarts);
}

/// The next run finishes what a cut interrupted, and cleans up.
fn starts_again(test: &str, program: &Path, disks: &[Vec<u8>]) {
    let Some(guest) = Guest::small(test) else { return };
    let dir = folder();
    let image = dir.path().join("cuts.img");
    std::fs::write(&image, disks.concat()).unwrap();
    let size = disks[0].len();
    let outcome = guest_with_medium(
        guest.disk(Disk::Virtio, &image, "cuts"),
        program,
        &format!(
            "for i in $(seq 0 {}); do
                 echo \"== $i\"
                 losetup -o $((i * {size})) --sizelimit {size} /dev/loop0 /dev/vda
                 populate_on /dev/loop0
                 losetup -d /dev/loop0
             done >/host/out 2>&1
             dmesg >/host/dmesg",
            disks.len() - 1
        ),
    )
    .run(LIMIT);
    assert_eq!(outcome.status, Some(0), "{}\n{}", outcome.file("out"), outcome.console);
    let outcome = outcome.ok();
    println!("{}", outcome.file("out"));
    println!(
        "{}",
        outcome.file("dmesg").lines().filter(|l| l.contains("FAT-fs")).collect::<Vec<_>>().join("\n")
    );
    let (after, cases) = (std::fs::read(&image).unwrap(), all_cases());
    for (i, disk) in after.chunks(size).enumerate() {
        let tree = fat::read(disk);
        check_done(&tree, &cases, &format!("restart {i}"));
        let folders = |p: &String| tree.nodes.get(p) == Some(&Node::Folder);
        let bad: Vec<_> = tree.shared.iter().filter(|(a, b)| !(folders(a) && folders(b))).collect();
        assert!(bad.is_empty(), "restart {i}: {bad:?}");
    }
}

#[test]
fn a_fat16_survives_every_power_cut() {
    survives_every_cut("a_fat16_survives_every_power_cut", 6 << 20, &["-F", "16", "-s", "2"], true);
}

#[test]
fn a_fat32_survives_every_power_cut() {
    // The smallest that other tools take for a FAT32.
    survives_every_cut("a_fat32_survives_every_power_cut", 34 << 20, &["-F", "32", "-s", "1"], false);
}

/// GRUB takes no kernel with the signature of another.
#[test]
fn a_file_and_its_signature_are_old_or_new_together_after_every_power_cut() {
    let test = "a_file_and_its_signature_are_old_or_new_together_after_every_power_cut";
    let Some(guest) = Guest::small(test) else { return };
    let Some(program) = populate() else { return };
    let dir = folder();
    let (image, log) = (dir.path().join("fat.img"), dir.path().join("log"));
    let mut before = old_disk(&image, 6 << 20, &["-F", "16", "-s", "2"]);
    const NAMES: [&str; 2] = ["bzImage", "bzImage.sig"];
    let contents = |tag: &str| NAMES.map(|name| text(&format!("{tag} {name}"), 500 * (15 - name.len())));
    let (old, new) = (contents("old"), contents("new"));
    let mut guest = guest_with_medium(
        guest.disk(Disk::Virtio, &image, "fat").logged(&log),
        &program,
        "for run in first second; do populate together /new /dev/vda /tmp/point >/host/$run; done",
    );
    for (name, (old, new)) in NAMES.iter().zip(old.iter().zip(&new)) {
        let file = dir.path().join("file");
        std::fs::write(&file, old).unwrap();
        tool(&["mcopy", "-i", image.to_str().unwrap(), file.to_str().unwrap(), &format!("::/{name}")]);
        guest = guest.text(&format!("/new/{name}"), std::str::from_utf8(new).unwrap());
    }
    before.copy_from_slice(&std::fs::read(&image).unwrap());
    let outcome = guest.run(LIMIT).ok();
    assert_eq!((outcome.file("first").trim(), outcome.file("second").trim()), ("Written", "Unchanged"));
    tool(&["fsck.fat", "-n", image.to_str().unwrap()]);

    let (mut olds, mut news) = (0, 0);
    let requests = writelog::read(&log);
    let cuts = every_cut(&before, &requests, true, |n, loss, disk| {
        let tree = fat::read(disk);
        let found = NAMES.map(|name| match &tree.nodes[name] {
            Node::File(Ok(data)) => data.clone(),
            other => panic!("{name}: {other:?}"),
        });
        let is_new = found == new;
        assert!(is_new || found == old, "cut after request {n} of {}, {loss:?}: not a pair", requests.len());
        *(if is_new { &mut news } else { &mut olds }) += 1;
        for (a, b) in &tree.shared {
            assert!(is_temporary(a) || is_temporary(b), "{a} and {b} share clusters");
        }
    });
    println!("{} requests, {cuts} cuts: {olds} leave the old pair, {news} the new one", requests.len());
    assert!(olds > 0 && news > 0);
    let at_the_end = writelog::after_a_cut(&before, &requests, requests.len(), |_, _| false);
    let tree = fat::read(&at_the_end);
    for (name, new) in NAMES.iter().zip(new) {
        assert_eq!(tree.nodes[*name], Node::File(Ok(new)), "what was reported as done is on the medium");
    }
}

/// Its removal would cut the kernel off in the middle.
#[test]
fn a_temporary_that_begins_inside_a_file_stays_and_the_file_is_whole() {
    let test = "a_temporary_that_begins_inside_a_file_stays_and_the_file_is_whole";
    let Some(guest) = Guest::small(test) else { return };
    let Some(program) = populate() else { return };
    let dir = folder();
    let image = dir.path().join("fat.img");
    old_disk(&image, 6 << 20, &["-F", "16", "-s", "2"]);
    let (at, file) = (image.to_str().unwrap(), dir.path().join("file"));
    std::fs::write(&file, text("temporary", 100)).unwrap();
    tool(&["mcopy", "-i", at, file.to_str().unwrap(), "::/CPL00001.TMP"]);
    let mut disk = std::fs::read(&image).unwrap();
    let entry = |disk: &[u8], name: &[u8]| disk.windows(11).position(|w| w == name).unwrap() + 26;
    let kernel = entry(&disk, b"VMLINUZ    ");
    let inside = u16::from_le_bytes([disk[kernel], disk[kernel + 1]]) + 100;
    let temporary = entry(&disk, b"CPL00001TMP");
    disk[temporary..temporary + 2].copy_from_slice(&inside.to_le_bytes());
    std::fs::write(&image, &disk).unwrap();
    let outcome = guest_with_medium(
        guest.disk(Disk::Virtio, &image, "fat"),
        &program,
        "populate /test/conf /medium /medium/config.json /dev/vda /tmp/internal_boot sweep >/host/out 2>&1",
    )
    .run(LIMIT)
    .ok();
    assert_eq!(outcome.file("out").trim(), r#"CPL00001.TMP Kept(Shared(["VMLINUZ"]))"#);
    let tree = fat::read(&std::fs::read(&image).unwrap());
    assert!(tree.nodes.contains_key("CPL00001.TMP"));
    let kernel = cases().into_iter().find(|c| c.path == "vmlinuz").unwrap();
    assert_eq!(tree.nodes["vmlinuz"], Node::File(Ok(kernel.new.unwrap())));
}
