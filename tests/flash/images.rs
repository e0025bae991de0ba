//! Every kind of image, on a dirty disk and into a plain file.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::needs::{needs, tools};
use crate::kit::process::copy_of_copal;
use crate::kit::prove;
use crate::support::*;

fn packed(dir: &Path, name: &str, shell: &str) -> PathBuf {
    let path = dir.join(name);
    let image = os_image().to_str().unwrap();
    let line = shell.replace("IMAGE", image).replace("OUT", path.to_str().unwrap());
    tool(&["sh", "-ec", &line]);
    path
}

/// MBR with an extended partition, which balenaOS images for boards without GPT have.
fn mbr_image(dir: &Path) -> PathBuf {
    let path = dir.join("mbr.img");
    let p = path.to_str().unwrap();
    let script = format!(
        "truncate -s 64M {p}; printf 'start=8192,size=16384,type=c,bootable\\nstart=24576,size=20480,type=83\\n\
         start=45056,size=20480,type=83\\nstart=65536,type=f\\nstart=69632,size=20480,type=83\\nstart=94208,size=30720,type=83\\n' \
         | sfdisk -q {p}; mkfs.vfat -n resin-boot --offset 8192 {p} 8192 >/dev/null; \
         mke2fs -q -t ext4 -L resin-data -E offset=48234496 {p} 15360k"
    );
    tool(&["sh", "-ec", &script]);
    path
}

