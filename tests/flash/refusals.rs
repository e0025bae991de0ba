//! Bad input: the message names the object, the exit code says that nothing was written, and nothing was.

use std::fs::Permissions;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::kit::needs::{is_root, needs, tools};
use crate::kit::process::{copy_of_copal, stderr, until};
use crate::support::*;
use nix::libc;

/// Flashes what must be refused with `code`, and compares the target before and after.
fn refused(image: &Path, target: &Path, code: &str, names: &str, more: &[&str]) {
    refused_beside(0..0, image, target, code, names, more);
}

/// [`refused`] for a target that the kernel itself may write to in that range.
fn refused_beside(
    kernels: std::ops::Range<usize>,
    image: &Path,
    target: &Path,
    code: &str,
    names: &str,
    more: &[&str],
) {
    let content = |p: &Path| {
        let mut data = p.exists().then(|| std::fs::read(p).unwrap());
        data.iter_mut().for_each(|data| data[kernels.clone()].fill(0));
        data
    };
    let before = content(target);
    let mut args = vec!["--json"];
    args.extend(more);
    let out = flash(image, target, &args);
    let line = last_line(&out);
    assert_eq!(line["code"], code, "{line}");
    assert_eq!(line["effect"], "refused", "{line}");
    assert_eq!(out.status.code(), Some(if code == "busy" { 5 } else { 3 }), "{line}");
    assert!(line["message"].as_str().unwrap().contains(names), "{line} does not name {names}");
    assert!(!line["hint"].as_str().unwrap().is_empty());
    assert!(content(target) == before, "{code}: something was written");
}

/// An image made from the good one by a shell command.
fn made(dir: &Path, name: &str, shell: &str) -> PathBuf {
    let path = dir.join(name);
    let line = shell.replace("IMAGE", os_image().to_str().unwrap()).replace("OUT", path.to_str().unwrap());
    tool(&["sh", "-ec", &line]);
    path
}

#[test]
fn images() {
    needs!(tools);
    let dir = folder();
    let d = dir.path();
    let target = d.join("target");
    fill(&target, 2 * MIB);
    let cases = [
        ("missing.img", "true", "image-missing"),
        ("folder.img", "mkdir OUT", "image-not-regular"),
        ("fifo.img", "mkfifo OUT", "image-not-regular"),
        ("empty.img", ": > OUT", "image-empty"),
        ("cut.gz", "gzip -1c IMAGE | head -c 1000000 > OUT", "image-damaged"),
        ("cut.xz", "xz -0 -T2 -c IMAGE | head -c 1000000 > OUT", "image-damaged"),
        ("cut.zst", "zstd -qc IMAGE | head -c 1000000 > OUT", "image-damaged"),
        ("tail.gz", "gzip -1c IMAGE > OUT; echo garbage >> OUT", "image-damaged"),
        ("tail.xz", "xz -0 -T2 -c IMAGE > OUT; echo garbage >> OUT", "image-damaged"),
        ("tail.zst", "zstd -qc IMAGE > OUT; echo garbage >> OUT", "image-damaged"),
        ("window.zst", "zstd -q --long=28 -c IMAGE > OUT", "window-too-large"),
        ("window.xz", "head -c 1000000 IMAGE | xz --lzma2=preset=0,dict=128MiB > OUT", "window-too-large"),
        ("cut.bz2", "printf 'BZh91AY&SY' > OUT", "image-damaged"),
        ("notable.img", "truncate -s 8M OUT", "no-partition-table"),
        (
            "noboot.img",
            "truncate -s 8M OUT; printf 'start=2048,type=83' | sfdisk -q OUT",
            "no-boot-partition",
        ),
        ("short.img", "head -c 50000000 IMAGE > OUT", "image-damaged"),
        (
            "crc.img",
            "cp IMAGE OUT; printf x | dd of=OUT bs=1 seek=530 conv=notrunc status=none",
            "partition-table-invalid",
        ),
        ("sum.img", "cp IMAGE OUT; echo 'not a digest' > OUT.sha256", "checksum-file-invalid"),
        (
            "othersum.img",
            "cp IMAGE OUT; echo \"$(echo x | sha256sum | cut -c-64)  othersum.img\" > OUT.sha256",
            "image-digest-mismatch",
        ),
        ("bmap.img", "cp IMAGE OUT; echo '<bmap' > OUT.bmap", "bmap-invalid"),
        (
            "largebmap.img",
            "cp IMAGE OUT; bmaptool -q create -o OUT.bmap OUT; head -c 1048576 /dev/zero | tr '\\0' ' ' >> OUT.bmap",
            "bmap-invalid",
        ),
        (
            "otherbmap.img",
            "cp IMAGE OUT; bmaptool -q create -o OUT.bmap OUT; printf x | dd of=OUT bs=1 seek=5000000 conv=notrunc status=none",
            "bmap-mismatch",
        ),
    ];
    for (name, shell, code) in cases {
        let image = made(d, name, shell);
        refused(&image, &target, code, name, &[]);
    }
    // A digest that was asked for and is not there.
    refused(
        os_image(),
        &target,
        "image-digest-mismatch",
        "os.img",
        &[&format!("--sha256={}", "0".repeat(64))],
    );
    // With --force-raw a table is no condition.
    let raw = d.join("notable.img");
    flashed(&raw, &target, &["--force-raw"]);
    assert_equal(&raw, &target);
}

