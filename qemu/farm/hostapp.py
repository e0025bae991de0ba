"""Images of host systems as a container engine has them: layers, archives, and a slot that a real engine has filled."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import disk
from tree import MADE, Fault, Tree

#: For the engine to start, load an archive and stop; a busy machine takes a minute.
SLOT_LIMIT = 900

#: What a slot has besides the engine's store.
SKELETON = ("balena", "dev", "etc", "hostapps", "mnt/state", "proc", "run", "sbin", "sys", "tmp")


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of an image: a tar and its SHA-256."""

    tar: Path
    digest: str


def config(arch: str, layers: list[Layer]) -> bytes:
    """The configuration of an image with these layers."""
    return json.dumps({
        "architecture": arch,
        "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "created": "2023-11-14T22:13:20Z",
        "history": [{"created": "2023-11-14T22:13:20Z"} for _ in layers],
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{layer.digest}" for layer in layers], "type": "layers"},
    }, sort_keys=True).encode()


def archive(to: Path, arch: str, name: str, layers: list[Layer]) -> None:
    """Writes an image as `docker save` does."""
    image = config(arch, layers)
    own = hashlib.sha256(image).hexdigest() + ".json"
    manifest = [{"Config": own, "Layers": [f"{layer.digest}/layer.tar" for layer in layers], "RepoTags": [name]}]

    def put(tar: tarfile.TarFile, path: str, size: int, source: io.BufferedIOBase) -> None:
        info = tarfile.TarInfo(path)
        info.mode, info.mtime, info.size = 0o644, MADE, size
        tar.addfile(info, source)

    with tarfile.open(to, "w", format=tarfile.GNU_FORMAT) as tar:
        put(tar, own, len(image), io.BytesIO(image))
        for layer in layers:
            with layer.tar.open("rb") as source:
                put(tar, f"{layer.digest}/layer.tar", layer.tar.stat().st_size, source)
        text = json.dumps(manifest).encode()
        put(tar, "manifest.json", len(text), io.BytesIO(text))


def skeleton() -> Tree:
    """A slot that holds nothing."""
    tree = Tree()
    for path in SKELETON:
        tree.folder(path)
    tree.folder("tmp", 0o1777)
    tree.file("etc/machine-id", "")
    return tree


# In a mount and a PID namespace of its own: nothing that is mounted or started here outlives it, however it ends. Engine and
# programs are the board's, so that nothing of this machine's engine is needed or touched.
_FILL = r"""
set -eu
tree=$1 slot=$2 image=$3 copal=$4 at=$5 tmp=$6
mount -t tmpfs -o size=64m none "$at"
cd "$at"
mkdir -p usr etc/docker proc sys dev run tmp var mnt/sysroot/inactive mnt/sysroot/active root
for dir in bin sbin lib lib64; do [ ! -e "$tree/usr/$dir" ] || ln -s "usr/$dir" "$dir"; done
ln -s ../run var/run
echo root:x:0:0:root:/root:/bin/sh >etc/passwd
echo root:x:0: >etc/group
: >copal
: >image.tar
mount --bind "$tree/usr" usr
mount --bind "$copal" copal
mount --bind "$image" image.tar
mount --bind "$tmp" tmp
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -o loop,noatime "$slot" mnt/sysroot/inactive
cat >etc/docker/engine.json <<END
{ "storage-driver": "overlay2", "bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false,
  "runtimes": { "bare": { "path": "/usr/sbin/runc" } } }
END
# What is unpacked on the way is not to take the slot's space.
DOCKER_TMPDIR=/tmp chroot . dockerd --config-file /etc/docker/engine.json --host unix:///run/balena-host.sock \
    --data-root /mnt/sysroot/inactive/balena --exec-root /run/engine --pidfile /run/engine.pid >engine.log 2>&1 &
engine=$!
tries=0
until printf 'GET /_ping HTTP/1.0\r\n\r\n' | chroot . nc -U -N -w 5 /run/balena-host.sock 2>/dev/null | grep -q ' 200 '; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$engine" 2>/dev/null; then
        echo "the board's container engine does not start:" >&2
        tail -n 20 engine.log >&2
        exit 1
    fi
    sleep 0.2
done
chroot . /copal hostapp-update --no-job -f /image.tar -n >copal.log 2>&1 || {
    grep level=error engine.log | tail -n 5 >&2 || true
    cat copal.log >&2
    exit 1
}
kill "$engine"
wait "$engine" || true
rm -rf mnt/sysroot/inactive/lost+found mnt/sysroot/inactive/balena/tmp/*
# What was written and removed again is a hole.
fstrim mnt/sysroot/inactive
umount mnt/sysroot/inactive
"""


def fill(slot: Path, board: Path, image: Path, copal: Path, scratch: Path) -> None:
    """Installs an archive into an empty slot (an ext4 with the skeleton), as the build of a balenaOS does. As root only."""
    at, tmp = scratch / "engine", scratch / "tmp"
    at.mkdir()
    tmp.mkdir()
    words = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", _FILL, "fill", board / "root", slot, image, copal, at, tmp]
    try:
        disk.run(words, f"install {image.name} into {slot.name}", limit=SLOT_LIMIT)
    finally:
        at.rmdir()
        shutil.rmtree(tmp)
    check = subprocess.run(["e2fsck", "-fn", str(slot)], capture_output=True, text=True, timeout=300,
                           env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"})
    if check.returncode != 0:
        raise Fault(f"{slot} is damaged after the installation: {check.stdout[-1000:]}")
