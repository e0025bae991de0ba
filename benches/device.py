"""A device to update: namespaces with a disk of two slots, a real container engine, and a release in an archive.

The same as `tests/update/rig.rs`, made large. Nothing of it touches the machine's own mounts or its own engine, and all of it
goes with the object, however the benchmark ends: every process is in a PID namespace of its own.
"""

import hashlib
import http.client
import io
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zlib

MIB = 1 << 20
TIMEOUT = 120  # seconds; longer than anything takes that is waited for here


def tool(*argv):
    """Runs a tool that must succeed; its output."""
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def until(what, is_so):
    end = time.monotonic() + TIMEOUT
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"waited in vain: {what}")
        time.sleep(0.02)


# --- release ------------------------------------------------------------------------------------------------------------

# Programs of the release say when they ran, so that their time is not taken for copal's. `date` is the running system's.
STAMPED = """#!/bin/sh
set -e
from=$(date +%s.%N)
trap 'echo "$from $(date +%s.%N)" >> /mnt/data/stamps' EXIT
"""

# Mounts a slot's root with the layers that its engine keeps for the container, as the real one does.
INIT = STAMPED + """
slot=$2
id=$(basename "$(readlink "$slot/current")")
layer=$slot/balena/overlay2/$(cat "$slot/balena/image/overlay2/layerdb/mounts/$id/mount-id")
lower=$(sed "s,^,$slot/balena/overlay2/,; s,:,:$slot/balena/overlay2/,g" "$layer/lower")
mkdir -p "$layer/merged"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$layer/diff,workdir=$layer/work" "$layer/merged"
printf %s "$layer/merged"
"""

# Runs in a container of the release: its time is a part of the engine's.
FORWARD = """#!/bin/sh
set -e
printf 'resin_root_part=3\\nupgrade_available=1\\n' > /mnt/boot/resinOS_uEnv.txt
"""