#[test]
fn disks() {
    let Some(disk) = dirty("disks", 128 * MIB) else { return };
    let dir = folder();
    let name = disk.name().to_owned();

    let small = dirty("disks", 64 * MIB).unwrap();
    refused(os_image(), &small.node, "target-too-small", small.name(), &[]);

    let read_only = over("disks", &small.file, &["-r"]).unwrap();
    refused(os_image(), &read_only.node, "target-read-only", read_only.name(), &[]);

    let sectors = dir.path().join("4k.raw");
    fill(&sectors, 128 * MIB);
    let four_k = over("disks", &sectors, &["-b", "4096"]).unwrap();
    refused(os_image(), &four_k.node, "sector-size-mismatch", four_k.name(), &[]);

    // Held by somebody else, exclusively.
    let holder = std::process::Command::new("flock").args(["-x", &name, "sleep", "60"]).spawn().unwrap();
    let mut holder = holder;
    std::thread::sleep(std::time::Duration::from_millis(500));
    // At once, not after minutes with an image that is refused too.
    let damaged = made(dir.path(), "cut.gz", "gzip -1c IMAGE | head -c 1000000 > OUT");
    refused(&damaged, &disk.node, "busy", &name, &[]);
    tool(&["pkill", "-P", &holder.id().to_string()]);
    let _status = holder.wait();

    // Mounted. Frozen, because a file system that can be written writes to its disk whenever it likes.
    tool(&["mke2fs", "-q", "-t", "ext4", &name]);
    let mount = dir.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let point = mount.to_str().unwrap();
    tool(&["mount", &name, point]);
    tool(&["fsfreeze", "--freeze", point]);
    let result = std::panic::catch_unwind(|| {
        refused(os_image(), &disk.node, "target-mounted", point, &[]);
    });
    tool(&["fsfreeze", "--unfreeze", point]);
    tool(&["umount", point]);
    result.unwrap();
    // A mount namespace that another program has made meanwhile keeps the disk mounted until it ends.
    let open = || std::fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&name);
    until("the disk is free", || open().is_ok());

    // Swapped on, with few pages behind the header: the kernel fills them whenever it needs memory.
    tool(&["mkswap", "-q", &name, "64"]);
    tool(&["swapon", &name]);
    let result = std::panic::catch_unwind(|| {
        refused_beside(4096..64 << 10, os_image(), &disk.node, "target-swap", &name, &[]);
    });
    tool(&["swapoff", &name]);
    result.unwrap();

    // Neither disk nor plain file.
    refused(os_image(), Path::new("/dev/null"), "target-missing", "/dev/null", &[]);
    refused(os_image(), &dir.path().join("no/such/folder"), "target-missing", "no/such/folder", &[]);
}

