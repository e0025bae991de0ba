#!/usr/bin/env python3
"""Benchmark of a verdict: from the return of the last health check until the decision is on the medium.

    python3 benches/rollback.py [--rounds N] [--copal BINARY]

Runs the real program on a folder tree that stands for a device with U-Boot, its root B on trial; nothing of this machine is touched. The
last check writes down when it returns; that of the decision is the time of the file that it changes:

- *rolling back*: the one that the old system's `init` leaves when it is called, behind the record that makes the verdict final;
- *commit*: `/mnt/boot/resinOS_uEnv.txt`, which selects the new system for good.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

LIMIT = 1.0


def write(root, path, text="", mode=None):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    if mode:
        file.chmod(mode)


def device(root, healthy):
    """Files of a device whose root B runs, on trial."""
    (root / "dev").mkdir()
    names = [("sda", "8:0", 16384), ("sda/sda1", "8:1", 2048), ("sda/sda2", "8:2", 2097152), ("sda/sda3", "8:3", 2097152)]
    for name, dev, sectors in names:
        folder, base = f"sys/class/block/{name}", name.split("/")[-1]
        for file, text in [("dev", dev), ("size", sectors), ("ro", 0)]:
            write(root, f"{folder}/{file}", f"{text}\n")
        (root / folder / "holders").mkdir()
        write(root, f"dev/{base}")
        if base == "sda":
            (root / folder / "slaves").mkdir()
            (root / "sys/block/sda").mkdir(parents=True)
        else:
            write(root, f"{folder}/partition", f"{base[-1]}\n")
            write(root, f"{folder}/start", "2048\n")
            os.symlink(f"sda/{base}", root / f"sys/class/block/{base}")
    mounts = [("8:3", "/mnt/sysroot/active", "ext4", "sda3"), ("8:2", "/mnt/sysroot/inactive", "ext4", "sda2"),
              ("8:1", "/mnt/boot", "vfat", "sda1")]
    table = ""
    for i, (dev, point, fstype, source) in enumerate(mounts):
        (root / point[1:]).mkdir(parents=True)
        table += f"{100 + i} 1 {dev} / {point} rw shared:1 - {fstype} /dev/{source} rw\n"
    write(root, "proc/self/mountinfo", table)
    write(root, "proc/swaps", "Filename Type Size Used Priority\n")
    write(root, "proc/cmdline", "quiet\n")
    write(root, "proc/sys/kernel/random/boot_id", "this\n")
    for dev, slot in [("8:2", "A"), ("8:3", "B")]:
        write(root, f"run/udev/data/b{dev}", f"E:ID_FS_TYPE=ext4\nE:ID_FS_LABEL=resin-root{slot}\n")
    write(root, "resin-boot/board.dtb", "of B")
    write(root, "mnt/boot/board.dtb", "of B")
    write(root, "mnt/boot/resinOS_uEnv.txt", "resin_root_part=3\nupgrade_available=1\n")
    for name in ["health", "altboot"]:
        write(root, f"mnt/state/rollback-{name}-breadcrumb")
    write(root, "mnt/state/copal/trial", '{"transaction":"t","slot":"B","resets":0}\n')
    write(root, "usr/lib/balena/balena-healthcheck", "#!/bin/sh\nexit 0\n", 0o755)
    (root / "mnt/data").mkdir()
    # Called to mount the old system, for its hooks; here there is none.
    write(root, "mnt/sysroot/active/current/boot/init", f"#!/bin/sh\n[ -e {root}/decided ] || cp {root}/mnt/state/copal/rollback {root}/decided\nexit 1\n", 0o755)
    # The last one to run.
    end = f"#!/bin/sh\ntouch {root}/returned\nexit {0 if healthy else 1}\n"
    write(root, "usr/bin/rollback-board-healthcheck", end, 0o755)


def once(copal, healthy):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        device(root, healthy)
        command = [copal, "rollback", "health", "1", "1", "--root", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        decided = root / ("mnt/boot/resinOS_uEnv.txt" if healthy else "decided")
        text = (root / "mnt/boot/resinOS_uEnv.txt").read_text()
        if healthy and "upgrade_available=0" not in text or not decided.exists():
            sys.exit(f"no verdict: {done.stderr}")
        return (decided.stat().st_mtime_ns - (root / "returned").stat().st_mtime_ns) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--copal", default=os.environ.get("COPAL", "target/release/copal"))
    args = parser.parse_args()
    missed = False
    for name, healthy in [("rolling back", False), ("commit", True)]:
        times = [once(args.copal, healthy) for _ in range(args.rounds)]
        worst = max(times)
        verdict = "ok" if worst <= LIMIT else "MISSED"
        missed |= worst > LIMIT
        print(f"{name:12} median {statistics.median(times) * 1000:6.1f} ms, worst {worst * 1000:6.1f} ms, limit {LIMIT * 1000:.0f} ms: {verdict}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