def layer(nodes):
    """A tar of files `(name, mode, content)`, and of links, whose mode is None."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, mode, content in nodes:
            member = tarfile.TarInfo(name)
            if mode is None:
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.mode, member.size = mode, len(content)
                tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


class Release:
    """A small base, and a layer of so many bytes that cannot be compressed, in files of 100 kB."""

    def __init__(self, size):
        busybox = pathlib.Path("/bin/busybox").read_bytes()
        self.layers = [
            layer([
                ("bin/busybox", 0o755, busybox),
                *[(f"bin/{name}", None, "busybox") for name in ("sh", "cat")],
                ("boot/init", 0o755, INIT.encode()),
                ("usr/bin/hostapp-update-hooks", 0o755, FORWARD.encode()),
                ("usr/bin/hostapp-update-hooks-v2", 0o755, STAMPED.encode()),
                ("etc/hostapp-update-hooks.d/a-hook", 0o755, b""),
            ]),
            layer((f"usr/lib/{i}", 0o644, random.Random(i).randbytes(100_000)) for i in range(size // 100_000)),
        ]  # fmt: skip
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
        self.config = json.dumps({
            "architecture": machine, "os": "linux", "config": {"Env": ["PATH=/bin:/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(l).hexdigest()}" for l in self.layers]},
        }).encode()  # fmt: skip

    def save(self, path, tag):
        config = hashlib.sha256(self.config).hexdigest() + ".json"
        names = [f"{i}/layer.tar" for i in range(len(self.layers))]
        manifest = json.dumps([{"Config": config, "RepoTags": [tag], "Layers": names}]).encode()
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, content in [(config, self.config), *zip(names, self.layers), ("manifest.json", manifest)]:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))

    def push(self, port, name):
        """Puts it into a registry; layers in a gzip that only stores, since nothing else is to be had of them."""
        kind = "application/vnd.docker."

        def call(method, target, body, kind, wanted):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
            connection.request(method, target, body, {"Content-Type": kind})
            answer = connection.getresponse()
            if answer.status != wanted:
                sys.exit(f"the registry says {answer.status} to {method} {target}: {answer.read()}")
            return answer.headers.get("Location", "")

        def blob(kind, content):
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            place = call("POST", f"/v2/{name}/blobs/uploads/", b"", "", 202)
            place = re.sub("^https?://[^/]*", "", place)
            call("PUT", f"{place}&digest={digest}", content, "application/octet-stream", 201)
            return {"mediaType": kind, "size": len(content), "digest": digest}

        def gzip(content):
            packer = zlib.compressobj(0, wbits=31)
            return packer.compress(content) + packer.flush()

        manifest = {
            "schemaVersion": 2,
            "mediaType": kind + "distribution.manifest.v2+json",
            "config": blob(kind + "container.image.v1+json", self.config),
            "layers": [blob(kind + "image.rootfs.diff.tar.gzip", gzip(l)) for l in self.layers],
        }
        call("PUT", f"/v2/{name}/manifests/latest", json.dumps(manifest).encode(), manifest["mediaType"], 201)


# --- proxy --------------------------------------------------------------------------------------------------------------


class Proxy:
    """Stands before the engine's socket, and notes from when to when each request was in flight.

    A request begins with its first byte and ends with the last byte of its answer; both as they pass here. Wall-clock times.
    """

    HEAD = re.compile(rb"(GET|HEAD|POST|DELETE|PUT) (/[^ ]*) HTTP/1\.[01]\r\n")

    def __init__(self, at, to):
        self.to, self.requests = str(to), []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(at))
        self.listener.listen(16)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.to)
            notes = []
            threading.Thread(target=self.pass_on, args=(client, server, notes, True), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(server, client, notes, False), daemon=True).start()

    def pass_on(self, source, sink, notes, is_request):
        piece = memoryview(bytearray(256 << 10))
        try:
            while n := source.recv_into(piece):
                now = time.time()
                # A connection may carry several, one after the other.
                if is_request and (not notes or notes[-1]["answered"]) and (head := self.HEAD.match(piece[:n])):
                    what = f"{head[1].decode()} {re.sub('^/v[0-9.]+', '', head[2].decode().split('?')[0])}"
                    notes.append({"what": what, "from": now, "to": now, "answered": False})
                    self.requests.append(notes[-1])
                sink.sendall(piece[:n])
                notes[-1]["to"] = time.time()
                notes[-1]["answered"] |= not is_request
        except OSError:
            pass
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


# --- device -------------------------------------------------------------------------------------------------------------

# Starts the namespaces, mounts everything, and stays.
START = r"""set -e
r=$1; d=$2; n=$3
mount --bind $r $r
mount -t overlay overlay -o lowerdir=/usr,upperdir=$d/upper,workdir=$d/work $r/usr
mount --rbind /dev $r/dev
mount --rbind /sys $r/sys
mount -t proc proc $r/proc
if [ -e $r/proc/sysrq-trigger ]; then mount --bind /dev/null $r/proc/sysrq-trigger; fi
for t in tmp run var; do mount -t tmpfs tmpfs $r/$t; done
mkdir -p $r/var/lib $r/var/log; ln -s ../run $r/var/run
mount -t ext4 ${n}p1 $r/mnt/boot
mount -t ext4 ${n}p2 $r/mnt/sysroot/active
mount -t ext4 ${n}p3 $r/mnt/sysroot/inactive
mount -t ext4 ${n}p4 $r/mnt/state
mount -t ext4 ${n}p5 $r/mnt/data
mkdir -p $r/old $r/mnt/data/resin-data $r/mnt/sysroot/inactive/balena
cd $r; pivot_root . old; umount -l /old
exec env -i PATH=/usr/bin:/usr/sbin chroot . sh -c 'touch /run/up; while :; do sleep 1000; done'
"""

# runc, without the capability that this machine may not have: it may be a container itself.
RUNC = """#!/bin/sh
for word; do if [ "$last" = --bundle ]; then bundle=$word; fi; last=$word; done
if [ -n "$bundle" ]; then sed -i 's/"CAP_SYS_RESOURCE",//g' "$bundle/config.json"; fi
exec runc "$@"
"""

SIZES = {"resin-boot": 16, "resin-rootA": 64, "resin-rootB": 1400, "resin-state": 16, "resin-data": 2200}


class Device:
    """On slot A, with an engine whose data is in slot B. All file systems are ext4, which every kernel can mount."""

    def __init__(self, folder, copal):
        self.folder, self.loop, self.holder, self.others = folder, None, None, []
        root = folder / "root"
        mounts = ("boot", "state", "data", "sysroot/active", "sysroot/inactive")
        for name in ("dev", "sys", "proc", "tmp", "run", "etc", "usr", "var", "root", *[f"mnt/{m}" for m in mounts]):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for name in ("upper/bin", "work"):
            (folder / name).mkdir(parents=True)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        (root / "etc/resolv.conf").write_text("")
        shutil.copy(copal, folder / "upper/bin/copal")
        (folder / "upper/bin/hostapp-update").symlink_to("copal")
        for name, text in (("runc-here", RUNC), ("hostapp-update-hooks", "#!/bin/sh\n")):
            (folder / "upper/bin" / name).write_text(text)
            (folder / "upper/bin" / name).chmod(0o755)
        self.make_disk()
        self.holder = subprocess.Popen(
            ["unshare", "-m", "-p", "-f", "--kill-child", "--propagation", "private", "sh", "-c", START, "sh", root, folder, self.loop],
            stdin=subprocess.DEVNULL,
        )
        children = pathlib.Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")

        def is_up():
            self.first = next(iter(children.read_text().split()), None) if children.exists() else None
            return self.first and self.at("run/up").exists()

        until("the namespaces", is_up)
        self.at("mnt/sysroot/active/counter").write_text("4\n")
        self.start_engine()
        self.proxy = Proxy(self.at("run/balena-host.sock"), self.at("run/engine.sock"))

    def make_disk(self):
        disk = self.folder / "disk.raw"
        with open(disk, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, (sum(SIZES.values()) + 4) * MIB)
        options = [o for i, (label, mib) in enumerate(SIZES.items(), 1) for o in ("-n", f"{i}:0:+{mib}M", "-c", f"{i}:{label}")]
        tool("sgdisk", *options, disk)
        self.loop = tool("losetup", "-f", "--show", "-P", disk).strip()
        # The kernel may have no partition parsers.
        subprocess.run(["partx", "-a", self.loop], capture_output=True, check=False)
        for i, label in enumerate(SIZES, 1):
            part = f"{self.loop}p{i}"
            until("a partition", lambda part=part: os.path.exists(part))
            tool("mke2fs", "-q", "-F", "-t", "ext4", "-L", label, "-E", "lazy_itable_init=0,lazy_journal_init=0", part)

    def at(self, path):
        """A path of the device, as the benchmark sees it."""
        return pathlib.Path(f"/proc/{self.first}/root") / path

    def command(self, *argv):
        inside = ["nsenter", "-t", self.first, "-m", "-p", "-r", "-w", "--", *argv]
        return [str(a) for a in inside]

    ENVIRONMENT = {"PATH": "/usr/bin:/usr/sbin", "HOME": "/root", "COPAL_LOG": "info"}

    def start(self, *argv, **more):
        return subprocess.Popen(self.command(*argv), env=self.ENVIRONMENT, stdin=subprocess.DEVNULL, **more)

    def run(self, *argv):
        done = subprocess.run(self.command(*argv), env=self.ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def docker(self, *argv):
        return self.run("docker", "-H", "unix:///run/engine.sock", *argv)

    def start_engine(self):
        log = open(self.folder / "engine.log", "w")
        self.others.append(self.start(
            "dockerd", "--data-root=/mnt/sysroot/inactive/balena", "--exec-root=/run/engine", "--pidfile=/run/engine.pid",
            "--host=unix:///run/engine.sock", "--storage-driver=overlay2", "--add-runtime=bare=/usr/sbin/runc",
            "--add-runtime=here=/usr/bin/runc-here", "--default-runtime=here", "--bridge=none", "--iptables=false",
            "--ip6tables=false", stdout=log, stderr=log,
        ))  # fmt: skip
        until("the engine", lambda: subprocess.run(
            self.command("docker", "-H", "unix:///run/engine.sock", "version"), env=self.ENVIRONMENT, capture_output=True,
        ).returncode == 0)  # fmt: skip

    def start_registry(self):
        """On the loopback interface; its port."""
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]  # free at this moment
        config, log = self.folder / "registry.yml", open(self.folder / "registry.log", "w")
        config.write_text(
            "version: 0.1\nlog:\n  level: warn\n"
            f"storage:\n  filesystem:\n    rootdirectory: {self.folder}/registry\nhttp:\n  addr: 127.0.0.1:{port}\n"
        )
        command = ["setpriv", "--pdeathsig", "KILL", "docker-registry", "serve", config]
        self.others.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

        def answers():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0

        until("the registry", answers)
        return port

    def reset(self):
        """As it was before any update: slot A selected, nothing under way, and an engine with nothing in its store."""
        for kind in (("container", "ls", "-aq"), ("image", "ls", "-aq")):
            for name in sorted(set(self.docker(*kind).split())):
                self.docker(kind[0], "rm", "-f", name)
        self.docker("volume", "prune", "-f")
        self.run("sh", "-c", "rm -rf /mnt/sysroot/inactive/hostapps /mnt/sysroot/inactive/current /mnt/state/* /mnt/data/stamps")
        self.run("sh", "-c", "rm -rf /run/copal; mkdir -p /mnt/data/resin-data")
        self.at("mnt/boot/resinOS_uEnv.txt").write_text("resin_root_part=2\nupgrade_available=0\n")

    def close(self):
        if self.holder:
            # With the first process of the namespace goes every other.
            self.holder.kill()
        for other in self.others:
            other.kill()
        for process in [self.holder, *self.others]:
            if process:
                process.wait(timeout=TIMEOUT)
        if self.loop:
            subprocess.run(["partx", "-d", self.loop], capture_output=True, check=False)
            subprocess.run(["losetup", "-d", self.loop], check=False)
