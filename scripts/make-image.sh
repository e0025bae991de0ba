#!/bin/sh
# Makes a disk image laid out like balenaOS, out of files of this machine, without root rights and without mounts.
#
#   make-image.sh OUT [--size MIB] [--fill PERCENT|dense] [--files DIR]
#
# --size   MiB of the whole image, default 1024; from 904 on the partitions have balenaOS's own sizes
#          (40, 312, 312, 20 MiB and the rest), below that the same proportions. At least 80.
# --fill   percent of the image that holds data, default 30. `dense`: all of it, unused blocks hold data too, as on a
#          disk image taken from a device that has been in use.
# --files  where the files come from, default /usr. The same folder gives the same amount of data.
#
# Prints one line per partition: number, name, first byte, length in bytes.
set -eu
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
die() { echo "make-image: $*" >&2; exit 1; }

out='' size=1024 fill=30 files=/usr
while [ $# -gt 0 ]; do
    case $1 in
        --size) size=${2:?}; shift 2 ;;
        --fill) fill=${2:?}; shift 2 ;;
        --files) files=${2:?}; shift 2 ;;
        -*) usage ;;
        *) [ -z "$out" ] || usage; out=$1; shift ;;
    esac
done
[ -n "$out" ] || usage
case $size in '' | *[!0-9]*) die "--size takes MiB, not '$size'" ;; esac
[ "$size" -ge 80 ] || die "an image below 80 MiB is too small for the partitions"
dense=no
case $fill in
    dense) dense=yes fill=60 ;;
    '' | *[!0-9]*) die "--fill takes a percentage or 'dense', not '$fill'" ;;
esac
[ "$fill" -le 70 ] || die "--fill takes at most 70 percent (file systems need free space), or 'dense'"
for tool in sgdisk mkfs.vfat mcopy mke2fs find awk tar; do
    command -v "$tool" >/dev/null || die "$tool is missing"
done

# Everything in MiB. balenaOS starts its first partition at 4 MiB; the last MiB is the backup GPT's.
if [ "$size" -ge 904 ]; then
    boot=40 root=312 state=20
else
    boot=$((size * 40 / 904)) root=$((size * 312 / 904)) state=$((size * 20 / 904))
    [ "$boot" -ge 8 ] || boot=8
    [ "$state" -ge 6 ] || state=6
    [ "$root" -ge 12 ] || root=12
fi
data=$((size - 5 - boot - 2 * root - state))
[ "$data" -ge 6 ] || die "$size MiB are too little"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/copal-image.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Regular readable files in the order of their names: the same tree gives the same choice.
find "$files" -xdev -type f -readable -size -8192k -size +0 -printf '%s %p\n' 2>/dev/null |
    grep -v '[^ -~]\|["\\]' | sort -k 2 >"$scratch/all" || true
[ -s "$scratch/all" ] || die "no files below $files"

# take DIR KIB: moves about KIB of files off the list into DIR.
take() {
    mkdir -p "$1"
    awk -v want="$2" -v chosen="$scratch/chosen" -v rest="$scratch/rest" '
        BEGIN { printf "" > chosen; printf "" > rest }
        { # what a file takes on the file system: whole blocks, and its share of the tables
          kib = int(($1 + 4095) / 4096) * 4 + 1; name = $0; sub(/^[0-9]+ /, "", name)
          if (used + kib <= want) { used += kib; print name > chosen } else print > rest }' "$scratch/all"
    mv "$scratch/rest" "$scratch/all"
    tar -cf - --hard-dereference --no-recursion -T "$scratch/chosen" 2>/dev/null | tar -xf - -C "$1" --no-same-owner
}

rm -f "$out"
truncate -s "${size}M" "$out" || die "cannot make $out"
if [ "$dense" = yes ]; then
    # Real bytes everywhere first; the file systems are then made in place, without discarding.
    find "$files" -xdev -type f -readable -size +16k -print0 2>/dev/null | sort -z | xargs -0 cat 2>/dev/null |
        head -c "${size}M" | dd of="$out" bs=1M conv=notrunc iflag=fullblock status=none
    have=$(find "$out" -printf '%b')
    [ $((have / 2048)) -ge $((size * 9 / 10)) ] || die "$files holds less than $size MiB"
    dd if=/dev/zero of="$out" bs=1M count=1 conv=notrunc status=none
    dd if=/dev/zero of="$out" bs=1M count=1 seek=$((size - 1)) conv=notrunc status=none
fi

