#!/bin/sh
# Gets everything that the virtual machines of tests/guest need into one folder: QEMU, a kernel with its modules, a small
# userland, a Debian system. Nothing is installed on this machine, and only the last step needs root.
#
#   usage: prepare.sh FOLDER [PART…]
#
# Without parts it makes all but suite_*: those for amd64 (secure, tpm and unlock are for the secure board only), those for arm64, and debian and
# system, which only the tests use. suite_amd64 and suite_arm64 are for ./dev leviathan. small is made of kernel, and
# system of debian and small. A part that cannot be made keeps no other from being made, except those made of it: PART.why in the directory says
# why, tests that need the part repeat it, and the script ends with 1.
#
# Debian's packages are fetched by an apt of its own (own sources, own state), which checks their signatures. Whatever
# suite this machine runs, the guests are the same: the kernel and the systems are Debian 12's, and QEMU is Debian 13's
# backport, because QEMU before 10.1 has no eMMC that can be added. Each part is made in full or not at all, and is kept until
# its recipe changes.
set -eu

TOP=${1:?usage: prepare.sh FOLDER [PART…]}
shift
HERE=$(cd "$(dirname "$0")" && pwd)
MIRROR=${COPAL_DEBIAN_MIRROR:-http://deb.debian.org}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
SUITE=bookworm
QEMU_SUITE=trixie

# What the boards start with: OVMF and GRUB on amd64, U-Boot on arm64. OVMF is QEMU's suite's, which starts in less than
# half the time.
GRUB_PACKAGES='grub-efi-amd64-bin grub-common'
# The secure board's GRUB is QEMU's suite's: since GRUB 2.12 the firmware starts the kernel, and checks it. The other two make keys, signature
# lists and signed lists.
SECURE_PACKAGES='grub-efi-amd64-bin grub-common efitools openssl'
# Makes one program of a kernel and its initramfs. Debian 12's, which goes with Debian 12's kernel.
STUB=usr/lib/systemd/boot/efi/linuxx64.efi.stub
# Programs of the secure board's initramfs and host OS.
UNLOCK_PACKAGES='cryptsetup-bin dmsetup tpm2-tools libtss2-tcti-device0 kexec-tools util-linux e2fsprogs libgcc-s1'
UNLOCK_PROGRAMS='usr/sbin/cryptsetup usr/sbin/dmsetup usr/sbin/kexec usr/sbin/blkid usr/bin/chattr usr/bin/tpm2'
SMALL_PACKAGES='busybox-static bash mtd-utils e2fsprogs dosfstools util-linux mount fdisk kmod udev dmsetup cryptsetup-bin keyutils'
# What builds a kernel module, besides the compiler. It runs in a chroot: the kernel's build goes with Debian 12's compiler only.
BUILD_PACKAGES='kmod make dash coreutils sed grep mawk findutils diffutils bash'
# The host OS of the boards: the programs of a balenaOS, a container engine among them.
BOARD_PACKAGES='systemd systemd-sysv udev dbus kmod bash dash coreutils sed grep mawk findutils tar gzip hostname libc-bin
ncurses-base util-linux mount fdisk e2fsprogs dosfstools mtd-utils iproute2 procps netcat-openbsd docker.io containerd runc'
# Out of it goes what no test needs and every update would copy: what a person reads, perl, and of the engine the client, the
# debugging tool, the helpers of networks and older protocols.
BOARD_TRIM='usr/share/doc usr/share/man usr/share/locale usr/share/info usr/share/lintian usr/share/bash-completion usr/share/zsh
usr/share/fish usr/share/bug usr/share/perl* usr/share/zoneinfo usr/share/i18n usr/share/menu usr/share/common-licenses
usr/share/initramfs-tools usr/share/apparmor* usr/share/ca-certificates usr/share/gcc usr/share/gdb usr/share/debianutils
usr/share/debconf usr/share/docker.io usr/share/containerd usr/share/adduser usr/share/dpkg usr/share/polkit-1 usr/share/keyrings
usr/lib/*/perl* usr/lib/*/gconv usr/lib/*/e2fsprogs usr/lib/*/xtables usr/lib/udev/hwdb.bin usr/lib/udev/hwdb.d
usr/lib/systemd/catalog usr/lib/init usr/lib/valgrind usr/lib/lsb usr/lib/apt usr/lib/dpkg usr/lib/locale usr/lib/file
usr/bin/perl* usr/bin/docker usr/sbin/docker-proxy usr/libexec/docker usr/bin/ctr usr/bin/containerd-shim
usr/bin/containerd-shim-runc-v1 usr/bin/containerd-stress usr/bin/openssl usr/bin/dpkg* usr/bin/apt* usr/bin/localedef
usr/bin/dnet usr/sbin/ovrouter usr/bin/tini-static usr/sbin/tc usr/sbin/devlink usr/sbin/bridge usr/sbin/tipc usr/sbin/debugfs
usr/lib/*/libperl* usr/lib/*/libdb-5* usr/lib/*/libmvec* usr/lib/*/libsepol* usr/lib/*/libsemanage* usr/lib/systemd/systemd-networkd*
usr/sbin/xtables* usr/sbin/nft usr/sbin/iptables* usr/sbin/ip6tables* usr/sbin/ldconfig
usr/sbin/cfdisk usr/sbin/fdisk usr/sbin/ubi* usr/sbin/mkfs.ubifs usr/sbin/mkfs.jffs2 usr/sbin/fsck.minix
etc/apparmor.d etc/apt etc/cron.* etc/init.d etc/rc*.d etc/alternatives etc/default etc/logrotate.d etc/dpkg var/cache var/lib/dpkg var/lib/apt
boot home media opt srv'

# What a board has for balenaOS's own test suites, besides the others: the engine's client, killall, and the programs of the image `alpine`.
SUITE_PACKAGES='docker.io psmisc busybox-static'
SUITE_PROGRAMS='usr/bin/docker usr/bin/killall bin/busybox'
# On amd64, what the suite changes a loader with, in a container.
STRIP_PACKAGES='binutils-x86-64-linux-gnu libbinutils' STRIP=usr/bin/x86_64-linux-gnu-strip

SYSTEM_PACKAGES='systemd,systemd-sysv,udev,dbus,kmod,e2fsprogs,dosfstools,mtd-utils,util-linux,mount,fdisk,gdisk,parted,iproute2,procps,psmisc,
dmsetup,cryptsetup-bin,keyutils'

# Modules in the small userland, with all they depend on.
MODULES='virtio_pci virtio_blk virtio_scsi virtio_console virtio_rng 9p 9pnet_virtio
nvme sd_mod sr_mod mmc_block sdhci sdhci_pci usb_storage uas xhci_pci ehci_pci loop
ext4 vfat nls_cp437 nls_ascii nls_utf8 nls_iso8859-1 overlay squashfs
mtd mtdblock mtdblock_ro mtdram block2mtd nandsim phram ofpart cmdlinepart physmap cfi_probe cfi_cmdset_0001 cfi_cmdset_0002
dm_mod dm_flakey dm_log_writes dm_crypt xts ecb algif_skcipher raid1 null_blk scsi_debug zram efivarfs'

note() { printf '%s guests: %s\n' "$(date +%T)" "$*"; }
# The part that is being made.
making=
die() {
    printf '%s\n' "guests: ${making:+$making: }$*" >&2
    [ -z "$making" ] || printf '%s\n' "$*" >"$TOP/$making.why"
    exit 1
}

# --- Debian's archive -------------------------------------------------------------------------------------------------

# own_apt SUITE [ARCHITECTURE]: an apt of its own below $TOP; every apt program started from here on uses it. Without an
# architecture it is amd64's, and single packages for arm64 are had as `NAME:arm64`.
own_apt() {
    architecture=${2:-amd64}
    apt=$TOP/apt-$1-$architecture
    [ "${APT_CONFIG:-}" != "$apt/conf" ] || return 0
    architectures="\"$architecture\";"
    [ "$1 $architecture" != "$SUITE amd64" ] || architectures='"amd64"; "arm64";'
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
APT::Architecture "$architecture";
APT::Architectures { $architectures };
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
    # Each part has a shell of its own; $$ is the same in all of them. Where the archive cannot be reached, one part waits for it, and no other.
    case $(cat "$apt/updated" 2>/dev/null) in
        "$$") return 0 ;;
        "$$ failed") die "apt-get update has failed for $1, $architecture" ;;
    esac
    note "fetching the lists of packages of $1, $architecture"
    echo "$$ failed" >"$apt/updated"
    apt-get -q -q update || die "apt-get update failed for $1, $architecture"
    echo $$ >"$apt/updated"
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
    # Until then the loader of shared libraries was a link with an absolute target, which leads to this machine's here; and that
    # of another release does not go with the libraries.
    loader=$tree/lib64/ld-linux-x86-64.so.2
    to=$(readlink "$loader") || to=
    [ "${to#/}" = "$to" ] || ln -sf "..$to" "$loader"
}

# fetch PACKAGE…: them and all they depend on, into $TOP/debs. Says how much that is, and from time to time how much is there.
fetch() {
    mb=$(apt-get -q -q -y install --print-uris "$@" | awk '{ bytes += $3 } END { printf "%d", (bytes + 999999) / 1000000 }')
    note "$name: fetching $mb MB of packages"
    apt-get -q -q -y -o Dir::Cache::archives="$TOP/debs" install --download-only "$@" &
    fetching=$! looks=0
    while kill -0 "$fetching" 2>/dev/null; do
        sleep 0.2
        looks=$((looks + 1))
        [ $((looks % 75)) -ne 0 ] || note "$name: $(du -sm "$TOP/debs" | cut -f1) of $mb MB are there"
    done
    wait "$fetching" || die "cannot fetch $*"
}

# tree NAME PACKAGE…: these packages and all they depend on, unpacked below $TOP/NAME.new; no maintainer's script runs.
# Options of apt may stand before the packages.
tree() {
    name=$1
    shift
    rm -rf "$TOP/$name.new" "$TOP/debs"
    mkdir -p "$TOP/debs/partial"
    fetch "$@"
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

# part NAME RECIPE: makes $TOP/NAME with the function make_NAME unless it was made by this very recipe. What another recipe made is no longer used
# from then on, even if this one fails. A part with a file `again` has no stamp of a recipe: the next call makes it again.
part() {
    stamp=$(printf '%s\n' "$2" "$MIRROR" | sha256sum | cut -d' ' -f1)
    if [ -e "$TOP/$1/stamp" ] && [ "$(cat "$TOP/$1/stamp")" = "$stamp" ]; then
        note "$1: there"
        return 0
    fi
    started=$(date +%s)
    note "$1: making"
    rm -f "$TOP/$1/stamp"
    # Until something says it better.
    echo "its preparation failed: see what qemu/prepare.sh printed" >"$TOP/$1.why"
    making=$1
    "make_$1"
    [ ! -e "$TOP/$1.new/again" ] || stamp="without something at $started"
    echo "$stamp" >"$TOP/$1.new/stamp"
    rm -rf "${TOP:?}/$1"
    mv "$TOP/$1.new" "$TOP/$1"
    rm "$TOP/$1.why"
    note "$1: made in $(($(date +%s) - started)) s"
}

# made_of PART: its stamp, for the recipe of what is made of it.
made_of() { cat "$TOP/$1/stamp" 2>/dev/null || die "it is made of $1, which is not there"; }

# qemu NAME PACKAGE PROGRAM: below $TOP/NAME.new.
qemu() {
    own_apt "$QEMU_SUITE"
    tree "$1" -t "$QEMU_SUITE-backports" "$2"
    version=$(in_tree "$TOP/$1.new" "usr/bin/$3" --version) || die "this $3 does not start"
    note "$(echo "$version" | sed -n 1p)"
}

make_qemu() { qemu qemu qemu-system-x86 qemu-system-x86_64; }
make_qemu_arm64() { qemu qemu_arm64 qemu-system-arm qemu-system-aarch64; }

# has NAME FILE…: fails where a package does not have what is expected of it.
has() {
    for dir in doc locale man info lintian maven-repo gcc; do rm -rf "$TOP/$1.new/usr/share/$dir"; done
    at=$TOP/$1.new/usr
    shift
    for file in "$@"; do
        [ -s "$at/$file" ] || die "no $file in its package"
    done
}

# The boards' firmware: the packages unpacked as they are, without what no board starts with.
make_firmware() {
    own_apt "$QEMU_SUITE"
    rm -rf "$TOP/ovmf.new"
    mkdir -p "$TOP/ovmf.new"
    (cd "$TOP/ovmf.new" && apt-get -q -q download ovmf) || die "cannot fetch ovmf"
    own_apt "$SUITE"
    # shellcheck disable=SC2086 # a list of words
    tree firmware $GRUB_PACKAGES
    unpack "$TOP/firmware.new" "$TOP/ovmf.new"/*.deb
    # shellcheck disable=SC2016 # dpkg's variables
    dpkg-deb -W --showformat '${Package} ${Version}\n' "$TOP/ovmf.new"/*.deb >>"$TOP/firmware.new/packages"
    rm -rf "$TOP/ovmf.new"
    in_tree "$TOP/firmware.new" usr/bin/grub-mkimage --version >/dev/null || die "this grub-mkimage does not start"
    has firmware share/OVMF/OVMF_CODE_4M.fd share/OVMF/OVMF_VARS_4M.fd lib/grub/x86_64-efi/linux.mod
}

make_firmware_arm64() {
    own_apt "$SUITE"
    tree firmware_arm64 u-boot-qemu
    for dir in "$TOP/firmware_arm64.new/usr/lib/u-boot"/*; do
        [ "${dir##*/}" = qemu_arm64 ] || rm -rf "$dir"
    done
    has firmware_arm64 lib/u-boot/qemu_arm64/u-boot.bin
}

