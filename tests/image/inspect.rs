//! Finding, opening and inspecting images.
#![allow(clippy::cast_possible_truncation)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::support::{Bench, Count, MIB, look, look_with, noise, put, refused, run, text};
use crate::kit::needs::{is_root, needs, not_run, test_name, tools};
use copal::config::paths::Paths;
use copal::disk::partition::{Table, TableKind};
use copal::disk::select::ImageSize;
use copal::error::Code;
use copal::image::digest::Digest256;
use copal::image::{Checks, Image, check_sector_size, digest_file, find, inspect, locate};
use copal::progress::Silent;

fn tree(files: &[&str]) -> (Bench, Paths) {
    let bench = Bench::new();
    fs::create_dir_all(bench.at("tmp")).unwrap();
    for file in files {
        let path = bench.at(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    let paths = Paths::new(bench.dir.path());
    (bench, paths)
}

#[test]
fn the_exact_name_is_found_and_below_tmp_it_wins() {
    let (bench, paths) = tree(&["opt/a/disk.img", "opt/other.img", "opt/disk.img.xz", "opt/disk.imgx"]);
    assert_eq!(locate(&paths, "disk.img").unwrap(), bench.at("opt/a/disk.img"));
    let (bench, paths) = tree(&["opt/disk.img", "tmp/x/y/disk.img", "tmp/disk.img.gz"]);
    assert_eq!(locate(&paths, "disk.img").unwrap(), bench.at("tmp/x/y/disk.img"));
    let (bench, paths) = tree(&["opt/disk.img", "tmp/disk.img.gz"]);
    assert_eq!(locate(&paths, "disk.img").unwrap(), bench.at("opt/disk.img"));
}

#[test]
fn compressed_names_are_tried_when_there_is_no_other() {
    for suffix in [".zst", ".xz", ".gz"] {
        let file = format!("opt/disk.img{suffix}");
        let (bench, paths) = tree(&[&file, "opt/disk.img.bz2", "opt/disk.img.bmap"]);
        assert_eq!(locate(&paths, "disk.img").unwrap(), bench.at(&file));
    }
    let (bench, paths) = tree(&["opt/disk.img.xz", "tmp/disk.img.gz"]);
    assert_eq!(locate(&paths, "disk.img").unwrap(), bench.at("tmp/disk.img.gz"));
}

#[test]
fn several_images_are_listed() {
    for files in [
        ["opt/disk.img", "usr/disk.img"],
        ["tmp/disk.img", "tmp/a/disk.img"],
        ["opt/disk.img.gz", "opt/disk.img.xz"],
    ] {
        let (bench, paths) = tree(&files);
        let e = locate(&paths, "disk.img").unwrap_err();
        assert_eq!(e.code(), Code::ImageAmbiguous);
        for file in files {
            assert!(e.message().contains(text(&bench.at(file))), "{e}");
        }
    }
}

#[test]
fn other_names_of_one_file_count_once_and_links_to_folders_are_not_followed() {
    let (bench, paths) = tree(&["opt/disk.img"]);
    symlink("../opt/disk.img", bench.at("tmp/link")).unwrap();
    fs::create_dir(bench.at("usr")).unwrap();
    fs::hard_link(bench.at("opt/disk.img"), bench.at("usr/disk.img")).unwrap();
    symlink("/nowhere", bench.at("usr/gone")).unwrap();
    symlink("..", bench.at("usr/up")).unwrap();
    symlink("../opt", bench.at("tmp/opt")).unwrap();
    assert_eq!(locate(&paths, "disk.img").unwrap(), bench.at("opt/disk.img"));
    // A link with the name of the image leads to it; one that dangles is nothing.
    symlink("../opt/disk.img", bench.at("tmp/other.img")).unwrap();
    assert_eq!(locate(&paths, "other.img").unwrap(), bench.at("tmp/other.img"));
    symlink("/nowhere", bench.at("opt/dangling.img")).unwrap();
    assert_eq!(locate(&paths, "dangling.img").unwrap_err().code(), Code::ImageMissing);
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A root with `tmp/in/disk.img`, and each on the way with the mode that it usually has. None without the right to give files away.
fn tree_with_an_image_below_tmp(test: &str) -> Option<(Bench, Paths)> {
    if !is_root(test) {
        return None;
    }
    let (bench, paths) = tree(&["tmp/in/disk.img"]);
    mode(&bench.at("tmp"), 0o1777);
    mode(&bench.at("tmp/in"), 0o755);
    mode(&bench.at("tmp/in/disk.img"), 0o644);
    Some((bench, paths))
}

#[test]
fn an_image_below_tmp_is_taken_if_it_is_roots_alone() {
    let test = "an_image_below_tmp_is_taken_if_it_is_roots_alone";
    let Some((bench, paths)) = tree_with_an_image_below_tmp(test) else { return };
    assert_eq!(find(&paths, "disk.img").unwrap().path, bench.at("tmp/in/disk.img"));
    // A folder of root where others may put files, but cannot rename root's files.
    mode(&bench.at("tmp/in"), 0o1777);
    find(&paths, "disk.img").unwrap();
    // /tmp may be a link.
    fs::rename(bench.at("tmp"), bench.at("volatile")).unwrap();
    symlink("volatile", bench.at("tmp")).unwrap();
    find(&paths, "disk.img").unwrap();
    mode(&bench.at("volatile"), 0o777);
    refused(find(&paths, "disk.img"), Code::ImageUntrusted, &bench.at("tmp"), &["mode 777"]);
}

#[test]
fn an_image_below_tmp_that_another_user_has_a_hand_in_is_refused() {
    let test = "an_image_below_tmp_that_another_user_has_a_hand_in_is_refused";
    if tree_with_an_image_below_tmp(test).is_none() {
        return;
    }
    type Change = fn(&Bench, &Path);
    let give = |_: &Bench, path: &Path| chown(path, Some(65534), None).unwrap();
    let to_group: Change = |_, path| mode(path, 0o664);
    let to_others: Change = |_, path| mode(path, 0o646);
    let open: Change = |_, path| mode(path, 0o777);
    let second: Change = |bench, path| fs::hard_link(path, bench.at("tmp/second")).unwrap();
    for (file, change, words) in [
        ("tmp/in/disk.img", give as Change, "user 65534"),
        ("tmp/in/disk.img", to_group, "mode 664"),
        ("tmp/in/disk.img", to_others, "mode 646"),
        ("tmp/in/disk.img", second, "hard link"),
        ("tmp/in", give, "user 65534"),
        ("tmp/in", open, "mode 777"),
        ("tmp", give, "user 65534"),
        ("tmp", open, "mode 777"),
    ] {
        let (bench, paths) = tree_with_an_image_below_tmp(test).unwrap();
        change(&bench, &bench.at(file));
        refused(find(&paths, "disk.img"), Code::ImageUntrusted, &bench.at(file), &[words]);
        // The operator may name it.
        Image::open(bench.at("tmp/in/disk.img")).unwrap();
    }
    let (bench, paths) = tree_with_an_image_below_tmp(test).unwrap();
    symlink("in/disk.img", bench.at("tmp/other.img")).unwrap();
    refused(find(&paths, "other.img"), Code::ImageNotRegular, &bench.at("tmp/other.img"), &["symbolic link"]);
    // Elsewhere only root can put files, whoever they belong to.
    let (bench, paths) = tree(&["opt/disk.img"]);
    give(&bench, &bench.at("opt/disk.img"));
    find(&paths, "disk.img").unwrap();
}

#[test]
fn what_lies_beside_an_image_below_tmp_has_to_be_roots_as_well() {
    let test = "what_lies_beside_an_image_below_tmp_has_to_be_roots_as_well";
    let Some((bench, paths)) = tree_with_an_image_below_tmp(test) else { return };
    let raw = Checks { force_raw: true, ..Checks::default() };
    let image = bench.at("tmp/in/disk.img");
    let look = |image: &Image| inspect(image, &raw, &Silent).map(drop);
    let digest = Digest256::of(&fs::read(&image).unwrap());
    let sum = bench.write("tmp/in/disk.img.sha256", format!("{digest}\n").as_bytes());
    look(&find(&paths, "disk.img").unwrap()).unwrap();
    for companion in ["tmp/in/disk.img.sha256", "tmp/in/disk.img.bmap"] {
        let path = bench.at(companion);
        drop(fs::remove_file(&sum));
        fs::write(&path, format!("{digest}\n")).unwrap();
        chown(&path, Some(65534), None).unwrap();
        refused(look(&find(&paths, "disk.img").unwrap()), Code::ImageUntrusted, &path, &["user 65534"]);
        fs::remove_file(&path).unwrap();
        symlink("/etc/hostname", &path).unwrap();
        let error = look(&find(&paths, "disk.img").unwrap()).unwrap_err();
        assert!(error.message().contains("symbolic link"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}

/// While another process puts another file in its place and takes it away again, all the time.
#[test]
fn the_image_that_was_checked_is_the_one_that_is_read() {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    let test = "the_image_that_was_checked_is_the_one_that_is_read";
    let Some((bench, paths)) = tree_with_an_image_below_tmp(test) else { return };
    let (own, other) = (bench.at("tmp/in/disk.img"), bench.write("other", b"other"));
    mode(&other, 0o644);
    chown(&other, Some(65534), None).unwrap();
    let (done, mut taken, mut refused) = (AtomicBool::new(false), 0, 0);
    let content = std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &own, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let mut content = None;
        for _ in 0..20_000 {
            match find(&paths, "disk.img") {
                Ok(image) => {
                    taken += 1;
                    content = Some(super::support::content(&image).unwrap());
                }
                Err(_) => refused += 1,
            }
            if content.as_deref().is_some_and(|c| c == b"other") {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        content
    });
    println!("taken {taken} times, refused {refused} times");
    assert_eq!(content.as_deref(), Some(&b"tmp/in/disk.img"[..]), "the content of the file of root");
    assert!(refused > 0, "no file was ever in its place");
}

#[test]
fn what_is_not_there_is_missing() {
    let (_bench, paths) = tree(&["opt/disk.img"]);
    for name in ["none.img", "", "opt/disk.img", "../disk.img", "."] {
        let e = locate(&paths, name).unwrap_err();
        assert_eq!(e.code(), Code::ImageMissing, "{name}");
        assert!(e.message().contains(name));
    }
    // The root itself may be missing.
    assert_eq!(locate(&Paths::new("/nonexistent/root"), "x").unwrap_err().code(), Code::ImageMissing);
}

#[test]
fn the_search_stays_on_its_file_system() {
    let (bench, paths) = tree(&["opt/disk.img"]);
    fs::create_dir_all(bench.at("mnt/other")).unwrap();
    let mount = nix::mount::mount(
        Some("tmpfs"),
        &bench.at("mnt/other"),
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some("size=64k"),
    );
    if let Err(e) = mount {
        return not_run(test_name!(), &format!("needs to mount a tmpfs: {e}"));
    }
    fs::write(bench.at("mnt/other/disk.img"), "other").unwrap();
    fs::write(bench.at("mnt/other/only.img"), "other").unwrap();
    let (found, only) = (locate(&paths, "disk.img"), locate(&paths, "only.img"));
    nix::mount::umount(&bench.at("mnt/other")).unwrap();
    assert_eq!(found.unwrap(), bench.at("opt/disk.img"));
    assert_eq!(only.unwrap_err().code(), Code::ImageMissing);
}

#[test]
fn only_regular_files_with_content_are_opened() {
    let bench = Bench::new();
    let fifo = bench.at("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.at("socket")).unwrap();
    let dir = bench.at("dir");
    fs::create_dir(&dir).unwrap();
    refused(Image::open(&fifo), Code::ImageNotRegular, &fifo, &["FIFO"]);
    refused(Image::open(&dir), Code::ImageNotRegular, &dir, &["folder"]);
    refused(Image::open(bench.at("socket")), Code::ImageNotRegular, &bench.at("socket"), &["socket"]);
    refused(Image::open("/dev/null"), Code::ImageNotRegular, "/dev/null".as_ref(), &["character device"]);
    refused(Image::open(bench.at("none")), Code::ImageMissing, &bench.at("none"), &["No such file"]);
    let empty = bench.write("empty", b"");
    refused(Image::open(&empty), Code::ImageEmpty, &empty, &[]);
}

#[test]
fn other_compressions_are_named() {
    needs!(tools);
    let bench = Bench::new();
    let raw = bench.write("raw", &noise(50_000, 1));
    for (command, name) in [("lz4", "lz4"), ("lz4 -l", "lz4"), ("xz --format=lzma", "lzma"), ("zip", "zip")] {
        let path = bench.pack(&raw, "packed", command);
        refused(Image::open(&path), Code::UnsupportedCompression, &path, &[name]);
    }
}

fn check_table(table: &Table) {
    assert_eq!((table.kind, table.sector_size), (TableKind::Gpt, 512));
    let labels: Vec<_> =
        table.partitions.iter().map(|p| (p.index, p.start, p.size, p.label.as_deref())).collect();
    assert_eq!(
        labels,
        [
            (1, MIB, 4 * MIB, Some("resin-boot")),
            (2, 5 * MIB, 4 * MIB, Some("resin-rootA")),
            (3, 9 * MIB, 8 * MIB, None)
        ]
    );
    assert_eq!(table.backup, Some(24 * MIB - 33 * 512..24 * MIB));
}

#[test]
fn a_raw_image_is_judged_by_its_headers_alone() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let count = Count::default();
    let found = inspect(&Image::open(&path).unwrap(), &Checks::default(), &count).unwrap();
    assert_eq!(found.size, ImageSize::Exact(24 * MIB));
    check_table(&found.table.unwrap());
    assert!(found.digests.is_none() && found.sha256.is_none());
    assert_eq!(count.done.load(Ordering::Relaxed), 0);
}

#[test]
fn a_compressed_image_is_read_once_and_fully_described() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let raw = fs::read(&path).unwrap();
    for command in ["gzip -1", "xz -1", "zstd"] {
        let packed = bench.pack(&path, "disk.packed", command);
        let count = Count::default();
        let checks = Checks { sha256: true, ..Checks::default() };
        let found = inspect(&Image::open(&packed).unwrap(), &checks, &count).unwrap();
        assert_eq!(found.size, ImageSize::Exact(24 * MIB));
        check_table(&found.table.unwrap());
        let digests: Vec<_> = raw.chunks(MIB as usize).map(Digest256::of).collect();
        assert_eq!(found.digests.unwrap(), digests);
        assert_eq!(found.sha256, Some(Digest256::of(&raw)));
        let size = fs::metadata(&packed).unwrap().len();
        assert_eq!(count.total.load(Ordering::Relaxed), size);
        assert!(count.done.load(Ordering::Relaxed) <= size);
        assert!(count.done.load(Ordering::Relaxed) > size - 100);
        assert_eq!(count.finished.load(Ordering::Relaxed), 1);
    }
    assert_eq!(digest_file(&path, false, &Silent).unwrap().size, 24 * MIB);
}

#[test]
fn a_single_pass_looks_at_the_beginning() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let packed = bench.pack(&path, "disk.img.gz", "gzip");
    let whole = fs::read(&packed).unwrap();
    let cut = bench.write("cut.gz", &whole[..whole.len() * 3 / 4]);
    let checks = Checks { single_pass: true, ..Checks::default() };
    let found = look_with(&cut, &checks).unwrap();
    assert_eq!(found.size, ImageSize::AtLeast(24 * MIB));
    let table = found.table.unwrap();
    assert_eq!(table.partitions[0].label.as_deref(), Some("resin-boot"));
    assert_eq!(table.backup, Some(24 * MIB - 33 * 512..24 * MIB));
    assert!(found.digests.is_none());
    // What the whole pass, or the wish for a digest, finds.
    refused(look(&cut), Code::ImageDamaged, &cut, &["near byte"]);
    let checks = Checks { expect_sha256: Some(Digest256([0; 32])), ..checks };
    refused(look_with(&cut, &checks), Code::ImageDamaged, &cut, &[]);
    let early = bench.write("early.gz", &whole[..500]);
    let checks = Checks { single_pass: true, ..Checks::default() };
    refused(look_with(&early, &checks), Code::ImageDamaged, &early, &["near byte"]);
    let other = bench.write("no.img", &noise(3 * MIB, 1));
    let other = bench.pack(&other, "no.img.gz", "gzip");
    refused(look_with(&other, &checks), Code::NoPartitionTable, &other, &[]);
}

#[test]
fn a_whole_image_digest_is_compared() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let packed = bench.pack(&path, "disk.img.xz", "xz -0");
    let good = Digest256::of(&fs::read(&path).unwrap());
    for file in [&path, &packed] {
        let checks = Checks { expect_sha256: Some(good), single_pass: true, ..Checks::default() };
        assert_eq!(look_with(file, &checks).unwrap().sha256, Some(good));
        let checks = Checks { expect_sha256: Some(Digest256::of(b"")), ..Checks::default() };
        refused(look_with(file, &checks), Code::ImageDigestMismatch, file, &[&good.to_string()]);
    }
}

#[test]
fn a_checksum_file_is_of_the_file_as_stored() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let packed = bench.pack(&path, "disk.img.gz", "gzip -1");
    for file in [&path, &packed] {
        let dir = text(bench.dir.path());
        let name = file.file_name().unwrap().to_str().unwrap();
        for flag in ["", "-b", "--tag"] {
            run("sh", &["-c", &format!("cd {dir}; sha256sum {flag} {name} > {name}.sha256")], None);
            let found = look(file).unwrap();
            assert!(found.digests.is_some());
        }
        let other = Digest256::of(b"other");
        let companion = bench.write(&format!("{name}.sha256"), format!("{other}  {name}\n").as_bytes());
        let single = Checks { single_pass: true, ..Checks::default() };
        refused(look_with(file, &single), Code::ImageDigestMismatch, file, &[text(&companion)]);
        bench.write(&format!("{name}.sha256"), b"404 not found");
        refused(look(file), Code::ChecksumFileInvalid, &companion, &["line 1"]);
        fs::remove_file(&companion).unwrap();
        fs::create_dir(&companion).unwrap();
        refused(look(file), Code::ChecksumFileInvalid, &companion, &["folder"]);
        fs::remove_dir(&companion).unwrap();
    }
}

#[test]
fn sector_sizes_must_agree() {
    needs!(tools);
    let bench = Bench::new();
    let table = look(&bench.disk("disk.img")).unwrap().table.unwrap();
    assert!(check_sector_size(&table, 512, "/dev/sda".as_ref()).is_ok());
    let failed = check_sector_size(&table, 4096, "/dev/sda".as_ref());
    refused(failed, Code::SectorSizeMismatch, "/dev/sda".as_ref(), &["512", "4096"]);
}

#[test]
fn anything_is_taken_raw_by_force() {
    needs!(tools);
    let bench = Bench::new();
    let force = Checks { force_raw: true, ..Checks::default() };
    let path = bench.write("noise", &noise(2 * MIB, 1));
    refused(look(&path), Code::NoPartitionTable, &path, &[]);
    for file in [&path, &bench.pack(&path, "noise.gz", "gzip")] {
        let found = look_with(file, &force).unwrap();
        assert_eq!((found.size, found.table), (ImageSize::Exact(2 * MIB), None));
    }
    let path = bench.disk("disk.img");
    put(&path, MIB, &[0; 4096]);
    refused(look(&path), Code::NoBootPartition, &path, &["1 without label", "2 `resin-rootA`"]);
    assert_eq!(look_with(&path, &force).unwrap().table.unwrap().partitions.len(), 3);
    // No option switches the integrity check off.
    let whole = fs::read(bench.pack(&path, "disk.gz", "gzip")).unwrap();
    let cut = bench.write("cut.gz", &whole[..whole.len() - 20]);
    refused(look_with(&cut, &force), Code::ImageDamaged, &cut, &[]);
}
