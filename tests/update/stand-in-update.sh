#!/bin/sh
# An updater as a release without copal has it, for tests of releases that mix: written from what is documented about slots
# and hooks. It knows -f only, keeps no marker, and undoes nothing itself: the running system's hooks do.
set -e
slot=/mnt/sysroot/inactive

engine() { docker -H unix:///var/run/balena-host.sock "$@"; }

while [ $# -gt 0 ]; do
    case $1 in
    -f)
        file=$2
        shift
        ;;
    esac
    shift
done

for id in $(engine ps --all --quiet); do engine rm --force --volumes "$id"; done >/dev/null
for id in $(engine images --quiet); do engine rmi --force "$id"; done >/dev/null
rm -rf "$slot/hostapps"
for folder in dev etc mnt/state proc run sbin sys tmp hostapps; do mkdir -p "$slot/$folder"; done
: > "$slot/etc/machine-id"
ln -sfn current/boot "$slot/boot"
ln -sfn ../current/boot/init "$slot/sbin/init"

image=$(engine load --quiet --input "$file" | sed -n 's/^Loaded image: //p')
id=$(engine create --runtime=bare --volume=/boot "$image" /bin/sh)
volume=$(engine inspect --format '{{range .Mounts}}{{.Name}}{{end}}' "$id")
mkdir "$slot/hostapps/$id"
ln -s "../../balena/volumes/$volume/_data" "$slot/hostapps/$id/boot"
ln -sfn "hostapps/$id" "$slot/current"
sync

# Hooks of the new release in the running system.
here() {
    new=$("$slot/current/boot/init" -sysroot "$slot")
    if [ -x "$new/usr/bin/hostapp-update-hooks-v2" ]; then
        DURING_UPDATE=1 "$new/usr/bin/hostapp-update-hooks-v2" "$1" --dir "$new/etc/hostapp-update-hooks.d/" || failed=1
    fi
    umount "$new"
    [ -z "$failed" ]
}

forward() {
    engine run --rm --privileged --network=none --env DURING_UPDATE=1 \
        --volume /dev:/dev --volume /mnt:/mnt --volume /sys:/sys --volume /run:/run \
        "$image" hostapp-update-hooks
}

if ! { here --before && forward && here --after; }; then
    DURING_UPDATE=0 hostapp-update-hooks || :
    exit 1
fi

echo $(($(cat /mnt/sysroot/active/counter) + 1)) > "$slot/counter"
sync
