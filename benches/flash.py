#!/usr/bin/env python3
"""Benchmark of copal against what people use without it, on the same disk in the same run.

    python3 benches/flash.py [--rounds N] [--size MIB] [--copal BINARY] [--output FILE] [--quick]

Needs root (loop devices, dropping caches), dd, cmp, zstd, bmaptool and qemu-storage-daemon; `./dev bench` sees to that.

What is timed, and on what: every contestant gets the same loop device over the same fully allocated file and cold
caches. copal gets it full of 0xA5, which is what a used disk is to it: it has to make every zero of the image read as
zero. dd with conv=sparse and bmaptool skip zeroes, are wrong on such a disk (measured too), and would stop a `cmp` at
the first stale byte; so they get it full of zeroes, the one disk on which they are right. Rounds alternate between the
contestants; medians and ratios of the same round are reported.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
TIMEOUT = 900


HEAD = """\
# Benchmarks

Written by `./dev bench`; do not edit. Machines are noisy: the ratios, taken between contestants of the same round, are what counts.
"""


def log(text):
    print(text, file=sys.stderr, flush=True)


def publish(page, part):
    """Puts a part of the page, `## NAME` and what is below it, in the place of the one of this name, with the commit that was measured."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    name, rest = part.strip().split("\n", 1)
    script = pathlib.Path(sys.argv[0]).name
    part = f"{name}\n\nMeasured on {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}, by `benches/{script}`.\n{rest}"
    page = pathlib.Path(page)
    text = page.read_text() if page.exists() else HEAD
    parts = {p.split("\n", 1)[0]: p.strip() + "\n" for p in re.split(r"(?m)^(?=## )", text)}
    parts[part.split("\n", 1)[0]] = part.strip() + "\n"
    page.write_text("\n".join(parts.values()))


