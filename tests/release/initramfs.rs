//! The module of the initramfs, sourced and called as the init of openembedded-core does it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::kit::needs::{needs, tools};
use crate::top;

/// As the init does it: a failure to call is noted, and the init goes on.
const INIT: &str = r#"
. "$1"
if ! eval cryptsetup_enabled; then echo skipped; exit 0; fi
eval cryptsetup_run
echo "the next module runs"
"#;

/// What it uses of `os-helpers-logging`.
const LOGGING: &str = "info() { echo \"info: $1\"; }\nfail() { echo \"failed: $1\"; exit 1; }\n";

const SHELLS: [&[&str]; 3] = [&["dash"], &["bash"], &["busybox", "sh"]];

struct Initramfs {
    folder: tempfile::TempDir,
}

impl Initramfs {
    /// `copal` and `udevadm` are shell scripts; `mappings` are those that the kernel shows afterwards.
    fn new(copal: &str, udevadm: &str, mappings: &[&str]) -> Initramfs {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            file
        };
        for (name, text) in [("usr/bin/copal", copal), ("bin/udevadm", udevadm), ("bin/sleep", "")] {
            fs::write(at(name), format!("#!/bin/sh\necho \"{name} $*\" >>\"${{0%/*}}/../calls\"\n{text}\n"))
                .unwrap();
            fs::set_permissions(at(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        fs::write(at("usr/libexec/os-helpers-logging"), LOGGING).unwrap();
        for (number, name) in mappings.iter().enumerate() {
            fs::write(at(&format!("sys/class/block/dm-{number}/dm/name")), format!("{name}\n")).unwrap();
        }
        let mut text = fs::read_to_string(top().join("hooks/cryptsetup")).unwrap();
        for path in ["/usr/bin/copal", "/usr/libexec/os-helpers-logging", "/sys/class/block", "/dev/kmsg"] {
            assert!(text.matches(path).count() == 1, "{path}");
            text = text.replace(path, at(&path[1..]).to_str().unwrap());
        }
        fs::write(at("init.d/72-cryptsetup"), text).unwrap();
        Initramfs { folder }
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_default()
    }

    fn run(&self, shell: &[&str], flasher: &str) -> Output {
        for file in ["calls", "usr/calls", "dev/kmsg"] {
            drop(fs::remove_file(self.at(file)));
        }
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
        let (program, more) = shell.split_first().unwrap();
        Command::new(program)
            .args(more)
            .args(["-c", INIT, "init"])
            .arg(self.at("init.d/72-cryptsetup"))
            .env("PATH", path)
            .env("bootparam_flasher", flasher)
            .output()
            .unwrap()
    }
}

fn text(out: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    String::from_utf8(out.stdout.clone()).unwrap()
}

#[test]
fn copal_unlocks_and_udev_knows_each_partition_before_the_next_module_runs() {
    needs!(tools);
    // Known at the third look; the number is the newer one.
    let udevadm =
        "[ \"$(grep -c \"udevadm info $2\" \"${0%/*}/../calls\")\" -lt 3 ] || echo 'E: DM_UDEV_RULES_VSN=3'";
    let initramfs = Initramfs::new("echo 5 partitions; echo a warning >&2", udevadm, &["luks-1", "luks-2"]);
    for shell in SHELLS {
        let out = initramfs.run(shell, "");
        assert_eq!(text(&out), "info: 5 partitions\na warning\nthe next module runs\n", "{shell:?}");
        assert_eq!(initramfs.read("usr/calls"), "usr/bin/copal unlock\n");
        for name in ["luks-1", "luks-2"] {
            let looks = initramfs.read("calls").matches(&format!("udevadm info /dev/mapper/{name}")).count();
            assert_eq!(looks, 3, "{shell:?}");
        }
        assert!(!Path::new(&initramfs.at("dev/kmsg")).exists());
    }
}

/// Secure boot is off: there are no mappings, and nothing to wait for.
#[test]
fn without_mappings_the_init_goes_on() {
    needs!(tools);
    let initramfs = Initramfs::new("echo nothing is unlocked", "exit 1", &[]);
    for shell in SHELLS {
        let out = initramfs.run(shell, "");
        assert_eq!(text(&out), "info: nothing is unlocked\nthe next module runs\n", "{shell:?}");
        assert_eq!(initramfs.read("calls"), "");
    }
}

#[test]
fn a_failure_ends_the_init_and_is_in_the_kernel_s_log() {
    needs!(tools);
    let copal = r"echo 'copal: error[would-not-unlock]: a\b' >&2; head -c 1500 /dev/zero | tr '\0' x; exit 1";
    let initramfs = Initramfs::new(copal, "exit 1", &[]);
    for shell in SHELLS {
        let out = initramfs.run(shell, "false");
        assert_eq!(out.status.code(), Some(1), "{shell:?}");
        assert!(text(&out).starts_with("failed: copal unlock: copal: error[would-not-unlock]"), "{shell:?}");
        let log = initramfs.read("dev/kmsg");
        let lines: Vec<&str> = log.lines().collect();
        let [error, long] = lines.as_slice() else { panic!("{shell:?}: {log}") };
        assert!(error.starts_with("<3>copal unlock: copal: error[would-not-unlock]: a"), "{shell:?}: {log}");
        assert!(long.starts_with("<3>copal unlock: xxx") && long.len() < 976, "{shell:?}: {}", long.len());
    }
}

/// A partition that udev never handles ends the init after a bounded time: a link could lead to the encrypted partition.
#[test]
fn the_wait_for_udev_has_an_end() {
    let initramfs = Initramfs::new("", "echo 'E: DM_NAME=x'", &["luks-1"]);
    // The sleep of busybox is its own.
    for shell in &SHELLS[..2] {
        let out = initramfs.run(shell, "");
        assert_eq!(out.status.code(), Some(1), "{shell:?}");
        assert!(
            text(&out).contains("failed: udev has not handled the unlocked partition luks-1"),
            "{shell:?}"
        );
        let calls = initramfs.read("calls");
        assert_eq!(calls.matches("bin/sleep 0.1").count(), 299, "{shell:?}");
    }
}

#[test]
fn an_installation_medium_unlocks_nothing() {
    needs!(tools);
    let initramfs = Initramfs::new("exit 1", "exit 1", &[]);
    for shell in SHELLS {
        assert_eq!(text(&initramfs.run(shell, "true")), "skipped\n", "{shell:?}");
        assert_eq!(initramfs.read("usr/calls"), "");
    }
}
