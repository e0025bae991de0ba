"""Power cuts: what a disk may hold when its power goes, from QEMU's record of every write and flush.

QEMU's `blklogwrites` writes the format of the kernel's dm-log-writes
(Documentation/admin-guide/device-mapper/log-writes.rst). A QEMU that is killed loses nothing by itself: all that the guest
wrote is in this machine's cache.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from place import FarmError

MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD = 1, 2, 4
SUPER, ENTRY = struct.Struct("<QQQI"), struct.Struct("<QQQQ")
# What a disk writes as a whole.
SECTOR = 512
PIECE = 1 << 20


@dataclass(frozen=True)
class Request:
    """One request of the guest; its data are in the log at `data`."""

    at: int
    length: int
    data: int
    flush: bool
    fua: bool
    discard: bool


def read(log: Path) -> list[Request]:
    """All requests of a log, in order."""
    requests = []
    with log.open("rb") as file:
        head = file.read(SUPER.size)
        if len(head) < SUPER.size:
            raise FarmError(f"{log} is no write log: it has {len(head)} bytes")
        magic, _, count, sector = SUPER.unpack(head)
        if magic != MAGIC:
            raise FarmError(f"{log} is no write log: it begins with {magic:#x}")
        size = log.stat().st_size
        at = up(SUPER.size, sector)
        for number in range(count):
            file.seek(at)
            entry = file.read(ENTRY.size)
            if len(entry) < ENTRY.size:
                raise FarmError(f"{log} ends after {number} of {count} requests")
            start, sectors, flags, _ = ENTRY.unpack(entry)
            at = up(at + ENTRY.size, sector)
            discard = bool(flags & DISCARD)
            length = 0 if discard else sectors * sector
            if at + length > size + sector:
                raise FarmError(f"{log} ends within request {number} of {count}")
            requests.append(Request(start * sector, length, at, bool(flags & FLUSH), bool(flags & FUA), discard))
            at = up(at + length, sector)
    return requests


def up(number: int, to: int) -> int:
    """Rounded up to a multiple."""
    return -(-number // to) * to


def pieces(file: BinaryIO, request: Request) -> Iterator[tuple[int, bytes]]:
    """A request's data in pieces, each with its place on the disk."""
    for offset in range(0, request.length, PIECE):
        file.seek(request.data + offset)
        data = file.read(min(PIECE, request.length - offset))
        # The log's last zeroes may be beyond its end.
        yield request.at + offset, data.ljust(min(PIECE, request.length - offset), b"\0")


def rebuild(disk: Path, log: Path, count: int, keep: Callable[[int, int], bool], end: int | None = None) -> dict[str, int]:
    """Makes `disk`, which holds what was there before, what it may be after `count` requests when the power goes then.

    All that was flushed is there, and whatever `keep(request, sector)` wants of the writes after it. A discard changes
    nothing: a disk may keep what it holds. With `end`, requests that begin there or after it are left out.
    """
    return play(disk, log, read(log)[:count], keep, end)


def play(disk: Path, log: Path, requests: list[Request], keep: Callable[[int, int], bool], end: int | None = None, flushed: bool = True) -> dict[str, int]:
    """The same with these requests, whose data are in `log`. Without `flushed`, nothing is known to be flushed by a flush among them."""
    # A flush covers what came before it, not the data it carries.
    safe = max((number for number, request in enumerate(requests) if request.flush), default=0) if flushed else 0
    counts = {"requests": len(requests), "safe": 0, "kept": 0, "lost": 0}
    with log.open("rb") as source, disk.open("r+b") as target:
        for number, request in enumerate(requests):
            if request.discard or (end is not None and request.at >= end):
                continue
            certain = number < safe or request.fua
            for at, data in pieces(source, request):
                if certain:
                    target.seek(at)
                    target.write(data)
                    counts["safe"] += len(data) // SECTOR
                    continue
                for offset in range(0, len(data), SECTOR):
                    if keep(number, (at - request.at + offset) // SECTOR):
                        target.seek(at + offset)
                        target.write(data[offset : offset + SECTOR])
                        counts["kept"] += 1
                    else:
                        counts["lost"] += 1
    return counts


def chance(seed: int) -> Callable[[int, int], bool]:
    """A choice that a seed repeats: requests that are lost as a whole, kept as a whole, or torn at a sector."""
    memory: dict[int, tuple[str, int]] = {}

    def keep(number: int, sector: int) -> bool:
        if number not in memory:
            generator = random.Random(f"{seed}:{number}")
            memory[number] = (generator.choice(("lost", "kept", "torn", "mixed")), generator.randrange(1, 9))
        kind, first = memory[number]
        if kind == "torn":
            return sector < first
        if kind == "mixed":
            return random.Random(f"{seed}:{number}:{sector}").random() < 0.5
        return kind == "kept"

    return keep


def touching(requests: list[Request], at: int, length: int) -> list[int]:
    """The requests that write there."""
    return [
        number
        for number, request in enumerate(requests)
        if not request.discard and request.at < at + length and at < request.at + request.length
    ]
