"""Judges the disk of a `qemu-amd64` after a power cut, from the disk alone, by a reading of its own: what the firmware, GRUB and the kernel would find,
whether the system that they start is complete, and whether it goes on by itself from there.

It shares no code with copal. GRUB reads a file system without its journal, and is judged by that; the system is judged by what the kernel mounts. As root
only: it mounts partitions of a copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fat import Fat
from place import FarmError

SECTOR = 512
OLD, NEW, ITSELF, PERSON, DEAD = "complete old", "complete new", "finishes by itself", "needs a person", "dead"
CLASSES = (OLD, NEW, ITSELF, PERSON, DEAD)
#: Those after which a device is lost to who is not beside it.
LOST = (PERSON, DEAD)
LOADER, CONFIG, ENVIRONMENT, SETTINGS = "efi/boot/bootx64.efi", "efi/boot/grub.cfg", "efi/boot/grubenv", "config.json"
SIGNATURE = b"# GRUB Environment Block\n"
KERNEL, INITRAMFS, INIT = "bzImage", "initramfs.cpio", "init"
ROOTS = {"A": "resin-rootA", "B": "resin-rootB"}
HEALTH, ALTBOOT = "rollback-health-breadcrumb", "rollback-altboot-breadcrumb"
#: So many starts, and a device that does not come up in one of them never does: GRUB counts to two.
STARTS = 6
SECONDS = 120
#: What a file of a layer is: its kind, and its size with a checksum, or where it leads to.
Facts = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Release:
    """A release as it has to be on a disk."""

    name: str
    version: str
    #: Whether it passes its checks in a trial.
    healthy: bool
    #: Files of the boot partition, their names in small letters, without the selection.
    boot: dict[str, bytes]
    #: Digests of its layers, from the lowest one on.
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """All that may be on a disk."""

    releases: tuple[Release, ...]
    layers: dict[str, Facts]
    #: Files below a root's /boot.
    started: dict[str, bytes]
    settings: dict[str, object]
    #: The files of the medium's root, and of its boot partition.
    medium: Facts = field(default_factory=dict)
    medium_boot: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What a cut leaves."""

    kind: str
    why: str
    #: Whether the boot files are of another release than the one that starts, or of several.
    mixed: bool = False


# --- what has to be there -----------------------------------------------------------------------------------------------


def facts_of_layer(tar: Path) -> Facts:
    """The files of a layer."""
    found: Facts = {}
    with tarfile.open(tar) as source:
        for member in source:
            if member.isreg():
                data = source.extractfile(member)
                assert data is not None
                found[member.name] = ("file", checksum(data.read()))
            elif member.issym():
                found[member.name] = ("link", member.linkname)
            else:
                found[member.name] = ("folder", "")
    return found


def checksum(data: bytes) -> str:
    """A size and a checksum."""
    return f"{len(data)} {zlib.crc32(data):08x}"


def facts_of_folder(top: Path) -> Facts:
    """The files below a folder."""
    found: Facts = {}
    for at, folders, files in os.walk(top):
        for name in folders + files:
            path = Path(at, name)
            inside = str(path.relative_to(top))
            if path.is_symlink():
                found[inside] = ("link", os.readlink(path))
            elif path.is_dir():
                found[inside] = ("folder", "")
            elif path.is_file():
                found[inside] = ("file", checksum(path.read_bytes()))
    return found


def differences(top: Path, wanted: Facts) -> list[str]:
    """Files below a folder that are missing or are not what they have to be."""
    wrong = []
    for inside, (kind, what) in wanted.items():
        path = top / inside
        try:
            if kind == "link":
                same = os.readlink(path) == what
            elif kind == "folder":
                same = path.is_dir() and not path.is_symlink()
            else:
                same = not path.is_symlink() and path.stat().st_size == int(what.split()[0]) and checksum(path.read_bytes()) == what
        except OSError:
            same = False
        if not same:
            wrong.append(inside)
    return wrong


# --- a partition --------------------------------------------------------------------------------------------------------


