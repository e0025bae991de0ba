//! Releases and running systems whose hooks are copal's own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::image::Release;
use crate::kit::needs::has;
use crate::kit::old_kernel;
use crate::rig::{Rig, can_run, stderr, tool};

pub const HOOKS: &str = "etc/hostapp-update-hooks.d";

/// What the recipe of meta-balena fills in for GRUB on UEFI.
const BLACKLIST: &str = "/config.json /config.txt /splash/balena-logo.png /extra_uEnv.txt /EFI/BOOT/grub_extraenv \
     /grub/grub_extraenv /configfs.json /hw_intfc.conf /bootenv";

/// Where a board's hook may fail: before the boot files, before the switch, after it, and among the `after` hooks.
pub const PLACES: [&str; 4] = ["0-fail", "90-fail", "999-fail", "after/fail"];

const BUILT_IN: [&str; 5] = [
    "0-carry-boot",
    "60-data-breadcrumb",
    "75-forward_supervisor-db",
    "75-fwd_commit_supervisor-db",
    "80-rollback",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Board {
    Uboot,
    Grub,
    Balena,
}

impl Board {
    const fn hook(self) -> &'static str {
        match self {
            Board::Uboot => "99-resin-uboot",
            Board::Grub => "99-resin-grub",
            Board::Balena => "99-balena-bootloader",
        }
    }

    pub const fn file(self) -> &'static str {
        match self {
            Board::Uboot => "resinOS_uEnv.txt",
            Board::Grub => "EFI/BOOT/grubenv",
            Board::Balena => "bootenv",
        }
    }

    /// How it calls slot A and slot B.
    pub const fn roots(self) -> [&'static str; 2] {
        match self {
            Board::Balena => ["A", "B"],
            _ => ["2", "3"],
        }
    }
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The hook file as a recipe installs it.
fn bootfiles() -> String {
    let text = fs::read_to_string(source("hooks/1-bootfiles")).unwrap();
    let filled = text.replace("@BALENA_BOOT_FINGERPRINT@", "balenaos.fingerprint");
    filled.replace("@BALENA_BOOTFILES_BLACKLIST@", BLACKLIST)
}

/// All hooks of a board with their texts.
fn hooks(board: Board) -> Vec<(String, String)> {
    let shim = fs::read_to_string(source("hooks/hook")).unwrap();
    let mut hooks = vec![(format!("{HOOKS}/1-bootfiles"), bootfiles())];
    for name in BUILT_IN.into_iter().chain([board.hook()]) {
        hooks.push((format!("{HOOKS}/{name}"), shim.clone()));
    }
    hooks
}

/// The boot files of a release: `word` is what tells them from another's.
fn boot_tree(word: &str) -> Vec<(String, String)> {
    let file = |name: &str, text: &str| (format!("resin-boot/{name}"), format!("{text} {word}\n"));
    vec![
        file("kernel", &"kernel ".repeat(20_000)),
        file("overlays/one.dtbo", "overlay"),
        ("resin-boot/same-everywhere".into(), "same\n".into()),
        file(&format!("only-{word}"), "of one release"),
        file("EFI/BOOT/grub.cfg", "set timeout=0 #"),
        file("extra_uEnv.txt", "# the owner's, from"),
    ]
}

/// The program for an image: the static one where `./dev test` has made it, else the one under test with its libraries.
pub fn program() -> &'static Path {
    static STRIPPED: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let make = || {
        let dir = tempfile::Builder::new().prefix("copal-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("copal");
        let made = old_kernel::program();
        if made == Path::new(env!("CARGO_BIN_EXE_copal")) {
            tool(&["strip", "-o", path.to_str().unwrap(), made.to_str().unwrap()]);
        } else {
            fs::copy(made, &path).unwrap();
        }
        (dir, path)
    };
    &STRIPPED.get_or_init(make).1
}

