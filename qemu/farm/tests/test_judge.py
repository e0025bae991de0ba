"""What judges power cuts, with installations that are a few changes long."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import judge  # noqa: E402
import recorder  # noqa: E402
import secure  # noqa: E402
from place import FarmError  # noqa: E402
from recorder import DISK, VARIABLES  # noqa: E402

SIZE = 16 << 20
LISTS = {"PK": b"platform", "KEK": b"exchange", "db": b"database"}
VENDORS = {"PK": secure.GLOBAL, "KEK": secure.GLOBAL, "db": secure.DATABASE, "dbx": secure.DATABASE}


def table(disk: Path, start: int) -> bytes:
    """A disk with one partition from that sector on."""
    disk.write_bytes(bytes(SIZE))
    subprocess.run(["/usr/sbin/sfdisk", "--quiet", disk], input=f"label: gpt\nstart={start}, size=2048\n", text=True, check=True)
    return disk.read_bytes()


def chip(**lists: bytes) -> bytes:
    """The flash with these variables."""
    store = bytearray(b"\xff" * 8192)
    struct.pack_into("<H", store, 48, 72)
    store[72:88] = secure.guid("aaf32c78-947b-439a-a180-2e144ec37792")
    struct.pack_into("<I", store, 88, 8192 - 72)
    return secure.with_variables(bytes(store), [(VENDORS[name], name, 0x27, data) for name, data in lists.items()])


def tpm(code: int, handles: bytes, rest: bytes = b"") -> bytes:
    """A command with an empty authorization."""
    body = handles + struct.pack(">IIHBH", 9, 0x40000009, 0, 0, 0) + rest
    return struct.pack(">HII", 0x8002, 10 + len(body), code) + body


def ways() -> tuple[bytes, bytes]:
    """Commands that make and write the index."""
    public = struct.pack(">IHIHH", judge.INDEX, 0x0B, 0, 0, 32)
    owner, index = struct.pack(">I", 0x40000001), struct.pack(">I", judge.INDEX)
    make = tpm(recorder.NV_DEFINE, owner, struct.pack(">H", 0) + struct.pack(">H", len(public)) + public)
    return make, tpm(recorder.NV_WRITE, index + index, struct.pack(">H", 32) + bytes(32) + struct.pack(">H", 0))


class Judging(unittest.TestCase):
    """Installations whose steps come in some order."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        for name in ("before", "changes", "keys"):
            (self.at / name).mkdir()
        for name, data in LISTS.items():
            (self.at / f"keys/{name}.esl").write_bytes(data)
        self.old = table(self.at / "before/disk", 4096)
        self.new = table(self.at / "new", 8192)
        (self.at / "before/disk").write_bytes(self.old)
        (self.at / "before/flash1").write_bytes(chip())

    def cuts(self, *steps: str) -> judge.Verdict:
        """Judges the installation with these steps."""
        to = recorder.Recorder(self.at / "changes")
        make, write = ways()
        tail = SIZE - judge.TAIL
        lists: dict[str, bytes] = {}
        for step in steps:
            kind, _, name = step.partition(" ")
            if kind == "make":
                to.add_command(make, struct.pack(">HII", 0x8002, 10, 0), b"made")
            elif kind == "keep":
                to.add_command(write, struct.pack(">HII", 0x8002, 10, int(name or 0)), b"written")
            elif kind == "clear":
                to.add_write(DISK, 0, 1 << 20, None)
                to.add_write(DISK, SIZE - (1 << 20), 1 << 20, None)
            elif kind == "content":
                to.add_write(DISK, 4 << 20, 4096, b"c" * 4096)
            elif kind == "backup":
                to.add_write(DISK, tail, judge.TAIL, self.new[tail:])
            elif kind == "primary":
                to.add_write(DISK, 512, judge.HEAD - 512, self.new[512 : judge.HEAD])
            elif kind == "boot":
                to.add_write(DISK, 0, 512, self.new[:512])
            elif kind == "flush":
                to.add_flush(DISK)
            else:
                lists[kind] = LISTS[kind] if not name else name.encode()
                to.add_write(VARIABLES, 0, 8192, chip(**lists))
        to.save()
        return judge.judge(self.at / "before", self.at / "changes", self.at / "keys", 0)

    GOOD = "make,keep,db,KEK,clear,flush,content,flush,backup,flush,primary,flush,boot,flush,PK".split(",")

    def order(self, *changes: tuple[str, str]) -> list[str]:
        """The good order, with `changes`: a step is put before another one, or replaced by one."""
        steps = list(self.GOOD)
        for step, before in changes:
            if step in steps:
                steps.remove(step)
            steps.insert(steps.index(before), step)
        return steps

    def assert_wrong_at(self, step: str, steps: list[str]) -> None:
        """The first power cut that is not good is the one after that step."""
        with self.assertRaises(FarmError) as caught:
            self.cuts(*steps)
        # Clearing writes twice.
        number = re.search(r"after change (\d+) ", str(caught.exception))
        self.assertIsNotNone(number, caught.exception)
        assert number is not None
        at = int(number[1]) - (steps.index("clear") < int(number[1]))
        self.assertEqual(steps[at], step, caught.exception)

    def test_the_good_order_is_good_after_each_change(self) -> None:
        verdict = self.cuts(*self.GOOD)
        self.assertEqual(verdict.cuts, {"tpm": 2, "variables": 3, "disk": 11})
        self.assertEqual(sum(verdict.states.values()), 16)
        self.assertEqual(verdict.states["the new table, the platform key"], 1)

    def test_a_platform_key_before_the_table_is_flushed(self) -> None:
        self.assert_wrong_at("PK", self.order(("PK", "boot")))
        self.assert_wrong_at("PK", [*self.GOOD[:-2], "PK", "flush"])

    def test_a_table_before_what_it_names_is_flushed(self) -> None:
        steps = list(self.GOOD)
        del steps[7]
        # A flush covers what came before it, and the boot sector, which makes the table one, is written after it.
        steps[7:11] = ["backup", "primary"]
        self.assert_wrong_at("boot", steps)

    def test_content_before_the_old_table_is_gone(self) -> None:
        steps = list(self.GOOD)
        del steps[5]
        self.assert_wrong_at("content", steps)

    def test_a_table_without_a_passphrase(self) -> None:
        self.assert_wrong_at("boot", [step for step in self.GOOD if step != "keep"])
        # The TPM has refused.
        self.assert_wrong_at("boot", ["keep 1" if step == "keep" else step for step in self.GOOD])

    def test_other_keys_than_the_medium_s(self) -> None:
        self.assert_wrong_at("PK", ["KEK another" if step == "KEK" else step for step in self.GOOD])
        self.assert_wrong_at("PK", [step for step in self.GOOD if step != "db"])

    def test_an_installation_without_a_platform_key(self) -> None:
        with self.assertRaises(FarmError):
            self.cuts(*self.GOOD[:-1])


class Variables(unittest.TestCase):
    """The flash of the firmware."""

    def test_an_entry_counts_by_its_state(self) -> None:
        one = chip(PK=b"one", KEK=b"other")
        self.assertEqual(secure.variables(one), {(secure.GLOBAL, "PK"): b"one", (secure.GLOBAL, "KEK"): b"other"})
        first = 72 + 28 + 2
        for state, counts in ((0x7F, False), (0x3E, True), (0x3C, False), (0xFF, None)):
            changed = bytearray(one)
            changed[first] = state
            found = secure.variables(bytes(changed))
            self.assertEqual((secure.GLOBAL, "PK") in found, bool(counts))
            # Without a state an entry was not begun, and it is the last.
            self.assertEqual((secure.GLOBAL, "KEK") in found, counts is not None)


if __name__ == "__main__":
    unittest.main()