def table(disk: Path) -> dict[str, tuple[int, int]]:
    """Offset and size of each partition, by name; none where the table, its checksums included, is not whole. Firmware looks for the second copy at the
    disk's end, where an image that is smaller than the disk has none."""
    with disk.open("rb") as file:
        file.seek(SECTOR)
        head = file.read(SECTOR)
        size = struct.unpack_from("<I", head, 12)[0]
        if head[:8] != b"EFI PART" or not 92 <= size <= SECTOR or zlib.crc32(head[:16] + bytes(4) + head[20:size]) != struct.unpack_from("<I", head, 16)[0]:
            return {}
        first, count, each, entries_sum = struct.unpack_from("<QIII", head, 72)
        file.seek(first * SECTOR)
        entries = file.read(count * each)
    if len(entries) != count * each or zlib.crc32(entries) != entries_sum:
        return {}
    found = {}
    for at in range(0, len(entries), each):
        if entries[at : at + 16] != bytes(16):
            start, end = struct.unpack_from("<QQ", entries, at + 32)
            found[entries[at + 56 : at + 128].decode("utf-16-le", "replace").rstrip("\0")] = (start * SECTOR, (end + 1 - start) * SECTOR)
    return found


@contextmanager
def mounted(disk: Path, offset: int, size: int, kind: str = "ext4") -> Iterator[Path | str]:
    """A partition as the kernel mounts it: its journal is replayed. What the kernel or the check of the file system says, where it does not."""
    device = run(["losetup", "--find", "--show", "--offset", str(offset), "--sizelimit", str(size), str(disk)]).strip()
    try:
        with tempfile.TemporaryDirectory(prefix="verdict-") as folder:
            done = subprocess.run(["mount", "-t", kind, "-o", "noatime", device, folder], capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode != 0:
                yield f"it cannot be mounted: {done.stderr.strip()}"
                return
            try:
                yield Path(folder)
            finally:
                run(["umount", folder])
    finally:
        run(["losetup", "--detach", device])


def damaged(disk: Path, offset: int) -> str:
    """What the check of an ext4 finds after its journal was replayed; nothing where it is whole."""
    done = subprocess.run(["e2fsck", "-fn", f"{disk}?offset={offset}"], capture_output=True, text=True, timeout=SECONDS, check=False)
    return "" if done.returncode == 0 else done.stdout.strip().replace("\n", " ")[-200:]


def run(words: list[str]) -> str:
    """A program of this machine that has to succeed."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise FarmError(f"`{' '.join(words)}`: {error.stderr.strip()}") from None


def unreplayed(disk: Path, offset: int, path: str) -> bytes:
    """A file of an ext4 as GRUB sees it: without the journal, and without a look at checksums. Nothing where there is none."""
    with tempfile.NamedTemporaryFile(prefix="verdict-") as out:
        subprocess.run(["debugfs", "-n", "-R", f"dump {path} {out.name}", f"{disk}?offset={offset}"], capture_output=True, timeout=SECONDS, check=False)
        return Path(out.name).read_bytes()


# --- GRUB ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """What GRUB goes by: as text, without blanks; nothing where it is not a number."""

    part: str = ""
    pending: str = ""
    count: str = ""


def selection(block: bytes | None) -> Selection:
    """The selection in an environment block. One without its first line has none."""
    if block is None or not block.startswith(SIGNATURE):
        return Selection()
    found = {}
    for line in block[len(SIGNATURE) :].split(b"\n"):
        if not line.startswith(b"#") and b"=" in line:
            key, _, value = line.partition(b"=")
            if number := re.fullmatch(r"\s*0*(\d+)\s*", value.decode("latin-1")):
                found[key.decode("latin-1")] = number[1]
    return Selection(found.get("resin_root_part", ""), found.get("upgrade_available", ""), found.get("bootcount", ""))


def start(before: Selection) -> tuple[str, Selection]:
    """The root that GRUB starts, by `qemu/os/grub/grub.cfg`, and the selection afterwards."""
    selected = "A" if before.part == "2" else "B"
    count = before.count or "0"
    after = before
    if before.pending == "1":
        count = {"0": "1", "1": "2"}.get(count, count)
        after = Selection(before.part, before.pending, count)
    return (selected if count in ("0", "1") else "AB".replace(selected, "")), after


# --- the judge ----------------------------------------------------------------------------------------------------------


class Judge:
    """Judges disks; slots that were seen are remembered."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.seen: dict[tuple[str, str], tuple[Release | None, str]] = {}

    def judge(self, disk: Path, old: str, new: str) -> Verdict:
        """A disk that may be changed, without a medium. `old` and `new` are the versions that it may have."""
        parts = table(disk)
        if missing := {"resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data"} - parts.keys():
            return Verdict(DEAD, f"the partition table has no {', '.join(sorted(missing))}")
        try:
            files = boot_files(disk, *parts["resin-boot"])
        except (FarmError, struct.error, IndexError) as error:
            return Verdict(DEAD, f"the boot partition cannot be read: {error}")
        for path in (LOADER, CONFIG):
            if files.get(path) not in [release.boot[path] for release in self.expected.releases]:
                return Verdict(DEAD, f"{path} is {'not whole' if files.get(path) else 'missing'}")
        now = selection(files.get(ENVIRONMENT))
        running, failed = "", []
        for _ in range(STARTS):
            slot, now = start(now)
            release, wrong = self.slot(disk, parts, slot)
            if not wrong:
                running = slot
                break
            failed.append(f"root {slot}: {wrong}")
        if not running or release is None:
            return Verdict(DEAD, f"nothing starts: {'; '.join(dict.fromkeys(failed))}")
        return self.goes_on(disk, parts, files, now, running, release, bool(failed), (old, new))

    def goes_on(self, disk: Path, parts: dict[str, tuple[int, int]], files: dict[str, bytes | None], now: Selection, running: str, release: Release,
                failed: bool, versions: tuple[str, str]) -> Verdict:
        """What becomes of a system that starts."""
        own = {name for name, value in files.items() if value == release.boot.get(name)}
        mixed = bool(release.boot.keys() - own)
        said = f"{release.version} starts in {running}"
        try:
            settings = json.loads(files.get(SETTINGS) or b"")
        except ValueError:
            settings = None
        if settings != self.expected.settings:
            return Verdict(PERSON, f"{said}, and config.json is {'missing' if not files.get(SETTINGS) else 'not the one of the device'}", mixed)
        for name in ("resin-state", "resin-data"):
            with mounted(disk, *parts[name]) as at:
                if isinstance(at, str):
                    return Verdict(PERSON, f"{said}, and of {name} {at}", mixed)
                names = set(os.listdir(at)) if name == "resin-state" else names
            if found := damaged(disk, parts[name][0]):
                return Verdict(PERSON, f"{said}, and {name} is damaged: {found}", mixed)
        crumbs = bool(names & {HEALTH, ALTBOOT})
        selected = "A" if now.part == "2" else "B"
        other = "AB".replace(running, "")
        if not now.part:
            return Verdict(ITSELF, f"{said}, without a selection", mixed)
        if selected != running:
            return Verdict(ITSELF, f"{said} instead of root {selected}{'' if crumbs else ', without a breadcrumb'}", mixed)
        if now.pending == "1":
            if release.healthy and HEALTH in names:
                return Verdict(ITSELF, f"{said} on trial", mixed)
            back, wrong = self.slot(disk, parts, other)
            if back is None:
                return Verdict(PERSON, f"{said} on trial, and root {other} is not there to return to: {wrong}", mixed)
            how = f"{'' if release.healthy else 'unhealthy, '}{'' if HEALTH in names else 'without a breadcrumb, '}"
            if not back.healthy:
                return Verdict(PERSON, f"{said} on trial, {how}and returns to {back.version}, which is unhealthy", mixed)
            return Verdict(ITSELF, f"{said} on trial, {how}and returns to {back.version}", mixed)
        if not release.healthy:
            return Verdict(PERSON, f"{said} for good, and is unhealthy", mixed)
        if failed or crumbs:
            return Verdict(ITSELF, f"{said}, {'after a failed start' if failed else 'with a breadcrumb'}", mixed)
        if release.version not in versions:
            return Verdict(PERSON, f"{said}, which this phase does not have", mixed)
        return Verdict(NEW if release.version == versions[1] else OLD, said, mixed)

    def slot(self, disk: Path, parts: dict[str, tuple[int, int]], slot: str) -> tuple[Release | None, str]:
        """The release in a slot, if it is complete; or what is wrong with it."""
        offset, size = parts[ROOTS[slot]]
        key = (slot, content(disk, offset, size))
        if key not in self.seen:
            self.seen[key] = self.look(disk, offset, size)
        return self.seen[key]

    def look(self, disk: Path, offset: int, size: int) -> tuple[Release | None, str]:
        """The same, of a slot that was not seen."""
        for name, wanted in self.expected.started.items():
            if name != INIT and unreplayed(disk, offset, f"/boot/{name}") != wanted:
                return None, f"GRUB does not see its {name} whole"
        with mounted(disk, offset, size) as root:
            found = (None, root) if isinstance(root, str) else self.release(root)
        if not found[1] and (wrong := damaged(disk, offset)):
            return None, f"its file system is damaged: {wrong}"
        return found

    def release(self, root: Path) -> tuple[Release | None, str]:
        """The release in a mounted slot."""
        try:
            container = os.path.basename(os.readlink(root / "current"))
            store = root / "balena/image/overlay2/layerdb"
            chain = (store / "mounts" / container / "parent").read_text().removeprefix("sha256:")
            layers: list[tuple[str, str]] = []
            while chain:
                at = store / "sha256" / chain
                layers.insert(0, ((at / "diff").read_text().removeprefix("sha256:"), (at / "cache-id").read_text()))
                chain = (at / "parent").read_text().removeprefix("sha256:") if (at / "parent").exists() else ""
        except OSError as error:
            return None, f"it has no release: {error.strerror}: {Path(str(error.filename)).name}"
        named = [release for release in self.expected.releases if release.layers == tuple(digest for digest, _ in layers)]
        if not named:
            return None, "its layers are of no release"
        if os.readlink(root / "sbin/init") != "../current/boot/init" if (root / "sbin/init").is_symlink() else True:
            return None, "its sbin/init does not lead to the release"
        for name, wanted in self.expected.started.items():
            path = Path(os.path.realpath(root / "current" / "boot" / name))
            if not path.is_relative_to(root) or not path.is_file() or path.read_bytes() != wanted:
                return None, f"its boot/{name} is not whole"
        for digest, folder in layers:
            if wrong := differences(root / "balena/overlay2" / folder / "diff", self.expected.layers[digest]):
                return None, f"{len(wrong)} files are missing or not whole, {wrong[0]} among them"
        for inside in ("dev", "proc", "sys", "run", "mnt/state", "balena/overlay2/l"):
            if not (root / inside).is_dir():
                return None, f"it has no folder {inside}"
        return named[0], ""

    def medium(self, disk: Path) -> str:
        """What is wrong with a medium; nothing where it starts again."""
        parts = table(disk)
        if not {"flash-boot", "flash-rootA"} <= parts.keys():
            return "the medium has no partition table"
        try:
            files = boot_files(disk, *parts["flash-boot"])
        except (FarmError, struct.error, IndexError) as error:
            return f"the medium's boot partition cannot be read: {error}"
        if wrong := [path for path, data in self.expected.medium_boot.items() if files.get(path) != data]:
            return f"the medium's {wrong[0]} is not whole"
        with mounted(disk, *parts["flash-rootA"]) as root:
            if isinstance(root, str):
                return f"of the medium's root {root}"
            wrong = differences(root, self.expected.medium)
        return f"the medium has lost {wrong[0]}" if wrong else ""


def content(disk: Path, offset: int, size: int) -> str:
    """A digest of a part of a disk."""
    total = hashlib.blake2b(digest_size=16)
    with disk.open("rb") as file:
        file.seek(offset)
        while size:
            piece = file.read(min(size, 4 << 20))
            if not piece:
                break
            total.update(piece)
            size -= len(piece)
    return total.hexdigest()


def boot_files(disk: Path, offset: int, size: int) -> dict[str, bytes | None]:
    """The files of a FAT, their names in small letters; nothing for one whose clusters are not there."""
    with disk.open("rb") as file:
        file.seek(offset)
        found = Fat(file.read(size))
    files: dict[str, bytes | None] = {}
    for path in found.entries:
        if path not in found.folders():
            try:
                files[path] = found.read(path)
            except FarmError:
                files[path] = None
    return files