#[test]
fn configurations() {
    let Some(disk) = dirty("configurations", 128 * MIB) else { return };
    let dir = folder();
    let conf = dir.path().join("flasher.conf");
    let pattern = disk.name().strip_prefix("/dev/").unwrap().to_owned();
    let good = format!("INTERNAL_DEVICE_KERNEL=\"{pattern}\"\n");
    let cases = [
        (format!("{good}BALENA_IMAGE='unclosed\n"), "conf-syntax"),
        (format!("{good}BALENA_IMAGE=$(reboot)\n"), "conf-expansion"),
        (format!("{good}BOOTLOADER_FLASH_DEVICE=mtdblock0\n"), "conf-invalid"),
        (
            format!("{good}BOOTLOADER_FLASH_DEVICE=x\nBOOTLOADER_IMAGE=u\nBOOTLOADER_BLOCK_SIZE_OFFSET=0\n"),
            "conf-invalid",
        ),
        ("BALENA_IMAGE=os.img\n".to_owned(), "no-target-pattern"),
        ("INTERNAL_DEVICE_KERNEL=nothing-like-this\n".to_owned(), "no-target"),
    ];
    let run = |more: &[&str]| {
        let out = copal()
            // Whatever becomes of it, this machine stays on.
            .args(["flash", "--json", "--no-power-off", "--conf"])
            .arg(&conf)
            .arg("--image")
            .arg(os_image())
            .args(more)
            .env("CONFIG_PATH", dir.path().join("config.json"))
            .output()
            .unwrap();
        (out.status.code(), last_line(&out))
    };
    let missing = run(&[]);
    assert_eq!((missing.0, &missing.1["code"]), (Some(3), &"conf-missing".into()), "{missing:?}");
    // CONFIG_PATH names a file: then it must be there.
    std::fs::write(&conf, &good).unwrap();
    assert_eq!(run(&[]).1["code"], "config-json-missing");
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    for (text, code) in cases {
        std::fs::write(&conf, &text).unwrap();
        // An installation would wait for a disk that may still appear.
        let (status, line) = run(&["--image-only"]);
        assert_eq!((status, &line["code"]), (Some(3), &code.into()), "{text}: {line}");
    }
    std::fs::write(&conf, &good).unwrap();
    for (text, code) in
        [("{", "config-json-invalid"), ("[]", "config-json-invalid"), ("{\"a\":\0}", "config-json-invalid")]
    {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let (status, line) = run(&[]);
        assert_eq!((status, &line["code"]), (Some(3), &code.into()), "{text}: {line}");
    }
    // The configuration asks for more than writing the image, which takes a medium: not silently left out.
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    if Path::new("/mnt/boot").exists() {
        not_run("configurations: an installation without a medium", "this machine has /mnt/boot");
    } else {
        let (status, line) = run(&["--plan"]);
        assert_eq!((status, &line["code"]), (Some(3), &"boot-copy-failed".into()), "{line}");
        assert!(line["hint"].as_str().unwrap().contains("--image-only"), "{line}");
    }
    assert!(read(&disk.file, 0, 4096).iter().all(|b| *b == 0xA5));
    // config.json has the last word on the target.
    let installer = "{\"installer\":{\"target_devices\":\"nothing-like-this\"}}";
    std::fs::write(dir.path().join("config.json"), installer).unwrap();
    assert_eq!(run(&["--image-only"]).1["code"], "no-target");
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let (status, line) = run(&["--image-only"]);
    assert_eq!(status, Some(0), "{line}");
    assert_equal(os_image(), &disk.node);
}

#[test]
fn a_disk_needs_root() {
    let Some(disk) = dirty("a_disk_needs_root", 128 * MIB) else { return };
    let dir = tempfile::tempdir().unwrap();
    tool(&["chmod", "755", dir.path().to_str().unwrap()]);
    let image = dir.path().join("os.img");
    let copy = dir.path().join("copal");
    tool(&["cp", "--sparse=always", os_image().to_str().unwrap(), image.to_str().unwrap()]);
    copy_of_copal(&copy);
    // A folder of PATH that this user may not search is no reason to speak of a program that may be there.
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    for more in [&["--plan"][..], &[]] {
        let out = std::process::Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&copy)
            .args(["flash", "--json", "--image"])
            .arg(&image)
            .arg("--target")
            .arg(&disk.node)
            .args(more)
            .env("LLVM_PROFILE_FILE", "/dev/null")
            .env("PATH", format!("{}:/usr/bin:/bin", closed.display()))
            .current_dir("/")
            .output()
            .unwrap();
        assert_eq!(stderr(&out), "", "with JSON, only the log, which has nothing to say");
        let line = last_line(&out);
        assert_eq!((out.status.code(), &line["code"]), (Some(3), &"not-root".into()), "{line}");
        assert!(line["message"].as_str().unwrap().contains(disk.name()), "{line}");
    }
}

#[test]
fn receipts_that_would_destroy_something() {
    needs!(tools);
    let dir = folder();
    let image = dir.path().join("os.img");
    tool(&["cp", "--sparse=always", os_image().to_str().unwrap(), image.to_str().unwrap()]);
    let target = dir.path().join("disk.img");
    let link = dir.path().join("link.img");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let image_before = std::fs::read(&image).unwrap();
    for receipt in
        [image.to_str().unwrap(), link.to_str().unwrap(), target.to_str().unwrap(), "/dev/null", "/no/such/r"]
    {
        refused(&image, &target, "output-failed", receipt, &["--receipt", receipt]);
    }
    assert!(std::fs::read(&image).unwrap() == image_before);
    refused(&image, &target, "output-failed", "/dev/stdout", &["--receipt", "/dev/stdout"]);
    // An old receipt is replaced, and nothing else is left in the folder.
    let receipt = dir.path().join("r.json");
    std::fs::write(&receipt, "old").unwrap();
    let out = flash(&image, &target, &["--receipt", receipt.to_str().unwrap()]);
    assert!(out.status.success());
    assert!(std::fs::read_to_string(&receipt).unwrap().starts_with('{'));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
}

