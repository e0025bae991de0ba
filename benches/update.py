#!/usr/bin/env python3
"""Benchmark of an update: how long copal itself takes beside the container engine, and how much memory.

    python3 benches/update.py [--rounds N] [--size BYTES] [--copal BINARY] [--output FILE]

Needs root, dockerd, docker-registry, runc and strace; `./dev bench` sees to that. benches/device.py is what is updated.

The time of an update is cut up without a word from copal itself:

- *engine*: the union of the times in which a request was in flight, by a proxy before the engine's socket. The archive's way
  to the engine is a request. So is the run of the forward hooks, in a container.
- *programs*: the release's own programs, which say themselves when they ran.
- *medium*: fsync(2), fdatasync(2) and syncfs(2), by strace, which stops a process at these calls alone (seccomp). After the
  engine's load nothing of the image need be on the medium; what is selected has to be, so this writes the layers.
- *own*: everything else, from exec to exit. It is cut up once more by /proc/PID/schedstat, looked at every two milliseconds:
  on a processor, waiting for one (other work on the machine), and asleep: for the archive that is not in memory yet, and until a
  program of the release has started and ended.

The peer is what the shell's hostapp-update does with an archive: `docker load`, `docker create`, `sync -f`; on the same
engine, through the same proxy, in the same round.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from device import MIB, Device, Release
from flash import ROOT, cold, log, peak_rss, publish

LIMIT_OWN, LIMIT_RSS = 1.0, 32 * MIB
FLUSHES = "fsync,fdatasync,syncfs,sync"


# Sets of intervals: sorted, disjoint pairs.


def union(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(intervals):
    return sum(end - start for start, end in intervals)


def within(intervals, start, end):
    """Seconds of a set between two moments."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in intervals)


def outside(intervals, others):
    """Seconds of a set that are not in another one."""
    return length(union([*intervals, *others])) - length(others)


# Steps of an update, by the request that comes after them, in their order. Each is looked for after the one before.
STEPS = [
    ("GET /version", "program start, lock, checks of the device"),
    ("GET /info", ""),
    ("GET /containers/json", "archive read and checked; folders of the slot"),
    ("POST /images/(load|create)", "emptied slot flushed"),
    ("POST /containers/create", "beside and after the load"),
    ("POST /containers/create", "links and breadcrumbs set, `before` hooks called"),
    (None, "`after` hooks called, selection read, counter"),
]


