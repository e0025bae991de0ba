//! The limits of the units, as they are shipped and under a real systemd: what hooks and programs of boards do still works.

use std::path::Path;

use crate::rollback::{internal_disk, release, said};
use crate::support::medium::{Image, empty};
use crate::support::{Disk, Guest, LIMIT, Outcome, Shutdown, System, folder, tool};

/// Each unit below which hooks or programs of boards run, and the erase block of the NOR flash that is written there.
const UNITS: [(&str, usize); 6] = [
    ("copal-boot-check.service", 1),
    ("copal-commit-hooks.service", 2),
    ("rollback-health.service", 3),
    ("copal-job@1.service", 4),
    ("rollback-altboot.service", 5),
    ("resin-init-flasher.service", 6),
];

const ERASE_BLOCK: usize = 4096;

/// A hook, a health check and a board's program, all in one: does what they do, once in each unit. What each step says, and `done`, goes to a
/// file with the name of the unit.
const PROGRAM: &str = r#"#!/bin/bash
set -eu
unit=$(sed 's,.*/,,' /proc/self/cgroup)
said=/host/$unit
! grep -qs '^done$' "$said" || exit 0
exec >>"$said" 2>&1
case $unit in
BLOCKS
esac

echo "mount, where everybody sees it"
at=/run/by-$unit
mkdir -p "$at"
mount -t tmpfs none "$at"
grep -q " $at " /proc/1/mountinfo
umount "$at"
echo "load a module, and write the MTD that it makes"
modprobe mtdram total_size=64 erase_size=4
ram=$(grep -l mtdram /sys/class/mtd/mtd[0-9]/name)
ram=/dev/$(basename "$(dirname "$ram")")
echo "$unit" >"$ram"
[ "$(head -c ${#unit} "$ram")" = "$unit" ]
modprobe -r mtdram
echo "erase and write a block of the NOR flash"
flash_erase -q /dev/mtd0 $((block * 4096)) 1
echo "by $unit" | dd of=/dev/mtd0 bs=4096 seek="$block" conv=sync status=none

