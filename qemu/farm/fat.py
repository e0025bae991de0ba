"""Reads a FAT16 or FAT32, as firmware does that trusts the first table (Microsoft, FAT specification of 2004). Names have small letters."""

from __future__ import annotations

import struct

from place import FarmError

DIRECTORY, VOLUME, LONG = 0x10, 0x08, 0x0F
#: Folders in each other, and folders below one of the top; more is what a cut has left of one, with other bytes in its clusters.
DEPTH, FOLDERS = 8, 200


class Fat:
    """A file system in memory."""

    def __init__(self, image: bytes | bytearray) -> None:
        self.image = image
        sector, self.per, reserved, tables, entries, small = struct.unpack_from("<HBHBHH", image, 11)
        length = struct.unpack_from("<H", image, 22)[0] or struct.unpack_from("<I", image, 36)[0]
        total = small or struct.unpack_from("<I", image, 32)[0]
        if image[510:512] != b"\x55\xaa" or sector != 512 or not self.per or not length:
            raise FarmError("there is no FAT")
        self.table = reserved * sector
        top = (reserved + tables * length) * sector
        self.data = top + entries * 32
        self.cluster = self.per * sector
        self.count = (total * sector - self.data) // self.cluster
        if self.count < 4085:
            raise FarmError("a FAT12 is not read here")
        self.wide = self.count >= 65525
        self.entries: dict[str, tuple[int, int, int]] = {}
        self.left = FOLDERS
        start = bytes(self.image[top : self.data]) if not self.wide else self.chain(struct.unpack_from("<I", image, 44)[0], None)
        self.walk("", start, 0)

    def chain(self, first: int, size: int | None) -> bytes:
        """The clusters from this one on; an error where they do not lead to the end, or are fewer than the size wants."""
        found, at = [], first
        while True:
            if not 2 <= at < self.count + 2 or len(found) > self.count:
                raise FarmError("a chain of clusters leads nowhere")
            place = self.data + (at - 2) * self.cluster
            found.append(bytes(self.image[place : place + self.cluster]))
            if self.wide:
                at = struct.unpack_from("<I", self.image, self.table + 4 * at)[0] & 0x0FFFFFFF
                if at >= 0x0FFFFFF8:
                    break
            else:
                (at,) = struct.unpack_from("<H", self.image, self.table + 2 * at)
                if at >= 0xFFF8:
                    break
            if size is not None and len(found) * self.cluster >= size:
                break
        whole = b"".join(found)
        if size is not None and len(whole) < size:
            raise FarmError("a file has fewer clusters than bytes")
        return whole if size is None else whole[:size]

    def walk(self, folder: str, data: bytes, depth: int) -> None:
        """Takes the names in a folder."""
        long: list[tuple[int, bytes]] = []
        for at in range(0, len(data), 32):
            entry = data[at : at + 32]
            if entry[:1] in (b"\x00", b""):
                break
            if entry[0] == 0xE5:
                long = []
                continue
            if entry[11] & 0x3F == LONG:
                long.append((entry[0] & 0x3F, entry[1:11] + entry[14:26] + entry[28:32]))
                continue
            base, end = entry[:8].decode("latin-1").rstrip(), entry[8:11].decode("latin-1").rstrip()
            name = f"{base}.{end}" if end else base
            if long:
                name = b"".join(part for _, part in sorted(long)).decode("utf-16-le", "replace").split("\0")[0]
                long = []
            if entry[11] & VOLUME or name in (".", ".."):
                continue
            high, low, size = struct.unpack_from("<H", entry, 20)[0], struct.unpack_from("<H", entry, 26)[0], struct.unpack_from("<I", entry, 28)[0]
            first = low | (high << 16 if self.wide else 0)
            path = f"{folder}{name}".lower()
            self.entries[path] = (entry[11], first, size)
            if depth == 0:
                self.left = FOLDERS
            if entry[11] & DIRECTORY and depth < DEPTH and self.left > 0:
                self.left -= 1
                try:
                    self.walk(f"{path}/", self.chain(first, None), depth + 1)
                except FarmError:
                    # One that a cut has left without its clusters has no names; what has to be in it is missing.
                    continue

    def folders(self) -> list[str]:
        """Their paths."""
        return [path for path, (kind, _, _) in self.entries.items() if kind & DIRECTORY]

    def below(self, folder: str) -> list[str]:
        """Paths of the files in a folder and in those in it."""
        return [path for path, (kind, _, _) in self.entries.items() if path.startswith(f"{folder}/") and not kind & DIRECTORY]

    def read(self, path: str) -> bytes | None:
        """A file; nothing where there is none."""
        if path not in self.entries or self.entries[path][0] & DIRECTORY:
            return None
        _, first, size = self.entries[path]
        return self.chain(first, size) if size else b""
