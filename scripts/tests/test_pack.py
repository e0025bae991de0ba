"""A release archive: for one machine, and without manual pages and completions, for systems without a reader."""

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pack

TARGET = "x86_64-unknown-linux-musl"


def header(machine: int) -> bytes:
    """The beginning of a program for a machine."""
    return b"\x7fELF\2\1\1" + bytes(9) + b"\2\0" + machine.to_bytes(2, "little") + bytes(44)


def packed(made: Path | None, target: str = TARGET, program: bytes = header(62)) -> dict[str, bytes]:
    """The files of an archive, without what cargo says of the crates in it."""
    crates = SimpleNamespace(crates=lambda *_: [SimpleNamespace(version="1")], bill=lambda *_: b"", texts=lambda *_: {})
    with tempfile.NamedTemporaryFile() as binary, mock.patch.object(pack, "third_party", crates):
        Path(binary.name).write_bytes(program)
        held = pack.files(pack.TOP, target, Path(binary.name), made, 0)
    return {name.partition("/")[2]: data for name, (data, _) in held.items()}


class Machines(unittest.TestCase):
    def test_a_program_goes_into_the_archive_of_its_machine_alone(self) -> None:
        machines = {"x86_64-unknown-linux-musl": 62, "aarch64-unknown-linux-musl": 183, "armv7-unknown-linux-musleabihf": 40}
        for target in machines:
            for of, machine in machines.items():
                if of == target:
                    self.assertEqual(packed(None, target, header(machine))["copal"], header(machine))
                else:
                    with self.assertRaisesRegex(pack.Fault, f"is a program for {of.partition('-')[0]}, and not for {target}"):
                        packed(None, target, header(machine))

    def test_what_is_no_program_is_refused(self) -> None:
        for program in (b"", b"\x7fELF", b"#!/bin/sh\necho a script is no program\n"):
            with self.assertRaisesRegex(pack.Fault, "is no program for Linux"):
                packed(None, TARGET, program)
        with self.assertRaisesRegex(pack.Fault, "another machine"):
            packed(None, TARGET, header(8))
        with self.assertRaisesRegex(pack.Fault, "no target of copal"):
            packed(None, "mips-unknown-linux-musl", header(8))


class WithoutPages(unittest.TestCase):
    def test_only_pages_and_completions_are_missing(self) -> None:
        held = packed(None)
        listed = held["contents"].decode().splitlines()
        everything = (pack.TOP / pack.CONTENTS).read_text().splitlines()
        dropped = [line.split("\t")[3] for line in everything if line not in listed]
        self.assertGreater(len(dropped), 20)
        for path in dropped:
            self.assertRegex(path, "^/usr/share/(man|bash-completion|zsh|fish)/")
        self.assertFalse(any("/usr/share/man/" in line or "completion" in line for line in listed))
        # What the list names is there, and nothing of the dropped.
        rows = [line.split("\t") for line in listed if not line.startswith("#")]
        self.assertLessEqual({row[4] for row in rows if row[1] == "file"}, set(held))
        self.assertFalse([name for name in held if name.startswith(pack.PAGES)])

    def test_pages_that_are_missing_are_no_reason_to_leave_them_out(self) -> None:
        with tempfile.TemporaryDirectory() as empty, self.assertRaisesRegex(pack.Fault, "run ./dev build"):
            packed(Path(empty))


if __name__ == "__main__":
    unittest.main()