/// In a folder where every user may create names, such as /tmp.
#[test]
fn a_receipt_by_the_link_of_another_user() {
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
    needs!(is_root);
    let dir = folder();
    let (shared, secret, target) =
        (dir.path().join("shared"), dir.path().join("secret"), dir.path().join("disk.img"));
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let receipt = shared.join("r.json");
    symlink(&secret, &receipt).unwrap();
    lchown(&receipt, Some(65534), None).unwrap();
    let receipt = receipt.to_str().unwrap();
    refused(os_image(), &target, "output-failed", receipt, &["--receipt", receipt]);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    // Root's own is followed, and stays; what the file denied is denied by the receipt.
    lchown(receipt, Some(0), None).unwrap();
    assert!(flash(os_image(), &target, &["--receipt", receipt]).status.success());
    assert!(std::fs::read_to_string(&secret).unwrap().starts_with('{'));
    assert!(Path::new(receipt).is_symlink());
    assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_receipt_that_cannot_be_saved_is_no_refusal() {
    needs!(is_root);
    let dir = folder();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let small_text = small.to_str().unwrap();
    // Room for the empty temporary file, not for what goes into it.
    tool(&["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", small_text]);
    let result = std::panic::catch_unwind(|| {
        std::fs::write(small.join("full"), vec![0; 4096]).unwrap();
        let target = dir.path().join("disk.img");
        let out =
            flash(os_image(), &target, &["--json", "--receipt", small.join("r.json").to_str().unwrap()]);
        let line = last_line(&out);
        assert_eq!(
            (out.status.code(), &line["code"], &line["effect"]),
            (Some(1), &"output-failed".into(), &"completed".into())
        );
        assert_equal(os_image(), &target);
        // The receipt is not lost: it is the line before.
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.lines().any(|l| l.contains("chunk_digest")), "{text}");
    });
    tool(&["umount", small_text]);
    result.unwrap();
}

#[test]
fn a_new_file_needs_space_for_the_data_of_the_image() {
    needs!(is_root);
    let dir = folder();
    let (small, packed) = (dir.path().join("small"), dir.path().join("os.img.gz"));
    std::fs::create_dir(&small).unwrap();
    tool(&[
        "sh",
        "-ec",
        "gzip -1 -c \"$1\" >\"$2\"",
        "sh",
        os_image().to_str().unwrap(),
        packed.to_str().unwrap(),
    ]);
    let blocks = std::fs::read(os_image()).unwrap();
    let data = |size: usize| blocks.chunks(size).filter(|block| block.iter().any(|b| *b != 0)).count() * size;
    // Not every zero becomes a hole.
    let (least, enough) = (data(4096), data(1 << 20) + (1 << 20));
    assert!(enough < blocks.len(), "the image has too few holes to show anything");
    let target = small.join("disk.img");
    for (size, fits) in [(least - 4096, false), (enough, true)] {
        tool(&["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", small.to_str().unwrap()]);
        let result = std::panic::catch_unwind(|| {
            if fits {
                let out = flash(&packed, &target, &[]);
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                return assert_equal(os_image(), &target);
            }
            refused(&packed, &target, "target-too-small", target.to_str().unwrap(), &[]);
            assert!(!target.exists());
        });
        tool(&["umount", small.to_str().unwrap()]);
        result.unwrap();
    }
}

#[test]
fn a_lock_that_goes_away_is_waited_for() {
    needs!(tools);
    let size = std::fs::metadata(os_image()).unwrap().len();
    let Some(disk) = dirty("a_lock_that_goes_away_is_waited_for", size) else { return };
    // As udev holds it while it probes.
    let mut holder =
        std::process::Command::new("flock").args(["-s", disk.name(), "sleep", "2"]).spawn().unwrap();
    let is_free = || {
        std::process::Command::new("flock")
            .args(["-n", "-x", disk.name(), "true"])
            .status()
            .unwrap()
            .success()
    };
    while is_free() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(holder.try_wait().unwrap().is_none(), "flock ended before it had the lock");
    }
    flashed(os_image(), &disk.node, &[]);
    assert!(holder.try_wait().unwrap().is_some(), "it did not wait");
    assert_equal(os_image(), &disk.node);
}

