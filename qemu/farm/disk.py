"""Partitions and disks: FAT and ext4 file systems from trees, and whole disks from partitions, all of them sparse."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import uuid
from pathlib import Path

from tree import MADE, Fault, Tree

MIB = 1 << 20

#: What all identifiers of file systems and disks are made from: the same names give the same ones.
_FAMILY = uuid.UUID("0ba1ade5-5f6b-4f0a-9e3c-4d72b8a1c0de")


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition of a disk: its name, what is on it, and its type."""

    name: str
    image: Path
    kind: str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"


#: The type that firmware looks for its loader on.
EFI = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"


def run(words: list[str | Path], what: str, *, limit: float = 300, env: dict[str, str] | None = None,
        feed: str | None = None) -> str:
    """Runs a program of this machine; its output, or a fault with what it said."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if shutil.which(str(words[0]), path=path) is None:
        raise Fault(f"no {words[0]} here to {what}: install e2fsprogs, dosfstools, mtools, fdisk, zstd and util-linux")
    environment = {**os.environ, "PATH": path, "LC_ALL": "C", "TZ": "UTC", "SOURCE_DATE_EPOCH": str(MADE), **(env or {})}
    try:
        done = subprocess.run([str(w) for w in words], input=feed, stdin=None if feed else subprocess.DEVNULL, text=True,
                              errors="replace", capture_output=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired as late:
        raise Fault(f"cannot {what}: {words[0]} has not ended in {limit:.0f} s; is this machine overloaded?") from late
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-2000:]
        raise Fault(f"cannot {what}: {words[0]} ended with {done.returncode}: {said}")
    return done.stdout


def identifier(name: str) -> str:
    """A UUID that only depends on a name."""
    return str(uuid.uuid5(_FAMILY, name))


def empty(path: Path, size: int) -> None:
    """Makes a file of zeroes, as a hole."""
    with path.open("wb") as out:
        out.truncate(size)


def fat(to: Path, label: str, mib: int, tree: Tree, scratch: Path, sector: int = 512) -> None:
    """Writes a FAT file system with that tree. A disk with larger sectors than the file system's does not mount it."""
    empty(to, mib * MIB)
    serial = identifier(f"{label} {mib}")[:8]
    run(["mkfs.vfat", "--invariant", "-i", serial, "-n", label, "-S", str(sector), to], f"make {to}")
    files = scratch / f"{label}.files"
    tree.write(files)
    top = sorted(files.iterdir())
    if top:
        run(["mcopy", "-i", to, "-s", "-m", "-o", "-Q", *top, "::/"], f"fill {to}")
    shutil.rmtree(files)


def ext4(to: Path, label: str, mib: int, source: Path | None = None, options: str = "") -> None:
    """Writes an ext4 file system with what is in a folder."""
    empty(to, mib * MIB)
    extended = f"root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0,hash_seed={identifier(label + ' hashes')}"
    words: list[str | Path] = ["mke2fs", "-q", "-F", "-t", "ext4", "-L", label, "-U", identifier(label), "-E", extended]
    if options:
        words += options.split()
    if source is not None:
        words += ["-d", source]
    # mke2fs takes this for the time.
    run([*words, to], f"make {to}", env={"E2FSPROGS_FAKE_TIME": str(MADE)})


def whole(to: Path, name: str, partitions: list[Partition], sector: int = 512) -> None:
    """Writes a disk with a GPT; the partitions begin at 4 MiB, as on a balenaOS, each on a whole MiB. Other sectors than those of 512 bytes need root."""
    # Boot sector, header, and 128 entries of 128 bytes.
    lines = ["label: gpt", f"label-id: {identifier(name)}", "unit: sectors", f"first-lba: {2 + 128 * 128 // sector}"]
    at, places = 4 * MIB, []
    for part in partitions:
        size = part.image.stat().st_size
        if size % MIB:
            raise Fault(f"{part.image} has {size} bytes, no whole MiB")
        lines.append(f"start={at // sector}, size={size // sector}, type={part.kind}, "
                     f"uuid={identifier(name + ' ' + part.name)}, name={part.name}")
        places.append(at)
        at += size
    empty(to, at + MIB)
    # sfdisk takes the size of the sectors from the disk.
    at_loop = run(["losetup", "--find", "--show", "--sector-size", str(sector), to], f"attach {to}").strip() if sector != 512 else ""
    try:
        run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", "--wipe", "never", at_loop or to], f"partition {to}", feed="\n".join(lines) + "\n")
    finally:
        if at_loop:
            run(["losetup", "--detach", at_loop], f"detach {to}")
    with to.open("r+b") as out:
        for part, place in zip(partitions, places):
            pour(part.image, out.fileno(), place)
    # A program that reads the image finds it complete, also when the power goes now.
    sync(to)


def pour(source: Path, out: int, at: int) -> None:
    """Copies a file to a place in another one, without its holes."""
    with source.open("rb") as file:
        size, place = os.fstat(file.fileno()).st_size, 0
        while place < size:
            try:
                data = os.lseek(file.fileno(), place, os.SEEK_DATA)
            except OSError:
                break
            hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
            os.lseek(file.fileno(), data, os.SEEK_SET)
            os.lseek(out, at + data, os.SEEK_SET)
            left = hole - data
            while left:
                piece = os.read(file.fileno(), min(left, 4 * MIB))
                if not piece:
                    raise Fault(f"{source} became shorter while it was read")
                # A block of zeroes is a hole too.
                if piece.count(0) == len(piece):
                    os.lseek(out, len(piece), os.SEEK_CUR)
                else:
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(out, view):]
                left -= len(piece)
            place = hole


def sync(path: Path) -> None:
    """Flushes a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
