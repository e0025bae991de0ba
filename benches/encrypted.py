#!/usr/bin/env python3
"""Benchmark of an encrypted installation, beside a plain one, and beside what the scripts do.

    python3 benches/encrypted.py [--size MIB] [--rounds N] [--copal BINARY] [--guests FOLDER] [--output FILE]

Each installation runs in a virtual machine of its own (the small guest of `qemu/prepare.sh`: two processors, no hardware acceleration), onto a
disk like an eMMC. Device-mapper, which the machine itself may not have, is in the guest's kernel. The scripts' way is that of meta-balena
v8.0.2: SHA-256 of the image, cryptsetup with its default derivation of keys, `dd conv=sparse`, no read-back.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

from flash import MIB, ROOT, log, publish

WRITE_RATE, READ_RATE = 40_000_000, 120_000_000
TIMEOUT = 1800  # seconds for one installation
GOAL = 0.7  # of the scripts' time

LABELS = ["resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data"]
HEADER = 16 * MIB
# cryptsetup's default derivation of keys needs it, to end its threads.
THREADS = "lib/x86_64-linux-gnu/libgcc_s.so.1"
MODULES = ["dm_crypt", "ext4", "vfat", "nls_cp437", "nls_iso8859-1", "nls_ascii", "nvme", "virtio_blk"]

SECUREBOOT = """
BALENA_NONENC_BOOT_LABEL=balena-rpi
secureboot_setup() { return 0; }
bootpart_split() {
    NONENC_BOOT_MOUNT_DIR=$(mktemp -d)
    mount "${internal_dev}p1" "$NONENC_BOOT_MOUNT_DIR"
}
diskenc_setup() {
    PASSPHRASE_FILE=$(mktemp)
    head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \\n' >"$PASSPHRASE_FILE"
}
"""

BEGIN = """#!/bin/bash
set -eu -o pipefail
. /lib/guest.sh
guest_udev
ln -sfn /proc/self/fd /dev/fd
mount --bind /test/keys /proc/keys
until [ -b /dev/nvme0n1 ] && [ -b /dev/vda ]; do sleep 0.1; done
mkdir -p /medium
mount -o ro /dev/vda /medium
now() { cut -d ' ' -f 1 /proc/uptime; }
begun=$(now)
"""

END = """
echo "$begun $(now)" >/host/times
"""

COPAL = BEGIN + "copal flash -v --conf /etc/resin-init-flasher.conf --image /medium/os.img --no-power-off >/dev/null 2>/host/log" + END

# `conv=sparse` is not in busybox.
SCRIPTS = BEGIN + """
tool() { /test/tools/ld.so --library-path /test/tools "/test/tools/$1" "${@:2}"; }
tool sha256sum /medium/os.img >/dev/null
dd if=/dev/zero of=/dev/nvme0n1 bs=4M count=1 2>/dev/null
sfdisk -q /dev/nvme0n1 </test/table
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \\n' >/tmp/key
while read -r number name start size; do
    partition=/dev/nvme0n1p$number
    until [ -b "$partition" ]; do sleep 0.1; done
    copy() { tool dd if=/medium/os.img "of=$1" bs=4M conv=sparse,notrunc iflag=skip_bytes,count_bytes "skip=$start" "count=$size" 2>/dev/null; }
    if [ "$number" = 1 ]; then copy "$partition"; continue; fi
    cryptsetup -q luksFormat --type luks2 "$partition" /tmp/key
    cryptsetup luksOpen "$partition" "$name" --key-file /tmp/key
    if [ "$name" = resin-boot ]; then mkfs.ext4 -q -F -L resin-boot "/dev/mapper/$name"; else copy "/dev/mapper/$name"; fi
    sync
