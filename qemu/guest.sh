# shellcheck shell=sh
# What a first program (PID 1) of a guest in memory begins with. In the guest it is /lib/guest.sh.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

guest_mounts() {
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mount -t devtmpfs dev /dev 2>/dev/null
}

# What the test asked for, one a line with its parameters.
guest_modules() {
    modprobe -a virtio_pci 9pnet_virtio 9p
    while read -r line; do
        # shellcheck disable=SC2086 # a module and its parameters
        modprobe $line || echo "guest: cannot load $line"
    done </test/modules
}

# guest_host FOLDER: what is written below it is on the host's side at once.
guest_host() { mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 host "$1" || echo "guest: no $1"; }

# udev with the rules that make /dev/disk/by-*; without systemd.
guest_udev() {
    /lib/udev/udevd --daemon
    udevadm trigger --action=add --subsystem-match=block
    udevadm settle --timeout=30 || echo "guest: udev does not settle"
}
