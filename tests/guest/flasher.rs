//! A whole installation: a stick boots, its flasher writes the internal disk, the NOR flash and an eMMC boot partition,
//! and the machine switches itself off.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Disk, Ending, Guest, Outcome, System, fat_image, folder, gpt_image, tool};

const LIMIT: Duration = Duration::from_secs(400);
const MIB: u64 = 1 << 20;

const CONF: &str = r#"# written by the recipe
INTERNAL_DEVICE_KERNEL="md/balena{,_*} nvme?n?"
INTERNAL_DEVICE_BOOTLOADER_CONFIG="grub.cfg_internal"
INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH="/EFI/BOOT/grub.cfg"
BALENA_IMAGE=balena-image-guest.img
BOOTLOADER_FLASH_DEVICE="mtdblock0"
BOOTLOADER_IMAGE="u-boot.bin"
BOOTLOADER_BLOCK_SIZE_OFFSET="1024"
BOOTLOADER_SKIP_OUTPUT_BLOCKS="3"
BOOTLOADER_FLASH_DEVICE_1="mmcblk0boot0"
BOOTLOADER_IMAGE_1="spl.bin"
BOOTLOADER_BLOCK_SIZE_OFFSET_1="512"
BOOTLOADER_SKIP_OUTPUT_BLOCKS_1="2"
"#;

/// A board's own program, without a first line that says by what it is to be run.
const BOARD: &str = "echo \"$internal_dev\" >/tmp/internal_boot/board.txt\n";

/// Where the image's partitions begin, in MiB: what `gpt_image` makes of 20 and 8 MiB.
const BOOT_AT: u64 = 1;

/// A small file system with files in its root.
fn ext4(to: &Path, label: &str, mib: u64, files: &[(&str, &[u8])]) {
    let dir = folder();
    for (name, data) in files {
        std::fs::write(dir.path().join(name), data).unwrap();
    }
    let (from, size) = (dir.path().to_str().unwrap(), format!("{mib}M"));
    tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", label, "-d", from, to.to_str().unwrap(), &size]);
}

struct Machine {
    dir: tempfile::TempDir,
    image: PathBuf,
}

/// Bytes of one kind, so that a loader can be told from anything else.
fn loader(byte: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| byte ^ u8::try_from(i % 251).unwrap()).collect()
}

