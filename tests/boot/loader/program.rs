//! `copal bootloader` as its callers see it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::disk::noise;
use super::tree::Root;

fn command(root: &Root, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_copal"));
    c.arg("bootloader").args(args).arg("--root").arg(root.dir.path());
    c.env_remove("COPAL_LOG").stdin(Stdio::null());
    c
}

fn copal(root: &Root, args: &[&str]) -> Output {
    command(root, args).output().unwrap()
}

#[track_caller]
fn ends(out: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "{stdout}{stderr}");
    if code == 0 { stdout } else { stdout + &stderr }
}

fn json(out: &Output, code: i32) -> Value {
    serde_json::from_str(ends(out, code).lines().last().unwrap()).unwrap()
}

fn write<'a>(device: &'a str, image: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["write", image, device], more].concat()
}

#[test]
fn writes_once_and_says_what_it_did() {
    let root = Root::new();
    root.flash(0, "u-boot", "nor", "0xc00");
    let image = root.put("u-boot.imx", noise(9000, 3));
    let image = image.to_str().unwrap();
    let args = write("mtdblock0", image, &["--block-size", "1K", "--seek", "3", "--json"]);
    let before = fs::read(root.at("dev/mtdblock0")).unwrap();
    let dry = json(&copal(&root, &[&args[..], &["--plan"]].concat()), 0);
    assert_eq!(dry["ok"], true);
    assert_eq!(
        (&dry["bootloader"]["identical"], &dry["bootloader"]["would_write"]),
        (&false.into(), &12288.into())
    );
    assert_eq!(fs::read(root.at("dev/mtdblock0")).unwrap(), before);
    let first = json(&copal(&root, &args), 0)["bootloader"].clone();
    let sum = Command::new("sha256sum").arg(image).output().unwrap().stdout;
    assert_eq!(first["sha256"].as_str().unwrap().as_bytes(), &sum[..64]);
    let device = root.at("dev/mtdblock0").display().to_string();
    assert_eq!(first["device"], device.as_str());
    for (key, value) in [("offset", 3072), ("length", 9000), ("blocks_erased", 4), ("bytes_written", 16384)] {
        assert_eq!(first[key], value, "{key}");
    }
    assert_eq!((&first["kind"], &first["changed"]), (&"mtd".into(), &true.into()));
    let second = json(&copal(&root, &args), 0)["bootloader"].clone();
    for (key, value) in [("blocks_erased", 0), ("bytes_written", 0)] {
        assert_eq!(second[key], value, "{key}");
    }
    assert_eq!(second["changed"], false);
    let text = ends(&copal(&root, &args[..args.len() - 1]), 0);
    assert!(text.contains("up to date") && text.lines().count() == 1, "{text}");
}

#[test]
fn shows_where_a_bootloader_can_go() {
    let root = Root::new();
    assert!(ends(&copal(&root, &["show"]), 0).contains("no raw flash"));
    root.flash(0, "u-boot", "nor", "0xc00");
    root.flash(1, "data", "nand", "0x400");
    root.boot_partition("mmcblk0boot0", 4096);
    let text = ends(&copal(&root, &["show"]), 0);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "mtd0 `u-boot`: nor, 262144 bytes in erase blocks of 4096");
    assert!(lines[1].starts_with("mtd1 `data`: nand") && lines[2].contains("mmcblk0boot0"), "{text}");
    let all = json(&copal(&root, &["show", "--json"]), 0)["bootloader"].clone();
    assert_eq!((&all["mtd"][0]["type"], &all["mtd"][0]["erase_size"]), (&"nor".into(), &4096.into()));
    assert_eq!(
        (&all["mmc_boot"][0]["force_ro"], &all["mmc_boot"][0]["active"]),
        (&true.into(), &Value::Null)
    );
    let image = root.put("image", [0x11; 100]);
    let args = ["show", "--target", "mmcblk0boot0", "--image", image.to_str().unwrap(), "--json"];
    let compared = json(&copal(&root, &args), 0)["bootloader"].clone();
    assert_eq!((&compared["identical"], &compared["kind"]), (&true.into(), &"mmc-boot".into()));
    assert_eq!(compared["sha256"], compared["device_sha256"]);
    assert_eq!(root.force_ro("mmcblk0boot0"), "1");
}

#[test]
fn refuses_with_the_exit_code_that_says_so() {
    let root = Root::new();
    root.flash(0, "nand", "nand", "0x400");
    root.put("dev/sda", vec![0; 8192]);
    let image = root.put("image", [1; 100]);
    let image = image.to_str().unwrap();
    let nand = ends(&copal(&root, &write("mtd0", image, &[])), 3);
    assert!(nand.contains("nandwrite") && nand.contains("[flash-device-unsupported]"), "{nand}");
    assert!(ends(&copal(&root, &write("sdb", image, &[])), 3).contains("[flash-device-missing]"));
    assert!(ends(&copal(&root, &write("sda", "none", &[])), 3).contains("[image-missing]"));
    let beyond = ["--block-size", "512", "--seek", "16", "--json"];
    let e = json(&copal(&root, &write("sda", image, &beyond)), 3);
    assert_eq!((&e["code"], &e["effect"]), (&"span-outside-device".into(), &"refused".into()));
    assert!(fs::read(root.at("dev/sda")).unwrap().iter().all(|b| *b == 0));
    for wrong in [
        &["--block-size", "0", "--seek", "1"][..],
        &["--block-size", "x"],
        &["--seek", "1"],
        &["--block-size", "1G", "--seek", "99999999999"],
        &["--block-size", "-1"],
    ] {
        assert!(ends(&copal(&root, &write("sda", image, wrong)), 2).contains("[usage]"), "{wrong:?}");
    }
    ends(&copal(&root, &["show", "--target", "sda"]), 2);
    ends(&copal(&root, &["write", "--image", image]), 2);
}

#[test]
fn protects_what_a_killed_write_left() {
    let root = Root::new();
    assert!(ends(&copal(&root, &["protect"]), 0).contains("no eMMC boot partition"));
    root.boot_partition("mmcblk0boot0", 4096);
    root.put("sys/block/mmcblk0boot0/force_ro", "0\n");
    assert!(ends(&copal(&root, &["protect"]), 0).contains("mmcblk0boot0 protected"));
    assert_eq!(root.force_ro("mmcblk0boot0"), "1");
}

/// A signal that comes while the boot partition is writable is obeyed, but only when the loader is complete and protected.
#[test]
fn a_signal_does_not_leave_half_a_loader_nor_an_open_boot_partition() {
    let root = Root::new();
    let image = noise(48 << 20, 7);
    let file = root.put("image", &image);
    for signal in ["TERM", "INT", "HUP", "QUIT"] {
        root.boot_partition("mmcblk0boot0", 50 << 20);
        let args = write("mmcblk0boot0", file.to_str().unwrap(), &["--block-size", "1K", "--seek", "33"]);
        let child = command(&root, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while root.force_ro("mmcblk0boot0") != "0" {
            assert!(Instant::now() < end, "it never became writable");
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        let number = format!("SIG{signal}").parse::<nix::sys::signal::Signal>().unwrap() as i32;
        assert_eq!(out.status.signal(), Some(number), "{signal}: {out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(signal), "{out:?}");
        assert_eq!(root.force_ro("mmcblk0boot0"), "1", "left writable by {signal}");
        let device = fs::read(root.at("dev/mmcblk0boot0")).unwrap();
        assert!(device[33 << 10..(33 << 10) + image.len()] == image[..], "half a loader after {signal}");
    }
}