echo "another root, another mount namespace"
chroot / true
unshare -m true
echo "loop device, device mapper"
modprobe -a loop dm_mod
head -c 65536 /dev/zero >"$at/file" && loop=$(losetup -f --show "$at/file") && losetup -d "$loop"
dmsetup create --notable --noudevsync by-copal && dmsetup remove --noudevsync by-copal
echo "device node, set-user-ID program, file of another user, protected file"
mknod "$at/node" c 1 3
install -m 4755 /bin/true "$at/program"
chown 1000 "$at/program"
touch /var/by-copal && chattr +i /var/by-copal && chattr -i /var/by-copal && rm /var/by-copal
echo "become another user"
su -s /bin/sh -c true nobody
setpriv --reuid 1000 --clear-groups true
echo "I/O ports, physical memory, PCI configuration, sysrq"
perl -e 'syscall(172, 3) == 0 or die "iopl: $!"'
dd if=/dev/port of=/dev/null bs=1 skip=112 count=1 status=none
dd if=/dev/mem of=/dev/null bs=16 skip=$((0xf0000 / 16)) count=1 status=none
pci=$(echo /sys/bus/pci/devices/*/config | cut -d' ' -f1)
dd if="$pci" of="$pci" bs=1 skip=12 seek=12 count=1 conv=notrunc status=none
echo h >/proc/sysrq-trigger
echo "keyring"
perl -e 'my @key = ("user", "by-copal", "x"); syscall(248, @key, 1, -4) > 0 or die "add_key: $!"'
echo "priority, limits"
nice -n -5 true
prlimit --nofile=8192:8192 true
echo "whether the clock is synchronised"
perl -e 'my $state = "\0" x 256; syscall(159, $state) >= 0 or die "adjtimex: $!"'
echo "a program of 32 bits"
in-32-bits
if [ "$unit" != copal-job@1.service ]; then
    echo "network: raw socket, settings"
    perl -MSocket -e 'socket(S, AF_INET, SOCK_RAW, 1) or die "raw socket: $!"'
    ip link set lo down && ip link set lo up
    unshare -n true
    echo "the namespaces of process 1"
    nsenter -t 1 -m -u -i -n -p true
fi
if [ "$unit" = resin-init-flasher.service ]; then
    echo "clock, swap, trace"
    date -s "@$(date +%s)"
    (umask 077 && head -c 1048576 /dev/zero >/var/swap) && mkswap -q /var/swap && swapon /var/swap && swapoff /var/swap
    perl -e 'syscall(101, 0, 0, 0, 0) == 0 or die "ptrace: $!"'
fi

# refused WHAT SYSTEM-CALL…: of perl, with EPERM.
refused() {
    perl -e 'my ($what, $call, @with) = @ARGV; $! = 0; syscall($call + 0, map { $_ + 0 } @with); $! == 1 or die "$what: $!"' "$@"
}
echo "refused: personality, realtime, user namespace, emulation"
refused personality 135 8
refused modify_ldt 154 0 0 0
! chrt -f 1 true
! unshare -U true
if [ "$unit" != resin-init-flasher.service ]; then
    echo "refused: clock, trace"
    ! date -s "@$(date +%s)"
    refused ptrace 101 0 0 0 0
fi
[ "$(readlink /proc/self/ns/mnt)" = "$(readlink /proc/1/ns/mnt)" ]
grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -s '[:space:]' ' '
echo
echo done
"#;

/// A program of 32 bits that ends with 0: `exit(0)` behind an ELF header for i386.
fn in_32_bits(to: &Path) {
    let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80, 0x04, 0x08, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    elf.extend([52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    // One segment: the whole file, to be read and executed.
    for word in [1u32, 0, 0x0804_8000, 0x0804_8000, 93, 93, 5, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend([0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80]);
    std::fs::write(to, elf).unwrap();
    tool(&["chmod", "755", to.to_str().unwrap()]);
}

impl System {
    /// [`PROGRAM`] at each of these places, and what it calls.
    fn program(mut self, dir: &Path, places: &[&str]) -> Self {
        let blocks: Vec<String> =
            UNITS.iter().map(|(unit, block)| format!("{unit}) block={block} ;;")).collect();
        let program = PROGRAM.replace("BLOCKS", &blocks.join("\n"));
        let helper = dir.join("in-32-bits");
        in_32_bits(&helper);
        for place in places {
            self = self.text(place, &program);
        }
        self.file(&helper, "/usr/bin/in-32-bits")
    }
}

/// That everything worked below this unit, and that it was under its limits.
fn assert_done(outcome: &Outcome, nor: &Path, unit: &str) {
    let said = outcome.file(unit);
    let end = "NoNewPrivs: 1 Seccomp: 2 \ndone\n";
    assert!(said.ends_with(end), "{unit} ended behind the last of these:\n{said}");
    let (_, block) = UNITS.iter().find(|(name, _)| *name == unit).unwrap();
    let mut wanted = format!("by {unit}\n").into_bytes();
    wanted.resize(ERASE_BLOCK, 0);
    let nor = std::fs::read(nor).unwrap();
    assert!(nor[block * ERASE_BLOCK..][..ERASE_BLOCK] == wanted, "{unit}: the NOR flash");
}

/// One unit after the other; each in the phase in which it runs hooks, or a program of the board. The last one reboots.
const ONE_BY_ONE: &str = r##"
uboot() { printf "resin_root_part=$1\nupgrade_available=$2\n" >/mnt/boot/resinOS_uEnv.txt; printf "bootcount=$3\n\0" >/mnt/boot/bootcount.env; }
for i in $(seq 1200); do [ "$(systemctl show --value -p Job copal-boot-check.service)" ] || break; sleep 0.1; done
mkdir -p /mnt/state/copal

# Boot files whose deployment was cut off are deployed again, by the release's own hook.
echo '{"transaction": "t", "owner": "A"}' >/mnt/state/copal/bootfiles
systemctl start copal-boot-check.service
[ ! -e /mnt/state/copal/bootfiles ]

echo '{"transaction": "t", "slot": "A"}' >/mnt/state/copal/commit-due
systemctl start copal-commit-hooks.service
[ ! -e /mnt/state/copal/commit-due ]

# A trial that passes.
uboot 2 1 1
touch /mnt/state/rollback-health-breadcrumb
systemctl start rollback-health.service
grep -q upgrade_available=0 /mnt/boot/resinOS_uEnv.txt

# An update that was cut off is undone by a job of the service.
touch /mnt/state/rollback-health-breadcrumb
call() { busctl --system --timeout=120 "$@"; }
job=$(call call io.balena.Copal1 /io/balena/Copal1 io.balena.Copal1.Manager Rollback | cut -d'"' -f2)
state() { call get-property io.balena.Copal1 "$job" io.balena.Copal1.Job State; }
for i in $(seq 3000); do [ "$(state)" = 's "running"' ] || break; sleep 0.1; done
[ "$(state)" = 's "succeeded"' ]

# The boot count goes at a wanted reboot, whatever bootloader counts it.
count() {
    systemctl start rollback-clear-bootcount.service
    systemctl stop rollback-clear-bootcount.service
    systemctl show -p Result rollback-clear-bootcount.service
}
block() {
    mkdir -p "$(dirname "$1")"
    { printf "# GRUB Environment Block\nresin_root_part=$2\nupgrade_available=1\nbootcount=1\n"; head -c 1024 /dev/zero | tr '\0' '#'; } |
        head -c 1024 >"$1"
}
touch /mnt/state/rollback-health-breadcrumb
uboot 2 1 2
# As a power cut leaves it: a temporary that shares its clusters with the file it was to become. To tell that takes FIBMAP, and when it has
# gone, vfat makes the file system read-only.
echo leftover >/mnt/boot/CPLAAAAA.TMP
umount /mnt/boot
part=$(readlink -f /dev/disk/by-state/resin-boot)
entry() { grep -abo "$1" "$part" | head -n 1 | cut -d: -f1; }
dd if="$part" of="$part" bs=1 skip=$(($(entry 'BOOTCO~1ENV') + 26)) seek=$(($(entry 'CPLAAAAATMP') + 26)) count=6 conv=notrunc status=none
mount-state resin-boot /mnt/boot
cmp /mnt/boot/CPLAAAAA.TMP /mnt/boot/bootcount.env
count >/host/uboot
[ ! -e /mnt/boot/bootcount.env ] && [ ! -e /mnt/boot/CPLAAAAA.TMP ]
touch /mnt/boot/writable && rm /mnt/boot/writable
rm /mnt/boot/resinOS_uEnv.txt
block /mnt/boot/bootenv A
count >/host/balena
grep -a bootcount /mnt/boot/bootenv >>/host/balena
rm /mnt/boot/bootenv
block /mnt/boot/EFI/BOOT/grubenv 2
touch /mnt/boot/EFI/BOOT/grub.cfg
count >/host/grub
grep -a bootcount /mnt/boot/EFI/BOOT/grubenv >>/host/grub
rm -r /mnt/boot/EFI

# The bootloader has gone back to this system.
uboot 3 1 4
touch /mnt/state/rollback-altboot-breadcrumb
systemctl start rollback-altboot.service
sleep 850
"##;

#[test]
fn hooks_and_health_checks_do_all_they_need_below_each_unit() {
    let test = "hooks_and_health_checks_do_all_they_need_below_each_unit";
    let Some(guest) = Guest::system(test, "LABEL=resin-rootA") else { return };
    let Some(system) = release(test, "A", "5.1.0") else { return };
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    system
        .program(
            dir.path(),
            &[
                "/etc/hostapp-update-hooks.d/1-bootfiles",
                "/usr/bin/hostapp-update-hooks",
                "/usr/bin/hostapp-update-hooks-v2",
                "/usr/bin/rollback-board-healthcheck",
            ],
        )
        .shipped_unit("copal-commit-hooks.service")
        .ext4(&at("a"), "resin-rootA", 400);
    internal_disk(dir.path());
    std::fs::write(at("nor"), vec![0xff; 1 << 20]).unwrap();
    let outcome = guest
        .other_module("kernel/fs/autofs/autofs4.ko")
        .disk(Disk::Virtio, &at("disk"), "INTERNAL")
        .pflash(&at("nor"))
        .script(ONE_BY_ONE)
        .run(LIMIT);
    println!("took {:?}", outcome.took);
    for (unit, _) in UNITS.iter().filter(|(unit, _)| !unit.contains("flasher")) {
        assert_done(&outcome, &at("nor"), unit);
    }
    assert_eq!(outcome.file("uboot"), "Result=success\n");
    let cleared = said(&outcome.journal(), "rollback-clear-bootcount");
    for repaired in ["shared their clusters after a power cut", "makes it writable again"] {
        assert!(cleared.contains(repaired), "{repaired}: {cleared}");
    }
    for backend in ["balena", "grub"] {
        assert_eq!(outcome.file(backend), "Result=success\nbootcount=0\n", "{backend}");
    }
    assert_eq!(outcome.ending, Shutdown::Rebooted, "{}", outcome.console);
}

#[test]
fn a_board_program_does_all_it_needs_below_the_flasher() {
    let test = "a_board_program_does_all_it_needs_below_the_flasher";
    let Some(guest) = Guest::system(test, "PARTLABEL=flash-rootA") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let image = Image::new(dir.path(), 4);
    let target = empty(at("target"), image.bytes.len() >> 20);
    let system = system
        .flasher(&image, "INTERNAL_DEVICE_KERNEL=nvme?n?")
        .flashing()
        .program(dir.path(), &["/usr/bin/resin-init-flasher-board"]);
    let medium = system.medium(dir.path(), 600, &[("config.json", b"{}")]);
    std::fs::write(at("nor"), vec![0xff; 1 << 20]).unwrap();
    let outcome = guest
        .disk(Disk::Usb, &medium, "STICK")
        .disk(Disk::Nvme, &target, "TARGET")
        .pflash(&at("nor"))
        // A flasher that has failed leaves the device on.
        .script("until systemctl is-failed resin-init-flasher.service; do sleep 1; done; exit 1")
        .run(LIMIT);
    println!("took {:?}", outcome.took);
    assert_done(&outcome, &at("nor"), "resin-init-flasher.service");
    assert_eq!(outcome.ending, Shutdown::PoweredOff, "{}", outcome.console);
    image.assert_on(&target);
}
