"""What the boards' disks have on them."""

import struct
import tempfile
import unittest
import zlib
from pathlib import Path

import states


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


if __name__ == "__main__":
    unittest.main()