# The secure board's GRUB, and what signs.
make_secure() {
    own_apt "$SUITE"
    rm -rf "$TOP/stub.new"
    mkdir -p "$TOP/stub.new"
    (cd "$TOP/stub.new" && apt-get -q -q download systemd-boot-efi) || die "cannot fetch systemd-boot-efi"
    own_apt "$QEMU_SUITE"
    # shellcheck disable=SC2086 # a list of words
    tree secure $SECURE_PACKAGES
    dpkg-deb --fsys-tarfile "$TOP/stub.new"/*.deb | tar -xO "./$STUB" >"$TOP/secure.new/stub.efi"
    # shellcheck disable=SC2016 # dpkg's variables
    dpkg-deb -W --showformat '${Package} ${Version}\n' "$TOP/stub.new"/*.deb >>"$TOP/secure.new/packages"
    rm -rf "$TOP/stub.new"
    in_tree "$TOP/secure.new" usr/bin/grub-mkimage --version >/dev/null || die "this grub-mkimage does not start"
    in_tree "$TOP/secure.new" usr/bin/openssl version >/dev/null || die "this openssl does not start"
    has secure ../stub.efi lib/grub/x86_64-efi/pgp.mod bin/sign-efi-sig-list bin/cert-to-efi-sig-list bin/hash-to-efi-sig-list
}

# The emulated TPM of the secure board: a process beside QEMU.
make_tpm() {
    own_apt "$QEMU_SUITE"
    tree tpm swtpm
    # Its own library is in a folder of its own, which only a path in the program names.
    mv "$TOP/tpm.new/usr/lib/x86_64-linux-gnu/swtpm"/*.so* "$TOP/tpm.new/usr/lib/x86_64-linux-gnu/"
    in_tree "$TOP/tpm.new" usr/bin/swtpm --version >/dev/null || die "this swtpm does not start"
    has tpm bin/swtpm
}

# unlock/root: programs that unlock disks with a TPM, with their libraries, in folders as the initramfs and the host OS have them.
make_unlock() {
    own_apt "$SUITE"
    # shellcheck disable=SC2086 # a list of words
    tree unlock $UNLOCK_PACKAGES
    from=$TOP/unlock.from
    rm -rf "$from"
    mv "$TOP/unlock.new" "$from"
    root=$TOP/unlock.new/root
    mkdir -p "$root/usr/lib/x86_64-linux-gnu" "$root/usr/lib64" "$root/usr/bin" "$root/usr/sbin"
    ln -s usr/lib "$root/lib"
    ln -s usr/lib64 "$root/lib64"
    mv "$from/packages" "$TOP/unlock.new/packages"
    cp -L "$from/lib64/ld-linux-x86-64.so.2" "$root/usr/lib64/"
    for program in $UNLOCK_PROGRAMS; do
        at=$program
        [ -e "$from/$at" ] || at=${program#usr/}
        [ -e "$from/$at" ] || die "no $program in its package"
        copy_program "$from" "$at" "$root"
        [ "$at" = "$program" ] || mv "$root/$at" "$root/$program"
    done
    # These are found by name only while a program runs.
    for library in libtss2-tcti-device.so.0 libgcc_s.so.1; do
        for dir in lib usr/lib; do
            [ ! -e "$from/$dir/x86_64-linux-gnu/$library" ] || cp -L "$from/$dir/x86_64-linux-gnu/$library" "$root/usr/lib/x86_64-linux-gnu/"
        done
        [ -e "$root/usr/lib/x86_64-linux-gnu/$library" ] || die "no $library in its package"
    done
    mkdir -p "$root/usr/lib/udev/rules.d"
    for rules in 55-dm 60-persistent-storage-dm 95-dm-notify; do
        cp "$from/lib/udev/rules.d/$rules.rules" "$root/usr/lib/udev/rules.d/"
    done
    for name in "$root/bin" "$root/sbin"; do [ ! -d "$name" ] || rmdir "$name"; done
    for link in "$from"/usr/bin/tpm2_*; do ln -s tpm2 "$root/usr/bin/${link##*/}"; done
    rm -rf "$from"
    note "unlock: $(du -sm "$root" | cut -f1) MB"
}

