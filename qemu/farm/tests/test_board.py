"""Boards' files, and QEMU's command lines for them."""

import tempfile
import unittest
import unittest.mock
from pathlib import Path

import board
import machine
from board import Board, Hardware
from place import FarmError

TEXT = (Path(board.place.BOARDS) / "qemu-amd64.ini").read_text()


def line(one: Board, **more: object) -> str:
    at = Path("/run")
    hardware = Hardware(folder=at, sockets=Path("/s"), disk=at / "disk", flash=(at / "flash0", at / "flash1"), **more)  # type: ignore[arg-type]
    return " ".join(board.arguments(one, hardware, "tcg"))


class Files(unittest.TestCase):
    def test_all_that_are_there(self) -> None:
        self.assertEqual(board.names(), ["qemu-aarch64", "qemu-amd64", "qemu-amd64-secure", "qemu-amd64-secure-4096"])
        for name in board.names():
            self.assertEqual(board.load(name).name, name)

    def test_a_third_board_is_a_new_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine.ini").write_text(TEXT.replace("kind = virtio", "kind = nvme"))
            self.assertEqual(board.names(Path(folder)), ["mine"])
            self.assertIn("nvme,drive=internal", line(board.load("mine", Path(folder))))

    def test_mistakes_name_file_and_key(self) -> None:
        for old, new, words in (
            ("[board]", "[bord]", ["bord", "x.ini"]),
            ("machine =", "machin =", ["machin", "x.ini"]),
            ("memory = 768", "memory = much", ["memory", "much"]),
            ("kind = virtio", "kind = tape", ["kind", "tape", "nvme"]),
            ("backend = grub", "backend = lilo", ["backend", "lilo"]),
            ("cpu = max\n", "", ["cpu"]),
        ):
            with self.assertRaises(FarmError) as caught:
                board.parse("x", TEXT.replace(old, new), "x.ini")
            for word in words:
                self.assertIn(word, str(caught.exception))
        with self.assertRaisesRegex(FarmError, "no board nobody"):
            board.load("nobody")

    def test_sizes(self) -> None:
        self.assertEqual([board.size(text) for text in ("768", "64M", "0x10", "2K")], [768, 64 << 20, 16, 2048])


class CommandLines(unittest.TestCase):
    def test_firmware_that_is_read_only_and_variables(self) -> None:
        text = line(board.load("qemu-amd64"))
        self.assertIn("q35,smm=off,pflash0=flash0,pflash1=flash1", text)
        self.assertIn("node-name=flash0,cache.no-flush=on,read-only=on", text)
        self.assertNotIn("node-name=flash1,cache.no-flush=on,read-only=on", text)

    def test_flash_that_the_system_writes(self) -> None:
        text = line(board.load("qemu-aarch64"))
        self.assertNotIn("read-only=on", text)
        self.assertIn("usb-ehci,id=usb", text)

    def test_secure_boot_needs_protected_flash_and_a_tpm(self) -> None:
        one = board.load("qemu-amd64-secure")
        text = line(one, tpm=Path("/run/tpm"))
        self.assertIn("q35,smm=on,pflash0=flash0,pflash1=flash1", text)
        self.assertIn("-global driver=cfi.pflash01,property=secure,value=on", text)
        self.assertIn("-chardev socket,id=tpm,path=/s/tpm -tpmdev emulator,id=tpm,chardev=tpm -device tpm-crb,tpmdev=tpm", text)
        self.assertTrue(one.secure)
        usual = board.load("qemu-amd64")
        self.assertNotIn("pflash01", line(usual))
        self.assertFalse(usual.secure)

    def test_the_tpm_keeps_its_state_in_the_folder_of_the_machine(self) -> None:
        hardware = Hardware(folder=Path("/run"), sockets=Path("/s"), disk=Path("/run/disk"), tpm=Path("/run/tpm"))
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict("os.environ", COPAL_GUESTS=folder):
            program = Path(folder) / "tpm/usr/bin/swtpm"
            program.parent.mkdir(parents=True)
            program.touch()
            (Path(folder) / "tpm/stamp").touch()
            words = board.tpm_program(board.load("qemu-amd64-secure"), hardware)
        self.assertIn(str(program), words)
        self.assertIn("dir=/run/tpm", words)
        self.assertIn("type=unixio,path=/s/tpm", words)

    def test_disks(self) -> None:
        one = board.load("qemu-amd64")
        self.assertIn("virtio-blk-pci,drive=internal,serial=INTERNAL", line(one))
        self.assertIn("nvme,drive=internal,serial=INTERNAL", line(one.with_disk("nvme")))
        self.assertIn("bootindex=2,logical_block_size=4096,physical_block_size=4096", line(board.load("qemu-amd64-secure-4096")))
        with self.assertRaisesRegex(FarmError, "sectors of 512 bytes, and virtio-4096 has 4096"):
            one.with_disk("virtio-4096")
        self.assertIn("driver=blklogwrites,node-name=internal", line(one, disk_log=Path("/run/log")))
        self.assertIn("node-name=releases,cache.no-flush=on,read-only=on", line(one, releases=Path("/r")))
        self.assertIn(f"boot-partition-size={1 << 20}", line(one, emmc=Path("/e")))

    def test_the_medium_boots_first(self) -> None:
        text = line(board.load("qemu-amd64"), medium=Path("/m"))
        self.assertIn("usb-storage,id=medium,bus=usb.0,drive=medium,serial=MEDIUM,removable=on,bootindex=1", text)
        self.assertIn("serial=INTERNAL,bootindex=2", text)
        self.assertNotIn("medium", line(board.load("qemu-amd64")))

    def test_recording_the_disk_changes_no_device(self) -> None:
        one = board.load("qemu-amd64")

        def devices(text: str) -> list[str]:
            words = text.split(" ")
            return [words[n + 1] for n, word in enumerate(words) if word == "-device"]

        self.assertEqual(devices(line(one)), devices(line(one, disk_log=Path("/run/log"), incoming=True)))


class Options(unittest.TestCase):
    def test_what_the_monitor_wants(self) -> None:
        found = machine.nested("driver=raw,read-only=on,file.locking=off,file.driver=file")
        self.assertEqual(found, {"driver": "raw", "read-only": True, "file": {"locking": "off", "driver": "file"}})

    def test_the_end_of_a_console(self) -> None:
        text = "\n".join(f"\x1b[32mline {n}\x1b[0m" for n in range(100))
        self.assertEqual(machine.tail(text, 2), "line 98\nline 99")


if __name__ == "__main__":
    unittest.main()
