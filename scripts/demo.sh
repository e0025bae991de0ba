#!/bin/sh
# Flashes a disk image to a used disk and proves the result with tools that are not copal's. Called by `./dev demo`,
# which sets COPAL to the program. Everything stays in target/demo.
set -eu
export LC_ALL=C
: "${COPAL:?run ./dev demo}"
DIR=${DEMO_DIR:-target/demo}
IMAGE_MIB=1024
DISK_MIB=1536
IMAGE=$DIR/balena-image.img
DISK=$DIR/disk.img
DD_DISK=$DIR/disk-dd.img
TARGET='' LOOP='' VIEW=''

say() { printf '\n== %s\n' "$*" | fold -s -w 79; }
die() { printf '\ndemo: failed: %s\n' "$*" >&2; exit 1; }
exec 3>&1 # for what is to be seen while a command's own output goes elsewhere
show() {
    printf '+ %s\n' "$*" | fold -s -w 79 >&3
    "$@"
}

cleanup() {
    [ -z "$VIEW" ] || losetup -d "$VIEW" 2>/dev/null || true
    [ -z "$LOOP" ] || losetup -d "$LOOP" 2>/dev/null || true
    rm -f "$DISK" "$DD_DISK" "$DIR/part.img" "$DIR/view.img"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

main() {
    mkdir -p "$DIR"
    need_space
    make_image
    make_used_disk
    flash
    prove
    compare_with_sparse_dd
    flash_again
    say "what this shows"
    echo "A disk that was full of 0xA5 holds the image byte for byte, empty places"
    echo "included, and other tools find nothing to complain about. Image and receipt"
    echo "stay in $DIR."
}

need_space() {
    have=$(df -Pm "$DIR" | awk 'NR == 2 { print $4 }')
    [ "$have" -ge $((IMAGE_MIB + 2 * DISK_MIB + 400)) ] || die "$DIR needs about 4.5 GiB, and $have MiB are free"
}

make_image() {
    say "an image laid out like balenaOS, of $IMAGE_MIB MiB, filled with files of this machine"
    sh scripts/make-image.sh "$IMAGE" --size "$IMAGE_MIB" >"$DIR/partitions" || die "cannot make the image"
    sgdisk -p "$IMAGE" | sed -n '/^Number/,$p'
    SIZE=$(stat -c %s "$IMAGE")
    echo "$(($(stat -c %b "$IMAGE") / 2048)) of $IMAGE_MIB MiB hold data, the rest is zeroes (holes in the file)"
}

# used FILE MIB: a disk that is full of old bytes.
used() { tr '\000' '\245' </dev/zero | head -c "${2}M" >"$1"; }

make_used_disk() {
    say "a disk of $DISK_MIB MiB that has been used: every byte is 0xA5"
    used "$DISK" "$DISK_MIB"
    # A loop device is a block device like any other; without rights for one the file itself is the target.
    if [ "$(id -u)" -eq 0 ] && LOOP=$(losetup -f --show --direct-io=on "$DISK" 2>/dev/null || losetup -f --show "$DISK" 2>/dev/null); then
        TARGET=$LOOP
        echo "$DISK is the loop device $LOOP"
    else
        LOOP=''
        TARGET=$DISK
        echo "no rights for a loop device here: the target is the plain file $DISK"
    fi
}

flash() {
    say "the plan: what would be done, nothing is written"
    show "$COPAL" flash --image "$IMAGE" --target "$TARGET" --plan || die "no plan"
    [ "$(head -c 1M "$TARGET" | tr -d '\245' | wc -c)" -eq 0 ] || die "the plan has written to $TARGET"
    say "flash"
    show "$COPAL" flash --image "$IMAGE" --target "$TARGET" --yes --receipt "$DIR/receipt.json" >"$DIR/stdout" || {
        cat "$DIR/stdout"
        die "copal could not flash"
    }
    # For a plain file the receipt is on the standard output too; once is enough.
    [ "$TARGET" = "$DISK" ] || cat "$DIR/stdout"
    say "the receipt"
    cat "$DIR/receipt.json"
    echo
}

# extract DISK NAME: copies a partition out of a disk.
extract() {
    # shellcheck disable=SC2046 # first byte and length
    set -- "$1" $(awk -v name="$2" '$2 == name { print $3, $4 }' "$DIR/partitions")
    rm -f "$DIR/part.img"
    dd if="$1" of="$DIR/part.img" bs=1M skip=$(($2 >> 20)) count=$(($3 >> 20)) conv=sparse iflag=fullblock status=none
}

prove() {
    say "proof: every byte (cmp), from the medium and not from a cache"
    sync
    [ -z "$LOOP" ] || blockdev --flushbufs "$LOOP"
    show cmp -n "$SIZE" "$IMAGE" "$TARGET" || die "the disk differs from the image"
    echo "$SIZE bytes are equal"
    rest=$(tail -c +$((SIZE + 1)) "$TARGET" | tr -d '\245' | wc -c)
    [ "$rest" -eq 0 ] || die "$rest bytes after the end of the image were changed"
    echo "the $((DISK_MIB - IMAGE_MIB)) MiB after the end of the image are untouched"

    say "proof: the partition table (sgdisk)"
    echo "The disk is larger than the image, and the backup table stays where the image"
    echo "has it. So sgdisk looks at the disk's first $IMAGE_MIB MiB; about the whole disk it"
    echo "would rightly say that the backup is not at its end."
    if [ -n "$LOOP" ] && VIEW=$(losetup -f --show -r --sizelimit "$SIZE" "$LOOP" 2>/dev/null); then
        view=$VIEW
    else
        VIEW='' view=$DIR/view.img
        head -c "$SIZE" "$TARGET" >"$view"
    fi
    found=$(show sgdisk -v "$view" 2>&1) || die "$found"
    echo "$found"
    case $found in *'No problems found'*) ;; *) die "sgdisk found problems" ;; esac
    [ -z "$VIEW" ] || losetup -d "$VIEW"
    VIEW=''
    rm -f "$DIR/view.img"

    say "proof: the file systems (fsck.vfat, e2fsck), each copied out of the disk"
    extract "$TARGET" resin-boot
    show fsck.vfat -n "$DIR/part.img" || die "fsck.vfat found problems"
    show mdir -i "$DIR/part.img" :: || die "mdir cannot read resin-boot"
    show mtype -i "$DIR/part.img" ::/device-type.json || die "mtype cannot read a file"
    for name in resin-rootA resin-rootB resin-state resin-data; do
        extract "$TARGET" "$name"
        found=$(e2fsck -fn "$DIR/part.img" 2>&1) || die "e2fsck on $name: $found"
        echo "+ e2fsck -fn $name: $(echo "$found" | tail -n 1)"
    done
}