def peak_rss(pid):
    """Largest resident size so far in bytes. Not from wait4(2): there a child counts what its parent had before exec."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
    return int(found.group(1)) * 1024 if found else 0


def run(*argv, check=True):
    """Runs a command; wall seconds and CPU seconds of it and its children, and its own peak RSS (bytes)."""
    argv = [str(a) for a in argv]
    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        child = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
        rss = 0
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - started > TIMEOUT:
                child.kill()
            rss = max(rss, peak_rss(child.pid))
            time.sleep(0.005)
        wall = time.monotonic() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        out = output.read().decode(errors="replace")
    if check and child.returncode != 0:
        sys.exit(f"{' '.join(argv)}: exit {child.returncode}\n{out}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall": wall, "cpu": cpu, "rss": rss, "out": out, "code": child.returncode}


def cold():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def add(*parts):
    """One result for commands that run one after the other."""
    return {
        "wall": sum(p["wall"] for p in parts),
        "cpu": sum(p["cpu"] for p in parts),
        "rss": max(p["rss"] for p in parts),
    }


def fill(path, size, byte):
    """Writes every byte of a file; all its blocks are allocated afterwards."""
    block = bytes([byte]) * (8 * MIB)
    with open(path, "r+b" if path.exists() else "wb") as f:
        left = size
        while left:
            left -= f.write(block[: min(len(block), left)])
        f.flush()
        os.fsync(f.fileno())


class Disk:
    """A loop device over a file of its own."""

    def __init__(self, path, size, backing=None):
        self.path, self.size = path, size
        if backing is None:
            self.fill(0)
        self.loop = subprocess.check_output(["losetup", "-f", "--show", str(path)], text=True).strip()

    def fill(self, byte):
        fill(self.path, self.size, byte)

    def load(self, image):
        """Makes the disk a copy of an image."""
        self.fill(0)
        subprocess.run(["dd", f"if={image}", f"of={self.path}", "bs=4M", "conv=notrunc,fsync", "status=none"], check=True)

    def close(self):
        subprocess.run(["losetup", "-d", self.loop], check=False)


class ThrottledDisk:
    """A disk that writes and reads at rates of its own, exactly (bytes a second), by a throttling storage daemon. Where it can zero by itself, that
    costs what writing does; otherwise it refuses to, as most cards and sticks do.
    """

    def __init__(self, work, size, write_rate, read_rate, zeroes=True):
        self.size, self.backing, self.export = size, work / "throttled.raw", work / "throttled.export"
        self.monitor = work / "throttled.qmp"
        with open(self.backing, "wb") as f:
            f.truncate(size)
        self.export.touch()
        rules = work / "throttled.rules"
        kinds = [] if zeroes else ["write-zeroes", "discard"]
        # 95: EOPNOTSUPP.
        rules.write_text("".join(f'[inject-error]\nevent = "none"\niotype = "{kind}"\nerrno = "95"\n\n' for kind in kinds))
        self.daemon = subprocess.Popen([
            "qemu-storage-daemon",
            "--chardev", f"socket,id=m,path={self.monitor},server=on,wait=off", "--monitor", "chardev=m",
            "--object", f"throttle-group,id=g,x-bps-write={write_rate},x-bps-read={read_rate}",
            "--blockdev", f"driver=file,filename={self.backing},node-name=f,discard=unmap",
            "--blockdev", "driver=throttle,throttle-group=g,file=f,node-name=t,discard=unmap",
            "--blockdev", f"driver=blkdebug,image=t,config={rules},node-name=d,discard=unmap",
            "--export", f"type=fuse,id=e,node-name=d,mountpoint={self.export},writable=on,growable=off",
        ])  # fmt: skip
        for _ in range(100):
            if self.export.stat().st_size == size:
                break
            time.sleep(0.1)
        else:
            self.close()
            sys.exit("qemu-storage-daemon: no export after 10 s")
        self.disk = Disk(self.export, size, backing=self.backing)
        self.loop = self.disk.loop

    def fill(self, byte):
        # Past the daemon, which does not cache: filling it at its rate would take minutes.
        fill(self.backing, self.size, byte)

    def set_rates(self, write_rate, read_rate):
        limits = {"bps-write": write_rate, "bps-read": read_rate}
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(10)
            monitor.connect(str(self.monitor))
            answers = monitor.makefile("rw")
            answers.readline()
            for command, arguments in (
                ("qmp_capabilities", {}),
                ("qom-set", {"path": "/objects/g", "property": "limits", "value": limits}),
            ):
                answers.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
                answers.flush()
                answer = json.loads(answers.readline())
                if "return" not in answer:
                    sys.exit(f"qemu-storage-daemon: {answer}")

    def close(self):
        if hasattr(self, "disk"):
            self.disk.close()
        self.daemon.terminate()
        self.daemon.wait(timeout=30)


class Bench:
    def __init__(self, args):
        self.args = args
        self.work = pathlib.Path(args.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.copal_binary = args.copal
        self.rows, self.notes = [], []

    # Contestants. Each takes an image and a disk that is ready, and returns a result.

    def copal(self, image, disk, *extra):
        receipt = self.work / "receipt.json"
        receipt.unlink(missing_ok=True)
        cold()
        r = run(self.copal_binary, "flash", "--image", image, "--target", disk.loop, "--receipt", receipt, *extra)
        r["receipt"] = json.loads(receipt.read_text())
        return r

    def dd_sparse(self, image, disk):
        cold()
        return add(run("dd", f"if={image}", f"of={disk.loop}", "bs=4M", "conv=sparse,notrunc", "status=none"), run("sync"))

    def dd_direct(self, image, disk):
        cold()
        return add(run("dd", f"if={image}", f"of={disk.loop}", "bs=4M", "oflag=direct", "status=none"), run("sync"))

    def cmp(self, image, disk):
        cold()
        return run("cmp", "-n", os.path.getsize(image), image, disk.loop)

    def bmaptool(self, image, disk, bmap):
        cold()
        return add(run("bmaptool", "-q", "copy", "--bmap", bmap, image, disk.loop), run("sync"))

    # Images

    def image(self, name, *options):
        path = self.work / f"{name}.img"
        log(f"making {path.name} ({' '.join(map(str, options))})")
        subprocess.run([ROOT / "scripts/make-image.sh", path, *map(str, options)], check=True, stdout=subprocess.DEVNULL)
        return path

    # Scenarios

    def row(self, scenario, contestant, results, ratio_to=None):
        median = lambda key: statistics.median(r[key] for r in results)
        ratio = statistics.median(a["wall"] / b["wall"] for a, b in zip(results, ratio_to)) if ratio_to else None
        self.rows.append((scenario, contestant, median("wall"), median("cpu"), median("rss") / MIB, ratio))
        shown = f", {ratio:.2f}" if ratio else ""
        log(f"  {scenario}: {contestant}: {median('wall'):.2f} s, {median('cpu'):.2f} s CPU, {median('rss') / MIB:.0f} MiB{shown}")
        return ratio

    @staticmethod
    def phase(results, name):
        return [{"wall": r["receipt"][name]["seconds"], "cpu": 0.0, "rss": 0} for r in results]

    def sparse(self, image, disk):
        name = "30 % full"
        bmap = self.work / "for-bmaptool.xml"  # not a companion: copal would check the image against it
        run("bmaptool", "-q", "create", "-o", bmap, image)
        copal, dd, dd_cmp, bmaptool = [], [], [], []
        for i in range(self.args.rounds):
            log(f"{name}: round {i + 1}")
            disk.fill(0xA5)
            copal.append(self.copal(image, disk))
            disk.fill(0)
            dd.append(self.dd_sparse(image, disk))
            dd_cmp.append(add(dd[-1], self.cmp(image, disk)))
            disk.fill(0)
            bmaptool.append(self.bmaptool(image, disk, bmap))
        self.row(name, "bmaptool copy + sync", bmaptool)
        self.row(name, "dd conv=sparse bs=4M + sync", dd)
        self.row(name, "dd conv=sparse bs=4M + sync + cold cmp", dd_cmp)
        write = self.row(name, "**copal, write phase** (to bmaptool)", self.phase(copal, "write"), bmaptool)
        self.row(name, "copal, verification", self.phase(copal, "verify"))
        whole = self.row(name, "**copal, whole** (to dd + cmp)", copal, dd_cmp)
        self.limit("write phase of a 30 % full image to bmaptool copy + sync", write, 1.2)
        self.limit("whole verified flash of a 30 % full image to dd conv=sparse + sync + cold cmp", whole, 0.6)

    def dense(self, image, disk):
        name = "dense"
        copal, dd_cmp = [], []
        for i in range(self.args.rounds):
            log(f"{name}: round {i + 1}")
            disk.fill(0xA5)
            copal.append(self.copal(image, disk))
            disk.fill(0xA5)
            dd = self.dd_direct(image, disk)
            dd_cmp.append(add(dd, self.cmp(image, disk)))
        self.row(name, "dd bs=4M oflag=direct + sync + cold cmp", dd_cmp)
        self.row(name, "copal, write phase", self.phase(copal, "write"))
        self.row(name, "copal, verification", self.phase(copal, "verify"))
        whole = self.row(name, "**copal, whole** (to dd + cmp)", copal, dd_cmp)
        self.limit("whole verified flash of a dense image to dd oflag=direct + sync + cold cmp", whole, 0.8)

    def again(self, image, disk):
        name = "same image again"
        first, second = [], []
        for i in range(self.args.rounds):
            log(f"{name}: round {i + 1}")
            disk.fill(0xA5)
            first.append(self.copal(image, disk))
            second.append(self.copal(image, disk))
        self.row(name, "copal, first time", first)
        self.row(name, "**copal, second time** (to the first)", second, first)
        r = second[-1]["receipt"]["bytes"]
        self.notes.append(
            f"Flashing the same image again wrote {r['written'] / MIB:.1f} MiB and left {r['skipped'] / MIB:.1f} MiB alone."
        )

    def compressed(self, image, disk):
        name = "30 % full, zstd"
        packed = self.work / "packed.img.zst"
        run("zstd", "-q", "-f", "-T2", image, "-o", packed)
        copal, pipe = [], []
        for i in range(self.args.rounds):
            log(f"{name}: round {i + 1}")
            disk.fill(0xA5)
            copal.append(self.copal(packed, disk))
            disk.fill(0)
            cold()
            dd = run("sh", "-c", f"zstd -dcq {packed} | dd of={disk.loop} bs=4M iflag=fullblock conv=sparse,notrunc status=none && sync")
            cold()
            compare = run("sh", "-c", f"zstd -dcq {packed} | cmp -n {os.path.getsize(image)} - {disk.loop}")
            pipe.append(add(dd, compare))
        self.row(name, "zstd -dc, dd conv=sparse + sync + cold cmp", pipe)
        self.row(name, "copal, write phase", self.phase(copal, "write"))
        self.row(name, "copal, verification", self.phase(copal, "verify"))
        self.row(name, "**copal, whole**, decoded twice (to zstd + dd + cmp)", copal, pipe)

    def emmc(self, sparse):
        """A disk that writes 40 MB/s and reads 120 MB/s."""
        name = "eMMC-like"
        write_rate, read_rate = 40_000_000, 120_000_000
        disk = ThrottledDisk(self.work, os.path.getsize(sparse), write_rate, read_rate)
        try:
            results, physical = [], []
            for i in range(self.args.rounds):
                log(f"{name}: round {i + 1}")
                disk.fill(0xA5)
                results.append(self.copal(sparse, disk))
                b = results[-1]["receipt"]["bytes"]
                physical.append({"wall": (b["written"] + b["zeroed"]) / write_rate + b["verified"] / read_rate})
            ratio = self.row(name, "**copal, whole** (to the physical time)", results, physical)
            self.row(name, "copal, write phase", self.phase(results, "write"))
            self.row(name, "copal, verification", self.phase(results, "verify"))
            b = results[-1]["receipt"]["bytes"]
            self.notes.append(
                f"eMMC-like disk: {b['written'] / 1e6:.0f} MB written and {b['zeroed'] / 1e6:.0f} MB zeroed at 40 MB/s and"
                f" {b['verified'] / 1e6:.0f} MB read back at 120 MB/s take {physical[-1]['wall']:.2f} s at least; copal took"
                f" {ratio:.2f} times that."
            )
        finally:
            disk.close()

    def memory(self):
        for mib in (1024, 8192):
            if shutil.disk_usage(self.work).free < 3 * mib * MIB:
                sys.exit(f"not enough free space below {self.work} for the {mib} MiB image")
            image = self.image(f"memory-{mib}", "--size", mib, "--fill", 30)
            target = self.work / "memory.disk"
            target.unlink(missing_ok=True)
            r = run(self.copal_binary, "flash", "--image", image, "--target", target)
            self.rows.append((f"{mib // 1024} GiB image", "copal into a new plain file", r["wall"], r["cpu"], r["rss"] / MIB, None))
            log(f"  {mib} MiB: {r['rss'] / MIB:.1f} MiB RSS")
            if r["rss"] > 32 * MIB:
                self.limits_failed.append(f"peak RSS for {mib} MiB: {r['rss'] / MIB:.1f} MiB > 32 MiB")
            self.notes.append(f"Peak RSS for a {mib // 1024} GiB image: {r['rss'] / MIB:.1f} MiB (limit 32).")
            image.unlink()
            target.unlink()

    def dirty(self, image, disk):
        """What each leaves on a disk that was used before."""
        bmap = self.work / "for-bmaptool.xml"  # not a companion: copal would check the image against it
        contestants = {
            "`dd conv=sparse bs=4M`": lambda: self.dd_sparse(image, disk),
            "`bmaptool copy`": lambda: self.bmaptool(image, disk, bmap),
            "`copal flash`": lambda: self.copal(image, disk),
        }
        self.stale = []
        for name, flash in contestants.items():
            disk.fill(0xA5)
            flash()
            cold()
            wrong = 0
            with open(image, "rb") as a, open(disk.loop, "rb") as b:
                while x := a.read(4 * MIB):
                    y = b.read(len(x))
                    if x != y:
                        # Bytes that differ, counted without a loop in Python.
                        diff = (int.from_bytes(x, "big") ^ int.from_bytes(y, "big")).to_bytes(len(x), "big")
                        wrong += len(diff) - diff.count(0)
            self.stale.append((name, wrong))
            log(f"  dirty disk: {name}: {wrong} wrong bytes")
        if self.stale[-1][1] != 0:
            self.limits_failed.append("copal left wrong bytes on a dirty disk")

    def limit(self, what, ratio, most):
        verdict = "holds" if ratio <= most else "MISSED"
        self.notes.append(f"{what[0].upper()}{what[1:]}: {ratio:.2f} (at most {most}): {verdict}.")
        if ratio > most:
            self.limits_failed.append(f"{what}: {ratio:.2f} > {most}")

    def report(self):
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        version = run(self.copal_binary, "--version")["out"].strip()
        lines = [
            "## Flash",
            "",
            f"{version}, static musl build; {cpu.group(1) if cpu else 'unknown CPU'}, {os.cpu_count()} processors,"
            f" Linux {os.uname().release}.",
            f"Images of {self.args.size} MiB, {self.args.rounds} rounds, medians. One loop device over a fully allocated file on ext4, caches dropped.",
            "copal starts from a disk full of 0xA5; `dd conv=sparse` and `bmaptool` from a disk full of zeroes, the only one on which they are right.",
            "",
            "| scenario | contestant | wall s | CPU s | peak RSS MiB | ratio |",
            "|---|---|---:|---:|---:|---:|",
        ]
        for scenario, contestant, wall, cpu_time, rss, ratio in self.rows:
            cells = [f"{wall:.2f}", f"{cpu_time:.2f}" if cpu_time else "", f"{rss:.0f}" if rss else "", f"{ratio:.2f}" if ratio else ""]
            lines.append(f"| {scenario} | {contestant} | {' | '.join(cells)} |")
        lines += ["", *[f"- {n}" for n in self.notes], "", "### On a disk that was used before", ""]
        lines += [
            "The same image onto a disk full of 0xA5, compared with the image byte by byte afterwards:",
            "",
            "| tool | wrong bytes |",
            "|---|---:|",
            *[f"| {name} | {wrong:,} |" for name, wrong in self.stale],
            "",
            "The first two skip what is zero in the image; what the disk held there stays.",
            "",
        ]
        text = "\n".join(lines)
        print(text)
        if self.args.output:
            publish(self.args.output, text)

    def main(self):
        self.limits_failed = []
        size = self.args.size
        sparse = self.image("sparse", "--size", size, "--fill", 30)
        disk = Disk(self.work / "disk.raw", size * MIB)
        try:
            self.sparse(sparse, disk)
            self.dirty(sparse, disk)
            self.again(sparse, disk)
            self.compressed(sparse, disk)
            dense = self.image("dense", "--size", size, "--fill", "dense")
            self.dense(dense, disk)
            dense.unlink()
        finally:
            disk.close()
        small = self.image("emmc", "--size", min(size, 384), "--fill", 30)
        self.emmc(small)
        if not self.args.quick:
            self.memory()
        self.report()
        shutil.rmtree(self.work, ignore_errors=True)
        for failure in self.limits_failed:
            log(f"MISSED: {failure}")
        log(f"bench: {'FAILED' if self.limits_failed else 'every limit holds'}")
        return 1 if self.limits_failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1536, help="MiB of the images")
    parser.add_argument("--copal", default=os.environ.get("COPAL", ROOT / "target/dist/copal-x86_64"))
    parser.add_argument("--work", default=ROOT / "target/bench")
    parser.add_argument("--output", default=ROOT / "docs/benchmarks.md")
    parser.add_argument("--quick", action="store_true", help="leave out the memory scenario")
    args = parser.parse_args()
    missing = [t for t in ("bmaptool", "zstd", "cmp", "losetup", "qemu-storage-daemon") if not shutil.which(t)]
    if missing or not os.access(args.copal, os.X_OK):
        sys.exit(f"bench: missing: {', '.join(missing) or args.copal}; run ./dev bench")
    if os.geteuid() != 0:
        sys.exit("bench: needs root for loop devices and cold caches")
    return Bench(args).main()


if __name__ == "__main__":
    sys.exit(main())
