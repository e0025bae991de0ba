//! What the running system and the release of the device consist of.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use super::rig::Backend;

/// Mounts a slot's root: the release as it is, since layers are the engine's affair.
const INIT: &str = r#"#!/bin/sh
set -e
test "$1" = -sysroot
test -e "$2/current/boot/init"
mkdir -p "$2/balena/merged"
mount --bind /image/root "$2/balena/merged"
printf %s "$2/balena/merged"
"#;

/// Fails when it is told to.
pub const HOOK: &str = r#"#!/bin/sh
if [ -e "/mnt/data/fail/${0##*hostapp-update-hooks.d/}" ]; then : > /mnt/data/failed; exit 3; fi
"#;

/// Boot files of both releases: name, and whether the releases have different ones. `None`: only the new one has it.
const BOOT_FILES: [(&str, Option<bool>); 7] = [
    ("kernel.img", Some(true)),
    ("board.dtb", Some(true)),
    ("overlays/hat.dtbo", Some(true)),
    ("same.bin", Some(false)),
    ("overlays/new.dtbo", None),
    ("new-folder/new.bin", None),
    ("EFI/BOOT/bootx64.efi", Some(true)),
];

/// What a boot file holds; kernels are longer than one write.
pub fn boot_file(name: &str, release: &str) -> Vec<u8> {
    let differs = BOOT_FILES.iter().find(|(n, _)| *n == name).unwrap().1 != Some(false);
    let line = format!("{name} of {}\n", if differs { release } else { "both" });
    line.repeat(if name == "kernel.img" { 9000 } else { 40 + line.len() }).into_bytes()
}

pub fn boot_files() -> impl Iterator<Item = (&'static str, bool)> {
    BOOT_FILES.into_iter().map(|(name, kind)| (name, kind.is_some()))
}

/// Files that an engine puts into the volume `/boot`.
pub const VOLUME: [(&str, &str); 2] = [("init", INIT), ("bzImage", "a kernel")];

pub fn put(path: &Path, text: impl AsRef<[u8]>, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A root file system with copal and a shell.
pub fn make_system(root: &Path, copal: &Path, backend: Backend, release: &str) {
    let folders =
        ["dev", "sys", "proc", "tmp", "run", "etc", "usr/bin", "root", "mnt/boot", "mnt/state", "mnt/data"];
    for name in folders.into_iter().chain(["mnt/sysroot/active", "mnt/sysroot/inactive"]) {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for name in ["bin", "sbin"] {
        symlink("usr/bin", root.join(name)).unwrap();
    }
    fs::create_dir(root.join("var")).unwrap();
    symlink("../run", root.join("var/run")).unwrap();
    fs::hard_link(copal, root.join("usr/bin/copal")).unwrap();
    for name in ["hostapp-update", "hostapp-update-hooks", "hostapp-update-hooks-v2"] {
        symlink("copal", root.join("usr/bin").join(name)).unwrap();
    }
    fs::copy("/usr/bin/busybox", root.join("usr/bin/busybox")).unwrap();
    for name in ["sh", "test", "mkdir", "mount", "touch", "sleep", "chroot", "cat", "find"] {
        symlink("busybox", root.join("usr/bin").join(name)).unwrap();
    }
    for program in
        ["/usr/bin/busybox", env!("CARGO_BIN_EXE_copal"), std::env::current_exe().unwrap().to_str().unwrap()]
    {
        // Of a static one it says nothing.
        let out = Command::new("ldd").arg(program).output().unwrap();
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            if let Some(path) = line.split_whitespace().find(|w| w.starts_with('/')) {
                let to = root.join(path.strip_prefix('/').unwrap());
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(path, to).unwrap();
            }
        }
    }
    put(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n", 0o644);
    put(
        &root.join("etc/os-release"),
        format!("ID=balena-os\nVERSION=\"{release}\"\nMETA_BALENA_VERSION=8.0.2\n"),
        0o644,
    );
    let hooks = root.join("etc/hostapp-update-hooks.d");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks");
    let own = fs::read_to_string(repository.join("hook")).unwrap();
    for name in ["80-rollback", backend.hook()] {
        put(&hooks.join(name), &own, 0o755);
    }
    let boot_files = fs::read_to_string(repository.join("1-bootfiles")).unwrap();
    let boot_files = boot_files
        .replace("@BALENA_BOOT_FINGERPRINT@", "balenaos.fingerprint")
        .replace("@BALENA_BOOTFILES_BLACKLIST@", "");
    put(&hooks.join("1-bootfiles"), boot_files, 0o755);
    for (name, in_old) in self::boot_files() {
        if in_old || release == "new" {
            put(&root.join("resin-boot").join(name), boot_file(name, release), 0o644);
        }
    }
}