compare_with_sparse_dd() {
    say "for comparison: what 'dd conv=sparse' leaves on such a disk"
    used "$DD_DISK" "$IMAGE_MIB"
    show dd if="$IMAGE" of="$DD_DISK" bs=4k conv=sparse,notrunc,fsync status=none
    there=$(head -c "$SIZE" "$DD_DISK" | tr -dc '\245' | wc -c)
    own=$(tr -dc '\245' <"$IMAGE" | wc -c)
    echo "$((there - own)) of $SIZE bytes are old 0xA5 where the image has zeroes"
    for name in resin-boot resin-rootA resin-rootB resin-state resin-data; do
        extract "$DD_DISK" "$name"
        case $name in resin-boot) set -- fsck.vfat -n ;; *) set -- e2fsck -fn ;; esac
        status=0
        "$@" "$DIR/part.img" >"$DIR/fsck.log" 2>&1 || status=$?
        if [ "$status" -eq 0 ]; then found="finds nothing, yet the bytes differ"; else found="finds problems (exit code $status)"; fi
        echo "+ $* $name: $found"
    done
    rm -f "$DIR/fsck.log" "$DD_DISK"
}

flash_again() {
    say "the same image once more: data that is there already is not written again; empty places are zeroed again"
    show "$COPAL" verify --image "$IMAGE" --target "$TARGET" || die "verify failed"
    show "$COPAL" flash --image "$IMAGE" --target "$TARGET" --yes --receipt "$DIR/receipt-again.json" >"$DIR/stdout" || die "the second flash failed"
    echo "bytes, from the second receipt ($DIR/receipt-again.json):"
    grep -E "\"[a-z_]*(written|zeroed|skipped|unchanged|verified)[a-z_]*\"" "$DIR/receipt-again.json" || true
    show cmp -n "$SIZE" "$IMAGE" "$TARGET" || die "the disk differs from the image"
    echo "still equal"
}

main