# kernel_package NAME ARCHITECTURE [source]: Debian's kernel for it with its modules below $TOP/NAME.new; its release is in $release, its version
# in $version, and in $tools and $source the versions of what builds more modules, empty if there is nothing.
kernel_package() {
    # Backports have another kernel.
    # shellcheck disable=SC2046,SC2016 # words; apt's variable
    set -- "$1" "$2" "${3:-}" $(
        apt-get indextargets --format '$(FILENAME)' 'Created-By: Packages' | grep -v backports | while read -r list; do
            /usr/lib/apt/apt-helper cat-file "$list"
        done | "$HERE/choose-kernel.sh" "$2" ${3:+"$3"}
    )
    release=${4:-} version=${5:-} tools=${6:-} source=${7:-}
    [ -n "$version" ] || die "no kernel for $2 in $SUITE"
    note "kernel $release $version${tools:+, linux-kbuild $tools}${source:+, source $source}"
    rm -rf "$TOP/$1.new" "$TOP/debs"
    mkdir -p "$TOP/debs" "$TOP/$1.new"
    (cd "$TOP/debs" && apt-get -q -q download "linux-image-$release:$2=$version") || die "cannot fetch linux-image-$release"
    unpack "$TOP/$1.new/tree" "$TOP/debs"/*.deb
    rm -rf "$TOP/debs"
    mv "$TOP/$1.new/tree/boot/vmlinuz-$release" "$TOP/$1.new/vmlinuz"
    mkdir "$TOP/$1.new/lib"
    mv "$TOP/$1.new/tree/lib/modules" "$TOP/$1.new/lib/modules"
    rm -rf "$TOP/$1.new/tree"
    # Three quarters of it are for hardware that no guest has; of the network cards, they have virtio's.
    modules=$TOP/$1.new/lib/modules/$release/kernel
    mkdir "$modules/net/virtio"
    mv "$modules/drivers/net/virtio_net.ko" "$modules/drivers/net/net_failover.ko" "$modules/net/virtio/"
    for kind in drivers/gpu drivers/net drivers/media drivers/infiniband drivers/staging drivers/iio sound; do
        rm -rf "${modules:?}/$kind"
    done
    echo "$release" >"$TOP/$1.new/release"
}

# The kernel's package with all modules, and the module that registers the NOR flash. Without that module, only the tests of NOR flash do not run.
make_kernel() {
    own_apt "$SUITE"
    kernel_package kernel amd64
    if [ "$(id -u)" -ne 0 ]; then
        why="its kernel module is built as root only"
    elif [ -z "$tools" ]; then
        why="there are no packages that build modules for kernel $release $version"
        : >"$TOP/kernel.new/again"
    else
        build_tree amd64 gcc-12
        build_modules "$HERE/nor" "$TOP/kernel.new"
        rm -rf "$TOP/build.new"
        return 0
    fi
    note "no NOR flash in the guests: $why"
    echo "no NOR flash: $why" >"$TOP/kernel.new/lacks"
}

# build_tree ARCHITECTURE COMPILER: what builds modules for the kernel of kernel_package, below $TOP/build.new. The headers are unpacked beside the
# rest: they may want another version of linux-kbuild than there is.
build_tree() {
    # shellcheck disable=SC2086 # a list of words
    tree build "linux-kbuild-$(echo "$version" | cut -d. -f1-2)=$tools" "$2" $BUILD_PACKAGES
    mkdir -p "$TOP/debs"
    (cd "$TOP/debs" && apt-get -q -q download "linux-headers-$release:$1=$version" "linux-headers-${release%-*}-common=$version") ||
        die "cannot fetch the headers of kernel $release"
    unpack "$TOP/build.new" "$TOP/debs"/*.deb
    rm -rf "$TOP/debs"
}

# build_modules SOURCES KERNEL [VARIABLE…]: builds them with the unpacked packages of $TOP/build.new, with these
# variables of make.
build_modules() {
    sources=$1
    headers=/usr/src/linux-headers-$release
    extra=$2/lib/modules/$release/extra
    shift 2
    build=$TOP/build.new
    mkdir -p "$build/nor" "$build/tmp" "$build/dev"
    cp "$sources"/* "$build/nor"
    [ -e "$build/bin/sh" ] || ln -s dash "$build/bin/sh"
    [ -e "$build/usr/bin/awk" ] || ln -s mawk "$build/usr/bin/awk"
    [ -e "$build/dev/null" ] || mknod -m 666 "$build/dev/null" c 1 3
    chroot "$build" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin make -s -C "$headers" M=/nor "$@" modules >"$TOP/nor.log" 2>&1 || {
        cat "$TOP/nor.log" >&2
        die "cannot build the NOR flash's kernel module"
    }
    mkdir -p "$extra"
    cp "$build"/nor/*.ko "$extra/"
}

# The same for arm64 with a busybox, and the drivers of the NOR flash, which Debian's kernel for arm64 does not have: they
# are compiled from the sources of this kernel.
make_kernel_arm64() {
    own_apt "$SUITE"
    kernel_package kernel_arm64 arm64 source
    [ -n "$tools" ] || die "there are no packages that build modules for kernel $release $version"
    build_tree arm64 gcc-12-aarch64-linux-gnu
    series=linux-source-$(echo "$version" | cut -d. -f1-2)
    mkdir -p "$TOP/debs"
    (cd "$TOP/debs" && apt-get -q -q download "$series=$source" busybox-static:arm64) || die "cannot fetch the kernel's source"
    unpack "$TOP/debs/busybox" "$TOP/debs"/busybox-static_*.deb
    cp "$TOP/debs/busybox/bin/busybox" "$TOP/kernel_arm64.new/"
    sources=$TOP/debs/nor
    mkdir -p "$sources"
    # With every name given, tar ends at the last one, in the middle of a very long archive.
    dpkg-deb --fsys-tarfile "$TOP/debs/$series"_*.deb | tar -xO "./usr/src/$series.tar.xz" >"$TOP/debs/source.tar.xz"
    # shellcheck disable=SC2046 # a word each
    xz -T 2 -dc "$TOP/debs/source.tar.xz" 2>/dev/null | tar -C "$sources" -x --occurrence --strip-components=4 $(
        for file in chips/cfi_cmdset_0001.c chips/cfi_probe.c chips/cfi_util.c chips/fwh_lock.h chips/gen_probe.c \
            maps/physmap-core.c maps/physmap-bt1-rom.h maps/physmap-gemini.h maps/physmap-ixp4xx.h maps/physmap-versatile.h; do
            echo "$series/drivers/mtd/$file"
        done
    ) || die "$series $source has no drivers of NOR flash where they are looked for"
    cp "$HERE/nor-arm64/Makefile" "$sources/"
    build_modules "$sources" "$TOP/kernel_arm64.new" DEB_BUILD_ARCH=amd64 DEB_HOST_ARCH=arm64 DEB_HOST_GNU_TYPE=aarch64-linux-gnu
    in_tree "$TOP/build.new" usr/bin/aarch64-linux-gnu-strip --strip-debug "$TOP/kernel_arm64.new/lib/modules/$release/extra"/*.ko
    ln -sf kmod "$TOP/build.new/bin/depmod"
    in_tree "$TOP/build.new" bin/depmod -b "$TOP/kernel_arm64.new" "$release"
    rm -rf "$TOP/build.new" "$TOP/debs"
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
        usr/bin/flock usr/bin/setpriv usr/bin/partx sbin/blkdiscard sbin/dmsetup sbin/cryptsetup bin/keyctl sbin/findfs \
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
    # udev: the daemon is udevadm under another name; a few rules of its own make /dev/disk/by-*. With udev, dmsetup and cryptsetup
    # wait until the rules of device-mapper have run.
    mkdir -p "$to/lib/udev/rules.d"
    ln -s /bin/udevadm "$to/lib/udev/udevd"
    for rules in 60-persistent-storage 60-block 50-udev-default 55-dm 60-persistent-storage-dm 95-dm-notify; do
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

# board_tree ARCHITECTURE: the packages of a board's host OS, unpacked and trimmed. No script of theirs runs, so neither root nor a
# processor of that architecture is needed; users, links of units and the like come from qemu/os/rootfs.
board_tree() {
    own_apt "$SUITE" "$1"
    # shellcheck disable=SC2086 # a list of words
    tree "board_$1" $BOARD_PACKAGES
    root=$TOP/board_$1.new/root
    mv "$TOP/board_$1.new" "$TOP/board_$1.unpacked"
    mkdir "$TOP/board_$1.new"
    mv "$TOP/board_$1.unpacked/packages" "$TOP/board_$1.new/packages"
    mv "$TOP/board_$1.unpacked" "$root"
    # One folder of programs and one of libraries, as on a balenaOS of today, whatever a package says.
    for dir in bin sbin lib lib64; do
        if [ ! -d "$root/$dir" ] || [ -L "$root/$dir" ]; then continue; fi
        mkdir -p "$root/usr/$dir"
        cp -a "$root/$dir/." "$root/usr/$dir/"
        rm -rf "${root:?}/$dir"
        ln -s "usr/$dir" "$root/$dir"
    done
    # shellcheck disable=SC2086 # patterns
    (cd "$root" && rm -rf $BOARD_TRIM)
    ln -sf dash "$root/usr/bin/sh"
    ln -sf mawk "$root/usr/bin/awk"
    ln -sf nc.openbsd "$root/usr/bin/nc"
    # The user who runs the tests must be able to read it and to remove it.
    chmod -R u+rwX "$root"
    note "board_$1: $(du -sm "$root" | cut -f1) MB"
}

make_board_amd64() { board_tree amd64; }
make_board_arm64() { board_tree arm64; }

# suite_tree ARCHITECTURE: programs for balenaOS's own test suites. Their libraries are those of a board.
suite_tree() {
    own_apt "$SUITE" "$1"
    rm -rf "$TOP/debs" "$TOP/suite.from"
    mkdir -p "$TOP/debs" "$TOP/suite_$1.new/root"
    packages=$SUITE_PACKAGES
    [ "$1" != amd64 ] || packages="$packages $STRIP_PACKAGES"
    # shellcheck disable=SC2086 # a list of words
    (cd "$TOP/debs" && apt-get -q -q download $packages) || die "cannot fetch $packages"
    unpack "$TOP/suite.from" "$TOP/debs"/*.deb
    # shellcheck disable=SC2016 # dpkg's variables
    for deb in "$TOP/debs"/*.deb; do dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb"; done >"$TOP/suite_$1.new/packages"
    for program in $SUITE_PROGRAMS; do
        install -D -m 755 "$TOP/suite.from/$program" "$TOP/suite_$1.new/root/usr/bin/${program##*/}" || die "no $program in its package"
    done
    if [ "$1" = amd64 ]; then
        install -D -m 755 "$TOP/suite.from/$STRIP" "$TOP/suite_$1.new/strip/strip" || die "no $STRIP in its package"
        cp "$TOP/suite.from"/usr/lib/x86_64-linux-gnu/libbfd-*.so "$TOP/suite.from"/usr/lib/x86_64-linux-gnu/libsframe.so.? "$TOP/suite_$1.new/strip/"
    fi
    rm -rf "$TOP/debs" "$TOP/suite.from"
    note "suite_$1: $(du -sm "$TOP/suite_$1.new" | cut -f1) MB"
}
make_suite_amd64() { suite_tree amd64; }
make_suite_arm64() { suite_tree arm64; }

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
PARTS='qemu firmware kernel small board_amd64 secure tpm unlock qemu_arm64 firmware_arm64 kernel_arm64 board_arm64 debian system'
# Those that are made only if they are named.
NAMED='suite_amd64 suite_arm64'
[ $# -gt 0 ] || eval "set -- $PARTS"
for wanted in "$@"; do
    case " $PARTS $NAMED " in *" $wanted "*) ;; *) die "no part '$wanted': there are $PARTS $NAMED" ;; esac