#[test]
fn every_kind_of_image_on_a_dirty_disk() {
    let test = "every_kind_of_image_on_a_dirty_disk";
    let Some(disk) = dirty(test, 130 * MIB) else { return };
    let dir = folder();
    let mbr = mbr_image(dir.path());
    // Name of the packed image, what makes it, the options it is flashed with.
    let packed_as: [(&str, &str, &[&str]); 9] = [
        ("bmap.img", "cp --sparse=always IMAGE OUT; bmaptool -q create -o OUT.bmap IMAGE", &[]),
        ("a.gz", "gzip -1c IMAGE > OUT", &[]),
        ("two.gz", "head -c 33333333 IMAGE | gzip -1 > OUT; tail -c +33333334 IMAGE | gzip -1 >> OUT", &[]),
        ("a.xz", "xz -T2 -0c IMAGE > OUT", &[]),
        ("bcj.xz", "xz -T2 --x86 --lzma2=preset=0 -c IMAGE > OUT", &[]),
        ("two.xz", "head -c 33333333 IMAGE | xz -0 > OUT; tail -c +33333334 IMAGE | xz -0 >> OUT", &[]),
        ("a.zst", "zstd -q -1c IMAGE > OUT", &["--sha256"]),
        ("single.zst", "zstd -q -1c IMAGE > OUT", &["--single-pass"]),
        ("two.zst", "head -c 33333333 IMAGE | zstd -q > OUT; tail -c +33333334 IMAGE | zstd -q >> OUT", &[]),
    ];
    for case in prove::cases("inputs", test, packed_as.len() + 2, 2) {
        let (image, plain, options): (PathBuf, &Path, &[&str]) = match case {
            0 => (os_image().to_owned(), os_image(), &[]),
            1 => (mbr.clone(), &mbr, &[]),
            n => {
                let (name, command, options) = packed_as[n - 2];
                (packed(dir.path(), name, command), os_image(), options)
            }
        };
        fill(&disk.file, 130 * MIB);
        let receipt = flashed(&image, &disk.node, options);
        assert_equal(plain, &disk.node);
        let len = std::fs::metadata(plain).unwrap().len();
        let name = image.display();
        assert_eq!(receipt["image"]["size"], len, "{name}");
        assert_eq!(receipt["bytes"]["verified"], len, "{name}");
        // The same digest from the receipt, from `copal digest` of the packed and of the plain image.
        let digest = |f: &Path| {
            let out = copal().arg("digest").arg(f).output().unwrap();
            String::from_utf8(out.stdout).unwrap().split_whitespace().last().unwrap().to_owned()
        };
        assert_eq!(receipt["image"]["chunk_digest"], digest(&image).as_str(), "{name}");
        assert_eq!(digest(&image), digest(plain), "{name}");
        if options.contains(&"--sha256") {
            let sum = tool(&["sha256sum", plain.to_str().unwrap()]);
            assert_eq!(receipt["image"]["sha256"], sum.split(' ').next().unwrap());
        }
        // Behind the image nothing was touched.
        assert!(read(&disk.node, len, 130 * MIB - len).iter().all(|b| *b == 0xA5), "{name}");
        let verified =
            copal().args(["verify", "--image"]).arg(&image).arg("--target").arg(&disk.node).output().unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}

#[test]
fn tools_that_are_not_ours_find_no_fault() {
    needs!(tools);
    let size = std::fs::metadata(os_image()).unwrap().len();
    let Some(disk) = dirty("tools_that_are_not_ours_find_no_fault", size) else { return };
    flashed(os_image(), &disk.node, &[]);
    let report = tool(&["sgdisk", "-v", disk.name()]);
    assert!(report.contains("No problems found"), "{report}");
    let table = tool(&["sfdisk", "-d", disk.name()]);
    let mut checked = 0;
    for line in table.lines().filter(|l| l.contains("start=")) {
        let field = |key: &str| -> u64 {
            let rest = line.split(key).nth(1).unwrap();
            rest.trim_start().split(',').next().unwrap().trim().parse().unwrap()
        };
        let (start, len) = (field("start=") * 512, field("size=") * 512);
        let options = ["-o", &start.to_string(), "--sizelimit", &len.to_string(), "-r"];
        let part = over("tools_that_are_not_ours_find_no_fault", &disk.file, &options).unwrap();
        let boot_sector = read(&part.node, 0, 512);
        let fat = boot_sector[54..57] == *b"FAT" || boot_sector[82..85] == *b"FAT";
        let check: &[&str] =
            if fat { &["fsck.vfat", "-n", part.name()] } else { &["e2fsck", "-fn", part.name()] };
        tool(check);
        checked += 1;
    }
    assert_eq!(checked, 5, "{table}");
}

#[test]
fn a_disk_with_sectors_of_4096_bytes() {
    let dir = folder();
    let backing = dir.path().join("4k.raw");
    let image = dir.path().join("4k.img");
    // The image is made on such a disk, so that sgdisk counts in its sectors.
    std::fs::File::create(&image).unwrap().set_len(48 * MIB).unwrap();
    let Some(made) = over("a_disk_with_sectors_of_4096_bytes", &image, &["-b", "4096"]) else { return };
    tool(&["sgdisk", "-o", "-n", "1:1024:+16M", "-n", "2:0:0", made.name()]);
    tool(&[
        "sh",
        "-ec",
        &format!("mke2fs -q -L resin-boot -E offset=4194304 {0} 16M; sync {0}", made.name()),
    ]);
    drop(made);
    fill(&backing, 48 * MIB);
    let disk = over("a_disk_with_sectors_of_4096_bytes", &backing, &["-b", "4096"]).unwrap();
    let receipt = flashed(&image, &disk.node, &[]);
    assert_equal(&image, &disk.node);
    assert_eq!(receipt["target"]["block_size"], 4096);
    let report = tool(&["sgdisk", "-v", disk.name()]);
    assert!(report.contains("No problems found"), "{report}");
}

#[test]
fn a_plain_file_is_made_extended_or_kept_at_its_size() {
    needs!(tools);
    let dir = folder();
    let size = std::fs::metadata(os_image()).unwrap().len();
    let target = dir.path().join("disk.img");
    flashed(os_image(), &target, &[]);
    assert_equal(os_image(), &target);
    assert_eq!(std::fs::metadata(&target).unwrap().len(), size);
    for (before, after) in [(MIB, size), (size + 4097, size + 4097)] {
        std::fs::remove_file(&target).unwrap();
        fill(&target, before);
        flashed(os_image(), &target, &[]);
        assert_equal(os_image(), &target);
        assert_eq!(std::fs::metadata(&target).unwrap().len(), after);
        assert!(read(&target, size, after - size).iter().all(|b| *b == 0xA5));
    }
}

/// Starts a flash to `target`, and stops its process while it has the file open.
fn flash_stopped_at_work(target: &Path) -> std::process::Child {
    for _ in 0..20 {
        if let Some(child) = try_to_stop(target) {
            return child;
        }
        // A busy machine: it ended before this program looked.
        std::fs::remove_file(target).unwrap();
    }
    panic!("each flash ended before its file was seen");
}

fn try_to_stop(target: &Path) -> Option<std::process::Child> {
    let mut child = copal()
        .args(["flash", "--json", "--image"])
        .arg(os_image())
        .arg("--target")
        .arg(target)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let files = format!("/proc/{}/fd", child.id());
    let is_open = || {
        let links = std::fs::read_dir(&files).into_iter().flatten().flatten();
        // One for direct I/O, one for the rest.
        links.filter(|l| std::fs::read_link(l.path()).is_ok_and(|to| to == target)).count() == 2
    };
    while !is_open() {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), nix::sys::signal::SIGSTOP)
        .unwrap();
    if is_open() {
        return Some(child);
    }
    // It had closed the file before the signal came.
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

fn go_on(child: std::process::Child) -> std::process::Output {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), nix::sys::signal::SIGCONT)
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_plain_file_that_loses_its_name_meanwhile_is_no_success() {
    needs!(tools);
    let dir = folder();
    let (target, other) = (dir.path().join("disk.img"), dir.path().join("other"));
    let theirs = "of another program";
    // What is done, and what is to be found there at the end.
    type Change<'a> = (&'a str, &'a dyn Fn(), Option<&'a str>);
    let changes: [Change; 4] = [
        ("renamed over", &|| std::fs::rename(&other, &target).unwrap(), Some(theirs)),
        ("removed", &|| std::fs::remove_file(&target).unwrap(), None),
        ("renamed", &|| std::fs::rename(&target, dir.path().join("away")).unwrap(), None),
        (
            "a link in its place",
            &|| {
                std::fs::remove_file(&target).unwrap();
                std::os::unix::fs::symlink(&other, &target).unwrap();
            },
            Some(theirs),
        ),
    ];
    for (what, change, left) in changes {
        std::fs::write(&other, theirs).unwrap();
        let child = flash_stopped_at_work(&target);
        change();
        let out = go_on(child);
        assert_eq!(out.status.code(), Some(4), "{what}");
        let error = last_line(&out);
        assert_eq!(
            (&error["code"], &error["effect"]),
            (&"target-changed".into(), &"written".into()),
            "{what}: {error}"
        );
        assert_eq!(error["object"], target.to_str().unwrap(), "{what}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains("while the image was written"),
            "{what}: {error}"
        );
        assert_eq!(std::fs::read_to_string(&target).ok().as_deref(), left, "{what}");
        drop(std::fs::remove_file(&target));
    }
}

