//! The file that scripts source, in every shell that a board may have.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::device::{copal, device, texts, uboot, with_block};
use crate::kit::needs::{needs, tools};
use crate::kit::tree::{GIB, MIB, Tree};

const SHELLS: [&[&str]; 3] = [&["dash"], &["bash"], &["busybox", "sh"]];

/// Below the tree: the file as it is installed, with the places of the device's own files below the tree too.
fn installed(t: &Tree) -> PathBuf {
    let root = t.paths().root().to_owned();
    let at = |name: &str| root.join(name).to_str().unwrap().replace('\'', "'\\''");
    let program = root.join("copal.sh");
    let copal = format!(
        "#!/bin/sh\nprintf '%s' \"$BALENA_NONENC_BOOT_MOUNTPOINT\" >'{}'\nexec {} \"$@\" --root '{}'\n",
        at("asked-with"),
        env!("CARGO_BIN_EXE_copal"),
        at("")
    );
    fs::write(&program, copal).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/rollback-parse-bootloader");
    let text = fs::read_to_string(hook).unwrap();
    assert_eq!(text.matches("/usr/bin/copal").count(), 1, "one start, by its full path");
    let mut text = text.replace("/usr/bin/copal", &format!("'{}'", at("copal.sh")));
    for helper in ["/usr/sbin/balena-config-vars", "/usr/libexec/os-helpers-fs"] {
        assert_eq!(text.matches(helper).count(), 2, "{helper}");
        text = text.replace(helper, &format!("'{}'", at(helper.trim_start_matches('/'))));
    }
    let file = root.join("rollback-parse-bootloader");
    fs::write(&file, text).unwrap();
    file
}

/// Runs a script that sources the file first.
fn sourced(t: &Tree, shell: &[&str], before: &str, behind: &str) -> (i32, String, String) {
    let file = installed(t);
    let script = format!("{before}\n. \"$1\"\n{behind}\n");
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg("-c").arg(script).arg("board-script").arg(file);
    command.env_remove("BALENA_NONENC_BOOT_MOUNTPOINT").env_remove("COPAL_LOG");
    texts(&command.output().unwrap())
}

const SHOW: &str = r#"printf '%s|' "${BOOTLOADER_FILE#"$ROOT"}" "$upgrade_available" "$resin_root_part" "$current_part" "$current_part_idx" "$current_part_name""#;

#[track_caller]
fn defines(t: &Tree, expected: &str) {
    for shell in SHELLS {
        for options in ["", "set -e", "set -eu"] {
            let before =
                format!("ROOT='{}'; {options}", t.paths().root().to_str().unwrap().replace('\'', "'\\''"));
            let (code, out, err) = sourced(t, shell, &before, SHOW);
            assert_eq!((code, err.as_str()), (0, ""), "{shell:?} {options}: {out}");
            assert_eq!(out.lines().last().unwrap(), expected, "{shell:?} {options}");
        }
    }
}

#[test]
fn uboot_by_index() {
    needs!(tools);
    defines(&uboot("2", 0, 0), "/mnt/boot/resinOS_uEnv.txt|0|2|/dev/mmcblk0p2|2|A|");
    defines(&uboot("3", 1, 2), "/mnt/boot/resinOS_uEnv.txt|1|3|/dev/mmcblk0p2|2|A|");
}

#[test]
fn environment_blocks() {
    needs!(tools);
    defines(
        &with_block("/mnt/boot/EFI/BOOT/grubenv", "3", 1, 0),
        "/mnt/boot/EFI/BOOT/grubenv|1|3|/dev/mmcblk0p2|2|A|",
    );
    defines(&with_block("/mnt/boot/bootenv", "A", 0, 0), "/mnt/boot/bootenv|0|A|/dev/mmcblk0p2|2|A|");
    // The script took resinOS_uEnv.txt before bootenv, and that before grubenv.
    let mut t = with_block("/mnt/boot/bootenv", "A", 0, 0);
    t.file("/mnt/boot/grub/grubenv", "x");
    defines(&t, "/mnt/boot/bootenv|0|A|/dev/mmcblk0p2|2|A|");
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=1\n");
    defines(&t, "/mnt/boot/resinOS_uEnv.txt|1|2|/dev/mmcblk0p2|2|A|");
}

/// Slot B runs, from partition 11.
fn many_partitions() -> Tree {
    let mut t = Tree::new();
    t.disk("nvme0n1", "259:0", 16 * GIB);
    for n in [1, 10, 11] {
        t.part("nvme0n1", &format!("nvme0n1p{n}"), &format!("259:{n}"), 40 * MIB);
    }
    t.udev("259:11", &[("ID_FS_LABEL", "resin-rootB")]).folder("/mnt/boot").folder("/run");
    t.mount("259:1", "/mnt/boot", "vfat", "/dev/nvme0n1p1", "rw");
    t.mount("259:11", "/mnt/sysroot/active", "ext4", "/dev/nvme0n1p11", "ro");
    t
}

