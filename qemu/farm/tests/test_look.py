"""What the host sees of a disk."""

import struct
import tempfile
import unittest
from pathlib import Path

import board
import look
from look import Selection
from place import FarmError

AMD64, AARCH64 = board.load("qemu-amd64"), board.load("qemu-aarch64")


def block(text: str) -> bytes:
    return (b"# GRUB Environment Block\n" + text.encode()).ljust(1024, b"#")


def table(path: Path, *parts: tuple[str, int, int], sector: int = 512) -> None:
    """A disk with these partitions: name, first and last sector."""
    head = bytearray(sector)
    head[:8] = b"EFI PART"
    struct.pack_into("<QII", head, 72, 2, 128, 128)
    entries = b""
    for name, first, last in parts:
        entry = bytearray(128)
        entry[:16] = b"x" * 16
        struct.pack_into("<QQ", entry, 32, first, last)
        entry[56 : 56 + 2 * len(name)] = name.encode("utf-16-le")
        entries += bytes(entry)
    path.write_bytes((bytes(sector) + bytes(head) + entries.ljust(128 * 128, b"\0")).ljust(sector * 200, b"\0"))


class Selections(unittest.TestCase):
    def test_grub(self) -> None:
        data = block("resin_root_part=3\nupgrade_available=1\nbootcount=2\n")
        self.assertEqual(look.selection(AMD64, data, None), Selection("B", 1, 2))
        self.assertEqual(look.selection(AMD64, block("resin_root_part=2\n"), None), Selection("A", 0, 0))
        for wrong in (None, b"", block("")[:1023], b"resin_root_part=3".ljust(1024)):
            with self.assertRaises(FarmError):
                look.selection(AMD64, wrong, None)

    def test_u_boot(self) -> None:
        self.assertEqual(look.selection(AARCH64, None, None), Selection("A", 0, 0))
        found = look.selection(AARCH64, b"resin_root_part=3\nupgrade_available=1\n", b"bootcount=a\n\0")
        self.assertEqual(found, Selection("B", 1, 10))

    def test_an_encrypted_installation_has_one_partition_more(self) -> None:
        data = block("resin_root_part=4\nupgrade_available=0\nbootcount=0\n")
        self.assertEqual(look.selection(AMD64, data, None, 1).root, "B")
        self.assertEqual(look.selection(AMD64, block(""), None, 1).root, "A")
        with tempfile.TemporaryDirectory() as folder:
            disk = Path(folder) / "disk"
            table(disk, ("resin-boot", 40, 99), ("resin-rootA", 100, 149))
            self.assertEqual((look.shift(disk), look.boot_partition(disk).number), (0, 1))
            table(disk, ("balena-efi", 40, 49), ("resin-boot", 50, 99), ("resin-rootA", 100, 149))
            self.assertEqual((look.shift(disk), look.boot_partition(disk).number), (1, 1))
            self.assertEqual(look.boot_partition(disk).name, "balena-efi")
            table(disk, ("flash-boot", 40, 49), ("flash-rootA", 50, 99))
            self.assertEqual(look.boot_partition(disk).name, "flash-boot")
            table(disk, ("resin-boot", 10, 19), sector=4096)
            self.assertEqual((look.boot_partition(disk).offset, look.boot_partition(disk).size), (10 * 4096, 10 * 4096))

    def test_another_partition(self) -> None:
        self.assertEqual(look.selection(AARCH64, b"resin_root_part=7\n", None).root, "partition 7")


class Disks(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.disk, self.image = Path(folder.name) / "disk", Path(folder.name) / "image"
        table(self.image, ("resin-boot", 40, 99), ("resin-rootA", 100, 149))
        self.disk.write_bytes(self.image.read_bytes() + bytes(4096))

    def change(self, sector: int) -> None:
        with self.disk.open("r+b") as file:
            file.seek(sector * 512 + 7)
            file.write(b"!")

    def test_partitions(self) -> None:
        found = look.partition(self.disk, "resin-rootA")
        self.assertEqual((found.number, found.offset, found.size), (2, 100 * 512, 50 * 512))
        with self.assertRaisesRegex(FarmError, "resin-rootA"):
            look.partition(self.disk, "resin-data")
        self.disk.write_bytes(bytes(4096))
        self.assertEqual(look.partitions(self.disk), [])

    def test_an_image_on_a_disk(self) -> None:
        self.change(50)
        self.change(205)
        look.equals_image(self.disk, self.image)
        self.change(120)
        with self.assertRaisesRegex(FarmError, f"{120 * 512 + 7:#x}, in resin-rootA"):
            look.equals_image(self.disk, self.image)

    def test_the_end_of_a_disk(self) -> None:
        sectors = self.disk.stat().st_size // 512
        self.change(sectors - 34)
        look.ends_in_zeroes(self.disk)
        for sector in (sectors - 33, sectors - 1):
            self.change(sector)
            with self.assertRaises(FarmError):
                look.ends_in_zeroes(self.disk)
            with self.disk.open("r+b") as file:
                file.seek(sector * 512)
                file.write(bytes(512))

    def test_a_disk_that_is_cut_short(self) -> None:
        self.change(120)
        self.image.write_bytes(self.disk.read_bytes()[: 512 * 200])
        self.disk.write_bytes(self.disk.read_bytes()[: 512 * 110])
        with self.assertRaises(FarmError):
            look.equals_image(self.disk, self.image)


if __name__ == "__main__":
    unittest.main()
