"""A release archive without manual pages and completions, for systems without a reader."""

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pack

TARGET = "x86_64-unknown-linux-musl"


def packed(made: Path | None) -> dict[str, bytes]:
    """The files of an archive, without what cargo says of the crates in it."""
    crates = SimpleNamespace(crates=lambda *_: [SimpleNamespace(version="1")], bill=lambda *_: b"", texts=lambda *_: {})
    with tempfile.NamedTemporaryFile() as binary, mock.patch.object(pack, "third_party", crates):
        held = pack.files(pack.TOP, TARGET, Path(binary.name), made, 0)
    return {name.partition("/")[2]: data for name, (data, _) in held.items()}


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