#[test]
fn a_plain_file_may_be_reached_by_another_way_at_the_end() {
    needs!(tools);
    let dir = folder();
    let (target, moved) = (dir.path().join("disk.img"), dir.path().join("moved.img"));
    let child = flash_stopped_at_work(&target);
    std::fs::rename(&target, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &target).unwrap();
    assert!(go_on(child).status.success());
    assert_equal(os_image(), &target);
}

/// With `--single-pass` the size shows at the end only: small images, odd sizes, new files and disks.
#[test]
fn a_single_pass_of_any_size() {
    let dir = folder();
    for size in [65536, 1_044_480, 1_048_576, 1_048_577, 1_060_864, 5_000_192, 12_582_912] {
        let image = dir.path().join("raw.img");
        let mut rng = fastrand::Rng::with_seed(size);
        let mut data = vec![0; size as usize];
        rng.fill(&mut data);
        std::fs::write(&image, &data).unwrap();
        let packed = dir.path().join("raw.img.gz");
        tool(&["sh", "-ec", &format!("gzip -1c {} > {}", image.display(), packed.display())]);
        let new = dir.path().join("new.img");
        let _gone = std::fs::remove_file(&new);
        flashed(&packed, &new, &["--single-pass", "--force-raw"]);
        assert!(std::fs::read(&new).unwrap() == data, "{size}");
        if size % 512 != 0 {
            continue;
        }
        let Some(disk) = dirty("a_single_pass_of_any_size", size) else { return };
        flashed(&packed, &disk.node, &["--single-pass", "--force-raw"]);
        assert!(std::fs::read(&disk.file).unwrap() == data, "{size}");
    }
}