p1=4 p2=$((4 + boot)) p3=$((4 + boot + root)) p4=$((4 + boot + 2 * root)) p5=$((4 + boot + 2 * root + state))
part() { echo "-n $1:$(($2 * 2048)):$((($2 + $3) * 2048 - 1)) -t $1:$5 -c $1:$4 -u $1:c09a1000-0000-4000-8000-00000000000$1"; }
# shellcheck disable=SC2046 # the words of the options
sgdisk -o -a 2048 -U c09a1000-0000-4000-8000-000000000000 \
    $(part 1 $p1 "$boot" resin-boot EF00) $(part 2 $p2 "$root" resin-rootA 8300) \
    $(part 3 $p3 "$root" resin-rootB 8300) $(part 4 $p4 "$state" resin-state 8300) \
    $(part 5 $p5 "$data" resin-data 8300) "$out" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; die "sgdisk failed"; }

# --- resin-boot -------------------------------------------------------------------------------------------------------
b=$scratch/boot
mkdir -p "$b/EFI/BOOT" "$b/splash" "$b/system-connections"
cat >"$b/EFI/BOOT/grub.cfg" <<'END'
set default=0
set timeout=3
load_env
menuentry 'boot' {
    search --no-floppy --label --set=root resin-rootA
    linux /boot/bzImage root=LABEL=resin-rootA rootwait quiet
}
END
cat >"$b/device-type.json" <<'END'
{"slug": "genericx86-64-ext", "name": "Generic x86_64 (GPT)", "arch": "amd64", "state": "released"}
END
cat >"$b/os-release" <<'END'
ID="balena-os"
NAME="balenaOS"
VERSION="6.1.2"
SLUG="genericx86-64-ext"
END
cat >"$b/config.json" <<'END'
{"deviceType": "genericx86-64-ext", "hostname": "copal-demo", "persistentLogging": false}
END
echo 'disable_overscan=1' >"$b/config.txt"
printf '[connection]\nid=resin-sample\ntype=wifi\n' >"$b/system-connections/resin-sample"
awk 'BEGIN { for (i = 0; i < 4000; i++) printf "splash %d\n", i * i }' >"$b/splash/balena-logo.png"
take "$scratch/bootfiles" $((boot * 1024 * fill / 200))
# Kind and cluster size are given because mkfs.vfat would derive them from the size of the whole image.
if [ "$boot" -ge 16 ]; then fat="-F 16 -s 4"; else fat="-F 12 -s 8"; fi
# shellcheck disable=SC2086 # four words
mkfs.vfat $fat -n resin-boot --invariant --offset $((p1 * 2048)) "$out" $((boot * 1024)) >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; die "mkfs.vfat failed"; }
# FAT has no links and its own idea of names: the kernel and its modules stand in as one archive.
tar -cf "$b/bzImage" -C "$scratch/bootfiles" .
export MTOOLS_SKIP_CHECK=1
mcopy -s -Q -i "$out@@${p1}M" "$b"/* ::/ || die "mcopy failed"

# --- ext4 -------------------------------------------------------------------------------------------------------------
# ext4 N LABEL FIRST-MIB MIB KIB: an ext4 with about KIB of files.
ext4() {
    take "$scratch/p$1" "$5"
    E2FSPROGS_FAKE_TIME=1700000000 mke2fs -q -F -t ext4 -L "$2" -U "c09a1000-0000-4000-8000-00000000001$1" -b 4096 \
        -E "offset=$(($3 << 20)),nodiscard,root_owner=0:0,hash_seed=c09a1000-0000-4000-8000-000000000020" \
        -d "$scratch/p$1" "$out" "$4M" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; die "mke2fs failed"; }
    rm -rf "$scratch/p$1"
}
want=$(((size * fill / 100 - boot * fill / 200) * 1024))
# Journal, inode tables and folders take a larger part of a small file system.
[ "$root" -ge 128 ] && usable=80 || usable=55
a=$((want * 45 / 100)) full=$((root * 1024 * usable / 100))
[ "$a" -le "$full" ] || a=$full
bb=$((want * 20 / 100))
[ "$bb" -le "$full" ] || bb=$full
d=$((want - a - bb - state * 1024 / 8)) full=$((data * 1024 * usable / 100))
[ "$d" -le "$full" ] || d=$full
[ "$d" -ge 0 ] || d=0
ext4 2 resin-rootA $p2 "$root" "$a"
ext4 3 resin-rootB $p3 "$root" "$bb"
ext4 4 resin-state $p4 "$state" $((state * 1024 / 8))
ext4 5 resin-data $p5 "$data" "$d"

for line in "1 resin-boot $p1 $boot" "2 resin-rootA $p2 $root" "3 resin-rootB $p3 $root" "4 resin-state $p4 $state" "5 resin-data $p5 $data"; do
    # shellcheck disable=SC2086 # four words
    set -- $line
    echo "$1 $2 $(($3 << 20)) $(($4 << 20))"
done
