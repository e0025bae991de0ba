"""An initramfs with a made-up kernel: what is in it, and what is said of missing parts."""

from __future__ import annotations

import struct
import tempfile
import unittest
from pathlib import Path

import bootchain
import place


def module(depends: str) -> bytes:
    """An ELF file with nothing but names of sections and `.modinfo`."""
    names, info = b"\0.modinfo\0.shstrtab\0", f"license=GPL\0depends={depends}\0".encode()
    at = 64 + len(names) + len(info)
    headers = [(0, 0, 0, 0), (1, 1, 64 + len(names), len(info)), (10, 3, 64, len(names))]
    table = b"".join(struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, off, size, 0, 0, 1, 0) for name, kind, off, size in headers)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 3, 2)
    return head + names + info + table


def unpack(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and contents of each entry of a newc archive."""
    entries, at = {}, 0
    while archive[at : at + 6] == b"070701":
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        start = at + 110 + fields[11] + -(110 + fields[11]) % 4
        entries[archive[at + 110 : at + 109 + fields[11]].decode()] = (fields[1], archive[start : start + fields[6]])
        at = start + fields[6] + -fields[6] % 4
    return entries


class Initramfs(unittest.TestCase):
    """What is in an initramfs."""

    def setUp(self) -> None:
        """Parts with a kernel that has some of the modules built in."""
        self.folder = tempfile.TemporaryDirectory()
        self.guests = Path(self.folder.name)
        top = self.guests / "kernel/lib/modules/6.1"
        (top / "kernel/fs").mkdir(parents=True)
        (self.guests / "small/bin").mkdir(parents=True)
        (self.guests / "small/bin/busybox").write_bytes(b"busybox")
        (self.guests / "kernel/release").write_text("6.1\n")
        names = (line.split("#")[0].split()[1:] for line in (bootchain.OS / "initramfs/modules").read_text().splitlines())
        self.wanted = {name for line in names for name in line}
        loadable = {"ext4": "jbd2,crc16", "jbd2": "", "crc16": "", "usb-storage": "usbcore", "usbcore": ""}
        for name, depends in loadable.items():
            (top / f"kernel/fs/{name}.ko").write_bytes(module(depends))
        builtin = self.wanted - {"ext4", "usb_storage"}
        (top / "modules.builtin").write_text("".join(f"kernel/{name}.ko\n" for name in sorted(builtin)))
        self.top = top

    def tearDown(self) -> None:
        """Takes the parts away."""
        self.folder.cleanup()

    def entries(self, panic: bool = False) -> dict[str, tuple[int, bytes]]:
        """Those of an initramfs made of the parts."""
        return unpack(bootchain.initramfs(self.guests, "x86_64", self.guests / "out", panic).read_bytes())

    def test_modules_come_after_what_they_need(self) -> None:
        """Dependencies first, and built-in ones not at all."""
        entries = self.entries()
        lines = entries["modules/list"][1].decode().splitlines()
        self.assertIn("always jbd2.ko crc16.ko ext4.ko", lines)
        self.assertIn("class:0x0c0330 usbcore.ko usb-storage.ko", lines)
        self.assertFalse([line for line in lines if line.startswith("class:0x0108")])
        self.assertEqual(entries["modules/ext4.ko"][1], module("jbd2,crc16"))

    def test_programs_and_nodes(self) -> None:
        """The kernel can start it, and finds its console."""
        entries = self.entries()
        self.assertEqual(entries["bin/busybox"], (0o100755, b"busybox"))
        self.assertEqual(entries["bin/sh"], (0o120777, b"busybox"))
        self.assertEqual(entries["dev/console"][0], 0o020600)
        self.assertEqual(entries["init"], (0o100755, (bootchain.OS / "initramfs/init").read_bytes()))
        self.assertIn("TRAILER!!!", entries)

    def test_one_that_panics(self) -> None:
        """Has another init and no modules."""
        entries = self.entries(panic=True)
        self.assertEqual(entries["init"][1], (bootchain.OS / "initramfs/init.panic").read_bytes())
        self.assertNotIn("modules/list", entries)

    def test_a_module_that_is_nowhere(self) -> None:
        """Is named."""
        (self.top / "kernel/fs/jbd2.ko").unlink()
        with self.assertRaisesRegex(ValueError, "no module jbd2"):
            self.entries()

    def test_a_part_that_is_missing(self) -> None:
        """Is named, with what makes it."""
        with self.assertRaisesRegex(place.NotRun, "kernel_arm64.*prepare.sh"):
            bootchain.kernel_image(self.guests, "aarch64")

    def test_no_applet_that_init_does_not_use(self) -> None:
        """Each link has a use."""
        script = "".join((bootchain.OS / "initramfs" / name).read_text() for name in ("init", "load-modules"))
        for applet in bootchain.APPLETS:
            self.assertRegex(script, rf"\b{applet}\b")


class GrubEnvironment(unittest.TestCase):
    """The block that GRUB reads and writes."""

    def test_block(self) -> None:
        """Has the size and the padding that GRUB insists on."""
        block = bootchain.grub_environment(resin_root_part="2", bootcount="0")
        self.assertEqual(len(block), 1024)
        self.assertTrue(block.startswith(b"# GRUB Environment Block\nresin_root_part=2\nbootcount=0\n###"))

    def test_a_block_that_is_too_full(self) -> None:
        """Is refused: the block never changes its size."""
        with self.assertRaisesRegex(ValueError, "1024"):
            bootchain.grub_environment(extra="x" * 1024)


if __name__ == "__main__":
    unittest.main()