#[test]
fn a_config_json_that_was_promised_must_be_there() {
    needs!(tools);
    // A root of its own: a flasher medium whose config.json is not made yet.
    let dir = folder();
    for place in ["sys", "proc"] {
        std::os::unix::fs::symlink(format!("/{place}"), dir.path().join(place)).unwrap();
    }
    std::fs::create_dir_all(dir.path().join("mnt/boot")).unwrap();
    std::fs::create_dir_all(dir.path().join("etc")).unwrap();
    std::fs::write(
        dir.path().join("etc/resin-init-flasher.conf"),
        "INTERNAL_DEVICE_KERNEL=sdz
",
    )
    .unwrap();
    let run = || {
        let out = copal()
            .args(["flash", "--json", "--plan", "--image-only", "--root"])
            .arg(dir.path())
            .arg("--image")
            .arg(os_image())
            .env_remove("CONFIG_PATH")
            .output()
            .unwrap();
        last_line(&out)
    };
    // None is promised where there is no flasher medium: the search for the disk begins, in a root without any.
    assert_eq!(run()["code"], "no-target");
    std::fs::write(dir.path().join("mnt/boot/balena-image-flasher"), "").unwrap();
    assert_eq!(run()["code"], "config-json-missing");
}

#[test]
fn an_image_of_another_user_in_a_folder_for_everybody_is_warned_of() {
    needs!(is_root);
    let dir = folder();
    let shared = dir.path().join("shared");
    std::fs::create_dir_all(shared.join("own")).unwrap();
    let (image, deep, target) = (shared.join("os.img"), shared.join("own/os.img"), dir.path().join("disk"));
    std::fs::copy(os_image(), &image).unwrap();
    std::fs::copy(os_image(), &deep).unwrap();
    let warned = |image: &Path| {
        let out = flash(image, &target, &["--plan"]);
        assert!(out.status.success(), "{}", stderr(&out));
        // A checkout may itself be below such a directory.
        let place = format!("every user may put files into {}", shared.canonicalize().unwrap().display());
        stderr(&out).lines().any(|line| line.contains("belongs to user 4711") && line.ends_with(&place))
    };
    let mode = |bits| std::fs::set_permissions(&shared, Permissions::from_mode(bits)).unwrap();
    mode(0o1777);
    assert!(!warned(&image), "it is the caller's");
    for image in [&image, &deep] {
        std::os::unix::fs::chown(image, Some(4711), None).unwrap();
        assert!(warned(image));
    }
    mode(0o755);
    assert!(!warned(&image), "only root can put it there");
}

#[test]
fn refusals_say_what_is_wrong_and_what_to_do() {
    needs!(tools);
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let (image, target) = (at("os.img"), at("disk"));
    std::fs::copy(os_image(), &image).unwrap();
    fill(&target, MIB);
    let refused = |image: &Path, more: &[&str], words: &[&str]| {
        let out = flash(image, &target, more);
        let text = stderr(&out);
        assert!(!out.status.success() && words.iter().all(|word| text.contains(word)), "{text}");
        text
    };
    std::fs::write(at("os.zip"), b"PK\x03\x04 and more").unwrap();
    refused(&at("os.zip"), &[], &["[unsupported-compression]", "zip", "unpack it first"]);
    std::fs::write(at("os.qcow2"), b"QFI\xfb\0\0\0\x03 and more").unwrap();
    refused(&at("os.qcow2"), &[], &["[no-partition-table]", "qcow2", "qemu-img convert"]);
    let text = refused(&image, &["--receipt", "/dev/null"], &["[output-failed]", "/dev/null", "plain file"]);
    assert!(!text.contains("free space"), "{text}");
    // A signature that is a byte longer than its key makes them, and one that is no file.
    let (key, certificate, signature) = (at("key"), at("maker.crt"), at("os.img.sig"));
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let (key, certificate) = (name(&key), name(&certificate));
    tool(&[
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=x",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ]);
    std::fs::write(&signature, [0; 257]).unwrap();
    let verify = ["--verify-signature", certificate.as_str()];
    refused(&image, &verify, &["[signature-invalid]", "os.img.sig: it has more than 256 bytes"]);
    std::fs::remove_file(&signature).unwrap();
    tool(&["mkfifo", signature.to_str().unwrap()]);
    refused(&image, &verify, &["[signature-invalid]", "os.img.sig: it is a FIFO"]);
    // Behind a link is what is erased.
    let link = at("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let plan = flash(&image, &link, &["--plan"]);
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(text.contains(&format!("{} -> {}", link.display(), target.display())), "{text}");
}
