//! A disk that fails in the kernel: a storage daemon that injects errors behind a loop device.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::kit::storage_daemon::Daemon;
use crate::support::*;

/// A loop device on a file that a storage daemon exports. The device goes before the daemon does.
struct Failing {
    disk: Option<Loop>,
    daemon: Option<Daemon>,
    dir: tempfile::TempDir,
}

impl Failing {
    /// `None`, and a line that says so, where there is no storage daemon with FUSE.
    fn new(test: &str, size: u64, rules: &str) -> Option<Failing> {
        let dir = folder();
        let backing = dir.path().join("backing");
        fill(&backing, size);
        let daemon = Daemon::start(&backing, rules).map_err(|why| not_run(test, why)).ok()?;
        let disk = Some(over(test, &daemon.export, &[])?);
        Some(Failing { disk, daemon: Some(daemon), dir })
    }

    fn node(&self) -> &Path {
        &self.disk.as_ref().unwrap().node
    }
}

/// Exit code 4, the code and offset of the failure, and no table on the disk.
fn failed(disk: &Failing, out: &std::process::Output, code: &str) -> serde_json::Value {
    let line = last_line(out);
    assert_eq!(line["code"], code, "{line}");
    assert_eq!(line["effect"], "written", "{line}");
    assert_eq!(out.status.code(), Some(4), "{line}");
    let head = read(&disk.dir.path().join("backing"), 0, MIB);
    assert!(head.iter().all(|b| *b == 0), "a failed flash left something bootable");
    line
}

#[test]
fn an_unwritable_sector() {
    // Sector 131072 = byte 64 MiB, for every write that touches it.
    let rules = "[inject-error]\nevent = \"none\"\niotype = \"write\"\nsector = \"131072\"\nerrno = \"5\"\n";
    let Some(disk) = Failing::new("an_unwritable_sector", 128 * MIB, rules) else { return };
    // Something must be written there: a zero range would be punched.
    let image = disk.dir.path().join("dense.img");
    tool(&[
        "sh",
        "-ec",
        &format!(
            "cp {} {1}; head -c 4M /dev/urandom | dd of={1} bs=1M seek=62 conv=notrunc status=none",
            os_image().display(),
            image.display()
        ),
    ]);
    let out = flash(&image, disk.node(), &["--json"]);
    let line = failed(&disk, &out, "target-write-failed");
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("os error 5"), "{message}");
    let at: u64 = message
        .split("byte ")
        .nth(1)
        .unwrap()
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((63 * MIB..65 * MIB).contains(&at), "{message}");
}

#[test]
fn an_unreadable_sector() {
    // Every read of it fails. Sampling the old content gets over that; the read-back must not.
    let rules = "[inject-error]\nevent = \"none\"\niotype = \"read\"\nsector = \"131072\"\nerrno = \"5\"\n";
    let Some(disk) = Failing::new("an_unreadable_sector", 128 * MIB, rules) else { return };
    let out = flash(os_image(), disk.node(), &["--json"]);
    failed(&disk, &out, "target-read-failed");
}

#[test]
fn a_disk_that_goes_away() {
    let Some(mut disk) = Failing::new("a_disk_that_goes_away", 128 * MIB, "") else { return };
    // Slowly enough to be there when it happens.
    let image = disk.dir.path().join("dense.img");
    tool(&[
        "sh",
        "-ec",
        &format!(
            "cp {} {1}; head -c 80M /dev/urandom | dd of={1} bs=1M seek=10 conv=notrunc status=none",
            os_image().display(),
            image.display()
        ),
    ]);
    let child = copal()
        .args(["flash", "--json", "--image"])
        .arg(&image)
        .arg("--target")
        .arg(disk.node())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // As soon as the body is being written.
    let backing = disk.dir.path().join("backing");
    for _ in 0..2000 {
        if read(&backing, 12 * MIB, 512) != [0xA5; 512] {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    disk.daemon.as_mut().unwrap().process.kill().unwrap();
    let out = child.wait_with_output().unwrap();
    let line = last_line(&out);
    assert_eq!(out.status.code(), Some(4), "{line}");
    let code = line["code"].as_str().unwrap();
    assert!(
        ["target-write-failed", "target-read-failed", "target-vanished", "target-flush-failed"]
            .contains(&code),
        "{line}"
    );
    assert!(read(&backing, 0, MIB).iter().all(|b| *b == 0));
}
