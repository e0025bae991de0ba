"""Looks into a disk image from the host: partitions, boot files, the bootloader's selection, files of the state partition."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from board import Board
from place import FarmError

SECTOR = 512
PIECE = 1 << 20
BOOT = "resin-boot"
# The boot partition of an encrypted installation that is not encrypted; the bootloader reads it.
NOT_ENCRYPTED = "balena-efi"
# That of an installation medium.
OF_MEDIUM = "flash-boot"


@dataclass(frozen=True)
class Partition:
    """One of a disk's partitions; offset and size in bytes."""

    number: int
    name: str
    offset: int
    size: int


def partitions(disk: Path) -> list[Partition]:
    """Those of the primary GPT, which counts in sectors of 512 or 4096 bytes; none where there is no table."""
    with disk.open("rb") as file:
        for sector in (SECTOR, 4096):
            file.seek(sector)
            head = file.read(SECTOR)
            if head[:8] == b"EFI PART":
                break
        else:
            return []
        first, count, size = struct.unpack_from("<QII", head, 72)
        file.seek(first * sector)
        table = file.read(count * size)
    found = []
    for number in range(count):
        entry = table[number * size : (number + 1) * size]
        if entry[:16] != bytes(16):
            start, end = struct.unpack_from("<QQ", entry, 32)
            name = entry[56:128].decode("utf-16-le").rstrip("\0")
            found.append(Partition(number + 1, name, start * sector, (end + 1 - start) * sector))
    return found


def partition(disk: Path, name: str) -> Partition:
    """The one of that name."""
    for found in partitions(disk):
        if found.name == name:
            return found
    raise FarmError(f"{disk.name} has no partition {name!r}, but {[p.name for p in partitions(disk)]}")


def encrypted(disk: Path) -> bool:
    """Whether the disk has an encrypted installation."""
    return any(found.name == NOT_ENCRYPTED for found in partitions(disk))


def boot_partition(disk: Path) -> Partition:
    """The boot partition that the bootloader reads, of a disk or of an installation medium."""
    names = {found.name for found in partitions(disk)}
    return partition(disk, next((name for name in (NOT_ENCRYPTED, OF_MEDIUM) if name in names), BOOT))


def boot_file(disk: Path, path: str) -> bytes | None:
    """A file of the boot partition; none where there is none. Of an encrypted installation, only files that are not encrypted can be read."""
    at = boot_partition(disk)
    result = subprocess.run(
        ["mtype", "-i", f"{disk}@@{at.offset}", f"::/{path}"],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "MTOOLS_SKIP_CHECK": "1"},
    )
    if result.returncode == 0:
        return result.stdout
    if b"not found" in result.stderr:
        return None
    raise FarmError(f"mtype cannot read {path} on {disk.name}: {result.stderr.decode(errors='replace').strip()}")


def put_boot_file(disk: Path, path: str, source: Path) -> None:
    """Writes a file of the boot partition, over one that is there."""
    at = boot_partition(disk)
    argv = ["mcopy", "-o", "-Q", "-i", f"{disk}@@{at.offset}", str(source), f"::/{path}"]
    result = subprocess.run(argv, capture_output=True, timeout=60, check=False, env={**os.environ, "MTOOLS_SKIP_CHECK": "1"})
    if result.returncode != 0:
        raise FarmError(f"mcopy cannot write {path} on {disk.name}: {result.stderr.decode(errors='replace').strip()}")


def ext4_file(disk: Path, name: str, path: str) -> bytes | None:
    """A file of an ext4 partition that is not mounted; none where there is none."""
    at = partition(disk, name)
    argv = ["debugfs", "-R", f'cat "{path}"', f"{disk}?offset={at.offset}"]
    result = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    errors = [line for line in result.stderr.decode(errors="replace").splitlines() if not line.startswith("debugfs ")]
    if any("File not found" in line for line in errors):
        return None
    if result.returncode != 0 or errors:
        raise FarmError(f"debugfs cannot read {path} in {name} of {disk.name}: {' '.join(errors)}")
    return result.stdout


@dataclass(frozen=True)
class Selection:
    """What the bootloader goes by."""

    root: str
    upgrade_available: int
    bootcount: int

    def __str__(self) -> str:
        return f"root {self.root}, upgrade_available {self.upgrade_available}, bootcount {self.bootcount}"


def values(text: str) -> dict[str, str]:
    """The `key=value` lines of an environment."""
    pairs = (line.split("=", 1) for line in text.split("\n") if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip(" \r\0") for key, value in pairs}


def selection(board: Board, environment: bytes | None, count: bytes | None, shift: int = 0) -> Selection:
    """The selection in the files of that bootloader, as their documentation has it. `shift`: so many partitions stand before the usual ones."""
    if board.backend == "grub":
        if environment is None:
            raise FarmError(f"no {board.environment} on the boot partition")
        if len(environment) != 1024 or not environment.startswith(b"# GRUB Environment Block\n"):
            raise FarmError(f"{board.environment} is no environment block of 1024 bytes: {environment[:80]!r}")
        found = values(environment.decode(errors="replace"))
        roots, base, counter = {2 + shift: "A", 3 + shift: "B"}, 10, found.get("bootcount", "")
    else:
        found = values((environment or b"").decode(errors="replace"))
        roots, base, counter = {2: "A", 3: "B"}, 16, values((count or b"").decode(errors="replace")).get("bootcount", "")
    # A device that was never updated has no such file or key.
    root = found.get("resin_root_part") or str(2 + shift)
    name = roots.get(int(root, base)) if re.fullmatch("[0-9a-f]+", root) else None
    if shift:
        # That configuration takes root B for 4, and root A for all else.
        name = name or "A"
    return Selection(name or f"partition {root}", int(found.get("upgrade_available") or "0"), int(counter or "0", base))


def selection_of(board: Board, disk: Path) -> Selection:
    """The selection as it is on the disk."""
    count = boot_file(disk, board.count) if board.count else None
    return selection(board, boot_file(disk, board.environment), count, shift(disk))


def shift(disk: Path) -> int:
    """How many partitions stand before the usual ones: the signed configuration of GRUB takes the numbers 3 and 4 for the roots."""
    return 1 if encrypted(disk) else 0


def differs(one: Path, two: Path, offset: int, length: int) -> int | None:
    """The first offset at which two files differ, beyond the end of either counted as zeroes."""
    with one.open("rb") as left, two.open("rb") as right:
        for at in range(offset, offset + length, PIECE):
            size = min(PIECE, offset + length - at)
            left.seek(at)
            right.seek(at)
            a, b = left.read(size).ljust(size, b"\0"), right.read(size).ljust(size, b"\0")
            if a != b:
                return at + next(n for n in range(size) if a[n] != b[n])
    return None


def ends_in_zeroes(disk: Path) -> None:
    """Fails unless the last 33 sectors, where a backup GPT would be, have nothing but zeroes."""
    with disk.open("rb") as file:
        file.seek(-33 * SECTOR, os.SEEK_END)
        if any(file.read()):
            raise FarmError(f"the last sectors of {disk.name} are not empty")


def equals_image(disk: Path, image: Path) -> None:
    """Fails unless all of the image but its boot partition is on the disk, byte for byte."""
    skipped = partition(image, BOOT)
    end = image.stat().st_size
    for start, stop in ((0, skipped.offset), (skipped.offset + skipped.size, end)):
        at = differs(disk, image, start, stop - start)
        if at is not None:
            where = next((p.name for p in partitions(image) if p.offset <= at < p.offset + p.size), "no partition")
            raise FarmError(f"the disk differs from the image at {at:#x}, in {where}")