fn set_blocking(pipe: &std::io::PipeWriter, blocking: bool) {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = if blocking { OFlag::empty() } else { OFlag::O_NONBLOCK };
    fcntl(pipe, FcntlArg::F_SETFL(flags)).unwrap();
}

/// Progress that nobody reads must not stop a flash whose table has been cleared.
#[test]
fn a_reader_who_never_reads_does_not_stop_the_flash() {
    needs!(tools);
    use std::io::Read;
    let dir = folder();
    let image = dir.path().join("big.img");
    tool(&[
        "sh",
        "-ec",
        &format!("cp --sparse=always {} {1}; truncate -s 3G {1}", os_image().display(), image.display()),
    ]);
    let target = dir.path().join("disk.img");
    let (reader, mut writer) = std::io::pipe().unwrap();
    // A pipe that is full from the beginning, however large it is.
    set_blocking(&writer, false);
    while std::io::Write::write(&mut writer, b"\n").is_ok() {}
    set_blocking(&writer, true);
    let mut child = copal()
        .args(["flash", "--json", "--force-raw", "--image"])
        .arg(&image)
        .arg("--target")
        .arg(&target)
        .stdout(writer.try_clone().unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(writer);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    // Done with the disk, whether or not its last line has found a reader.
    let sector =
        || std::fs::metadata(&target).is_ok_and(|m| m.len() > 0) && read(&target, 510, 2) == [0x55, 0xaa];
    while !sector() {
        if std::time::Instant::now() > end {
            child.kill().unwrap();
            panic!("the flash waits for a reader of its progress");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut text = Vec::new();
    let mut reader = reader;
    reader.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(String::from_utf8_lossy(&text).contains("\"receipt\""));
}

/// Ctrl-S, or a connection that has died: the bar is not drawn, the flash goes on.
#[test]
fn a_stopped_terminal_does_not_stop_the_flash() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk.img");
    let size = nix::pty::Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = nix::pty::openpty(Some(&size), None).unwrap();
    nix::sys::termios::tcflow(&terminal.slave, nix::sys::termios::FlowArg::TCOOFF).unwrap();
    let mut child = copal()
        .args(["flash", "--image"])
        .arg(os_image())
        .arg("--target")
        .arg(&target)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdout(std::process::Stdio::null())
        .stderr(terminal.slave)
        .spawn()
        .unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if std::time::Instant::now() > end => {
                child.kill().unwrap();
                panic!("the flash waits for its terminal");
            }
            None => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    };
    assert!(status.success());
    assert_equal(os_image(), &target);
}

#[test]
fn no_root_is_needed_for_a_plain_file() {
    // Without root, all the other tests with a plain file show it.
    needs!(is_root);
    let dir = tempfile::tempdir().unwrap();
    tool(&["chmod", "777", dir.path().to_str().unwrap()]);
    let image = dir.path().join("os.img");
    let copy = dir.path().join("copal");
    tool(&["cp", "--sparse=always", os_image().to_str().unwrap(), image.to_str().unwrap()]);
    copy_of_copal(&copy);
    let target = dir.path().join("disk.img");
    let out = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .arg("flash")
        .arg("--image")
        .arg(&image)
        .arg("--target")
        .arg(&target)
        .env_remove("LLVM_PROFILE_FILE")
        .current_dir("/")
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_equal(&image, &target);
    // The receipt is on stdout.
    let receipt: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(receipt["version"], 1);
}

#[test]
fn single_flipped_bits_are_found_by_verify() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk.img");
    flashed(os_image(), &target, &[]);
    let size = std::fs::metadata(&target).unwrap().len();
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..24 {
        let at = if round == 0 { size - 1 } else { rng.u64(0..size) };
        let old = read(&target, at, 1)[0];
        poke(&target, at, &[old ^ (1 << rng.u8(0..8))]);
        let out = copal()
            .args(["verify", "--json", "--image"])
            .arg(os_image())
            .arg("--target")
            .arg(&target)
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(1));
        let line = last_line(&out);
        assert_eq!(line["code"], "target-differs");
        assert!(line["message"].as_str().unwrap().contains(&format!("byte {at},")), "{at}: {line}");
        poke(&target, at, &[old]);
    }
}