#[test]
fn an_index_is_hexadecimal_on_both_sides() {
    needs!(tools);
    let mut t = many_partitions();
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=b\nupgrade_available=0\n");
    defines(&t, "/mnt/boot/resinOS_uEnv.txt|0|b|/dev/nvme0n1p11|b|B|");
    // GRUB's own notation is decimal: a comparison of the two has to hold all the same.
    let mut t = many_partitions();
    let mut block = "# GRUB Environment Block\nresin_root_part=11\nupgrade_available=1\n".to_owned();
    block += &"#".repeat(1024 - block.len());
    t.file("/mnt/boot/grub/grubenv", &block);
    defines(&t, "/mnt/boot/grub/grubenv|1|b|/dev/nvme0n1p11|b|B|");
}

#[test]
fn an_encrypted_root_is_named_by_its_volume() {
    needs!(tools);
    let mut t = device();
    t.mapped("dm-0", "253:0", GIB, "luks-1", "CRYPT-LUKS2-1").stack("mmcblk0p2", "dm-0");
    t.udev("253:0", &[("ID_FS_LABEL", "resin-rootA")]);
    t.mount("253:0", "/mnt/sysroot/active", "ext4", "/dev/mapper/luks-1", "ro");
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n");
    defines(&t, "/mnt/boot/resinOS_uEnv.txt|0|2|/dev/mapper/luks-1|2|A|");
}

#[test]
fn a_script_ends_where_nothing_can_be_determined() {
    needs!(tools);
    let mut legacy = device();
    legacy.file("/mnt/boot/grub/grub.cfg", "linux /vmlinuz root=LABEL=resin-rootA\n");
    let mut no_root = device();
    no_root.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n");
    no_root.mount("0:50", "/mnt/sysroot/active", "tmpfs", "tmpfs", "ro");
    let mut no_boot = Tree::new();
    no_boot.mount("8:1", "/", "ext4", "/dev/sda1", "rw");
    for (t, why) in [
        // Never updated: the script found no variables either.
        (device(), "it is not there"),
        (legacy, "no rollback"),
        (no_boot, "nothing is mounted there"),
    ] {
        for shell in SHELLS {
            let (code, out, err) = sourced(&t, shell, "", "echo still here");
            assert_eq!(code, 1, "{shell:?}: {out}");
            assert!(!out.contains("still here"), "{shell:?}: {out}");
            assert!(err.contains(why), "{shell:?}: {err}");
        }
    }
}

#[test]
fn from_there_on_the_first_error_ends_the_script() {
    needs!(tools);
    for shell in SHELLS {
        let (code, out, _) = sourced(&uboot("2", 0, 0), shell, "", "echo here; false; echo there");
        assert_eq!(code, 1, "{shell:?}");
        assert!(out.contains("here\n") && !out.contains("there\n"), "{shell:?}: {out}");
    }
}

#[test]
fn what_the_board_says_of_its_boot_partition_is_handed_on_and_what_it_defines_stays() {
    needs!(tools);
    let mut t = uboot("2", 0, 0);
    t.file("/mnt/special/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=1\n");
    t.mount("179:6", "/mnt/special", "vfat", "/dev/mmcblk0p6", "rw");
    t.file("/usr/sbin/balena-config-vars", "BALENA_NONENC_BOOT_MOUNTPOINT=/mnt/special\nWR=tee\n");
    t.file("/usr/libexec/os-helpers-fs", "is_part_encrypted() { return 1; }\n");
    for shell in SHELLS {
        let behind = r#"is_part_encrypted || echo "${BOOTLOADER_FILE##*/mnt/} $upgrade_available $WR ${copal_assignments-none}""#;
        let (code, out, err) = sourced(&t, shell, "", behind);
        assert_eq!((code, err.as_str()), (0, ""), "{shell:?}");
        assert_eq!(out.lines().last().unwrap(), "special/resinOS_uEnv.txt 1 tee none", "{shell:?}");
        assert_eq!(super::device::read(&t, "/asked-with").unwrap(), "/mnt/special");
    }
}

#[test]
fn no_name_becomes_a_command() {
    needs!(tools);
    let mut t = uboot("2", 0, 0);
    t.file(
        "/mnt/boot/resinOS_uEnv.txt",
        "resin_root_part=$(touch pwned)';touch pwned;'\nupgrade_available=0\n",
    );
    let file = t.paths().root().join("pwned");
    for shell in SHELLS {
        let before = format!("cd '{}'", t.paths().root().display());
        let (code, out, err) = sourced(&t, shell, &before, r#"printf '%s\n' "$resin_root_part""#);
        assert_eq!((code, err.as_str()), (0, ""), "{shell:?}");
        assert_eq!(out.lines().last().unwrap(), "$(touch pwned)';touch pwned;'", "{shell:?}");
        assert!(!file.exists(), "{shell:?}");
    }
    let (code, out, _) = copal(&t, &["rollback", "parse-bootloader"]);
    assert_eq!(code, 0);
    assert!(out.lines().all(|l| l.contains("='") && l.ends_with('\'')), "{out}");
}
