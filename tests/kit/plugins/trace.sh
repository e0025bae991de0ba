#!/bin/bash
# Usage: trace.sh rpi|imx SECUREBOOT DISKENC HELPER…
#
# From the files of a checkout this makes recorded/BOARD.txt, below a line with the commits: tests/install/programs/recorded_plugins.rs
# says which files, and compares. With SHOW_OUTPUT=1 it also shows what the plug-ins say.
#
# Runs the functions of a board's two plug-ins in copal's order, once for each scenario of the board, and prints what they do: the calls
# that touch the world, the status, the variables and files of the contract. Words for names that differ with each run: TMP1, WORD, KEY.
#
# Nothing outside of one temporary folder is touched: the paths in the plug-ins are replaced, and their PATH has only recorders and text tools.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
board=$1 secureboot=$2 diskenc=$3
shift 3
helpers=("$@")

text_tools='awk basename bash cat cut expr find grep head md5sum mkdir mktemp od sed seq sha256sum sort stat tr wc xxd'
recorded='caam-keygen dmsetup gpg imx-otp-tool keyctl lsblk mount mv reboot resin-init-flasher-board rm sync vcgencmd vcmailbox'

# Notes its name and arguments, then acts as far as that stays in the folder.
# shellcheck disable=SC2016
recorder='#!/bin/bash
name=${0##*/}
line="  > $name"
for word; do line+=" ${word:-'"''"'}"; done
case $name in keyctl | gpg) cat >"$W/input" && line+=" < $(stat -c %s "$W/input") bytes" ;; esac
echo "$line" >>"$W/trace"
if [[ -n $FAIL && "$name $*" == $FAIL* ]]; then exit "$STATUS"; fi
inside() { for word; do [[ -z $word || $word == -* || $word == "$W"/* && $word != *..* ]] || exit 1; done; }
case $name in
    # The shell is gone with the system.
    reboot) kill -9 "$PPID" ;;
    lsblk)
        case "$*" in
            *NAME,SIZE*) echo "sdx2 8388608" ;;
            *) printf "%s\n" sdx "sdx1 balena-$BOARD" "sdx2" "dm-0 resin-boot" ;;
        esac
        ;;
    mount)
        inside "$2"
        mkdir "$2/system-connections"
        : >"$2/system-connections/old"
        for file in .hidden Image Image.gz balena-image bcm2711-rpi-4-b.dtb board.dtb boot boot.img boot.sig bootenv config.txt \
            device-type.json imx-boot.bin os-release; do : >"$2/$file"; done
        ;;
    mv | rm) inside "$@" && "$REAL/$name" "$@" ;;
    gpg) "$TOOLS/$name" "$@" <"$W/input" ;;
    caam-keygen | imx-otp-tool | vcmailbox) "$TOOLS/$name" "$@" ;;
esac
'

# A failure ends the installation; that of `secureboot_setup` is a plain one.
# shellcheck disable=SC2016
driver='
set -e
export -n CRYPT=0
declare -A __was
__variables="CRYPT USE_LUKS BALENA_NONENC_BOOT_LABEL PASSPHRASE_FILE TPM_RESULT_DIR ENC_PASSPHRASE_FILE ksize NONENC_BOOT_MOUNT_DIR \
    INTERNAL_DEVICE_BOOTLOADER_CONFIG"
__note() {
    if [[ ${__was[$1]-unset} != "$2" ]]; then echo "  $1=$2" >>"$W/trace"; fi
    __was[$1]=$2
}
__changes() {
    local name value
    for name in $__variables; do
        value=${!name-unset}
        if [[ -d $value ]]; then value+=" (folder)"
        elif [[ -f $value ]]; then value+=" (file of $(stat -c %s "$value") bytes)"
        elif [[ $value == /* ]]; then value+=" (nothing there)"; fi
        __note "$name" "$value"
    done
    __note encrypted "$(cd "$W/internal_boot" && find . -type f | sort | tr "\n" " ")"
    [[ ! -d ${NONENC_BOOT_MOUNT_DIR-} ]] ||
        __note non-encrypted "$(cd "$NONENC_BOOT_MOUNT_DIR" && find . -type f | sort | tr "\n" " ")"
}
__call() {
    local status=0
    echo "$*" >>"$W/trace"
    "$@" || status=$?
    echo "  status $status" >>"$W/trace"
    __changes
    return "$status"
}
for __file in os-helpers-fs os-helpers-logging balena-init-flasher-secureboot balena-init-flasher-diskenc; do . "$W/libexec/$__file"; done
. "$W/conf"
echo "functions $(compgen -A function | grep -E "^(secureboot_|diskenc_|bootpart_)" | tr "\n" " ")" >>"$W/trace"
__changes
if __call secureboot_setup; then
    CRYPT=1
    __call diskenc_setup || exit 0
    if [[ $USE_LUKS == 0 ]]; then __call diskenc_dmsetup /dev/sdx2 resin-boot || exit 0; fi
    __call bootpart_split || exit 0
fi
__call secureboot_bootloader_setup || exit 0
__call secureboot_bootloader_postsetup
'

# scenario NAME WORD…: the words say how the board is, which COMMAND fails (a pattern for its beginning) with which STATUS, which PROGRAM is missing.
scenario() {
    local W name=$1 opted=false hab=1 fail='' status=1 word use_luks=1
    W=$(mktemp -d)
    mkdir "$W"/{bin,libexec,tmp,internal_boot,external,board,board/fuses}
    : >"$W/external/efuses.bin"
    for word in "${@:2}"; do
        case $word in
            opted-in) opted=true ;;
            hab) hab=0 ;;
            srk | closed) : >"$W/board/fuses/$word" ;;
            otp) echo "1 2 3 4 5 6 7 8" >"$W/board/otp" ;;
            fail=*) fail=${word#*=} ;;
            status=*) status=${word#*=} ;;
        esac
    done
    echo "{\"installer\": {\"secureboot\": $opted}}" >"$W/config.json"
    echo "root=/dev/sdy2 hab_status=$hab" >"$W/cmdline"
    [[ $board == rpi ]] || use_luks=0
    echo "USE_LUKS=$use_luks" >"$W/conf"
    for word in $text_tools; do ln -s "$(command -v "$word" || echo /missing)" "$W/bin/$word"; done
    cp "$here/tools/jq" "$W/bin/"
    echo "$recorder" >"$W/recorder"
    chmod 755 "$W/recorder"
    for word in $recorded; do ln -s "$W/recorder" "$W/bin/$word"; done
    for word in "${@:2}"; do [[ $word != rm=* ]] || rm "$W/bin/${word#*=}"; done
    cp "$secureboot" "$W/libexec/balena-init-flasher-secureboot"
    cp "$diskenc" "$W/libexec/balena-init-flasher-diskenc"
    cp "${helpers[@]}" "$W/libexec/"
    # The names are those of a build.
    sed -i -e "s,/usr/libexec,$W/libexec,g; s,/usr/bin/,$W/bin/,g; s,/proc/cmdline,$W/cmdline,g; s,/tmp/keys,$W/keys,g" \
        -e "s,@@BALENA_NONENC_BOOT_LABEL@@,balena-$board,g; s,@@BALENA_SKIP_SECUREBOOT_SETUP@@,false,g" \
        -e 's,@@IS_SECURED_CHECK_SKIP@@,false,g; s,@@KERNEL_IMAGETYPE@@,Image.gz,g; s,@@BALENA_IMAGE_FLAG_FILE@@,balena-image,g' \
        -e 's,@@KERNEL_DEVICE_TREES@@,board.dtb,g; s,@@BOOTLOADER_IMAGE@@,imx-boot.bin,g' \
        -e 's,@@BALENA_FINGERPRINT_FILENAME@@,balenaos,g; s,@@BALENA_FINGERPRINT_EXT@@,fingerprint,g' "$W"/libexec/*
    local ended=0 temporary number=0
    # Otherwise bash says here that its child was killed.
    { env -i W="$W" FAIL="$fail" STATUS="$status" BOARD="$board" REAL=/bin TOOLS="$here/tools" PATH="$W/bin" TMPDIR="$W/tmp" LC_ALL=C \
        BOARD_STATE="$W/board" KEYBLOB_LOCATION="$W/keys" CONFIG_PATH="$W/config.json" internal_dev=/dev/sdx \
        EXTERNAL_DEVICE_BOOT_PART_MOUNTPOINT="$W/external" INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT="$W/internal_boot" \
        bash -c "$driver" resin-init-flasher </dev/null >"$W/output" 2>&1; } 2>/dev/null || ended=$?
    [[ -z ${SHOW_OUTPUT-} ]] || cat "$W/output" >&2
    sed -i "s,$W/,/tmp/,g" "$W/trace"
    while read -r temporary; do
        number=$((number + 1))
        sed -i "s,$temporary,TMP$number,g" "$W/trace"
    done < <(grep -o 'tmp\.[A-Za-z0-9]\{10\}' "$W/trace" | awk '!seen[$0]++')
    echo
    echo "## $name: ${*:2}"
    sed -E -e 's,/tmp/external,/mnt/boot,g; s,/tmp/tmp/,/tmp/,g; s, +$,,' \
        -e '/vcmailbox 0x38081/s, 0x[0-9a-f]{8}, WORD,g; s,[0-9a-f]{64},KEY,g' "$W/trace"
    [[ $ended == 0 ]] || echo "the shell ended: $ended"
    rm -rf "$W"
}

case $board in
    rpi)
        scenario fresh
        scenario programmed otp
        scenario no-mailbox fail=vcmailbox
        scenario otp-locked 'fail=vcmailbox 0x38081'
        scenario no-gpg fail=gpg status=2
        scenario no-partition otp fail=mount status=32
        scenario key-does-not-fit otp 'fail=mv *balena-luks.enc'
        scenario last-sync-fails otp 'fail=sync -f'
        ;;
    imx)
        scenario not-opted-in
        scenario not-opted-in-but-closed closed
        scenario unsigned-bootloader opted-in
        scenario unsigned-bootloader-and-no-reboot opted-in fail=reboot
        scenario unsigned-bootloader-with-keys-and-no-reboot opted-in srk fail=reboot
        scenario open opted-in hab
        scenario open-and-no-fuses opted-in hab 'fail=imx-otp-tool -q --fuse-file'
        scenario open-and-no-reboot opted-in hab fail=reboot
        scenario keys-in-fuses opted-in hab srk
        scenario keys-in-fuses-and-no-more opted-in hab srk 'fail=imx-otp-tool -q --fuse-file'
        scenario closed opted-in hab srk closed
        scenario odd-fuses opted-in hab 'fail=imx-otp-tool -q is-secured' status=2
        scenario no-fuse-tool opted-in hab rm=imx-otp-tool
        scenario no-caam opted-in hab srk closed fail=caam-keygen
        scenario no-keyring opted-in hab srk closed fail=keyctl
        scenario no-cipher opted-in hab srk closed fail=dmsetup
        scenario no-partition opted-in hab srk closed fail=mount status=32
        scenario key-does-not-fit opted-in hab srk closed 'fail=mv *.bb'
        ;;
esac
