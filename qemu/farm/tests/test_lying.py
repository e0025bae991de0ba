"""The disk that forgets."""

from __future__ import annotations

import socket
import struct
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lying import LyingDisk  # noqa: E402

READ, WRITE, FLUSH = 0, 1, 3


class Client:
    """As much of an NBD client as this needs."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self.take(18)
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.size, self.flags = struct.unpack(">QH", self.take(10))

    def take(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def ask(self, kind: int, offset: int, length: int, data: bytes = b"") -> tuple[int, bytes]:
        """The error and what was read."""
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, kind, 7, offset, length) + data)
        magic, error, handle = struct.unpack(">IIQ", self.take(16))
        assert (magic, handle) == (0x67446698, 7)
        return error, self.take(length) if kind == READ and not error else b""


class Lying(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        at = Path(folder.name)
        self.file = at / "disk"
        self.file.write_bytes(bytes(64 << 10))
        self.disk = LyingDisk(self.file, at / "socket", 8192, 12288)
        self.addCleanup(self.disk.close)
        self.client = Client(at / "socket")
        self.addCleanup(self.client.socket.close)

    def test_what_is_outside_is_kept_and_what_is_inside_forgotten(self) -> None:
        self.assertEqual(self.client.size, 64 << 10)
        self.assertEqual(self.client.ask(WRITE, 4096, 16384, b"x" * 16384), (0, b""))
        self.assertEqual(self.client.ask(FLUSH, 0, 0), (0, b""))
        wanted = bytes(4096) + b"x" * 4096 + bytes(4096) + b"x" * 8192
        read = self.client.ask(READ, 0, 64 << 10)[1]
        self.assertEqual(read, wanted.ljust(64 << 10, b"\0"))
        self.assertEqual(self.file.read_bytes(), read)
        self.assertEqual(self.disk.lost, 4096)

    def test_a_write_within_is_confirmed_and_gone(self) -> None:
        self.assertEqual(self.client.ask(WRITE, 9000, 100, b"y" * 100)[0], 0)
        self.assertEqual(self.file.read_bytes(), bytes(64 << 10))
        self.assertEqual(self.disk.lost, 100)

    def test_nothing_is_behind_the_end(self) -> None:
        self.assertEqual(self.client.ask(WRITE, 64 << 10, 1, b"z")[0], 28)
        self.assertEqual(self.client.ask(READ, 65535, 2)[0], 22)


if __name__ == "__main__":
    unittest.main()