/// A release with copal, its hooks, boot files, and a board's hooks that fail where a test wants them to.
pub fn release_of(board: Board) -> Release {
    let release = Release::new();
    for name in [
        "usr/bin/hostapp-update-hooks",
        "usr/bin/hostapp-update-hooks-v2",
        "etc/hostapp-update-hooks.d/a-hook",
    ] {
        release.remove(name);
    }
    release.put("usr/bin/copal", fs::read(program()).unwrap());
    release.libraries_of(program());
    for name in ["hostapp-update", "hostapp-update-hooks", "hostapp-update-hooks-v2"] {
        symlink("copal", release.root().join("usr/bin").join(name)).unwrap();
    }
    for (path, text) in hooks(board).into_iter().chain(boot_tree("new")) {
        release.put(&path, text);
    }
    for place in PLACES {
        let name = place.replace('/', "-");
        release.put(
            &format!("{HOOKS}/{place}"),
            format!("#!/bin/sh\n! test -e /mnt/data/fail-{name} || {{ echo {name} is broken; exit 3; }}\n"),
        );
    }
    // What an update that begins finds, in the running system.
    release.put(
        &format!("{HOOKS}/before/look"),
        format!("#!/bin/sh\nset -e\ncd /mnt/boot\ntail -n 1 kernel | tail -c 4 >> /mnt/data/said\ngrep -ao 'resin_root_part=.\\|upgrade_available=.' {} >> /mnt/data/said\n", board.file()),
    );
    release
}