done </test/parts
mkdir -p /tmp/plain /tmp/boot
mount /dev/nvme0n1p1 /tmp/plain
mount /dev/mapper/resin-boot /tmp/boot
umount /tmp/plain /tmp/boot
for name in resin-boot resin-rootA resin-rootB resin-state resin-data; do cryptsetup close "$name"; done
sync
""" + END


def tool(*argv):
    """Runs a tool that must succeed; its output."""
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_medium(work, size):
    """A file system with image and signature; its certificate, the kernel's line about it, and places and sizes of the partitions."""
    content = work / "content"
    content.mkdir()
    image = content / "os.img"
    lines = tool(ROOT / "scripts/make-image.sh", image, "--size", size, "--fill", 30).splitlines()
    parts = {name: (int(start), int(length)) for _, name, start, length in (line.split() for line in lines)}
    key, certificate, digest = work / "key", work / "kmod.crt", work / "digest"
    tool("openssl", "req", "-x509", "-nodes", "-batch", "-newkey", "rsa:2048", "-subj", "/O=balenaOS", "-keyout", key, "-out", certificate)
    tool("openssl", "dgst", "-sha256", "-binary", "-out", digest, image)
    tool("openssl", "pkeyutl", "-sign", "-inkey", key, "-in", digest, "-out", content / "os.img.sig")
    shown = tool("openssl", "x509", "-noout", "-ext", "subjectKeyIdentifier", "-in", certificate)
    key_id = shown.splitlines()[1].strip().replace(":", "").lower()
    medium = work / "medium"
    tool("truncate", "-s", f"{size + 128}M", medium)
    tool("mkfs.ext4", "-q", "-F", "-d", content, medium)
    shutil.rmtree(content)
    return certificate, f"0b2e3c1d I------ 1 perm 1f030000 0 0 asymmetri balenaOS: {key_id}: X509.rsa []\n", parts