done

# make_part NAME
make_part() {
    making=$1 from=
    rm -f "$TOP/$1.why"
    case $1 in kernel_arm64 | debian | system) [ "$(id -u)" -eq 0 ] || die "made as root only" ;; esac
    case $1 in debian | system) command -v mmdebstrap >/dev/null || die "no mmdebstrap here" ;; esac
    case $1 in
        # With the NOR flash's module as root only.
        kernel) set -- "$recipe $chosen $(cat "$HERE"/nor/*) $([ "$(id -u)" -ne 0 ] || echo as root)" ;;
        small)
            from=$(made_of kernel)
            set -- "$recipe $(cat "$HERE"/*-init "$HERE/guest.sh") $from"
            ;;
        kernel_arm64) set -- "$recipe $chosen $(cat "$HERE"/nor-arm64/*)" ;;
        board_*) set -- "$SUITE $BOARD_PACKAGES $BOARD_TRIM 1" ;;
        suite_*) set -- "$SUITE $SUITE_PACKAGES $SUITE_PROGRAMS $STRIP_PACKAGES $STRIP 3" ;;
        secure) set -- "$SUITE $QEMU_SUITE $SECURE_PACKAGES $STUB 1" ;;
        tpm) set -- "$QEMU_SUITE swtpm 1" ;;
        unlock) set -- "$SUITE $UNLOCK_PACKAGES $UNLOCK_PROGRAMS 1" ;;
        debian) set -- "$SYSTEM_PACKAGES" ;;
        system)
            from="$(made_of debian)"
            from="$from $(made_of small)"
            overlay=$(tar -C "$HERE" --sort=name --mtime=@0 --owner=0 --group=0 -c system | sha256sum)
            set -- "$recipe $overlay $(cat "$HERE/system.masked") $from"
            ;;
        *) set -- "$recipe" ;;
    esac
    part "$making" "$1"
}

chosen=$(cat "$HERE/choose-kernel.sh") failed=''
for wanted in $PARTS $NAMED; do
    case " $* " in *" $wanted "*) ;; *) continue ;; esac
    # A shell of its own, which ends at the first command that fails; in a condition none would.
    set +e
    (
        set -e
        make_part "$wanted"
    )
    status=$?
    set -e
    [ "$status" -eq 0 ] || failed="$failed $wanted"
done
rm -rf "$TOP"/apt-* "$TOP"/*.new "$TOP/debs"
[ -z "$failed" ] || {
    for wanted in $failed; do
        echo "guests: no $wanted: $(cat "$TOP/$wanted.why" 2>/dev/null || echo "its preparation failed")" >&2
    done
    exit 1
}
note "ready in $TOP"
