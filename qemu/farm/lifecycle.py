"""One lifecycle of a device, cut at the same points where the scripts of meta-balena are at work, and where copal is: `qemu/lifecycle.scenario`.

Each write and flush of a whole lifecycle is recorded, on the internal disk, the medium and the firmware's variables. Of each cut point the disks are made as
the cut may leave them, and judged (verdict.py). Some are given to a board, which shows what becomes of them.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import shutil
import struct
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import board as boards
import bootchain
import cut
import images
import machine as machines
import place
import recorded
import recorder
import runner
import scenario as scenarios
import shell_release
import states
import verdict
from board import Board
from cut import Request
from machine import Machine, Reset
from place import FarmError, NotRun
from recorder import DISK, MEDIUM, VARIABLES
from verdict import CLASSES, DEAD, ITSELF, LOST, NEW, OLD, PERSON, Expected, Judge, Release, Verdict

SCENARIO = place.TOP / "qemu/lifecycle.scenario"
ACROSS = place.TOP / "qemu/across.scenario"
BOARD = "qemu-amd64"
SCRIPTS, COPAL = "scripts", "copal"
SIDES = (SCRIPTS, COPAL)
#: The versions that a disk may have in a phase, before and after. An update is two phases: its layers, and from its first boot file on.
VERSIONS = {
    "flash": ("", "5.0.0"), "first boot": ("5.0.0", "5.0.0"), "update": ("5.0.0", "5.1.0"), "trial": ("5.0.0", "5.1.0"), "commit": ("5.0.0", "5.1.0"),
    "second update": ("5.1.0", "5.1.1"), "unhealthy": ("5.1.0", "5.1.1"), "rollback": ("5.1.0", "5.1.1"),
}
SPLIT = ("update", "second update")
LAYERS, FILES = "layers", "boot files and switch"
UNHEALTHY = ("broken-engine",)
#: What is in the folder of a side, besides the recording.
MARKS, MADE_OF = "marks", "made-of"
VERDICTS, STARTED = "verdicts.tsv", "started.tsv"
#: Seconds for a device to come to rest after a cut, through all its restarts; and for one that flashes first. Between two looks, and how often they have to be
#: the same.
REST, REST_AND_FLASH, LOOK, SAME = 600.0, 1200.0, 5.0, 3
#: What is said of the running system: version, slot, jobs, breadcrumbs.
QUESTION = """
. /etc/os-release; echo "$VERSION"
numbers=$(findmnt -n -t ext4 -o MAJ:MIN /mnt/sysroot/active | tail -n 1)
sed -n 's/^PARTNAME=resin-root//p' /sys/dev/block/${numbers// /}/uevent
systemctl list-jobs --no-legend | wc -l
mountpoint -q /mnt/state && mountpoint -q /mnt/boot && mountpoint -q /mnt/data && echo mounted || echo not mounted
ls /mnt/state | grep -c breadcrumb
"""


# --- a lifecycle ------------------------------------------------------------------------------------------------------------


def board_of(side: str) -> Board:
    """The board, with a name of its own: its images are others. Without an eMMC, which the scripts cannot write."""
    return replace(boards.load(BOARD), name=f"{BOARD}-{side}", emmc=0)


def images_of(side: str, checkouts: shell_release.Checkouts) -> images.Images:
    """The images of a side, for states.py as well."""
    board = board_of(side)
    if board.name not in states.Images.cache:
        built = shell_release.build(checkouts if side == SCRIPTS else None, place.guests(), place.farm(), place.binary("x86_64"))
        states.Images.cache[board.name] = built
    found: images.Images = states.Images.cache[board.name]
    return found


class Phases(runner.Run):
    """A scenario with phases, on one side, and how long each takes."""

    def __init__(self, scenario: Path, side: str, seed: int, say: Callable[[str], None]) -> None:
        super().__init__(scenarios.parse(f"{scenario.stem}-{side}", scenario.read_text(), str(scenario), boards.names()), board_of(side), seed, say)
        self.seconds: dict[str, float] = {}
        self.now, self.begun = "", 0.0

    def phase(self, name: str) -> None:
        self.end_phase()
        self.now, self.begun = name, time.monotonic()

    def end_phase(self) -> None:
        """Takes the time of the phase that ends here."""
        if self.now:
            self.seconds[self.now] = time.monotonic() - self.begun


class Recording(Phases):
    """The lifecycle, on one side, recorded into a folder."""

    def __init__(self, side: str, to: Path, seed: int, say: Callable[[str], None]) -> None:
        super().__init__(SCENARIO, side, seed, say)
        self.to = to
        self.marks: list[tuple[int, str]] = []

    def record_changes(self) -> None:
        hardware = self.without_power()
        self.recording = recorded.Recording(hardware, self.to, hardware.folder / "medium")
        self.stack.callback(self.recording.end)

    def phase(self, name: str) -> None:
        assert self.recording is not None
        super().phase(name)
        self.marks.append((len(self.recording.changes.changes), name))

    def powers_off(self) -> None:
        super().powers_off()
        self.switched_off()

    def power_off(self) -> None:
        super().power_off()
        self.switched_off()

    def switched_off(self) -> None:
        """When a system switches off in order, drivers of real disks have the cache written. The driver of the virtual one does not."""
        assert self.recording is not None
        for store in (DISK, MEDIUM):
            self.recording.changes.add_flush(store)

    def run(self) -> runner.Result:
        result = super().run()
        if result.state == "passed":
            self.end_phase()
            (self.to / MARKS).write_text(json.dumps({"marks": self.marks, "seconds": self.seconds}))
        return result


def record(side: str, checkouts: shell_release.Checkouts, to: Path, seed: int, say: Callable[[str], None]) -> None:
    """Records a lifecycle, unless the folder has it."""
    built = images_of(side, checkouts)
    run = Recording(side, to, seed, say)
    made_of = "\n".join([*(states.identity(Path(path)) for path in (built.disk, built.releases, built.flasher)), *(step.text for step in run.steps)])
    if (to / MARKS).is_file():
        if (to / MADE_OF).read_text() != made_of:
            raise FarmError(f"{to} has the lifecycle of other images: name another folder with --results, or remove it")
        return
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    (to / MADE_OF).write_text(made_of)
    result = run.run()
    if result.state == "not run":
        raise NotRun(result.why)
    if result.state != "passed":
        shutil.rmtree(to)
        raise FarmError(f"the lifecycle of {side} does not come to its end: {result.why}")


@dataclass(frozen=True)
class Point:
    """A cut: its number in all of them, its phase, after so many changes of all disks, and the seed of what the disks keep."""

    number: int
    phase: str
    after: int
    seed: int


class Record:
    """A recorded lifecycle."""

    def __init__(self, folder: Path, before_medium: Path) -> None:
        self.folder = folder
        self.changes = recorder.load(folder / recorded.CHANGES)
        self.data = folder / recorded.CHANGES / "data"
        kept = json.loads((folder / MARKS).read_text())
        self.seconds: dict[str, float] = kept["seconds"]
        self.befores = {DISK: folder / recorded.BEFORE / "disk", MEDIUM: before_medium}
        self.requests: dict[str, list[Request]] = {DISK: [], MEDIUM: [], VARIABLES: []}
        #: Of each store, the numbers of its changes among all.
        self.numbers: dict[str, list[int]] = {DISK: [], MEDIUM: [], VARIABLES: []}
        for number, change in enumerate(self.changes):
            assert change.request is not None
            self.requests[change.store].append(change.request)
            self.numbers[change.store].append(number)
        #: The changes that a cut may follow: the chip with the variables keeps each write, and firmware makes thousands of them at each start.
        self.followed = [number for number, change in enumerate(self.changes) if change.store != VARIABLES]
        self.phases = self.strata([(int(at), str(name)) for at, name in kept["marks"]])

    def strata(self, marks: list[tuple[int, str]]) -> dict[str, tuple[int, int]]:
        """The first and the last number of changes of each phase."""
        found = {}
        for (begin, name), (end, _) in zip(marks, [*marks[1:], (len(self.changes), "")]):
            if name in SPLIT:
                first = self.first_boot_file(begin, end)
                found[f"{name}: {LAYERS}"] = (begin, first)
                found[f"{name}: {FILES}"] = (first, end)
            else:
                found[name] = (begin, end)
        return found

    def first_boot_file(self, begin: int, end: int) -> int:
        """The number of the change with which an update begins to write the boot partition: the one after the longest time without one. Late writes of
        what was before may come at its beginning."""
        offset, size = self.boot_partition()
        found = [begin]
        for number in range(begin, end):
            change = self.changes[number]
            at = change.request
            if change.store == DISK and at and at.length and at.at < offset + size and offset < at.at + at.length:
                found.append(number)
        if len(found) == 1:
            raise FarmError("an update has not written the boot partition")
        return max(zip(found, found[1:]), key=lambda pair: pair[1] - pair[0])[1]

    def boot_partition(self) -> tuple[int, int]:
        """Where it is on the disk: the first one of each image of a board."""
        return 4 << 20, images.SIZES[0] << 20

    def changes_of_disks(self, phase: str) -> int:
        """So many changes of disk and medium a phase has."""
        begin, end = (bisect_left(self.followed, at) for at in self.phases[phase])
        return end - begin

    def count(self, store: str, after: int) -> int:
        """So many requests of a store are among the first changes."""
        return bisect_left(self.numbers[store], after)

    def points(self, cuts: int, seed: int) -> list[Point]:
        """The cuts, each in the next phase: at the same share of the changes of the phase, and with the same seed, in each lifecycle."""
        found = []
        names = list(self.phases)
        for number in range(cuts):
            name = names[number % len(names)]
            begin, end = (bisect_left(self.followed, at) for at in self.phases[name])
            draw = random.Random(f"{seed} {number}")
            share, own = draw.random(), draw.randrange(1 << 32)
            found.append(Point(number, name, self.followed[begin + int(share * (end - begin))] + 1, own))
        return found


class Rebuilder:
    """Makes the disk of one store what it may be after a cut. Cuts come in order: all that is flushed before one is before the next as well."""

    def __init__(self, record: Record, store: str, scratch: Path) -> None:
        self.record, self.store = record, store
        self.requests = record.requests[store]
        self.flushes = [number for number, request in enumerate(self.requests) if request.flush]
        self.at = scratch / f"{store}.flushed"
        machines.copy(record.befores[store], self.at)
        self.done = 0

    def rebuild(self, point: Point, to: Path) -> dict[str, int]:
        """The disk after a cut, in a file of its own: as cut.play makes it."""
        count = self.record.count(self.store, point.after)
        found = bisect_left(self.flushes, count)
        safe = self.flushes[found - 1] if found else 0
        if safe < self.done:
            raise FarmError("cuts have to come in order")
        everything: Callable[[int, int], bool] = lambda *_: True
        cut.play(self.at, self.record.data, self.requests[self.done : safe], everything)
        self.done = safe
        to.unlink(missing_ok=True)
        machines.copy(self.at, to)
        keep = cut.chance(point.seed)
        return cut.play(to, self.record.data, self.requests[safe:count], lambda number, sector: keep(number + safe, sector), flushed=False)


def variables(record: Record, point: Point, to: Path) -> None:
    """The chip with the firmware's variables: it keeps what was written at once."""
    shutil.copyfile(record.folder / recorded.BEFORE / "flash1", to)
    cut.play(to, record.data, record.requests[VARIABLES][: record.count(VARIABLES, point.after)], lambda *_: True)


# --- judging ------------------------------------------------------------------------------------------------------------


def expected(built: images.Images, say: Callable[[str], None]) -> Expected:
    """What has to be on the disks of a side."""
    board = images.BOARDS[shell_release.ARCH]
    base, layers = shell_release.parts(built)
    found: list[Release] = []
    facts: dict[str, verdict.Facts] = {}
    for name in shell_release.RELEASES:
        of = images.layers_of(board, base, layers, name)
        for layer in of:
            if layer.digest not in facts:
                facts[layer.digest] = verdict.facts_of_layer(layer.tar)
        files = {path.lower(): data for path, data in images.boot_files(board, built.boot, images.RELEASES[name]).files()}
        del files[verdict.ENVIRONMENT]
        found.append(Release(name, images.RELEASES[name], name not in UNHEALTHY, files, tuple(layer.digest for layer in of)))
    started = {name: (built.boot / name).read_bytes() for name in (board.kernel, bootchain.INITRAMFS, bootchain.INIT)}
    say("reading the medium")
    parts = verdict.table(built.flasher)
    medium_boot = {path: data or b"" for path, data in verdict.boot_files(built.flasher, *parts["flash-boot"]).items()}
    copy = place.farm() / "runs" / f"medium-{os.getpid()}"
    machines.copy(built.flasher, copy)
    try:
        with verdict.mounted(copy, *parts["flash-rootA"]) as root:
            if isinstance(root, str):
                raise FarmError(f"the medium: {root}")
            medium = {path: what for path, what in verdict.facts_of_folder(root).items() if path.split("/")[0] not in ("var", "run", "tmp", "lost+found")}
    finally:
        copy.unlink()
    return Expected(tuple(found), facts, started, json.loads(images.config_json(board)), medium, medium_boot)


def judge(side: str, record: Record, built: images.Images, points: list[Point], to: Path, say: Callable[[str], None]) -> None:
    """Judges the cuts that the table does not have, and adds them."""
    done = {int(row["number"]) for row in rows(to / VERDICTS) if row["side"] == side}
    left = sorted((point for point in points if point.number not in done), key=lambda point: point.after)
    if not left:
        return
    judges = Judge(expected(built, say))
    runs = place.farm() / "runs"
    scratch = runs / f"judge-{side}.{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        disks = Rebuilder(record, DISK, scratch)
        media = Rebuilder(record, MEDIUM, scratch)
        known: dict[str, str] = {}
        for number, point in enumerate(left):
            begun = time.monotonic()
            counts = disks.rebuild(point, scratch / "disk")
            old, new = VERSIONS[point.phase.partition(":")[0]]
            found = judges.judge(scratch / "disk", old, new)
            alone = ""
            if point.phase == "flash":
                media.rebuild(point, scratch / "medium")
                what = verdict.content(scratch / "medium", 0, (scratch / "medium").stat().st_size)
                if what not in known:
                    known[what] = judges.medium(scratch / "medium")
                alone = f"{found.kind}: {found.why}"
                found = flashes_again(found, known[what])
            add(to / VERDICTS, {"side": side, "number": point.number, "phase": point.phase, "after": point.after, "seed": point.seed, "kept": counts["kept"],
                                "lost": counts["lost"], "class": found.kind, "mixed": int(found.mixed), "why": found.why, "alone": alone})
            if number % 10 == 0:
                say(f"{side}: {number + 1} of {len(left)}: cut {point.number} in {point.phase}: {found.kind} ({found.why}), {time.monotonic() - begun:.1f} s")
    finally:
        shutil.rmtree(scratch)


def flashes_again(alone: Verdict, medium: str) -> Verdict:
    """A cut in a flash, with the medium still plugged in: firmware starts it first."""
    if medium:
        return Verdict(DEAD if alone.kind in LOST else alone.kind, f"{medium}; the disk alone: {alone.why}")
    return Verdict(ITSELF, "the medium starts again, and flashes")


# --- starting -----------------------------------------------------------------------------------------------------------


class Starter:
    """Gives what cuts leave to a board, and watches what becomes of it."""

    def __init__(self, side: str, record: Record, built: images.Images, say: Callable[[str], None]) -> None:
        self.side, self.record, self.built, self.say = side, record, built, say
        self.board = board_of(side)

    def start(self, point: Point) -> tuple[str, str, float]:
        """The class that it turns out to be, what was seen last, and after how many seconds."""
        begun = time.monotonic()
        flashing = point.phase == "flash"
        with place.guest_place(), states.folder(f"start-{self.board.name}") as (at, sockets):
            states.chips(self.board, at)
            Rebuilder(self.record, DISK, at).rebuild(point, at / "disk")
            (at / "disk.flushed").unlink()
            variables(self.record, point, at / "flash1")
            hardware = states.hardware(self.board, at, sockets, live=False)
            if flashing:
                Rebuilder(self.record, MEDIUM, at).rebuild(point, at / "medium")
                (at / "medium.flushed").unlink()
                hardware = replace(hardware, medium=at / "medium")
            machine = Machine(self.board, hardware, machines.accelerator(self.board.arch))
            try:
                machine.start()
                kind = why = ""
                if flashing:
                    try:
                        machine.wait_power_off(REST_AND_FLASH)
                    except FarmError as error:
                        kind, why = DEAD, f"the medium does not flash: {error}"
                    else:
                        machine = Machine(self.board, replace(hardware, medium=None), machine.accelerator)
                        machine.start()
                if not kind:
                    kind, why = self.watch(machine, point)
            finally:
                machine.kill()
            kept = place.farm() / "failed" / f"lifecycle-{self.side}-{point.number}"
            if kind in LOST:
                shutil.rmtree(kept, ignore_errors=True)
                kept.mkdir(parents=True)
                shutil.copy(at / "console", kept / "console")
        return kind, why, time.monotonic() - begun

    def watch(self, machine: Machine, point: Point) -> tuple[str, str]:
        """Looks until the device is at rest."""
        end, seen, same, last = time.monotonic() + REST, "", 0, "no system answers"
        while time.monotonic() < end:
            if machine.has_powered_off():
                return DEAD, "it has switched itself off"
            try:
                machine.agent.close()
                machine.ready(LOOK)
                last = self.resting(machine, machine.call(QUESTION, 60).output.split("\n"))
            except Reset:
                machine.resets_seen = machine.resets()
                same = 0
                continue
            except (FarmError, struct.error, IndexError):
                # It does not answer, or the boot partition is being written.
                machine.alive()
                same = 0
                time.sleep(1)
                continue
            same = same + 1 if last == seen else 0
            seen = last
            if same >= SAME and not last.startswith("not yet"):
                return self.found(last, point)
            time.sleep(LOOK)
        # A device that runs and does not come to rest has what only a person can change.
        return (PERSON if last.startswith("not yet") else DEAD), last

    def resting(self, machine: Machine, lines: list[str]) -> str:
        """What a running device is, or what it is still at."""
        version, slot, jobs, mounts, crumbs = (lines + [""] * 5)[:5]
        files = verdict.boot_files(machine.hardware.disk, *self.record.boot_partition())
        now = verdict.selection(files.get(verdict.ENVIRONMENT))
        selected = {"2": "A", "": "none"}.get(now.part, "B")
        release = (files.get("release.txt") or b"").decode(errors="replace").strip()
        state = f"selected {selected}, upgrade_available {now.pending}, bootcount {now.count}, {crumbs} breadcrumbs"
        facts = f"{version} in {slot}, {state}, boot files of {release}"
        settled = jobs == "0" and mounts == "mounted" and crumbs == "0" and now.pending == "0" and selected == slot
        return facts if settled else f"not yet: {facts}, {jobs} jobs, {mounts}"

    def found(self, facts: str, point: Point) -> tuple[str, str]:
        """The class of a device at rest."""
        version = facts.split()[0]
        old, new = VERSIONS[point.phase.partition(":")[0]]
        if version not in (old, new) or version == images.RELEASES[UNHEALTHY[0]]:
            return PERSON, facts
        return (NEW if version == new else OLD), facts


def choose(verdicts: list[dict[str, str]], done: set[tuple[str, int]], count: int, seed: int) -> list[tuple[str, int]]:
    """Cuts to start: first of those after which a device is judged lost, then of each side, phase and class in turn."""
    draw = random.Random(seed)
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for row in verdicts:
        groups.setdefault((row["class"], row["side"], row["phase"]), []).append((row["side"], int(row["number"])))
    order = sorted(groups, key=lambda group: (group[0] not in LOST or group[1] != COPAL, -CLASSES.index(group[0]), group))
    for group in order:
        draw.shuffle(groups[group])
    found: list[tuple[str, int]] = []
    while any(groups.values()):
        for group in order:
            if groups[group]:
                found.append(groups[group].pop())
    return [one for one in found[:count] if one not in done]


# --- results ------------------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    """A table; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def add(path: Path, row: dict[str, Any]) -> None:
    """Adds a row at once: what ends a run does not lose it."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), delimiter="\t", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: str(value).replace("\t", " ").replace("\n", " ") for key, value in row.items()})


def interval(found: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of 95 % for a share, from the tails of the binomial distribution."""

    def tail(share: float, least: int) -> float:
        return sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(least, of + 1))

    def solve(wanted: float, least: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, least) < wanted else (low, middle)
        return low

    return (solve(0.025, found) if found else 0.0), (solve(0.975, found + 1) if found < of else 1.0)