class Update:
    """One update, cut up."""

    def __init__(self, device, option, source):
        trace = device.at("run/strace")
        device.proxy.requests.clear()
        with tempfile.TemporaryFile() as output:
            started = time.time()
            child = device.start(
                "strace", "--seccomp-bpf", "-f", "-qq", "-ttt", "-T", "-e", f"trace={FLUSHES}", "-e", "signal=none", "-o", "/run/strace",
                "hostapp-update", option, source, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            pid, self.rss, began, looks = None, 0, None, []
            while True:
                done, status, _ = os.wait4(child.pid, os.WNOHANG)
                if done:
                    break
                if pid is None and (pid := find(child.pid, "hostapp-update")):
                    began = time.time()
                if pid:
                    self.rss = max(self.rss, peak_rss(pid))
                    looks += looked(pid)
                time.sleep(0.002)
            ended = time.time()
            child.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            if child.returncode != 0:
                sys.exit(f"hostapp-update: exit {child.returncode}\n{output.read().decode(errors='replace')}")
        # strace is not a part of it: from the exec on, within the time between two looks.
        started = (began or started) - 0.002
        stamps = device.at("mnt/data/stamps").read_text().splitlines()
        self.requests = list(device.proxy.requests)
        self.cut(started, ended, [tuple(map(float, s.split())) for s in stamps], flushes(trace.read_text()), looks)
        if "resin_root_part=3" not in device.at("mnt/boot/resinOS_uEnv.txt").read_text():
            sys.exit("hostapp-update succeeded, and the slot is not selected")

    def cut(self, started, ended, programs, medium, looks):
        engine = union((r["from"], r["to"]) for r in self.requests)
        programs, medium = union(programs), union(medium)
        self.wall = ended - started
        self.engine = length(engine)
        self.programs = outside(programs, engine)
        self.medium = outside(medium, union([*engine, *programs]))
        busy = union([*engine, *programs, *medium])
        self.own = self.wall - within(busy, started, ended)
        self.running = self.queued = self.asleep = 0.0
        for (a, ran_a, waited_a), (b, ran_b, waited_b) in zip(looks, looks[1:]):
            share = 1 - within(busy, a, b) / (b - a)
            ran, waited = (ran_b - ran_a) * share, (waited_b - waited_a) * share
            self.running += ran
            self.queued += waited
            self.asleep += (b - a) * share - ran - waited
        self.steps, at, last = [], started, 0
        for pattern, name in STEPS:
            moment = ended
            if pattern:
                index = next(i for i, r in enumerate(self.requests) if i >= last and re.match(pattern, r["what"]))
                last, moment = index + 1, self.requests[index]["from"]
            self.steps.append((name, moment - at - within(busy, at, moment)))
            at = moment


def find(pid, name):
    """The process of that name among the descendants of another one."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    for child in children:
        try:
            if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == name:
                return child
        except OSError:
            continue
        if found := find(child, name):
            return found
    return None


def looked(pid):
    """Moment, and seconds that its first thread has run and waited for a processor so far; one look, or none."""
    try:
        ran, waited, _ = pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return []
    return [(time.time(), int(ran) / 1e9, int(waited) / 1e9)]


def flushes(trace):
    """From when to when each call lasted, out of strace's lines; a call may span two of them."""
    found = []
    for line in trace.splitlines():
        if match := re.match(r"\d+ +(\d+\.\d+) .*<(\d+\.\d+)>$", line):
            moment, lasted = float(match[1]), float(match[2])
            # The second of the two lines is from the end of the call.
            found.append((moment - lasted, moment) if "resumed>" in line else (moment, moment + lasted))
    return found


class Bench:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.failed, self.lines, self.cats = [], [], []

    def peer(self):
        """The same by docker: seconds of load and create, and of the flush."""
        docker = ["docker", "-H", "unix:///var/run/balena-host.sock"]
        started = time.time()
        self.device.run(*docker, "load", "--quiet", "-i", "/mnt/data/os.tar")
        self.device.run(*docker, "create", "--runtime=bare", "--volume=/boot", "registry/os:2", "/bin/sh")
        loaded = time.time()
        self.device.run("sync", "-f", "/mnt/sysroot/inactive")
        return loaded - started, time.time() - loaded

    def prepare(self, warm):
        self.device.reset()
        cold()
        if warm:
            self.device.run("sh", "-c", "cat /mnt/data/os.tar > /dev/null")

    def main(self):
        release = Release(self.args.size)
        archive = self.device.at("mnt/data/os.tar")
        release.save(archive, "registry/os:2")
        name = f"127.0.0.1:{(port := self.device.start_registry())}/os"
        release.push(port, "os")
        del release
        kinds = {
            "`-f`, archive not in memory": (False, "-f", "/mnt/data/os.tar"),
            "`-f`, archive in memory": (True, "-f", "/mnt/data/os.tar"),
            "`-i`, registry on this machine": (False, "-i", name),
        }
        results, peers = {k: [] for k in kinds}, {True: [], False: []}
        for i in range(self.args.rounds):
            log(f"round {i + 1}")
            for kind, (warm, option, source) in kinds.items():
                self.prepare(warm)
                r = Update(self.device, option, source)
                results[kind].append(r)
                log(
                    f"  {kind}: {r.wall:.2f} s: engine {r.engine:.2f}, medium {r.medium:.2f}, programs {r.programs:.2f}, own {r.own:.2f}"
                    f" ({', '.join(f'{s:.3f}' for _, s in r.steps)}; run {r.running:.2f}, queue {r.queued:.2f}, asleep {r.asleep:.2f}),"
                    f" {r.rss / MIB:.1f} MiB"
                )
                if option == "-f" and not warm:
                    self.prepare(False)
                    started = time.time()
                    self.device.run("sh", "-c", "cat /mnt/data/os.tar > /dev/null")
                    self.cats.append(time.time() - started)
                    log(f"    cat: {self.cats[-1]:.2f} s")
                if option == "-f":
                    self.prepare(warm)
                    peers[warm].append(self.peer())
                    log(f"    docker: {peers[warm][-1][0]:.2f} s + flush {peers[warm][-1][1]:.2f} s")
        self.report(results, peers)
        for failure in self.failed:
            log(f"MISSED: {failure}")
        log(f"bench: {'FAILED' if self.failed else 'every limit holds'}")
        return 1 if self.failed else 0

    def limit(self, what, value, most, unit):
        holds = value <= most
        self.lines.append(f"- {what}: {value:.2f} {unit} (at most {most:g}): {'holds' if holds else 'MISSED'}.")
        if not holds:
            self.failed.append(f"{what}: {value:.2f} > {most:g} {unit}")

    def report(self, results, peers):
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        sha = "with" if re.search(r"\b(sha_ni|sha2)\b", pathlib.Path("/proc/cpuinfo").read_text()) else "without"
        version = subprocess.check_output([self.args.copal, "--version"], text=True).strip()
        engine = self.device.docker("version", "--format", "{{.Server.Version}}").strip()
        median = lambda rs, key: statistics.median(getattr(r, key) for r in rs)
        lines = self.lines
        lines += [
            "## Update",
            "",
            f"{version}, static musl build; {cpu.group(1) if cpu else 'unknown CPU'} ({sha} SHA instructions),"
            f" {os.cpu_count()} processors,"
            f" Linux {os.uname().release}, load {os.getloadavg()[1]:.1f}; dockerd {engine}, overlay2 on ext4 in a loop device.",
            f"An image of {self.args.size / 1e6:.0f} MB of random bytes in files of 100 kB, and a small base; {self.args.rounds} rounds,"
            " medians.",
            "",
            "| update | wall s | engine s | medium s | programs s | **own s** | running | queued | asleep | peak RSS MiB |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for kind, rs in results.items():
            cells = [f"{median(rs, key):.2f}" for key in ("wall", "engine", "medium", "programs", "own", "running", "queued", "asleep")]
            lines.append(f"| {kind} | {' | '.join(cells)} | {median(rs, 'rss') / MIB:.1f} |")
        lines += [
            "",
            "- engine: a request to the engine was in flight. The archive's way to the engine counts, and the forward hooks.",
            "- medium: flushes, outside the above. programs: the release's `init` and hooks.",
            "- own: the rest; on a processor, waiting for one, and asleep, for instance while the archive is read."
            f" `cat` takes {statistics.median(self.cats):.2f} s",
            "  for an archive that is not in memory.",
            "",
            "### Own time by step",
            "",
            f"| step | {' | '.join(results)} |",
            f"|---|{'---:|' * len(results)}",
        ]
        for i, (_, name) in enumerate(STEPS):
            if name:
                cells = [f"{statistics.median(r.steps[i][1] for r in rs):.3f}" for rs in results.values()]
                lines.append(f"| {name} | {' | '.join(cells)} |")
        lines += [
            "",
            "The check digests every layer before the slot is emptied. Without SHA instructions, and from a slow medium, it takes longer.",
            "",
            "### Beside docker",
            "",
            "`docker load --quiet -i`, `docker create` and `sync -f` of the same archive on the same engine, without a check beforehand.",
            "",
            "| archive | docker load + create s | flush s | copal to docker with its flush |",
            "|---|---:|---:|---:|",
        ]
        for (kind, rs), warm in zip(list(results.items())[:2], (False, True)):
            ratio = statistics.median(r.wall / sum(p) for r, p in zip(rs, peers[warm]))
            load, flush = (statistics.median(p[i] for p in peers[warm]) for i in (0, 1))
            lines.append(f"| {kind} | {load:.2f} | {flush:.2f} | {ratio:.2f} |")
        lines += ["", "### Limits", ""]
        for kind, rs in results.items():
            self.limit(f"Own time of an update, {kind}", median(rs, "own"), LIMIT_OWN, "s")
        rss = max(r.rss for rs in results.values() for r in rs)
        self.limit("Peak RSS of any update", rss / MIB, LIMIT_RSS / MIB, "MiB")
        text = "\n".join(lines) + "\n"
        print(text)
        publish(self.args.output, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=400_000_000, help="bytes of the image")
    parser.add_argument("--copal", default=os.environ.get("COPAL", ROOT / "target/dist/copal-x86_64"))
    parser.add_argument("--work", default=ROOT / "target")
    parser.add_argument("--output", default=ROOT / "docs/benchmarks.md")
    args = parser.parse_args()
    needed = ("dockerd", "docker", "docker-registry", "runc", "strace", "sgdisk", "losetup", "partx", "nsenter", "unshare")
    missing = [t for t in needed if not shutil.which(t)]
    if missing or not os.access(args.copal, os.X_OK):
        sys.exit(f"bench: missing: {', '.join(missing) or args.copal}; run ./dev bench")
    if os.geteuid() != 0:
        sys.exit("bench: needs root for loop devices, mounts and cold caches")
    # Ended from outside, it still gives back what it has taken.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by SIGTERM"))
    # Other work on the machine favours neither side.
    os.nice(-15)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-update-", dir=args.work))
    device = Device.__new__(Device)
    try:
        device.__init__(folder, args.copal)
        return Bench(args, device).main()
    finally:
        device.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
