"""What the aarch64 board's U-Boot decides, run by that U-Boot; the roots are empty, so it stops there."""

import os
import struct
import subprocess
import tempfile
import time
import unittest
import zlib
from pathlib import Path

import board
import disk
import place
import uboot
from tree import Tree

# For one start of U-Boot, which takes four seconds on an idle machine.
SECONDS = 90


def files_of(contents: dict[str, bytes]) -> Tree:
    """A boot partition's files."""
    tree = Tree()
    for name, data in contents.items():
        tree.file(name, data, 0o644)
    return tree


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def with_firmware(self, data: bytes) -> Path:
        at = self.folder / "firmware_arm64/usr/lib/u-boot/qemu_arm64"
        at.mkdir(parents=True)
        (at / "u-boot.bin").write_bytes(data)
        return self.folder

    def test_a_script_has_both_checksums(self) -> None:
        data = uboot.boot_script(self.folder, self.folder / "boot.scr").read_bytes()
        header, body = data[:64], data[64:]
        magic, checksum, _, size, _, _, of_data = struct.unpack(">7I", header[:28])
        self.assertEqual((magic, size, of_data), (0x27051956, len(body), zlib.crc32(body)))
        self.assertEqual(checksum, zlib.crc32(header[:4] + bytes(4) + header[8:]))
        self.assertEqual(body, struct.pack(">II", len(body) - 8, 0) + uboot.BOOT_COMMANDS.read_bytes())

    def test_the_other_firmware_differs_in_its_version_only(self) -> None:
        guests = self.with_firmware(b"code" + uboot.VERSION + b"code")
        other = uboot.other_firmware(guests, self.folder / "other").read_bytes()
        self.assertEqual(other, b"code" + uboot.OTHER_VERSION + b"code")
        self.assertEqual(len(uboot.VERSION), len(uboot.OTHER_VERSION))

    def test_an_unknown_firmware_is_refused(self) -> None:
        guests = self.with_firmware(b"something else")
        with self.assertRaisesRegex(uboot.BadFirmware, "0 times, not once"):
            uboot.other_firmware(guests, self.folder / "other")
        with self.assertRaisesRegex(place.NotRun, "prepare.sh"):
            uboot.firmware(self.folder / "nowhere")

    def test_the_flash_begins_with_the_firmware(self) -> None:
        guests = self.with_firmware(b"firmware")
        flash = uboot.nor_image(guests, self.folder / "0")
        self.assertEqual(flash.stat().st_size, uboot.NOR_SIZE)
        with flash.open("rb") as file:
            self.assertEqual(file.read(9), b"firmware\0")
        self.assertEqual(uboot.environment_image(self.folder / "1").stat().st_size, uboot.NOR_SIZE)