def share(found: int, of: int) -> str:
    """A share with its interval."""
    if not of:
        return "none judged"
    low, high = interval(found, of)
    return f"{found} of {of} ({100 * low:.1f} to {100 * high:.1f} %)"


def table(verdicts: list[dict[str, str]], started: list[dict[str, str]]) -> str:
    """As the documentation has them."""
    lines = ["| side | phase | cuts | " + " | ".join(CLASSES) + " | boot files of another release |", "|---|---|" + "---|" * (len(CLASSES) + 2)]
    for side in SIDES:
        of = [row for row in verdicts if row["side"] == side]
        for phase in [*dict.fromkeys(row["phase"] for row in sorted(of, key=lambda row: int(row["after"]))), ""]:
            here = [row for row in of if phase in ("", row["phase"])]
            counts = Counter(row["class"] for row in here)
            cells = [str(counts[kind]) for kind in CLASSES]
            lines.append(f"| {side} | {phase or '**all**'} | {len(here)} | {' | '.join(cells)} | {sum(row['mixed'] == '1' for row in here)} |")
    lines.append("")
    for side in SIDES:
        of = [row for row in verdicts if row["side"] == side]
        lines.append(f"{side}: lost {share(sum(row['class'] in LOST for row in of), len(of))}")
        for why, number in Counter(f"{row['class']}: {row['why']}" for row in of if row["class"] in LOST).most_common():
            lines.append(f"    {number} {why}")
        alone = [row["alone"] for row in of if row["alone"]]
        for why, number in Counter(alone).most_common():
            lines.append(f"    without the medium, of {len(alone)} cuts of a flash: {number} {why}")
    judged = {(row["side"], row["number"]): row["class"] for row in verdicts}
    lines += ["", "| side | judged | started | became |", "|---|---|---|---|"]
    became = Counter((row["side"], judged.get((row["side"], row["number"]), "not judged"), row["class"]) for row in started)
    lines += [f"| {side} | {before} | {number} | {after} |" for (side, before, after), number in sorted(became.items())]
    return "\n".join(lines)