#[test]
fn a_shorter_target_differs() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("short.img");
    fill(&target, MIB);
    let packed = packed(dir.path(), "a.gz", "gzip -1c IMAGE > OUT");
    for image in [os_image(), &packed] {
        let out = copal()
            .args(["verify", "--json", "--image"])
            .arg(image)
            .arg("--target")
            .arg(&target)
            .output()
            .unwrap();
        let line = last_line(&out);
        assert_eq!((out.status.code(), &line["code"]), (Some(1), &"target-differs".into()), "{line}");
    }
}

#[test]
fn the_run_does_what_the_plan_says() {
    needs!(tools);
    let size = std::fs::metadata(os_image()).unwrap().len();
    let Some(disk) = dirty("the_run_does_what_the_plan_says", size + MIB) else { return };
    let before = std::fs::read(&disk.file).unwrap();
    let out = flash(os_image(), &disk.node, &["--plan", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(std::fs::read(&disk.file).unwrap() == before, "--plan wrote something");
    let plan = last_line(&out)["plan"].clone();
    let steps: Vec<&str> =
        plan["steps"].as_array().unwrap().iter().map(|s| s["step"].as_str().unwrap()).collect();
    assert_eq!(
        steps,
        ["clear", "clear", "write-body", "verify-body", "check-table", "write-backup-gpt", "write-head"],
        "{plan}"
    );
    assert_eq!(plan["image"]["size"]["exact"], size);
    assert_eq!(plan["target"]["name"], disk.name());
    assert_eq!(plan["image"]["table"]["partitions"][0]["label"], "resin-boot");
    let text = flash(os_image(), &disk.node, &["--plan"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("resin-boot") && text.contains(disk.name()), "{text}");
    assert!(text.contains(" MiB, not compressed\n") && text.contains(" GPT, 512-byte sectors\n"), "{text}");
}

/// Of plain files: a disk is read in the same way.
#[test]
fn the_plan_shows_what_is_lost() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk");
    let name = target.to_str().unwrap();
    let size = std::fs::metadata(os_image()).unwrap().len();
    let plan = |expected: &str| {
        let before = std::fs::read(&target).ok();
        let out = flash(os_image(), &target, &["--plan"]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            out.status.success() && text.ends_with("\nnothing was written: this is the plan\n"),
            "{text}"
        );
        let below = text.split_once(", plain file\n").unwrap().1;
        assert_eq!(below.split("     1. ").next().unwrap(), expected, "{text}");
        assert!(std::fs::read(&target).ok() == before, "--plan wrote something");
    };
    plan("");
    fill(&target, size);
    plan("        holds no partition table, and nothing that is known\n");
    tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", "photos", name]);
    plan("        holds ext without a partition table, labelled photos, which is lost\n");
    tool(&["sgdisk", "-Z", name]);
    tool(&["sgdisk", "-n", "1:1M:+4M", "-c", "1:swap", "-n", "2:8M:+8M", "-c", "2:home", name]);
    let part = dir.path().join("part");
    std::fs::File::create(&part).unwrap().set_len(8 << 20).unwrap();
    tool(&["mke2fs", "-q", "-t", "ext4", "-L", "photos", part.to_str().unwrap()]);
    poke(&target, 8 << 20, &std::fs::read(&part).unwrap());
    let part = dir.path().join("swap");
    std::fs::File::create(&part).unwrap().set_len(4 << 20).unwrap();
    tool(&["mkswap", part.to_str().unwrap()]);
    poke(&target, 1 << 20, &std::fs::read(&part).unwrap());
    plan(concat!(
        "        holds GPT, which is lost:\n",
        "          1  swap                  4.0 MiB swap\n",
        "          2  photos                8.0 MiB ext\n",
    ));
    poke(&target, 512 + 56, &[0]);
    plan(
        "        holds a partition table that cannot be read: the checksum of the primary GPT header does not match\n",
    );
    flashed(os_image(), &target, &[]);
    let out = flash(os_image(), &target, &["--plan", "--json"]);
    let holds = &last_line(&out)["plan"]["holds"];
    assert_eq!(holds["table"], last_line(&out)["plan"]["image"]["table"], "{holds}");
    let out = flash(os_image(), &target, &["--plan"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains(" of balenaOS, which is lost:\n"), "{text}");
}

#[test]
fn the_second_flash_of_the_same_image_writes_almost_nothing() {
    needs!(tools);
    let size = std::fs::metadata(os_image()).unwrap().len();
    let Some(disk) = dirty("the_second_flash_of_the_same_image_writes_almost_nothing", size) else {
        return;
    };
    let first = flashed(os_image(), &disk.node, &[]);
    let second = flashed(os_image(), &disk.node, &[]);
    assert!(first["bytes"]["written"].as_u64().unwrap() > 20 * MIB, "{first}");
    assert!(second["bytes"]["written"].as_u64().unwrap() < 2 * MIB, "{second}");
    assert_eq!(second["bytes"]["verified"], size);
    assert_equal(os_image(), &disk.node);
}

/// `a.b` for every value below `json`, without the indices of lists.
fn keys(json: &serde_json::Value, prefix: &str, out: &mut std::collections::BTreeSet<String>) {
    if let Some(object) = json.as_object() {
        for (key, value) in object {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            if value.is_object() {
                keys(value, &name, out);
            } else {
                out.insert(name);
            }
        }
    }
}

#[test]
fn the_receipt_has_the_fields_of_its_documentation() {
    needs!(tools);
    let dir = folder();
    // A whole pass before the write, for `check`.
    let receipt = flashed(os_image(), &dir.path().join("disk.img"), &["--sha256"]);
    let mut found = std::collections::BTreeSet::new();
    keys(&receipt, "", &mut found);
    let text = include_str!("../../docs/receipt.md");
    let table = text.split("## Receipt").nth(1).unwrap().split("###").next().unwrap();
    let rows = table.lines().filter(|l| l.starts_with("| `")).map(|l| l.split('|').nth(1).unwrap());
    let documented: std::collections::BTreeSet<String> =
        rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    // Of an installation with device trees of the owner, of a signed image, and of an encrypted installation (tests/guest/encrypted.rs).
    found.extend(["device_trees", "image.signed", "encryption"].map(str::to_owned));
    found.extend(
        ["method", "partitions", "old_content_discarded", "recovery"]
            .map(|name| format!("encryption.{name}")),
    );
    assert_eq!(found, documented);
    // The recipe for the digest without copal.
    let recipe = text.split("```sh").nth(1).unwrap().split("```").next().unwrap();
    let line = recipe.trim().replace("image.img", os_image().to_str().unwrap());
    let digest = tool(&["bash", "-ec", &line]);
    assert_eq!(receipt["image"]["chunk_digest"], digest.split(' ').next().unwrap());
}
