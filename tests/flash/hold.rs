//! A target belongs to one flash, from the check of its image to the end.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::needs::{needs, tools};
use crate::kit::process::{stderr, wait};
use crate::support::*;

/// With a hole at its end, which takes a while to be checked.
const SIZE: u64 = 512 * MIB;

fn huge(dir: &Path) -> PathBuf {
    let image = dir.join("huge.img");
    std::fs::copy(os_image(), &image).unwrap();
    File::options().write(true).open(&image).unwrap().set_len(SIZE).unwrap();
    image
}

/// A flash that was stopped within the check of its image.
struct Stopped(Child);

impl Stopped {
    fn start(image: &Path, target: &Path) -> Stopped {
        let mut flash = copal();
        flash.args(["flash", "--json", "--force-raw", "--sha256"]).args([image, target]);
        let mut child = flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let begun = lines.by_ref().find(|line| line.contains("\"check\"") && line.contains("begin"));
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGSTOP).unwrap();
        assert!(begun.is_some(), "the check has not begun");
        std::thread::spawn(move || lines.for_each(drop));
        Stopped(child)
    }

    fn go_on(self) -> std::process::Output {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGCONT).unwrap();
        wait(self.0)
    }
}

#[test]
fn a_second_flash_of_a_target_is_refused_while_the_first_checks_its_image() {
    let Some(disk) = dirty("a_second_flash_of_a_target_is_refused_while_the_first_checks_its_image", SIZE)
    else {
        return;
    };
    let dir = folder();
    let (image, file) = (huge(dir.path()), dir.path().join("disk"));
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    std::thread::scope(|scope| {
        for target in [&disk.node, &file] {
            scope.spawn(|| {
                let first = Stopped::start(&image, target);
                let second = flash(os_image(), target, &[]);
                let text = stderr(&second);
                assert_eq!(second.status.code(), Some(5), "{text}");
                let holder = format!("process {} (copal) holds it", first.0.id());
                assert!(text.contains("[busy]") && text.contains(&holder), "{text}");
                let out = first.go_on();
                assert!(out.status.success(), "{}", stderr(&out));
                assert_equal(&image, target);
            });
        }
    });
    // It ends with the flash.
    flashed(os_image(), &disk.node, &[]);
}

#[test]
fn a_file_that_appears_during_the_check_is_not_overwritten() {
    needs!(tools);
    let dir = folder();
    let (image, target) = (huge(dir.path()), dir.path().join("disk"));
    let flash = Stopped::start(&image, &target);
    assert!(!target.exists(), "it is made before the image is known to be right");
    std::fs::write(&target, "of another program").unwrap();
    let out = flash.go_on();
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(3), "{text}");
    assert_eq!(std::fs::read(&target).unwrap(), b"of another program");
}
