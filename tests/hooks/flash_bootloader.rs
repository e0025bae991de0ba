//! `99-flash-bootloader`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use copal::config::bootloaders_conf::{BootloadersConf, PATH};
use copal::config::paths::Paths;
use copal::error::{Code, Effect, Error};
use copal::hooks::Context;
use copal::hooks::builtin::flash_bootloader::{run, write};

use crate::kit::disk::Loop;
use crate::kit::needs::{can_run, needs};

const KIB: usize = 1024;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(1..0xff)).collect()
}

/// A release in a root folder, where a plain file and an eMMC boot partition stand for the device's.
struct Release(tempfile::TempDir);

impl Release {
    fn new() -> Release {
        // Not in /tmp, which may be a tmpfs: direct I/O needs a disk.
        let release = Release(tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap());
        release.put("dev/mmcblk1", &vec![0; 512 * KIB]);
        release.put("dev/mmcblk1boot0", &vec![0; 128 * KIB]);
        release.put("sys/block/mmcblk1boot0/force_ro", b"1\n");
        release.put("sys/block/mmcblk1boot0/size", b"256");
        release.put("resin-boot/spl", &noise(10_000, 1));
        release.put("resin-boot/u-boot", &noise(30_001, 2));
        release
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name.trim_start_matches('/'))
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        fs::write(self.at(name), bytes).unwrap();
    }

    fn conf(&self, together: bool, loaders: &[(&str, &str, u32)]) {
        let mut text = format!("together = {together}\n");
        for (image, device, seek) in loaders {
            let name = image.replace('/', ".");
            text += &format!(
                "[{name}]\ndevice = {device}\nimage = /resin-boot/{image}\nblock-size = 1K\nseek = {seek}\n"
            );
        }
        self.put(PATH, text.as_bytes());
    }

    fn run(&self, during_update: bool) -> Result<(), Error> {
        let called = "99-flash-bootloader".to_owned();
        run(&Context { paths: Paths::new(self.0.path()), during_update, called })
    }

    /// Whether the image lies there.
    fn holds(&self, image: &str, device: &str, kib: usize) -> bool {
        let (image, device) = (fs::read(self.at(&format!("resin-boot/{image}"))), fs::read(self.at(device)));
        let image = image.unwrap();
        device.unwrap()[kib * KIB..].starts_with(&image)
    }

    fn is_blank(&self) -> bool {
        ["dev/mmcblk1", "dev/mmcblk1boot0"]
            .iter()
            .all(|d| fs::read(self.at(d)).unwrap().iter().all(|b| *b == 0))
    }
}

#[test]
fn without_a_list_nothing_is_written() {
    let release = Release::new();
    release.run(true).unwrap();
    release.run(false).unwrap();
    assert!(release.is_blank());
}

#[test]
fn what_is_listed_is_written_where_it_differs_by_update_and_undo_alike() {
    for during_update in [true, false] {
        let release = Release::new();
        release.conf(true, &[("spl", "mmcblk1boot0", 33), ("u-boot", "mmcblk1", 64)]);
        release.run(during_update).unwrap();
        assert!(release.holds("spl", "dev/mmcblk1boot0", 33) && release.holds("u-boot", "dev/mmcblk1", 64));
        let before = fs::metadata(release.at("dev/mmcblk1")).unwrap().modified().unwrap();
        release.put("resin-boot/spl", &noise(9000, 7));
        release.run(during_update).unwrap();
        assert!(release.holds("spl", "dev/mmcblk1boot0", 33));
        assert_eq!(fs::metadata(release.at("dev/mmcblk1")).unwrap().modified().unwrap(), before, "no wear");
        assert_eq!(fs::read_to_string(release.at("sys/block/mmcblk1boot0/force_ro")).unwrap().trim(), "1");
    }
}

#[test]
fn one_that_cannot_be_written_keeps_a_set_and_an_update_from_being_begun() {
    for (together, during_update) in [(true, true), (true, false), (false, true)] {
        let release = Release::new();
        release.conf(together, &[("spl", "mmcblk1", 1), ("u-boot", "mmcblk9", 64)]);
        let e = release.run(during_update).unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::FlashDeviceMissing, Effect::Refused), "{e}");
        assert!(e.message().ends_with("; no bootloader was written"), "{e}");
        assert!(release.is_blank());
    }
}

#[test]
fn an_undo_writes_what_it_can_of_bootloaders_that_stand_alone() {
    let release = Release::new();
    release.conf(false, &[("none", "mmcblk1", 128), ("spl", "mmcblk9", 1), ("u-boot", "mmcblk1", 64)]);
    let e = release.run(false).unwrap_err();
    assert_eq!(e.code(), Code::ImageMissing, "the first one: {e}");
    assert!(release.holds("u-boot", "dev/mmcblk1", 64));
}

#[test]
fn bootloaders_over_each_other_and_lists_that_are_not_clear_are_refused() {
    let release = Release::new();
    release.conf(true, &[("u-boot", "mmcblk1", 64), ("spl", "mmcblk1", 80)]);
    let e = release.run(true).unwrap_err();
    assert!(e.code() == Code::ConfInvalid && e.message().contains("[u-boot] and [spl] overlap"), "{e}");
    release.put(PATH, b"[spl]\ndevice = mmcblk1\nimage = /resin-boot/spl\nseak = 66\n");
    for during_update in [true, false] {
        let e = release.run(during_update).unwrap_err();
        assert!(e.code() == Code::ConfInvalid && e.message().contains("bootloaders.conf:4: seak"), "{e}");
    }
    release.put(PATH, b"\xff");
    assert_eq!(release.run(true).unwrap_err().code(), Code::ConfSyntax);
    assert!(release.is_blank());
}

#[test]
fn a_set_on_a_real_disk_is_written_around_its_table() {
    needs!(can_run);
    let release = Release::new();
    release.put("disk", &vec![0; 16 << 20]);
    let disk = Loop::over(&release.at("disk"), &[]);
    let made = Command::new("sgdisk").args(["-n", "1:16384:0", disk.name()]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let conf = |seek: u32| {
        let section = |name: &str, seek: u32| {
            let image = release.at(&format!("resin-boot/{name}"));
            format!(
                "[{name}]\ndevice = {}\nimage = {}\nblock-size = 512\nseek = {seek}\n",
                disk.name(),
                image.display()
            )
        };
        let text = format!("together = true\n{}{}", section("spl", seek), section("u-boot", 8192));
        BootloadersConf::parse(&text, Path::new("c")).unwrap()
    };
    let e = write(&Paths::default(), &conf(1), true).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::SpanOverTable, Effect::Refused), "{e}");
    write(&Paths::default(), &conf(64), true).unwrap();
    assert!(Command::new("sync").status().unwrap().success());
    assert!(release.holds("spl", "disk", 32) && release.holds("u-boot", "disk", 4096));
    let checked = Command::new("sgdisk").args(["-v", disk.name()]).output().unwrap();
    assert!(String::from_utf8_lossy(&checked.stdout).contains("No problems found"), "{checked:?}");
}