def scripts_layout(parts):
    """The table that the scripts make, for sfdisk; and for each partition its number, name, and bytes of the image."""
    rounded = lambda length: -(-length // (4 * MIB)) * 4 * MIB
    boot, length = parts["resin-boot"]
    table = ["label: gpt", f"start={boot // 512}, size={rounded(length) // 512}, name=balena-rpi"]
    rows = [("1", "balena-rpi", boot, length)]
    at = min(start for name, (start, _) in parts.items() if name != "resin-boot")
    for number, label in enumerate(LABELS, 2):
        start, length = parts[label]
        table.append(f"start={at // 512}, size={(rounded(length) + HEADER) // 512}, name={label}")
        rows.append((str(number), label, start, length))
        at += rounded(length) + HEADER
    return "\n".join(table) + "\n", "".join(f"{' '.join(map(str, row))}\n" for row in rows)


def tools(folder):
    """`dd` and `sha256sum` of this machine, with their libraries."""
    folder.mkdir(parents=True)
    for name in ("dd", "sha256sum"):
        path = shutil.which(name)
        shutil.copy(path, folder / name)
        for word in tool("ldd", path).split():
            if word.startswith("/"):
                shutil.copy(word, folder / ("ld.so" if "/ld-" in word else pathlib.Path(word).name))


def install(work, guests, files, script):
    """Runs a guest with these files; seconds from the first step to the last."""
    shutil.rmtree(work / "run", ignore_errors=True)
    root, host = work / "run/root", work / "run/host"
    host.mkdir(parents=True)
    tool("cp", "-a", "--reflink=auto", guests / "small", root)
    for name, content in {"test/modules": "\n".join(MODULES) + "\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pathlib.Path):
            (shutil.copytree if content.is_dir() else shutil.copy)(content, path)
        else:
            path.write_text(content)
    (host / "script").write_text(script)
    (host / "script").chmod(0o755)
    initrd = work / "run/initrd"
    with open(initrd, "wb") as out:
        names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, stdout=out, check=True)
    target = work / "run/target"
    # What a disk held before must not count as written.
    with open(target, "wb") as disk:
        disk.truncate(2 << 30)
    qemu = guests / "qemu"
    limits = f"throttling.bps-write={WRITE_RATE},throttling.bps-read={READ_RATE}"
    command = [qemu / "lib64/ld-linux-x86-64.so.2", "--library-path", f"{qemu}/lib/x86_64-linux-gnu:{qemu}/usr/lib/x86_64-linux-gnu",
        qemu / "usr/bin/qemu-system-x86_64", "-L", qemu / "usr/share/qemu", "-L", qemu / "usr/share/seabios",
        "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
        "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot", "-kernel", guests / "kernel/vmlinuz", "-initrd", initrd,
        "-append", "console=ttyS0 panic=-1 no_timer_check mitigations=off quiet", "-serial", f"file:{work}/run/console",
        "-virtfs", f"local,path={host},mount_tag=host,security_model=none",
        "-drive", f"file={work}/medium,format=raw,if=none,id=medium,readonly=on", "-device", "virtio-blk-pci,drive=medium",
        "-drive", f"file={target},format=raw,if=none,id=target,{limits}", "-device", "nvme,drive=target,serial=TARGET"]  # fmt: skip
    try:
        subprocess.run([str(word) for word in command], timeout=TIMEOUT, check=True)
    except subprocess.TimeoutExpired:
        sys.exit(f"the guest takes longer than {TIMEOUT} s")
    status = host / "status"
    if not status.exists() or status.read_text().strip() != "0":
        said = (host / "log").read_text() if (host / "log").exists() else ""
        sys.exit(f"the installation failed:\n{(work / 'run/console').read_text()[-4000:]}\n{said}")
    begun, ended = map(float, (host / "times").read_text().split())
    return ended - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=904, help="MiB of the image")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copal", default=os.environ.get("COPAL", str(ROOT / "target/release/copal")), help="a static binary")
    parser.add_argument("--guests", default=os.environ.get("COPAL_GUESTS", str(pathlib.Path.home() / ".cache/copal/guests")))
    parser.add_argument("--work", default=str(ROOT / "target/bench-encrypted"))
    parser.add_argument("--output", default=str(ROOT / "docs/benchmarks.md"))
    args = parser.parse_args()
    work, guests = pathlib.Path(args.work), pathlib.Path(args.guests)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log("making the medium")
    certificate, keys, parts = make_medium(work, args.size)
    table, rows = scripts_layout(parts)
    tools(work / "tools")
    medium = {
        "usr/bin/copal": pathlib.Path(args.copal),
        "test/keys": keys,
        "mnt/boot/balena-keys/kmod.crt": certificate,
        "mnt/boot/balena-image-flasher": "",
        "etc/resin-init-flasher.conf": 'INTERNAL_DEVICE_KERNEL="nvme0n1"\nBALENA_IMAGE=os.img\n',
    }
    config = "mnt/boottmp/config.json"
    opted_in = '{"installer": {"secureboot": true}}\n'
    contestants = {
        "plain": ({**medium, config: "{}\n"}, COPAL),
        "encrypted": ({**medium, config: opted_in, "usr/libexec/balena-init-flasher-secureboot": SECUREBOOT}, COPAL),
        "scripts": ({"test/keys": keys, "test/table": table, "test/parts": rows, "test/tools": work / "tools", THREADS: pathlib.Path("/", THREADS)}, SCRIPTS),
    }
    times = {name: [] for name in contestants}
    try:
        for n in range(args.rounds):
            for name, (files, script) in contestants.items():
                seconds = install(work, guests, files, script)
                log(f"round {n + 1}: {name}: {seconds:.1f} s")
                times[name].append(seconds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ratio = lambda other: statistics.median(e / o for e, o in zip(times["encrypted"], times[other]))
    median = {name: statistics.median(of) for name, of in times.items()}
    holds = "holds" if ratio("scripts") <= GOAL else "does not hold"
    text = "\n".join([
        "## Encrypted installation",
        "",
        f"An image of {args.size} MiB, 30 % full, onto a disk that writes {WRITE_RATE // 10**6} MB/s and reads {READ_RATE // 10**6} MB/s, in a virtual machine"
        f" with two processors, without hardware acceleration; {args.rounds} rounds, medians. The passphrase has 64 bytes.",
        "",
        "| installation | wall s | encrypted to this |",
        "|---|---:|---:|",
        f"| copal, plain, verified | {median['plain']:.1f} | {ratio('plain'):.2f} |",
        f"| **copal, encrypted, verified** | {median['encrypted']:.1f} | |",
        f"| as the scripts: Argon2id, `dd conv=sparse`, not verified | {median['scripts']:.1f} | {ratio('scripts'):.2f} |",
        "",
        f"- Encrypted, verified, to the scripts' way: {ratio('scripts'):.2f} (goal: at most {GOAL}): {holds}. copal writes every zero of the image, since an"
        " encrypted partition would show noise there, and reads everything back; the scripts do neither.",
        "",
    ])  # fmt: skip
    print(text)
    if args.output:
        publish(args.output, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
