//! What flashes, on the kernel of the oldest devices.

use std::fs;
use std::process::Output;

use crate::kit::needs::needs;
use crate::kit::old_kernel::{CONTROL, REFUSED, SCRIPT, program};
use crate::rig::{Disk, Rig, can_run, image, tool};
use crate::{assert_image, assert_ok, stderr};

/// A system with the program that devices get, and how it is run.
fn system() -> Rig {
    let rig = Rig::new();
    rig.put("old_kernel.py", SCRIPT);
    rig.put("control.py", CONTROL);
    fs::remove_file(rig.root().join("copal")).unwrap();
    fs::copy(program(), rig.root().join("copal")).unwrap();
    let out = old(&rig, &["python3", "/control.py"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), REFUSED, "{}", stderr(&out));
    rig
}

fn old(rig: &Rig, argv: &[&str]) -> Output {
    rig.run(&[&["python3", "/old_kernel.py"], argv].concat())
}

#[test]
fn a_disk_is_installed() {
    needs!(can_run);
    let rig = system();
    rig.program(
        "bin/resin-init-flasher-board",
        "#!/bin/sh\nset -e\nuname -r >/tmp/internal_boot/kernel-seen\n/copal fatrw copy /tmp/internal_boot/kernel /tmp/internal_boot/second\n",
    );
    let out = old(&rig, &["/copal", "flash", "--no-power-off"]);
    assert_ok(&out);
    assert_image(&rig);
    let seen = rig.disk.boot_text("/kernel-seen").unwrap();
    assert!(seen.starts_with("2.6."), "{seen}");
    assert_eq!(rig.disk.boot_text("/second").unwrap(), "kernel of the image");
    assert_eq!(rig.disk.boot_text("/EFI/BOOT/grub.cfg").unwrap(), "menuentry internal\n");
}

/// Everything that a person does with an image by hand; each form of image has a decoder of its own.
#[test]
fn images_are_written_and_compared() {
    needs!(can_run);
    let rig = system();
    let target = rig.beside("target.raw");
    fs::write(&target, vec![0xA5; 48 << 20]).unwrap();
    let disk = Disk::over(&target, &[]);
    let plain = image().to_str().unwrap();
    for (tool_of, end) in [("gzip -c", "gz"), ("xz -0 -c", "xz"), ("zstd -q -c", "zst"), ("cat", "img")] {
        let to = rig.root().join(format!("image.{end}"));
        tool(&["sh", "-c", &format!("{tool_of} \"$0\" >\"$1\""), plain, to.to_str().unwrap()]);
        let name = format!("/image.{end}");
        for (argv, what) in [
            (&["/copal", "flash", "--image", &name, "--target", &disk.node, "--plan"][..], "plan"),
            (&["/copal", "flash", "--image", &name, "--target", &disk.node], "flash"),
            (&["/copal", "verify", "--image", &name, "--target", &disk.node], "verify"),
            (&["/copal", "flash", "--image", &name, "--target", "/tmp/made.raw"], "a file"),
            (&["/copal", "digest", &name], "digest"),
        ] {
            let out = old(&rig, argv);
            assert!(out.status.success(), "{end}, {what}: {}", stderr(&out));
        }
        let (written, wanted) = (fs::read(&target).unwrap(), fs::read(image()).unwrap());
        assert!(written[..wanted.len()] == wanted[..], "{end}");
        // The next one has to write all of it again.
        fs::write(&target, vec![0xA5; 48 << 20]).unwrap();
        tool(&["blockdev", "--flushbufs", &disk.node]);
    }
    rig.put("spl", vec![0x5A; 5000]);
    let at = ["--target", disk.name(), "--image", "/spl", "--block-size", "1024", "--seek", "33"];
    assert_ok(&old(&rig, &[&["/copal", "bootloader", "write"], &at[..]].concat()));
    assert!(fs::read(&target).unwrap()[33 << 10..][..5000].iter().all(|b| *b == 0x5A));
    for argv in [&["/copal", "bootloader", "show"][..], &["/copal", "status"], &["/copal", "doctor"]] {
        let out = old(&rig, argv);
        assert!(out.status.success(), "{argv:?}: {:?} {}", out.status, stderr(&out));
    }
    let script = "echo one >a && /copal fatrw write b <a && /copal fatrw copy b c && /copal fatrw read c";
    let out = old(&rig, &["sh", "-c", script]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "one\n", "{}", stderr(&out));
}
