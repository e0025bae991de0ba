# shellcheck shell=sh
# shellcheck disable=SC2034 # BOARD and WHY_NOT are used in ./dev
# What a command asks of this machine, looked at before it begins: whatever is lacking is said at once. Sourced after lib.sh.

# lack WHAT: TEXT: one thing that this machine lacks, with what to do; a second one of that name adds nothing.
LACKS='' MUST=''
lack() {
    case $MUST$LACKS in *"- ${1%%:*}:"*) return 0 ;; esac
    LACKS="$LACKS
  - $1"
}

# ask_memory MIB
ask_memory() {
    have=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo 2>/dev/null) || {
        lack "/proc: in a chroot, run mount -t proc proc FOLDER/proc before"
        return 0
    }
    [ "${have:-$1}" -ge "$1" ] || lack "memory: $1 MiB are needed, and $have MiB are free: end other programs"
}

# ask_disk MADE FOLDER MIB: space for what will be in that folder, unless MADE shows that it is there.
SPACE=
ask_disk() {
    [ ! -e "$1" ] || return 0
    at=$2
    while [ ! -d "$at" ]; do at=$(dirname "$at"); done
    SPACE="$SPACE$(stat -c %d "$at") $(df -Pm "$at" 2>/dev/null | awk 'NR == 2 { print $4 }') $3 $2
"
}

# ask_disks: looks at the sum of what was asked for on each file system.
ask_disks() {
    found=$(printf '%s' "$SPACE" | awk '{
        free[$1] = $2; sum[$1] += $3; for (i = 4; i <= NF; i++) folders[$1] = folders[$1] " " $i
    } END {
        for (at in sum) if (sum[at] > free[at])
            printf " %.1f GB in%s, where %.1f GB are free;", sum[at] / 953.7, folders[at], free[at] / 953.7
    }')
    [ -z "$found" ] || lack "disk space: needed are$found make space there"
    SPACE=
}

# ask_root_rights: what only root has, and a container or a chroot may lack.
ask_root_rights() {
    why=$(LC_ALL=C unshare -m true 2>&1) || case $why in
        *propagation*) lack "mount point: the / of this chroot is none: before chroot, run mount --bind FOLDER FOLDER" ;;
        *) lack "mounts: $why: run this as root of the machine, or in a container with --privileged" ;;
    esac
    truncate -s 1M "$TMP/loop"
    if loop=$(losetup -f --show "$TMP/loop" 2>&1); then
        losetup -d "$loop"
    else
        lack "loop devices: $loop: load the module loop, and have the machine's /dev here (in a chroot: mount --rbind /dev FOLDER/dev)"
    fi
    [ -e /sys/fs/cgroup/cgroup.controllers ] || [ -d /sys/fs/cgroup/devices ] ||
        lack "cgroups: /sys/fs/cgroup is empty: have the machine's /sys here (in a chroot: mount --rbind /sys FOLDER/sys)"
}

# Sizes include what is removed before the end: disks of the demo, images that are being made.

# machine_for_demo: fails where the flash cannot be shown; BOARD is empty where the virtual board cannot, and WHY_NOT says why.
machine_for_demo() {
    ask_memory 1000
    ask_disk "$TOP/target/demo/copal-$(uname -m)" "$TOP/target" 5000
    ask_disk "$CARGO_HOME/bin/cargo" "$CARGO_HOME" 1500
    ask_disks
    MUST=$LACKS LACKS=
    if [ "$(id -u)" -ne 0 ]; then
        lack "root: only root can fill the slot of a board's image: run ./dev demo as root"
    else
        ask_root_rights
    fi
    [ "$(uname -m)" = x86_64 ] || lack "processor: the parts of virtual boards are made for machines with an x86_64 one"
    ask_memory 2500
    ask_disk "$CACHE/guests/board_amd64" "$CACHE" 1500
    ask_disk "$CACHE/farm/amd64" "$CACHE/farm" 5400
    ask_disks
    BOARD=yes WHY_NOT=$LACKS
    [ -z "$LACKS" ] || LACKS="
For the virtual board it lacks:$LACKS"
    [ -z "$MUST" ] || fail "this machine lacks what the demo needs:$MUST$LACKS"
    [ -n "$LACKS" ] || return 0
    BOARD=
    echo "dev: the demo will end after the flash: this machine can have no virtual board.$LACKS" >&2
}

# machine_for_tests TARGET FARM: fails where they cannot run as they should; MiB for target and for the boards' images and states.
machine_for_tests() {
    [ "$(id -u)" -ne 0 ] || ask_root_rights
    ask_memory 4000
    ask_disk "$TOP/target/debug" "$TOP/target" "$1"
    ask_disk "$CARGO_HOME/bin/cargo" "$CARGO_HOME" 2500
    ask_disk "$CACHE/guests/small" "$CACHE" 4000
    ask_disk "$CACHE/farm/states" "$CACHE/farm" "$2"
    ask_disks
    [ -z "$LACKS" ] || fail "this machine lacks what the tests need:$LACKS"
}
