//! A made-up device: slot A (partition 2) runs, B (partition 3) holds the other system.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::kit::process::assert_words;
use crate::kit::tree::{GIB, MIB, Tree};

pub const UENV: &str = "/mnt/boot/resinOS_uEnv.txt";
pub const COUNT: &str = "/mnt/boot/bootcount.env";
pub const HEALTH: &str = "/mnt/state/rollback-health-breadcrumb";
pub const ALTBOOT: &str = "/mnt/state/rollback-altboot-breadcrumb";
pub const VARIABLES: &str = "/mnt/state/rollback-health-variables";

/// That of the other slot's current hostapp.
pub const OS_RELEASE: &str = "/mnt/sysroot/inactive/balena/overlay2/top/diff/etc/os-release";

/// Without any boot selection.
pub fn device() -> Tree {
    let mut t = Tree::new();
    t.disk("mmcblk0", "179:0", 16 * GIB);
    for (n, bytes) in [(1, 40 * MIB), (2, GIB), (3, GIB), (5, 20 * MIB), (6, 10 * GIB)] {
        t.part("mmcblk0", &format!("mmcblk0p{n}"), &format!("179:{n}"), bytes);
    }
    t.udev("179:2", &[("ID_FS_LABEL", "resin-rootA")]).udev("179:3", &[("ID_FS_LABEL", "resin-rootB")]);
    t.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "rw");
    t.mount("179:5", "/mnt/state", "ext4", "/dev/mmcblk0p5", "rw");
    t.mount("179:2", "/mnt/sysroot/active", "ext4", "/dev/mmcblk0p2", "ro");
    t.mount("179:3", "/mnt/sysroot/inactive", "ext4", "/dev/mmcblk0p3", "rw");
    for folder in ["/mnt/boot", "/mnt/state", "/mnt/data", "/run"] {
        t.folder(folder);
    }
    t.file("/proc/sys/kernel/random/boot_id", "boot\n");
    let root = "/mnt/sysroot/inactive";
    t.folder(&format!("{root}/balena/volumes/v/_data"));
    t.link(&format!("{root}/hostapps/c0ffee/boot"), "../../balena/volumes/v/_data");
    t.link(&format!("{root}/current"), "hostapps/c0ffee");
    t.file(&format!("{root}/balena/image/overlay2/layerdb/mounts/c0ffee/mount-id"), "top");
    t.file(OS_RELEASE, "VERSION=\"5.3.1\"\n");
    t
}

/// With U-Boot, and a count unless it is 0.
pub fn uboot(root: &str, upgrade_available: u8, count: u32) -> Tree {
    let mut t = device();
    t.file(UENV, &format!("resin_root_part={root}\nupgrade_available={upgrade_available}\n"));
    if count > 0 {
        t.file(COUNT, &format!("bootcount={count:x}\n\0"));
    }
    t
}

/// With an environment block.
pub fn with_block(file: &str, root: &str, upgrade_available: u8, count: u32) -> Tree {
    let mut t = device();
    let mut text = format!(
        "# GRUB Environment Block\nbootcount={count}\nresin_root_part={root}\nupgrade_available={upgrade_available}\nother=kept\n"
    );
    text += &"#".repeat(1024 - text.len());
    t.file(file, &text);
    t
}

/// What tells a marker of this boot.
pub fn marker(t: &mut Tree, kind: &str) {
    let text = format!(r#"{{"kind":"{kind}","boot_id":"boot","target":"B","transaction":"t"}}"#);
    t.file("/run/copal/marker", &text);
}

/// Both breadcrumbs, the variables, and every flag.
pub fn traces(t: &mut Tree) {
    for file in [HEALTH, ALTBOOT] {
        t.file(file, "");
    }
    t.file(VARIABLES, "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    for flag in ["health-triggered", "altboot-triggered", "health-failed"] {
        t.file(&format!("/mnt/state/rollback-{flag}"), "");
    }
}

pub fn read(t: &Tree, path: &str) -> Option<String> {
    fs::read(t.paths().at(path)).ok().map(|b| String::from_utf8(b).unwrap())
}

pub fn is_there(t: &Tree, path: &str) -> bool {
    t.paths().at(path).exists()
}

/// Every file below `/mnt` and `/run` with its content, but for the lock, which stays where it was taken.
pub fn snapshot(t: &Tree) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut todo = vec![t.paths().at("/mnt"), t.paths().at("/run")];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            if meta.is_dir() {
                todo.push(path);
            } else if meta.is_file() && !path.ends_with("update.lock") {
                let content = fs::read(&path).unwrap();
                all.insert(path, content);
            }
        }
    }
    all
}

/// `copal args… --root TREE`, which says nothing of what it does.
pub fn copal(t: &Tree, args: &[&str]) -> (i32, String, String) {
    let root = t.paths().root().to_owned();
    let out = Command::new(env!("CARGO_BIN_EXE_copal"))
        .args(args)
        .arg("--root")
        .arg(root)
        .env_remove("COPAL_LOG")
        .output()
        .unwrap();
    texts(&out)
}

pub fn texts(out: &Output) -> (i32, String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    assert_words(&text(&out.stderr));
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}
