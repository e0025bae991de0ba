"""What the boards' disks have on them."""

import json
import struct
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

import disk
import look
import states
from tree import Tree


class Dirty(unittest.TestCase):
    def test_its_last_sectors_are_a_backup_table_that_holds(self) -> None:
        entries = b"entry".ljust(32 * 512, b"x")
        header = b"EFI PART" + struct.pack("<IIIIQQQQ16sQIII", 0x10000, 92, 7, 0, 1999, 1, 34, 1966, b"disk", 1967, 128, 128, 5)
        with tempfile.TemporaryDirectory() as folder:
            image, disk = Path(folder) / "image", Path(folder) / "disk"
            image.write_bytes(bytes(1967 * 512) + entries + header.ljust(512, b"\0"))
            states.dirty(disk, image, 4096 * 512)
            end = disk.read_bytes()[-33 * 512 :]
        self.assertEqual(end[: -512], entries)
        made = bytearray(end[-512:])
        self.assertEqual((made[:8], struct.unpack_from("<Q", made, 24), struct.unpack_from("<Q", made, 72)), (b"EFI PART", (4095,), (4063,)))
        checksum = struct.unpack_from("<I", made, 16)[0]
        struct.pack_into("<I", made, 16, 0)
        self.assertEqual(checksum, zlib.crc32(made[:92]))


class Installer(unittest.TestCase):
    """A disk that replaces itself."""

    def test_it_is_the_medium_with_the_wish_for_a_migration(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder)
            tree = Tree()
            tree.file("config.json", '{"hostname": "board", "installer": {"secureboot": true}}')
            disk.fat(at / "fat", "flash-boot", 20, tree, at)
            disk.whole(at / "medium", "medium", [disk.Partition("flash-boot", at / "fat", disk.EFI)])
            board = mock.Mock()
            with mock.patch.object(states.Images, "of", return_value=mock.Mock(flasher=at / "medium")):
                states.installer(board, at / "disk", 64 << 20)
            self.assertEqual((at / "disk").stat().st_size, 64 << 20)
            settings = json.loads(look.boot_file(at / "disk", "config.json") or b"")
            self.assertEqual(settings, {"hostname": "board", "installer": {"secureboot": True, "migrate": {"force": True}}})
            self.assertNotIn(b"migrate", look.boot_file(at / "medium", "config.json") or b"")


if __name__ == "__main__":
    unittest.main()
