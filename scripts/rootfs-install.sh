#!/bin/sh
# rootfs-install.sh ARCHIVE ROOT [PACKAGE…]: installs a release archive, or the folder it was unpacked to, into a root file system.
# Its list of contents says what goes where. Packages are those of an updating system, unless others are named.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 ARCHIVE|FOLDER ROOT [PACKAGE…]" >&2; exit 2; }
from=$1 root=${2%/}
shift 2
[ $# -gt 0 ] || set -- copal hostapp-update hostapp-update-hooks balena-rollback
umask 022
if [ ! -d "$from" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    tar -xf "$from" -C "$unpacked" --strip-components=1
    from=$unpacked
fi
for package in "$@"; do
    cut -f 1 "$from/contents" | grep -Fqx -- "$package" || { echo "$0: no package $package in $from/contents" >&2; exit 2; }
done
while IFS='	' read -r package kind mode path source; do
    case " $* " in *" $package "*) mkdir -p "$root${path%/*}" ;; *) continue ;; esac
    case $kind in
        file) install -m "$mode" "$from/$source" "$root$path" ;;
        link | enable) ln -sfn "$source" "$root$path" ;;
    esac
done <"$from/contents"
