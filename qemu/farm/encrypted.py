"""An encrypted installation that the farm makes by itself: the state `encrypted` of a secure board.

The host writes the partition table and the partition that is not encrypted. A kernel in setup mode encrypts the others, gives the passphrase to
the TPM and enrols the keys (os/initramfs-secure/encrypt). The layout is that of balenaOS's encrypted installations: numbers, names, and 16 MiB
for the header of LUKS.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bootchain
import disk as disks
import look
import machine as machines
import secure
from board import Board, Hardware
from machine import Machine
from place import FarmError
from tree import Tree

MIB = 1 << 20
# Sizes are whole multiples of it.
GRAIN = 4 * MIB
HEADER = 16 * MIB
# What is copied at once.
BLOCK = 65536
LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
ENCRYPTED = ("resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data")
# Of the image's boot partition, what stays on the partition that is not encrypted.
STAYS = "EFI/"
SECONDS = 900.0


@dataclass(frozen=True)
class Place:
    """A partition of the encrypted disk, in bytes; `size` with the header."""

    name: str
    offset: int
    size: int


def layout(image: list[look.Partition]) -> list[Place]:
    """The partitions for an image's: one that is not encrypted, where its boot partition is, and the others without gaps."""

    def rounded(size: int) -> int:
        return -(-size // GRAIN) * GRAIN

    of = {part.name: part for part in image}
    boot = of["resin-boot"]
    found = [Place(look.NOT_ENCRYPTED, boot.offset, rounded(boot.size))]
    at = min(of[name].offset for name in ENCRYPTED[1:])
    for name in ENCRYPTED:
        size = rounded(of[name].size) + HEADER
        found.append(Place(name, at, size))
        at += size
    if found[0].offset + found[0].size > found[1].offset:
        raise FarmError("the partition that is not encrypted would reach into the next one")
    return found


def script(places: list[Place], size: int) -> str:
    """What sfdisk makes the table from."""
    lines = ["label: gpt", f"label-id: {disks.identifier('encrypted')}", "unit: sectors", "first-lba: 34", f"last-lba: {size // 512 - 34}"]
    for number, part in enumerate(places):
        kind = LINUX if number else disks.EFI
        uuid = disks.identifier(f"encrypted {part.name}")
        lines.append(f"start={part.offset // 512}, size={part.size // 512}, type={kind}, uuid={uuid}, name={part.name}")
    return "\n".join(lines) + "\n"


def used(text: str) -> list[tuple[int, int]]:
    """The extents of an ext4 that are in use, in blocks of 64 KiB, from what dumpe2fs says: offset and count."""
    blocks = int(re.search(r"^Block count: +(\d+)$", text, re.MULTILINE)[1])  # type: ignore[index]
    size = int(re.search(r"^Block size: +(\d+)$", text, re.MULTILINE)[1])  # type: ignore[index]
    free = bytearray(blocks)
    for line in re.findall(r"^  Free blocks: (.*)$", text, re.MULTILINE):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", line):
            end = int(last or first) + 1
            free[int(first) : end] = b"\1" * (end - int(first))
    each = BLOCK // size
    wanted = [0 in free[at : at + each] for at in range(0, blocks, each)]
    found: list[tuple[int, int]] = []
    for at, is_used in enumerate(wanted):
        if is_used and found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        elif is_used:
            found.append((at, 1))
    return found


def boot_trees(images: Any, board: Board) -> tuple[Tree, Tree]:
    """The files of the partition that is not encrypted, and of the boot partition beside it."""
    import images as recipes

    (recipe,) = [one for one in recipes.BOARDS.values() if one.name == board.name]
    files = recipes.boot_files(recipe, images.boot, images.versions["base"], images.signed)
    files.file("config.json", recipes.config_json(recipe))
    plain, rest = Tree(), Tree()
    for path, node in files.nodes.items():
        if node.data is not None:
            (plain if path.startswith(STAYS) else rest).file(path, node.data, node.mode)
    loader, config = secure.LOADER, secure.CONFIG_OF_IMAGE
    for path, source in ((bootchain.GRUB_IMAGE, loader), (bootchain.GRUB_CONFIG, config), (f"{bootchain.GRUB_CONFIG}.sig", f"{config}.sig")):
        data = plain.nodes[source].data
        assert data is not None
        plain.remove(source)
        plain.file(path, data, 0o644)
    plain.file(bootchain.GRUB_ENVIRONMENT, bootchain.grub_environment(resin_root_part="3", upgrade_available="0", bootcount="0"))
    for end in ("", ".sig"):
        plain.file(secure.STAGE2 + end, images.signed / "base" / f"{secure.STAGE2}{end}", 0o644)
    rest.link("EFI", "../efi/EFI")
    return plain, rest


def initramfs(images: Any, source: Path, to: Path) -> None:
    """The initramfs of a secure board that has scripts, then an archive with the script and what it reads."""
    archive = bootchain.Cpio()
    archive.file("unlock", (bootchain.SECURE / "encrypt").read_bytes())
    for name in ("cp", "dd", "poweroff"):
        archive.link(f"bin/{name}", "busybox")
    for folder in ("encrypt", "encrypt/extents", "encrypt/efi"):
        archive.folder(folder)
    keys = images.signed / "base" / secure.KEYS
    # In bytewise order of the names of the policies that are made from them.
    archive.file("encrypt/pcr7.primary", secure.pcr7(keys, authorities=False))
    archive.file("encrypt/pcr7.secondary", secure.pcr7(keys))
    archive.file("encrypt/pcr2", secure.ONLY_SEPARATOR)
    for vendor, name in ((secure.DATABASE, "db"), (secure.GLOBAL, "KEK")):
        archive.file(f"encrypt/efi/{name}-{vendor}", secure.unsigned((keys / f"{name}.esl").read_bytes()))
    # This firmware takes a platform key that has signed itself, and no other.
    archive.file(f"encrypt/efi/PK-{secure.GLOBAL}", secure.ATTRIBUTES + (keys / "PK.auth").read_bytes())
    for part in look.partitions(source):
        if part.name in ENCRYPTED:
            said = disks.run(["dumpe2fs", f"{source}?offset={part.offset}"], f"look at {part.name}")
            archive.file(f"encrypt/extents/{part.name}", "".join(f"{at} {count}\n" for at, count in used(said)).encode())
    data = (images.boot / bootchain.INITRAMFS_OF_SCRIPTS).read_bytes()
    to.write_bytes(data + bytes(-len(data) % 4) + archive.end())


def make(board: Board, images: Any, hardware: Hardware, accelerator: str, size: int) -> None:
    """Makes an encrypted installation on the empty disk of new hardware; the board's firmware and TPM take part."""
    places = layout(look.partitions(Path(images.disk)))
    with tempfile.TemporaryDirectory(dir=hardware.folder) as folder:
        scratch = Path(folder)
        plain, rest = boot_trees(images, board)
        with hardware.disk.open("wb") as file:
            file.truncate(size)
        disks.run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", "--wipe", "never", hardware.disk], f"partition {hardware.disk}",
                  feed=script(places, size))
        disks.fat(scratch / "efi", look.NOT_ENCRYPTED, places[0].size // MIB, plain, scratch)
        source = scratch / "source"
        machines.copy(Path(images.disk), source)
        (boot,) = [part for part in look.partitions(source) if part.name == "resin-boot"]
        rest.write(scratch / "rest")
        disks.ext4(scratch / "boot", "resin-boot", boot.size // MIB, scratch / "rest", "-m 0 -J size=4")
        with hardware.disk.open("r+b") as out:
            disks.pour(scratch / "efi", out.fileno(), places[0].offset)
        with source.open("r+b") as out:
            # The FAT that was there.
            os.pwrite(out.fileno(), bytes(boot.size), boot.offset)
            disks.pour(scratch / "boot", out.fileno(), boot.offset)
        initramfs(images, source, scratch / "initramfs")
        kernel = (images.boot / secure.KERNEL, scratch / "initramfs", "console=ttyS0,115200 root=LABEL=none panic=-1 no_timer_check quiet")
        machine = Machine(board, replace(hardware, releases=source, kernel=kernel), accelerator)
        try:
            machine.start()
            machine.wait_power_off(SECONDS)
        except FarmError as error:
            raise FarmError(f"{error}\n{machines.tail(machine.console())}") from None
        finally:
            machine.kill()
        if not re.search("the keys are enrolled; SetupMode is +0,", machine.console()):
            raise FarmError(f"the encrypted installation is not complete:\n{machines.tail(machine.console())}")