impl Machine {
    /// The disks of a board, all of them used before.
    fn new() -> Self {
        let dir = folder();
        let (boot, root, image) =
            (dir.path().join("boot"), dir.path().join("root"), dir.path().join("image"));
        fat_image(
            &boot,
            "resin-boot",
            20,
            &[("EFI/BOOT/grub.cfg", b"of the flasher"), ("device-type.json", b"{}")],
        );
        ext4(&root, "resin-rootA", 8, &[("hello", b"hello")]);
        gpt_image(&image, &[("resin-boot", &boot), ("resin-rootA", &root)], 1);
        let machine = Self { dir, image };
        for (name, size) in [("target", 64 * MIB), ("nor", MIB), ("emmc", 18 * MIB)] {
            std::fs::write(machine.disk(name), vec![0x5a; usize::try_from(size).unwrap()]).unwrap();
        }
        machine
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A medium whose system is a file system of its own making.
    fn system_medium(&self, system: System, board: &str) -> PathBuf {
        let root = self.disk("flash-rootA");
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/resin-init-flasher.service");
        system
            .copal()
            .link("copal", "/usr/bin/resin-init-flasher")
            .file(&self.image, "/opt/balena-image-guest.img")
            .text("/etc/resin-init-flasher.conf", CONF)
            .text("/usr/bin/resin-init-flasher-board", board)
            .text(
                "/etc/systemd/system/mnt-boot.mount",
                "[Mount]\nWhat=/dev/disk/by-label/flash-boot\nWhere=/mnt/boot\nOptions=ro\n",
            )
            .unit("resin-init-flasher.service", &std::fs::read_to_string(unit).unwrap())
            .ext4(&root, "flash-rootA", 450);
        self.medium(&root)
    }

    fn medium(&self, root: &Path) -> PathBuf {
        let (boot, medium) = (self.disk("flash-boot"), self.disk("medium"));
        let config =
            br#"{"deviceType":"guest","installer":{"secureboot":false},"big":12345678901234567890123}"#;
        let files: [(&str, &[u8]); 5] = [
            ("config.json", config),
            ("grub.cfg_internal", b"of the internal disk"),
            ("u-boot.bin", &loader(1, 20_000)),
            ("spl.bin", &loader(2, 10_001)),
            ("system-connections/wifi", b"[connection]"),
        ];
        fat_image(&boot, "flash-boot", 32, &files);
        gpt_image(&medium, &[("flash-boot", &boot), ("flash-rootA", root)], 1);
        medium
    }

    /// The image's root partition on a disk.
    fn root(&self, disk: &Path) -> Vec<u8> {
        let at = usize::try_from((BOOT_AT + 20) * MIB).unwrap();
        std::fs::read(disk).unwrap()[at..at + usize::try_from(8 * MIB).unwrap()].to_vec()
    }

    /// A file of the boot partition that was written.
    fn boot_file(&self, disk: &str, name: &str) -> String {
        let at = format!("{}@@{}M", self.disk(disk).display(), BOOT_AT);
        tool(&["mtype", "-i", &at, &format!("::/{name}")])
    }
}

fn board(test: &str, machine: &Machine, board: &str) -> Option<Guest> {
    let guest = Guest::system(test, "PARTLABEL=flash-rootA")?;
    let medium = machine.system_medium(System::new(test)?, board);
    Some(
        guest
            .disk(Disk::Nvme, &machine.disk("target"), "TARGET")
            .disk(Disk::Usb, &medium, "STICK")
            .disk(Disk::Emmc { boot: MIB }, &machine.disk("emmc"), "")
            .pflash(&machine.disk("nor")),
    )
}

/// What the flasher had to say, for failures of these tests.
fn said(outcome: &Outcome) -> String {
    let journal = outcome.journal();
    let by_the_unit = |e: &&serde_json::Value| e["_SYSTEMD_UNIT"] == "resin-init-flasher.service";
    let lines = journal.iter().filter(by_the_unit).map(|e| format!("{} {}\n", e["PRIORITY"], e["MESSAGE"]));
    lines.collect()
}

/// Events of docs/journal.md.
const FLASH_STARTED: &str = "06b2ee14b8b447e6b23061cee0def024";
const FLASH_FINISHED: &str = "bd777019650f46e385f1b23c954427f6";
const FLASH_FAILED: &str = "94231e1ed99a406f899dfda870cbf1a2";
const BOOTLOADER_WRITTEN: &str = "957714db815b40879cf91340b3777ef2";

/// What the journal has for an event: the values of one of its fields.
fn events(outcome: &Outcome, id: &str, field: &str) -> Vec<String> {
    let journal = outcome.journal();
    let those = journal.iter().filter(|e| e["MESSAGE_ID"] == id);
    those.map(|e| e[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_stick_installs_and_switches_off() {
    let machine = Machine::new();
    let Some(guest) = board("a_stick_installs_and_switches_off", &machine, BOARD) else { return };
    let outcome = guest.run(LIMIT);
    let said = said(&outcome);
    assert_eq!(outcome.ending, Ending::PoweredOff, "{said}\n{}", outcome.console);

    // The internal disk: the image's partitions, and what belongs to this device.
    let target = machine.disk("target");
    let table = tool(&["sgdisk", "-p", target.to_str().unwrap()]);
    assert!(table.contains("resin-boot") && table.contains("resin-rootA"), "{table}\n{said}");
    assert_eq!(machine.boot_file("target", "EFI/BOOT/grub.cfg"), "of the internal disk");
    assert_eq!(machine.boot_file("target", "system-connections/wifi"), "[connection]");
    assert_eq!(machine.boot_file("target", "board.txt"), "/dev/nvme0n1\n");
    let config: serde_json::Value =
        serde_json::from_str(&machine.boot_file("target", "config.json")).unwrap();
    assert!(config.get("installer").is_none() && config["deviceType"] == "guest", "{config}");
    assert!(machine.boot_file("target", "config.json").contains("12345678901234567890123"));
    let receipt: serde_json::Value =
        serde_json::from_str(&machine.boot_file("target", "flash-receipt.json")).unwrap();
    assert_eq!(receipt["target"]["serial"], "TARGET", "{receipt}");
    assert!(machine.root(&machine.image) == machine.root(&target));

    for event in [FLASH_STARTED, FLASH_FINISHED] {
        assert_eq!(events(&outcome, event, "COPAL_DEVICE"), ["/dev/nvme0n1"], "{said}");
    }
    assert_eq!(
        events(&outcome, BOOTLOADER_WRITTEN, "COPAL_DEVICE"),
        ["/dev/mtd0", "/dev/mmcblk0boot0"],
        "{said}"
    );
    assert_eq!(events(&outcome, FLASH_FAILED, "MESSAGE"), [""; 0], "{said}");

    // The loaders, and every byte around them.
    let mut nor = vec![0x5a; usize::try_from(MIB).unwrap()];
    nor[3072..23_072].copy_from_slice(&loader(1, 20_000));
    assert!(std::fs::read(machine.disk("nor")).unwrap() == nor, "{said}");
    let mut emmc = vec![0x5a; usize::try_from(18 * MIB).unwrap()];
    emmc[1024..11_025].copy_from_slice(&loader(2, 10_001));
    assert!(std::fs::read(machine.disk("emmc")).unwrap() == emmc, "{said}");
}

/// A device that was not finished must start its flasher again, not half a system.
#[test]
fn a_board_program_that_fails_leaves_nothing_to_start_from() {
    let machine = Machine::new();
    let failing = "touch /run/board-was-here; echo the board is unhappy; exit 7\n";
    let Some(guest) = board("a_board_program_that_fails_leaves_nothing_to_start_from", &machine, failing)
    else {
        return;
    };
    let outcome = guest
        .script(
            "for i in $(seq 1500); do
                 [ \"$(systemctl show -p ActiveState --value resin-init-flasher)\" != failed ] || break
                 sleep 0.2
             done
             systemctl show -p ActiveState,ExecMainStatus resin-init-flasher >/host/unit
             [ -e /run/board-was-here ]
             ! mountpoint -q /tmp/internal_boot
             cat /sys/block/mmcblk0boot0/force_ro >/host/force_ro",
        )
        .run(LIMIT)
        .ok();
    let said = said(&outcome);
    assert!(outcome.file("unit").contains("ExecMainStatus=1\n"), "{}\n{said}", outcome.file("unit"));
    assert!(said.contains("the board is unhappy"), "{said}");
    assert_eq!(events(&outcome, FLASH_FAILED, "COPAL_ERROR_CODE"), ["board-program-failed"], "{said}");
    assert_eq!(events(&outcome, FLASH_FINISHED, "MESSAGE"), [""; 0], "{said}");
    assert_eq!(outcome.file("force_ro"), "1\n");
    // The image had been written.
    let disk = std::fs::read(machine.disk("target")).unwrap();
    assert!(machine.root(&machine.image) == machine.root(&machine.disk("target")), "{said}");
    let (mib, size) = (usize::try_from(MIB).unwrap(), std::fs::metadata(&machine.image).unwrap().len());
    assert!(disk[..mib].iter().all(|b| *b == 0), "{said}");
    // The backup of the table lies at the end of the image.
    assert!(disk[usize::try_from(size).unwrap() - 512..][..8] != *b"EFI PART", "{said}");
}

/// Before the root of its medium is left for good, an initramfs copies image and boot files to memory, and has the disk that
/// the device started from written.
#[test]
fn an_initramfs_writes_the_disk_it_came_from_and_restarts() {
    let test = "an_initramfs_writes_the_disk_it_came_from_and_restarts";
    let Some(guest) = Guest::small(test) else { return };
    let machine = Machine::new();
    let root = machine.disk("flash-rootA");
    ext4(&root, "flash-rootA", 60, &[("balena-image-guest.img", &std::fs::read(&machine.image).unwrap())]);
    let medium = machine.medium(&root);
    // No other flash in this machine.
    let conf: String =
        CONF.lines().filter(|l| !l.starts_with("BOOTLOADER")).map(|l| format!("{l}\n")).collect();
    let outcome = guest
        .memory(768)
        .disk(Disk::Nvme, &medium, "ONLY")
        .module("vfat")
        .module("ext4")
        .copal()
        .text("/usr/bin/resin-init-flasher", "#!/bin/sh\nexec copal resin-init-flasher\n")
        .text("/usr/bin/resin-init-flasher-board", BOARD)
        .text("/etc/resin-init-flasher.conf", &conf)
        .init(
            "#!/bin/bash
             . /lib/guest.sh
             guest_mounts; guest_modules; guest_udev
             mkdir -p /rootfs /flash-boot /mnt/boot
             mount LABEL=flash-rootA /rootfs && mount LABEL=flash-boot /flash-boot
             cp /rootfs/balena-image-guest.img /tmp
             cp -r /flash-boot/* /mnt/boot/
             umount /flash-boot /rootfs
             echo POSTINSTALL_REBOOT=1 >>/etc/resin-init-flasher.conf
             export INITRAMFS_LOGFILE=/tmp/initramfs.log
             echo the log of the initramfs >$INITRAMFS_LOGFILE
             /usr/bin/resin-init-flasher 2>&1
             echo it came back with $?
             poweroff -f",
        )
        .run(LIMIT);
    assert_eq!(outcome.ending, Ending::Rebooted, "{}", outcome.console);
    for bad in ["it came back", "Kernel panic"] {
        assert!(!outcome.console.contains(bad), "{}", outcome.console);
    }
    assert!(machine.root(&machine.image) == machine.root(&medium), "{}", outcome.console);
    assert_eq!(machine.boot_file("medium", "EFI/BOOT/grub.cfg"), "of the internal disk");
    assert_eq!(machine.boot_file("medium", "board.txt"), "/dev/nvme0n1\n");
    let at = format!("{}@@{}M", medium.display(), BOOT_AT);
    let names = tool(&["mdir", "-b", "-i", &at, "::/"]);
    let log = names.lines().find_map(|l| l.strip_prefix("::/migration_")).expect("its log");
    assert!(machine.boot_file("medium", &format!("migration_{log}")).contains("the log of the initramfs"));
}