def ready(checkouts: shell_release.Checkouts) -> None:
    """What all of them need is there."""
    checkouts.check()
    place.need_space(2)
    if os.geteuid() != 0:
        raise NotRun("only root can make the board's images and mount its disks: run this as root")


def across(checkouts: shell_release.Checkouts, seed: int, say: Callable[[str], None]) -> int:
    """Updates from the scripts to copal, and from copal to the scripts."""
    ready(checkouts)
    images_of(SCRIPTS, checkouts)
    scenario = scenarios.parse("across", ACROSS.read_text(), str(ACROSS), boards.names())
    result = runner.Run(scenario, board_of(SCRIPTS), seed, say).run()
    say(f"across: {result.state}, {result.seconds:.0f} s\n{result.why}")
    return 0 if result.state == "passed" else 1


def compare(checkouts: shell_release.Checkouts, results: Path, sides: list[str], cuts: int, start: int, seed: int, say: Callable[[str], None]) -> int:
    """Records both lifecycles, judges the cuts, starts some, and prints the tables."""
    ready(checkouts)
    records: dict[str, Record] = {}
    for side in sides:
        record(side, checkouts, results / side, seed, lambda text, side=side: say(f"{side}: {text}"))
        records[side] = Record(results / side, Path(images_of(side, checkouts).flasher))
        of = records[side]
        say(f"{side}: {len(of.followed):,} changes of disk and medium; " + ", ".join(f"{name} {of.changes_of_disks(name):,}" for name in of.phases))
        say(f"{side}: seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in of.seconds.items()))
    for side in sides:
        judge(side, records[side], images_of(side, checkouts), records[side].points(cuts, seed), results, say)
    verdicts = rows(results / VERDICTS)
    done = {(row["side"], int(row["number"])) for row in rows(results / STARTED)}
    points = {side: {point.number: point for point in records[side].points(cuts, seed)} for side in sides}
    for side, number in choose([row for row in verdicts if row["side"] in sides], done, start, seed):
        point = points[side][number]
        kind, why, seconds = Starter(side, records[side], images_of(side, checkouts), say).start(point)
        (judged,) = [row for row in verdicts if row["side"] == side and int(row["number"]) == number]
        say(f"{side}: started cut {number} in {point.phase}, judged {judged['class']} ({judged['why']}): {kind}: {why}, {seconds:.0f} s")
        add(results / STARTED, {"side": side, "number": number, "phase": point.phase, "class": kind, "seconds": f"{seconds:.0f}", "why": why})
    say(f"{checkouts.versions()}; --seed {seed}; QEMU with {machines.accelerator('x86_64')}\n\n{table(rows(results / VERDICTS), rows(results / STARTED))}")
    return 0