/// A device that runs a release with copal, whose boot files are in place, and a newer one in `/mnt/data/os.tar`.
pub fn ready(test: &str, board: Board) -> Option<Rig> {
    if !can_run(test) || (board != Board::Uboot && !has(test, "grub-editenv")) {
        return None;
    }
    let mut rig = Rig::new();
    rig.ok(&["rm", "-f", "/usr/bin/hostapp-update-hooks", "/mnt/boot/kernel"]);
    rig.ok(&["ln", "-s", "copal", "/usr/bin/hostapp-update-hooks"]);
    for (path, text) in hooks(board).into_iter().chain(boot_tree("old")) {
        rig.put(&path, text);
    }
    rig.ok(&["chmod", "-R", "755", &format!("/{HOOKS}")]);
    if board != Board::Uboot {
        rig.ok(&["rm", "/mnt/boot/resinOS_uEnv.txt"]);
        rig.ok(&["mkdir", "-p", "/mnt/boot/EFI/BOOT"]);
        let block = format!("/mnt/boot/{}", board.file());
        rig.ok(&["grub-editenv", &block, "create"]);
        let root = format!("resin_root_part={}", board.roots()[0]);
        rig.ok(&["grub-editenv", &block, "set", "bootcount=0", "upgrade_available=0", &root]);
    }
    // Firmware of which this machine need not have any.
    rig.ok(&["sh", "-c", "mount -t tmpfs tmpfs /sys/firmware && mkdir /sys/firmware/efi"]);
    let out = rig.run(&["env", "DURING_UPDATE=0", "hostapp-update-hooks"]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(rig.text("mnt/boot/kernel").ends_with("old\n"));
    rig.engine();
    static ARCHIVES: OnceLock<[OnceLock<(tempfile::TempDir, PathBuf)>; 3]> = OnceLock::new();
    let make = || {
        let dir =
            tempfile::Builder::new().prefix("release-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("os.tar");
        release_of(board).archive("registry/os:2", &path);
        (dir, path)
    };
    let (_, archive) = ARCHIVES.get_or_init(Default::default)[board as usize].get_or_init(make);
    fs::copy(archive, rig.at("mnt/data/os.tar")).unwrap();
    Some(rig)
}

/// Every file of the boot partition.
pub fn boot(rig: &Rig) -> BTreeMap<PathBuf, Vec<u8>> {
    fn add(files: &mut BTreeMap<PathBuf, Vec<u8>>, top: &Path, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(files, top, &path);
            } else {
                files.insert(path.strip_prefix(top).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    add(&mut files, &rig.at("mnt/boot"), &rig.at("mnt/boot"));
    files
}

/// Which files differ, for messages.
fn difference(one: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let names = one.keys().chain(other.keys());
    names.filter(|n| one.get(*n) != other.get(*n)).cloned().collect()
}

/// Root, and whether it is on trial, as other programs read it.
pub fn selected(rig: &Rig, board: Board) -> (String, String) {
    if board == Board::Uboot {
        return rig.selected();
    }
    let list = rig.ok(&["grub-editenv", &format!("/mnt/boot/{}", board.file()), "list"]);
    let value = |key: &str| list.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("").to_owned();
    assert_eq!(value("bootcount="), "0", "{list}");
    (value("resin_root_part="), value("upgrade_available="))
}

pub fn breadcrumbs(rig: &Rig) -> usize {
    let names = ["health", "altboot"];
    names.into_iter().filter(|name| rig.has(&format!("mnt/state/rollback-{name}-breadcrumb"))).count()
}

/// The boot files of the new release, all of them and no others, but for what is the owner's.
pub fn assert_new_files(rig: &Rig, board: Board) {
    let files = boot(rig);
    for (name, text) in boot_tree("new") {
        let name = name.strip_prefix("resin-boot/").unwrap();
        let found = files.get(Path::new(name));
        if name == "extra_uEnv.txt" {
            assert_eq!(found.unwrap(), b"# the owner's, from old\n");
        } else {
            assert!(found.is_some_and(|f| *f == text.as_bytes()), "{name}");
        }
    }
    assert_fingerprint(rig, board);
}

/// What is listed is so, but for the file that the bootloader's hook changes afterwards: shell releases list that, too.
fn assert_fingerprint(rig: &Rig, board: Board) {
    let others = format!("cd /mnt/boot && grep -v ' {}$' balenaos.fingerprint", board.file());
    let listed = rig.ok(&["sh", "-c", &others]);
    assert!(listed.contains("kernel\n") && listed.contains("overlays/one.dtbo\n"), "{listed}");
    rig.ok(&["sh", "-c", &format!("{others} | md5sum --quiet --strict -c -")]);
}

/// The new release boots next, on trial, with its own boot files; and everything says so.
pub fn assert_pending(rig: &Rig, board: Board) {
    assert_eq!(selected(rig, board), (board.roots()[1].into(), "1".into()));
    assert_eq!(breadcrumbs(rig), 2);
    assert!(!rig.has("mnt/state/copal/bootfiles"), "its boot files are settled");
    assert!(rig.has("mnt/data/remove_me_to_reset"));
    assert_new_files(rig, board);
    // The updater adds what the bootloader's hook has changed.
    rig.ok(&["sh", "-c", "cd /mnt/boot && md5sum --quiet --strict -c balenaos.fingerprint"]);
    let status: serde_json::Value =
        serde_json::from_str(rig.ok(&["copal", "status", "--json"]).lines().last().unwrap()).unwrap();
    assert!(status.to_string().contains("\"pending\""), "{status}");
}

/// Nothing is different from before the update. A file that only the new release has may stay: the hooks of the running system
/// do not know whose it is.
pub fn assert_as_before(rig: &Rig, board: Board, before: &BTreeMap<PathBuf, Vec<u8>>, why: &str) {
    assert_eq!(selected(rig, board), (board.roots()[0].into(), "0".into()), "{why}");
    let known = |mut files: BTreeMap<PathBuf, Vec<u8>>| {
        files.remove(Path::new("only-new"));
        files.remove(Path::new("balenaos.fingerprint")).unwrap();
        files
    };
    let (before, now) = (known(before.clone()), known(boot(rig)));
    assert!(before == now, "{why}: {:?}", difference(&before, &now));
    assert_fingerprint(rig, board);
    assert_eq!(breadcrumbs(rig), 0, "{why}");
    assert!(!rig.has("run/copal/marker"), "{why}");
    assert!(!rig.has("mnt/state/copal/bootfiles"), "{why}");
    rig.assert_tidy(why);
}
