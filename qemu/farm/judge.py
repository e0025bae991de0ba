"""Judges what power cuts in an encrypted installation leave, by a reading of its own of the disk's table, the firmware's variables and the commands
of the TPM. After each change, and whatever the disk has kept of what was not flushed:

- The firmware is in setup mode, and starts the medium again; or it has the platform key, and then everything else is complete and flushed.
- The disk has the old system's table, as long as nothing but tables was written; or none; or the new one, with all it names flushed, and the
  passphrase in the TPM.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import tempfile
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cut
import recorder
import secure
from cut import Request
from place import FarmError
from recorder import Change

SECTOR = 512
MIB = 1 << 20
#: At both ends of a disk a GPT has no more than that: boot sector, header and entries; entries and header.
HEAD, TAIL = 34 * SECTOR, 33 * SECTOR
#: The index that releases read the passphrase from.
INDEX = 0x1500000
#: How many choices of what the disk keeps are tried, besides all and nothing.
CHOICES = 8
OLD, NONE, NEW = "the old table", "no table", "the new table"


@dataclass(frozen=True)
class Verdict:
    """How many power cuts were judged, by what came before them, and what they leave."""

    cuts: dict[str, int]
    states: dict[str, int]

    def __str__(self) -> str:
        said = ", ".join(f"{count} after a change of {store}" for store, count in self.cuts.items())
        return f"{sum(self.cuts.values())} power cuts judged: {said}; they leave " + ", ".join(f"{count} times {state}" for state, count in self.states.items())


class Tables:
    """The partition table of a disk after any of its requests."""

    def __init__(self, before: Path, data: Path, requests: list[Request], first: int) -> None:
        """`first`: the first request of the installation. Firmware repairs tables before it."""
        self.size = before.stat().st_size
        self.data = data
        self.requests = requests
        with before.open("rb") as file:
            head = file.read(HEAD)
            file.seek(self.size - TAIL)
            self.ends = (head, file.read(TAIL))
        self.touching = [n for n, at in enumerate(requests) if at.length and (at.at < HEAD or at.at + at.length > self.size - TAIL)]
        #: Everything else; the first and the last MiB are cleared together with the tables.
        self.content = [n for n, at in enumerate(requests) if n >= first and at.length and at.at + at.length > MIB and at.at < self.size - MIB]
        self.flushes = [n for n, at in enumerate(requests) if at.flush]
        self.known: dict[bytes, str] = {}
        self.after: dict[tuple[int, int], frozenset[str]] = {}
        # Two that are equal: a disk that was not installed.
        self.old = self.read(*self.ends)
        self.new = self.read(*self.rebuilt(len(requests), len(requests), lambda *_: True))

    def safe(self, count: int) -> int:
        """So many of the first requests were flushed, of those so far."""
        at = bisect_left(self.flushes, count)
        return self.flushes[at - 1] if at else 0

    def rebuilt(self, count: int, safe: int, keep: Callable[[int, int], bool]) -> tuple[bytes, bytes]:
        """Both ends after so many requests."""
        head, tail = bytearray(self.ends[0]), bytearray(self.ends[1])
        with self.data.open("rb") as file:
            for number in self.touching:
                if number >= count:
                    break
                for at, piece in cut.pieces(file, self.requests[number]):
                    first = (at - self.requests[number].at) // SECTOR
                    for offset in range(0, len(piece), SECTOR):
                        if number >= safe and not keep(number, first + offset // SECTOR):
                            continue
                        place, sector = at + offset, piece[offset : offset + SECTOR]
                        if place < HEAD:
                            head[place : place + SECTOR] = sector
                        elif place >= self.size - TAIL:
                            tail[place - self.size + TAIL : place - self.size + TAIL + SECTOR] = sector
        return bytes(head), bytes(tail)

    def read(self, head: bytes, tail: bytes) -> str:
        """What sfdisk reads there; nothing where there is no table."""
        key = hashlib.sha256(head + tail).digest()
        if key not in self.known:
            with tempfile.NamedTemporaryFile() as file:
                os.pwrite(file.fileno(), head, 0)
                os.pwrite(file.fileno(), tail, self.size - TAIL)
                done = subprocess.run(["sfdisk", "--json", file.name], capture_output=True, text=True, timeout=60, check=False,
                                      env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C"})
            if done.returncode == 0:
                table = json.loads(done.stdout)["partitiontable"]
                parts = [{name: value for name, value in part.items() if name != "node"} for part in table.get("partitions", [])]
                # The boot sector of a GPT alone leads nowhere.
                lonely = table["label"] == "dos" and [part["type"] for part in parts] == ["ee"]
                self.known[key] = "" if lonely else json.dumps([table["label"], table.get("id"), parts])
            elif "does not contain a recognized partition table" in done.stderr:
                self.known[key] = ""
            else:
                raise FarmError(f"sfdisk cannot judge a table: {done.stderr.strip()}")
        return self.known[key]

    def possible(self, count: int) -> frozenset[str]:
        """The tables that the disk may have after so many requests, when the power goes then."""
        key = (bisect_left(self.touching, count), bisect_left(self.touching, self.safe(count)))
        if key not in self.after:
            keeps = [lambda *_: False, lambda *_: True, *map(cut.chance, range(CHOICES))]
            read = {self.read(*self.rebuilt(count, self.safe(count), keep)) for keep in keeps}
            names = {self.old: OLD, self.new: NEW, "": NONE}
            self.after[key] = frozenset(names.get(one, f"another table: {one}") for one in read)
        return self.after[key]


def passphrase(changes: list[Change]) -> list[bool]:
    """Whether the TPM keeps a passphrase in its index, after each change: made and written."""
    found, there, written = [], False, False
    for change in changes:
        code = recorder.code(change)
        if code == recorder.NV_DEFINE:
            there = there or defined(change.command) == INDEX
        elif code in (recorder.NV_UNDEFINE, recorder.NV_WRITE):
            # Handles: who may, then the index.
            if struct.unpack_from(">I", change.command, 14)[0] == INDEX:
                there = written = code == recorder.NV_WRITE
        found.append(there and written)
    return found


def defined(command: bytes) -> int:
    """The index that a command makes: after the handle come sessions, an authorization, and the size of the public area."""
    (sessions,) = struct.unpack_from(">I", command, 14)
    (length,) = struct.unpack_from(">H", command, 18 + sessions)
    return int(struct.unpack_from(">I", command, 18 + sessions + 2 + length + 2)[0])


def judge(before: Path, folder: Path, keys: Path, first: int) -> Verdict:
    """Judges a cut after each change from that one on. `before` has disks and chips from before, `folder` the changes, `keys` the medium's lists."""
    changes = recorder.load(folder)
    data = folder / "data"
    requests = [(number, change.request) for number, change in enumerate(changes) if change.store == recorder.DISK and change.request]
    begin = sum(1 for number, _ in requests if number < first)
    tables = Tables(before / "disk", data, [request for _, request in requests], begin)
    if tables.new in ("", tables.old):
        raise FarmError("the recorded installation has not made a table of its own")
    kept = passphrase(changes)
    chip = bytearray((before / "flash1").read_bytes())
    wanted = {name: (keys / f"{name}.esl").read_bytes() for name in ("PK", "KEK", "db")}
    variables = secure.variables(bytes(chip))
    cuts, states = {recorder.TPM: 0, recorder.VARIABLES: 0, recorder.DISK: 0}, {}
    count = 0
    with data.open("rb") as file:
        for number, change in enumerate(changes):
            if change.store == recorder.DISK:
                count += 1
            elif change.store == recorder.VARIABLES and change.request and change.request.length:
                for at, piece in cut.pieces(file, change.request):
                    chip[at : at + len(piece)] = piece
                if number >= first:
                    variables = secure.variables(bytes(chip))
            if number < first:
                continue
            cuts[change.store] += 1
            state = judged(tables, count, variables, wanted, kept[number])
            if isinstance(state, list):
                raise FarmError(f"a power cut after change {number} ({change.store}) of {len(changes)}: {'; '.join(state)}")
            states[state] = states.get(state, 0) + 1
    if states.get(f"{NEW}, the platform key", 0) == 0:
        raise FarmError(f"the recorded installation has not enrolled the platform key: {states}")
    return Verdict(cuts, states)


