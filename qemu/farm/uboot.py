"""The aarch64 board's U-Boot: its boot script, and the contents of its NOR flash."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import place

BOOT_COMMANDS = Path(__file__).resolve().parent.parent / "os/u-boot/boot.cmd"

# The name below the boot partition; U-Boot's own boot command looks for it.
BOOT_SCRIPT = "boot.scr"

# QEMU's `virt` has two NOR flashes of this size and accepts files of no other: U-Boot is at the start of the first one
# and keeps its environment at the start of the second. Linux joins them to one /dev/mtd0.
NOR_SIZE = 64 << 20

# What U-Boot says first on the console, and what the other U-Boot says instead; of the same length.
VERSION = b"U-Boot 2023.01"
OTHER_VERSION = b"U-Boot 2023.99"


class BadFirmware(Exception):
    """The firmware is not the one that this is made for."""


def boot_script(guests: Path, to: Path) -> Path:
    """Writes the boot script as U-Boot reads it: the commands after a header of 64 bytes with checksums."""
    del guests  # nothing of them is needed, but all of a board's boot files are made with the same arguments
    commands = BOOT_COMMANDS.read_bytes()
    data = struct.pack(">II", len(commands), 0) + commands
    # Linux, arm64, script, not compressed; no time, so that the same commands give the same file.
    fields = (len(data), 0, 0, zlib.crc32(data), 5, 22, 6, 0, b"copal board")

    def header(checksum: int) -> bytes:
        """The header with its own checksum, which is taken over a header without one."""
        return struct.pack(">IIIIIIIBBBB32s", 0x27051956, checksum, 0, *fields)

    to.write_bytes(header(zlib.crc32(header(0))) + data)
    return to


def firmware(guests: Path) -> Path:
    """Debian's U-Boot for QEMU's `virt`."""
    path = guests / "firmware_arm64/usr/lib/u-boot/qemu_arm64/u-boot.bin"
    if not path.exists():
        raise place.NotRun(f"no {path}: run qemu/prepare.sh {guests}")
    return path


def other_firmware(guests: Path, to: Path) -> Path:
    """Writes a U-Boot that differs from Debian's in the version it prints, for updates of the bootloader."""
    data = firmware(guests).read_bytes()
    if data.count(VERSION) != 1:
        raise BadFirmware(f"{firmware(guests)} has {VERSION.decode()!r} {data.count(VERSION)} times, not once: set VERSION in {__file__}")
    to.write_bytes(data.replace(VERSION, OTHER_VERSION))
    return to


def nor_image(guests: Path, to: Path) -> Path:
    """Writes the first NOR flash (`if=pflash,unit=0`): U-Boot, and nothing after it."""
    return _nor(firmware(guests).read_bytes(), to)


def environment_image(to: Path) -> Path:
    """Writes the second NOR flash (`if=pflash,unit=1`), empty: U-Boot takes the environment it has built in."""
    return _nor(b"", to)


def _nor(contents: bytes, to: Path) -> Path:
    """A sparse file: an erased flash would be full of 0xff, but neither U-Boot nor Linux looks at what is unused."""
    with to.open("wb") as file:
        file.write(contents)
        file.truncate(NOR_SIZE)
    return to
