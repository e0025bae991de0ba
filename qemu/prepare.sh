#!/bin/sh
# Gets everything that the virtual machines of tests/guest need into one folder: QEMU, a kernel with its modules, a small
# userland, a Debian system. Nothing is installed on this machine, and only the last step needs root.
#
#   usage: prepare.sh FOLDER
#
# Debian's packages are fetched by an apt of its own (own sources, own state), which checks their signatures. Whatever
# suite this machine runs, the guests are the same: the kernel and the systems are Debian 12's, and QEMU is Debian 13's
# backport, because before 10.1 nobody could plug in an eMMC. Each part is made in full or not at all, and is kept until
# its recipe changes.
set -eu

TOP=${1:?usage: prepare.sh FOLDER}
HERE=$(cd "$(dirname "$0")" && pwd)
MIRROR=${COPAL_DEBIAN_MIRROR:-http://deb.debian.org}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
SUITE=bookworm
QEMU_SUITE=trixie

QEMU_PACKAGES='qemu-system-x86'
SMALL_PACKAGES='busybox-static bash mtd-utils e2fsprogs dosfstools util-linux mount fdisk kmod udev dmsetup'
# What builds a kernel module. It runs in a chroot: the kernel's build goes with this compiler only.
BUILD_PACKAGES='make dash coreutils sed grep mawk findutils diffutils bash'
SYSTEM_PACKAGES='systemd,systemd-sysv,udev,dbus,kmod,e2fsprogs,dosfstools,mtd-utils,util-linux,mount,fdisk,gdisk,parted,iproute2,procps,psmisc'

# Modules in the small userland, with all they depend on.
MODULES='virtio_pci virtio_blk virtio_scsi virtio_console virtio_rng 9p 9pnet_virtio
nvme sd_mod sr_mod mmc_block sdhci sdhci_pci usb_storage uas xhci_pci ehci_pci loop
ext4 vfat nls_cp437 nls_ascii nls_utf8 nls_iso8859-1 overlay squashfs
mtd mtdblock mtdblock_ro mtdram block2mtd nandsim phram ofpart cmdlinepart physmap cfi_probe cfi_cmdset_0001 cfi_cmdset_0002
dm_mod dm_flakey dm_log_writes dm_crypt raid1 null_blk scsi_debug zram efivarfs'

note() { printf '%s guests: %s\n' "$(date +%T)" "$*"; }
die() {
    printf '%s\n' "guests: $*" >&2
    exit 1
}

# --- Debian's archive -------------------------------------------------------------------------------------------------

# own_apt SUITE: an apt of its own below $TOP/apt-SUITE; every apt program started from here on uses it.
own_apt() {
    apt=$TOP/apt-$1
    [ "${APT_CONFIG:-}" != "$apt/conf" ] || return 0
    mkdir -p "$apt/etc/apt.conf.d" "$apt/etc/preferences.d" "$apt/lists/partial" "$apt/archives/partial"
    : >"$apt/status"
    for part in "debian:$1" "debian:$1-updates" "debian-security:$1-security" "debian:$1-backports"; do
        echo "deb [signed-by=$KEYRING] $MIRROR/${part%%:*} ${part#*:} main"
    done >"$apt/etc/sources.list"
    {
        cat <<END
Dir "$apt";
Dir::Etc "$apt/etc";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
END
        # The one thing of this machine's settings that may be needed to reach the archive.
        env -u APT_CONFIG apt-config dump | grep -i '^Acquire::https\{0,1\}::Proxy ' || true
    } >"$apt/conf.new"
    mv "$apt/conf.new" "$apt/conf"
    export APT_CONFIG="$apt/conf"
    note "fetching the lists of packages of $1"
    apt-get -q -q update || die "apt-get update failed"
}

# unpack TREE DEB…
unpack() {
    tree=$1
    shift
    mkdir -p "$tree"
    for deb in "$@"; do dpkg-deb -x "$deb" "$tree"; done
    # Since Debian 13 packages have files below /usr only.
    for dir in bin sbin lib lib64; do
        [ -e "$tree/$dir" ] || [ ! -e "$tree/usr/$dir" ] || ln -s "usr/$dir" "$tree/$dir"
    done
}

# tree NAME PACKAGE…: these packages and all they depend on, unpacked below $TOP/NAME.new; no maintainer's script runs.
# Options of apt may stand before the packages.
tree() {
    name=$1
    shift
    rm -rf "$TOP/$name.new" "$TOP/debs"
    mkdir -p "$TOP/debs/partial"
    apt-get -q -q -y -o Dir::Cache::archives="$TOP/debs" install --download-only "$@" || die "cannot fetch $*"
    unpack "$TOP/$name.new" "$TOP/debs"/*.deb
    # shellcheck disable=SC2016 # dpkg's variables
    for deb in "$TOP/debs"/*.deb; do dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb"; done >"$TOP/$name.new/packages"
    rm -rf "$TOP/debs"
}

# in_tree TREE PROGRAM…: runs a program of such a tree with the tree's own libraries.
in_tree() {
    at=$1
    program=$2
    shift 2
    "$at/lib64/ld-linux-x86-64.so.2" \
        --library-path "$at/lib/x86_64-linux-gnu:$at/usr/lib/x86_64-linux-gnu:$at/lib/systemd:$at/usr/lib/systemd" "$at/$program" "$@"
}

# --- parts ------------------------------------------------------------------------------------------------------------

# part NAME RECIPE: makes $TOP/NAME with the function make_NAME unless it was made by this very recipe.
part() {
    stamp=$(printf '%s\n' "$2" "$MIRROR" | sha256sum | cut -d' ' -f1)
    if [ -e "$TOP/$1/stamp" ] && [ "$(cat "$TOP/$1/stamp")" = "$stamp" ]; then
        note "$1: there"
        return 0
    fi
    started=$(date +%s)
    note "$1: making"
    "make_$1"
    echo "$stamp" >"$TOP/$1.new/stamp"
    rm -rf "${TOP:?}/$1"
    mv "$TOP/$1.new" "$TOP/$1"
    note "$1: made in $(($(date +%s) - started)) s"
}

make_qemu() {
    own_apt "$QEMU_SUITE"
    tree qemu -t "$QEMU_SUITE-backports" $QEMU_PACKAGES
    version=$(in_tree "$TOP/qemu.new" usr/bin/qemu-system-x86_64 --version) || die "this QEMU does not start"
    note "$(echo "$version" | sed -n 1p)"
}

# The kernel's package with all modules, and the module that tells the kernel where the NOR flash is.
make_kernel() {
    own_apt "$SUITE"
    image=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | sed -n 1p)
    [ -n "$image" ] || die "no kernel in $SUITE"
    release=${image#linux-image-}
    rm -rf "$TOP/kernel.new" "$TOP/debs"
    mkdir -p "$TOP/debs" "$TOP/kernel.new"
    (cd "$TOP/debs" && apt-get -q -q download "$image") || die "cannot fetch $image"
    unpack "$TOP/kernel.new/tree" "$TOP/debs"/*.deb
    # shellcheck disable=SC2016 # dpkg's variable
    note "kernel $release $(dpkg-deb -W --showformat '${Version}' "$TOP/debs"/*.deb)"
    rm -rf "$TOP/debs"
    mv "$TOP/kernel.new/tree/boot/vmlinuz-$release" "$TOP/kernel.new/vmlinuz"
    mkdir "$TOP/kernel.new/lib"
    mv "$TOP/kernel.new/tree/lib/modules" "$TOP/kernel.new/lib/modules"
    rm -rf "$TOP/kernel.new/tree"
    # Three quarters of it are for hardware that no guest has.
    for kind in drivers/gpu drivers/net drivers/media drivers/infiniband drivers/staging drivers/iio sound; do
        rm -rf "$TOP/kernel.new/lib/modules/$release/kernel/$kind"
    done
    echo "$release" >"$TOP/kernel.new/release"
    nor_module "$release" "$TOP/kernel.new"
}

# nor_module RELEASE KERNEL: builds qemu/nor for it. Without root there is no chroot, and no NOR flash in the guests.
nor_module() {
    if [ "$(id -u)" -ne 0 ]; then
        note "no NOR flash in the guests: its kernel module is built as root only"
        return 0
    fi
    # shellcheck disable=SC2086 # lists of words
    tree build "linux-headers-$1" $BUILD_PACKAGES
    build=$TOP/build.new
    mkdir -p "$build/nor" "$build/tmp" "$build/dev"
    cp "$HERE"/nor/* "$build/nor"
    [ -e "$build/bin/sh" ] || ln -s dash "$build/bin/sh"
    [ -e "$build/usr/bin/awk" ] || ln -s mawk "$build/usr/bin/awk"
    [ -e "$build/dev/null" ] || mknod -m 666 "$build/dev/null" c 1 3
    chroot "$build" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin make -s -C "/usr/src/linux-headers-$1" M=/nor modules >"$TOP/nor.log" 2>&1 || {
        cat "$TOP/nor.log" >&2
        die "cannot build the NOR flash's kernel module"
    }
    mkdir -p "$2/lib/modules/$1/extra"
    cp "$build/nor/nor_flash.ko" "$2/lib/modules/$1/extra/"
    rm -rf "$build"
}

# copy_program FROM PATH TO: a program of an unpacked tree, and the libraries it is linked to.
copy_program() {
    mkdir -p "$3/$(dirname "$2")"
    cp -L "$1/$2" "$3/$2"
    "$1/lib64/ld-linux-x86-64.so.2" \
        --library-path "$1/lib/x86_64-linux-gnu:$1/usr/lib/x86_64-linux-gnu:$1/lib/systemd:$1/usr/lib/systemd" --list "$1/$2" 2>/dev/null |
        sed -n 's/.*=> \(\/[^ ]*\) (.*/\1/p' | while read -r library; do
        [ -e "$3/lib/x86_64-linux-gnu/${library##*/}" ] || cp -L "$library" "$3/lib/x86_64-linux-gnu/"
    done
}

# The small userland: busybox, and the real programs where copal or a test wants them. One folder, packed by the tests.
make_small() {
    own_apt "$SUITE"
    # shellcheck disable=SC2086 # a list of words
    tree unpacked $SMALL_PACKAGES
    from=$TOP/unpacked.new to=$TOP/small.new
    rm -rf "$to"
    release=$(cat "$TOP/kernel/release")
    for dir in bin sbin lib/x86_64-linux-gnu lib64 lib/modules etc proc sys dev run tmp mnt host root usr/bin usr/sbin var; do
        mkdir -p "$to/$dir"
    done
    cp -L "$from/lib64/ld-linux-x86-64.so.2" "$to/lib64/"
    for program in bin/bash sbin/mke2fs sbin/e2fsck sbin/debugfs sbin/mkfs.fat sbin/fsck.fat sbin/blkid sbin/losetup \
        sbin/sfdisk bin/lsblk bin/findmnt sbin/blockdev bin/mount bin/umount bin/kmod bin/udevadm sbin/fsfreeze \
        usr/bin/flock usr/bin/setpriv usr/bin/partx sbin/blkdiscard sbin/dmsetup sbin/findfs \
        usr/sbin/flashcp usr/sbin/flash_erase usr/sbin/flash_lock usr/sbin/flash_unlock usr/sbin/mtdinfo usr/sbin/mtd_debug \
        usr/sbin/nandwrite usr/sbin/nanddump; do
        found=
        for at in "$program" "usr/$program" "${program#usr/}"; do
            if [ -e "$from/$at" ]; then
                copy_program "$from" "$at" "$to"
                found=yes
                break
            fi
        done
        [ -n "$found" ] || die "no $program in its package"
    done
    # udev: the daemon is udevadm under another name; a few rules of its own make /dev/disk/by-*.
    mkdir -p "$to/lib/udev/rules.d"
    ln -s /bin/udevadm "$to/lib/udev/udevd"
    for rules in 60-persistent-storage 60-block 50-udev-default; do
        cp "$from/lib/udev/rules.d/$rules.rules" "$to/lib/udev/rules.d/"
    done
    cp "$from/bin/busybox" "$to/bin/busybox"
    "$from/bin/busybox" --list-full | while read -r applet; do
        for dir in bin sbin usr/bin usr/sbin; do
            [ ! -e "$to/$dir/${applet##*/}" ] || continue 2
        done
        mkdir -p "$to/$(dirname "$applet")"
        ln -s /bin/busybox "$to/$applet"
    done
    ln -sf bash "$to/bin/sh"
    for link in mkfs.ext4:mke2fs mkfs.vfat:mkfs.fat fsck.vfat:fsck.fat fsck.ext4:e2fsck; do
        ln -sf "${link#*:}" "$to/sbin/${link%%:*}"
    done
    for name in modprobe insmod rmmod lsmod depmod modinfo; do ln -sf /bin/kmod "$to/sbin/$name"; done
    install -m 755 "$HERE/small-init" "$to/init"
    install -m 755 "$HERE/system-init" "$to/system-init"
    cp "$HERE/guest.sh" "$to/lib/guest.sh"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$to/etc/passwd"
    # Those that udev's rules name.
    for group in root:0 tty:5 disk:6 lp:7 kmem:15 dialout:20 cdrom:24 tape:26 audio:29 video:44 input:100 sgx:101 kvm:102 render:103; do
        echo "${group%%:*}:x:${group#*:}:"
    done >"$to/etc/group"
    ln -s /proc/mounts "$to/etc/mtab"
    # modprobe's own view of what each module needs, from the kernel's full tree.
    ln -sf kmod "$from/bin/depmod"
    ln -sf kmod "$from/bin/modprobe"
    in_tree "$from" bin/depmod -b "$TOP/kernel" "$release"
    (
        for module in $MODULES nor_flash; do
            in_tree "$from" bin/modprobe -d "$TOP/kernel" -S "$release" --show-depends "$module" 2>/dev/null
        done || true
    ) | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u >"$TOP/modules.list"
    [ -s "$TOP/modules.list" ] || die "no kernel modules found"
    while read -r module; do
        relative=${module#"$TOP/kernel/"}
        mkdir -p "$to/$(dirname "$relative")"
        cp "$module" "$to/$relative"
    done <"$TOP/modules.list"
    cp "$TOP/kernel/lib/modules/$release/modules.order" "$TOP/kernel/lib/modules/$release/modules.builtin" \
        "$TOP/kernel/lib/modules/$release/modules.builtin.modinfo" "$to/lib/modules/$release/"
    in_tree "$from" bin/depmod -b "$to" "$release"
    rm -rf "$from"
    note "small: $(du -sm "$to" | cut -f1) MB"
}

# A Debian system with systemd as a tar archive. Needs root: its packages' scripts run.
make_debian() {
    own_apt "$SUITE"
    rm -rf "$TOP/debian.new"
    mkdir -p "$TOP/debian.new"
    # shellcheck disable=SC2046 # one option a word
    mmdebstrap --quiet --variant=minbase --mode=root --include="$SYSTEM_PACKAGES" --dpkgopt=force-unsafe-io \
        $(for path in man doc locale info lintian bash-completion zoneinfo; do
            echo "--dpkgopt=path-exclude=/usr/share/$path/*"
        done) \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' \
        "$SUITE" "$TOP/debian.new/rootfs.tar" - <"$apt/etc/sources.list" || die "mmdebstrap failed"
}

# The system guest's root: that system, without what slows its start down, with the kernel's modules and what is in
# qemu/system.
make_system() {
    rm -rf "$TOP/system.new"
    root=$TOP/system.new/root
    mkdir -p "$root"
    # Nothing in a guest needs the packages' data base.
    tar -C "$root" -xpf "$TOP/debian/rootfs.tar" --exclude='./dev/*' --exclude='./var/lib/dpkg/info' \
        --exclude='./var/lib/apt/lists/*' --exclude='./var/cache/*' --exclude='./usr/share/perl' --exclude=./usr/lib/udev/hwdb.bin
    cp -a "$HERE/system/." "$root/"
    while read -r unit; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done <"$HERE/system.masked"
    mkdir -p "$root/host" "$root/usr/lib/modules"
    cp -a "$TOP/small/lib/modules/." "$root/usr/lib/modules/"
    echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
    echo guest >"$root/etc/hostname"
    : >"$root/etc/fstab"
    tar -C "$root" -cf "$TOP/system.new/rootfs.tar" .
    rm -rf "$root"
    note "system: $(du -m "$TOP/system.new/rootfs.tar" | cut -f1) MB"
}

[ "$(uname -m)" = x86_64 ] || die "made for machines with an x86_64 processor only"
for command in apt-get dpkg-deb sha256sum; do
    command -v "$command" >/dev/null || die "no $command here"
done
[ -r "$KEYRING" ] || die "no $KEYRING: install debian-archive-keyring"
mkdir -p "$TOP"
TOP=$(cd "$TOP" && pwd)
# Two at once would take each other's folders away.
exec 9>"$TOP/prepare.lock"
flock -w 600 9 || die "another preparation has been running for ten minutes"

recipe=$(cat "$HERE/prepare.sh")
part qemu "$recipe"
# With the NOR flash's module as root only.
part kernel "$recipe $(cat "$HERE"/nor/*) $([ "$(id -u)" -ne 0 ] || echo as root)"
part small "$recipe $(cat "$HERE"/*-init "$HERE/guest.sh" "$TOP/kernel/stamp")"
if [ "$(id -u)" -ne 0 ]; then
    note "no systemd guest: made as root only"
elif ! command -v mmdebstrap >/dev/null; then
    note "no systemd guest: no mmdebstrap here"
else
    part debian "$SYSTEM_PACKAGES"
    overlay=$(tar -C "$HERE" --sort=name --mtime=@0 --owner=0 --group=0 -c system | sha256sum)
    part system "$recipe $overlay $(cat "$HERE/system.masked" "$TOP/debian/stamp" "$TOP/small/stamp")"
fi
rm -rf "$TOP"/apt-* "$TOP"/*.new
note "ready in $TOP"
