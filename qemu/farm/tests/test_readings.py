"""What the bootloaders read of damaged files: GRUB and U-Boot themselves, each in one start, load all of a table in turn and say it."""

import os
import re
import subprocess
import tempfile
import time
import unittest
import unittest.mock
from dataclasses import dataclass
from pathlib import Path

import board
import bootchain
import disk
import place
import uboot
from tree import Tree

# copal is held against the same one, by tests/boot/state/readings.rs.
TABLE = place.TOP / "tests/boot/state/readings.tsv"
NAMES = ("resin_root_part", "bootcount", "upgrade_available")
TREE_NAMES = ("custom_fdt_file", "overlay_files", "fdt_file", "fdtfile")

# For one start with all files, which takes five seconds on an idle machine.
SECONDS = 120


@dataclass(frozen=True)
class Row:
    """A file, and what is read of it."""

    content: bytes
    expected: list[str]


def rows(parser: str) -> list[Row]:
    """Those of the table for one of the parsers."""
    found = []
    for line in TABLE.read_text().splitlines():
        if line.startswith(f"{parser}\t"):
            content, *expected = (cell.encode().decode("unicode_escape") for cell in line.split("\t")[1:])
            found.append(Row(content.encode("latin-1"), expected))
    return found


class Readings(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def prepared(self, part: str, program: str) -> list[str]:
        """QEMU, where the guests are prepared."""
        try:
            self.guests = place.part(part).parent
            return board.program(program)
        except place.NotRun as error:
            self.skipTest(f"not run: {error}")

    def disk(self, files: dict[str, bytes]) -> list[str]:
        """QEMU's arguments for a disk with these files on its boot partition."""
        tree = Tree()
        for name, data in files.items():
            tree.file(name, data, 0o644)
        disk.fat(self.folder / "boot", "resin-boot", 64, tree, self.folder)
        disk.whole(self.folder / "disk", "readings", [disk.Partition("resin-boot", self.folder / "boot", disk.EFI)])
        return ["-drive", f"if=none,id=disk,format=raw,file={self.folder}/disk", "-device", "virtio-blk-pci,drive=disk"]

    def read(self, words: list[str]) -> list[list[str]]:
        """What the bootloader says it has read, file by file."""
        console = self.folder / "console"
        common = ["-m", "256", "-accel", "tcg", "-display", "none", "-nodefaults", "-no-reboot", "-serial", f"file:{console}"]

        def said() -> str:
            # Returns stay: a value may end with one.
            return console.read_bytes().decode(errors="replace") if console.exists() else ""

        with place.guest_place():
            process = subprocess.Popen([*words, *common])
            try:
                end = time.monotonic() + SECONDS
                while "readings: end" not in said():
                    self.assertIsNone(process.poll(), "QEMU has ended")
                    self.assertLess(time.monotonic(), end, said())
                    time.sleep(0.1)
            finally:
                process.kill()
                process.wait()
        found = re.findall(r"reading (\d+): \[(.*)\]", said())
        self.assertEqual([int(number) for number, _ in found], list(range(len(found))))
        return [values.split("] [") for _, values in found]

    def compare(self, table: list[Row], read: list[list[str]], unread: str) -> None:
        """Each file by itself, so that all that differ are named."""
        self.assertEqual(len(table), len(read))
        for row, values in zip(table, read):
            with self.subTest(content=row.content):
                self.assertEqual(values, [unread if e == "-" else e for e in row.expected])

    def test_grub(self) -> None:
        table = rows("grub")
        self.assertGreater(len(table), 40)
        self.compare(table, self.read(self.grub(table, [f"unset {name}" for name in NAMES])), "")

    def test_grub_with_a_selection_in_its_configuration(self) -> None:
        """What the environment has counts instead: src/boot_state/configured.rs."""
        before = b"# GRUB Environment Block\n"
        table = [
            Row(before + b"bootcount=1\n", ["3", "1", "1"]),
            Row(before + b"bootcount=0\nresin_root_part=2\nupgrade_available=0\n", ["2", "0", "0"]),
        ]
        self.compare(table, self.read(self.grub(table, ["resin_root_part=3", "upgrade_available=1", "unset bootcount"])), "")

    def grub(self, table: list[Row], before: list[str]) -> list[str]:
        """QEMU's arguments for a GRUB that loads each environment after these lines, and says what it has then."""
        qemu = self.prepared("firmware", "qemu/usr/bin/qemu-system-x86_64")
        script = ["serial --unit=0 --speed=115200", "terminal_output serial"]
        for number in range(len(table)):
            script += before
            script.append(f"load_env --file ${{prefix}}/{number}.env {' '.join(NAMES)}")
            script.append(f'echo "reading {number}: [${{resin_root_part}}] [${{bootcount}}] [${{upgrade_available}}]"')
        script += ['echo "readings: end"', "sleep 600"]
        image = bootchain.grub_image(self.guests, self.folder / "grub.efi").read_bytes()
        files = {bootchain.GRUB_IMAGE: image, bootchain.GRUB_CONFIG: "\n".join(script).encode() + b"\n"}
        files |= {f"EFI/BOOT/{number}.env": row.content.ljust(1024, b"#") for number, row in enumerate(table)}
        words = [*qemu, "-machine", "q35,smm=off", "-cpu", "max", *self.disk(files)]
        variables = self.folder / "variables"
        variables.write_bytes(board.prepared("firmware/usr/share/OVMF/OVMF_VARS_4M.fd").read_bytes())
        code = board.prepared("firmware/usr/share/OVMF/OVMF_CODE_4M.fd")
        words += ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={code}"]
        return [*words, "-drive", f"if=pflash,unit=1,format=raw,file={variables}"]

    @unittest.skipUnless("COPAL_PROVE" in os.environ, "left to prove: qemu-aarch64: what U-Boot decides")
    def test_u_boot(self) -> None:
        qemu = self.prepared("firmware_arm64", "qemu_arm64/usr/bin/qemu-system-aarch64")
        roots, trees = rows("u-boot"), rows("u-boot-trees")
        self.assertGreater(len(roots), 20)
        self.assertGreater(len(trees), 20)
        table = roots + trees
        script = []
        for number in range(len(table)):
            names = NAMES if number < len(roots) else TREE_NAMES
            # A file may delete them.
            script += [f"setenv {name} unread" for name in names]
            script.append(f"load ${{devtype}} ${{devnum}}:${{distro_bootpart}} ${{loadaddr}} {number}.txt")
            script.append("env import -t ${loadaddr} ${filesize}")
            values = " ".join(f"[${{{name}}}]" for name in names)
            script.append(f'echo "reading {number}: {values}"')
        script += ['echo "readings: end"', "sleep 600"]
        commands = unittest.mock.patch.object(uboot, "BOOT_COMMANDS", self.folder / "commands")
        commands.start()
        self.addCleanup(commands.stop)
        (self.folder / "commands").write_text("\n".join(script) + "\n")
        boot = uboot.boot_script(self.guests, self.folder / "boot.scr").read_bytes()
        files = {"boot.scr": boot} | {f"{number}.txt": row.content for number, row in enumerate(table)}
        words = [*qemu, "-machine", "virt", "-cpu", "cortex-a57", *self.disk(files)]
        uboot.nor_image(self.guests, self.folder / "flash0")
        uboot.environment_image(self.folder / "flash1")
        for unit in (0, 1):
            words += ["-drive", f"if=pflash,unit={unit},format=raw,file={self.folder}/flash{unit}"]
        self.compare(table, self.read(words), "unread")


if __name__ == "__main__":
    unittest.main()