def judged(tables: Tables, count: int, variables: dict[tuple[str, str], bytes], wanted: dict[str, bytes], kept: bool) -> str | list[str]:
    """What a cut leaves, after so many requests to the disk; what is wrong with it, as a list."""
    wrong = []
    possible, safe = tables.possible(count), tables.safe(count)
    content = bisect_left(tables.content, count)
    locked = variables.get((secure.GLOBAL, "PK"))
    if others := possible - {OLD, NONE, NEW}:
        wrong.append(f"the disk may have {', '.join(others)}")
    if OLD in possible and content:
        wrong.append("the disk may have the old table, and not what it names")
    if NEW in possible and bisect_left(tables.content, safe) < content:
        wrong.append("the disk may have the new table, and not all that it names")
    if NEW in possible and not kept:
        wrong.append("the disk has a table, and the TPM no passphrase")
    if locked is not None:
        if possible != {NEW}:
            wrong.append(f"the firmware has the platform key, and the disk may have {' or '.join(sorted(possible))}")
        if any(at.length for at in tables.requests[safe:count]):
            wrong.append("the firmware has the platform key, and not everything on the disk is flushed")
        for name, vendor in (("PK", secure.GLOBAL), ("KEK", secure.GLOBAL), ("db", secure.DATABASE)):
            if variables.get((vendor, name)) != wanted[name]:
                wrong.append(f"the firmware has the platform key, and {name} is not the medium's")
    if wrong:
        return wrong
    return f"{' or '.join(sorted(possible))}, {'the platform key' if locked is not None else 'setup mode'}"
