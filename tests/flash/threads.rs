//! A system that has no more threads to give.

use crate::kit::cgroup::Pids;
use crate::kit::process::{stderr, tool};
use crate::support::*;

#[test]
fn a_flash_needs_no_thread_but_its_own() {
    let Some(group) = Pids::new("a_flash_needs_no_thread_but_its_own") else { return };
    let dir = folder();
    // Decoded, checked, written over what differs, zeroed and read back; an LED has a thread too.
    let image = dir.path().join("os.img.gz");
    tool(&["sh", "-ec", &format!("gzip -1 <{} >{}", os_image().display(), image.display())]);
    let led = dir.path().join("led");
    for most in ["1", "3"] {
        let target = dir.path().join("disk");
        fill(&target, 100 * MIB);
        std::fs::write(&led, "").unwrap();
        group.limit(most);
        let mut flash = group.command(env!("CARGO_BIN_EXE_copal"));
        flash.arg("flash").arg("--image").arg(&image).arg("--target").arg(&target).arg("--led").arg(&led);
        flash.env("COPAL_LED_DIRECTORY", dir.path());
        let out = flash.output().unwrap();
        assert!(out.status.success(), "{most}: {:?}: {}", out.status, stderr(&out));
        assert_equal(os_image(), &target);
    }
    group.limit("1");
    let target = dir.path().join("disk");
    poke(&target, 70 * MIB, b"damaged");
    let mut verify = group.command(env!("CARGO_BIN_EXE_copal"));
    let out = verify.arg("verify").arg("--image").arg(&image).arg("--target").arg(&target).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
}