@unittest.skipUnless("COPAL_PROVE" in os.environ, "left to prove: qemu-aarch64: what U-Boot decides")
class Decisions(unittest.TestCase):
    """Each in a start of the real thing."""

    def setUp(self) -> None:
        try:
            self.guests = place.part("firmware_arm64").parent
            self.qemu = board.program("qemu_arm64/usr/bin/qemu-system-aarch64")
        except place.NotRun as error:
            self.skipTest(f"not run: {error}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        disk.ext4(self.folder / "empty", "empty", 8)

    def decided(self, files: dict[str, bytes], before: int = 0, trees: dict[str, bytes] | None = None) -> list[str]:
        """What U-Boot says with these files, on a disk with so many partitions before the boot partition, and these files in boot/ of root B."""
        at = self.folder
        (at / "console").unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as root:
            files_of({f"boot/{name}": data for name, data in (trees or {}).items()}).write(Path(root))
            disk.ext4(at / "rootB", "rootB", 8, Path(root))
        script = uboot.boot_script(self.guests, at / "boot.scr").read_bytes()
        disk.fat(at / "boot", "resin-boot", 64, files_of({"boot.scr": script, **files}), at)
        parts = [disk.Partition(f"other{n}", at / "empty") for n in range(before)]
        parts += [disk.Partition("resin-boot", at / "boot", disk.EFI)]
        parts += [disk.Partition("resin-rootA", at / "empty"), disk.Partition("resin-rootB", at / "rootB")]
        disk.whole(at / "disk", "uboot", parts)
        if before:
            # Not the first one: U-Boot looks for partitions that say they are bootable.
            subprocess.run(["sfdisk", "--quiet", "--part-attrs", at / "disk", str(before + 1), "LegacyBIOSBootable"], check=True)
        uboot.nor_image(self.guests, at / "flash0")
        uboot.environment_image(at / "flash1")
        words = ["-machine", "virt", "-accel", "tcg", "-cpu", "cortex-a57", "-m", "256", "-display", "none", "-nodefaults"]
        for unit in (0, 1):
            words += ["-drive", f"if=pflash,unit={unit},format=raw,file={at}/flash{unit}"]
        words += ["-drive", f"if=none,id=disk,format=raw,file={at}/disk", "-device", "virtio-blk-pci,drive=disk"]
        words += ["-serial", f"file:{at}/console"]
        # It says what it decided, and starts again as there is no system.
        with place.guest_place():
            process = subprocess.Popen([*self.qemu, *words])
            try:
                end = time.monotonic() + SECONDS
                while "starting again" not in self.console():
                    self.assertIsNone(process.poll(), "QEMU has ended")
                    self.assertLess(time.monotonic(), end, self.console())
                    time.sleep(0.1)
            finally:
                process.kill()
                process.wait()
        said = [line.split(": ", 1)[1].strip() for line in self.console().splitlines() if line.startswith("copal-board: ")]
        self.assertIn("cannot be loaded", said.pop())
        return said

    def tree(self) -> bytes:
        """QEMU's own device tree."""
        at = self.folder / "tree"
        words = ["-machine", f"virt,dumpdtb={at}", "-cpu", "cortex-a57", "-m", "256", "-display", "none", "-nodefaults"]
        subprocess.run([*self.qemu, *words], check=True, timeout=SECONDS, capture_output=True)
        return at.read_bytes()

    def console(self) -> str:
        """What U-Boot has said so far."""
        at = self.folder / "console"
        return at.read_text(errors="replace") if at.exists() else ""

    def count(self) -> bytes:
        """The file with the count, afterwards; the boot partition begins at 4 MiB."""
        return subprocess.run(["mtype", "-i", f"{self.folder}/disk@@4M", "::bootcount.env"], check=True, capture_output=True).stdout

    def test_without_files_root_a(self) -> None:
        self.assertEqual(self.decided({}), ["root 2, count 0, upgrade_available 0"])

    def test_a_count_over_the_limit_acts_without_an_upgrade(self) -> None:
        said = self.decided({"resinOS_uEnv.txt": b"resin_root_part=3\nupgrade_available=0\n", "bootcount.env": b"bootcount=4\n\0"})
        self.assertEqual(said, ["count over 3, root 2 instead of 3", "root 2, count 4, upgrade_available 0"])
        self.assertEqual(self.count(), b"bootcount=4\n\0")

    def test_an_upgrade_counts_up_to_the_limit(self) -> None:
        said = self.decided({"resinOS_uEnv.txt": b"# selected\nupgrade_available=1\nresin_root_part=3\n", "bootcount.env": b"bootcount=2\n\0"})
        self.assertEqual(said, ["count 3 written", "root 3, count 3, upgrade_available 1"])
        self.assertEqual(self.count(), b"bootcount=3\n\0")

    def test_the_first_count_is_thirteen_bytes(self) -> None:
        said = self.decided({"resinOS_uEnv.txt": b"resin_root_part=3\nupgrade_available=1\n", "bootcount.env": b"bootcount=0 \n"})
        self.assertEqual(said, ["count 1 written", "root 3, count 1, upgrade_available 1"])
        self.assertEqual(self.count(), b"bootcount=1\n\0")

    def test_the_count_is_hexadecimal(self) -> None:
        said = self.decided({"resinOS_uEnv.txt": b"resin_root_part=2\nupgrade_available=1\n", "bootcount.env": b"bootcount=9\n\0"})
        self.assertEqual(said, ["count a written", "count over 3, root 3 instead of 2", "root 3, count a, upgrade_available 1"])

    def test_the_owner_sets_another_limit(self) -> None:
        said = self.decided({"resinOS_uEnv.txt": b"resin_root_part=3\nupgrade_available=1\n", "bootcount.env": b"bootcount=1\n\0",
                             "extra_uEnv.txt": b"os_bc_lim=1\n"})
        self.assertEqual(said, ["count 2 written", "count over 1, root 2 instead of 3", "root 2, count 2, upgrade_available 1"])

    def test_partitions_are_hexadecimal(self) -> None:
        said = self.decided({"resinOS_uEnv.txt": b"resin_root_part=b\n", "bootcount.env": b"bootcount=4\n\0"}, before=8)
        self.assertEqual(said, ["count over 3, root a instead of b", "root a, count 4, upgrade_available 0"])

    def test_the_owners_device_tree_is_that_of_the_selected_root(self) -> None:
        tree = self.tree()
        selected = b"resin_root_part=3\nupgrade_available=0\n"
        for name, files, trees, expected in (
            ("in it", {}, {"own.dtb": tree}, "device tree own.dtb of root 3"),
            ("in no root", {}, {"other.dtb": tree}, "no device tree own.dtb in root 3, the default one instead"),
            ("cut short", {}, {"own.dtb": tree[:20]}, "no device tree own.dtb in root 3, the default one instead"),
            ("wanted", {"extra_uEnv.txt": b"custom_fdt_file=own.dtb\ncustom_fdt_required=1\n"}, {},
             "no device tree own.dtb in root 3, which does not boot without it"),
            ("ignored", {"extra_uEnv.txt": b"custom_fdt_file=own.dtb\ncustom_fdt_ignored=3\n"}, {"own.dtb": tree}, None),
        ):
            with self.subTest(name):
                files = {"resinOS_uEnv.txt": selected, "extra_uEnv.txt": b"custom_fdt_file=own.dtb\n", **files}
                said = self.decided(files, trees=trees)
                self.assertEqual(said[1:], [expected] if expected else [])


if __name__ == "__main__":
    unittest.main()
