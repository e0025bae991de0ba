"""Whether there is room."""

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import place
from place import FarmError


class Room(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        self.patched(mock.patch.dict(os.environ, {"COPAL_FARM": folder.name}))

    def patched(self, patch: Any) -> None:
        """Until the test has ended."""
        patch.start()
        self.addCleanup(patch.stop)

    def free(self, size: int) -> None:
        """So much is free from now on."""
        self.patched(mock.patch("shutil.disk_usage", return_value=mock.Mock(free=size)))

    def test_too_little_is_said_before_anything_is_made(self) -> None:
        self.free(15 << 30)
        place.room(1)
        with self.assertRaisesRegex(FarmError, "2 boards need 20 GiB of room there, and 15 GiB are free.*COPAL_FARM"):
            place.room(2)

    def test_what_is_there_already_counts(self) -> None:
        (self.top / "image").write_bytes(b"x" * (8 << 20))
        self.free((10 << 30) - (4 << 20))
        place.room(1)
        (self.top / "image").unlink()
        with self.assertRaises(FarmError):
            place.room(1)


if __name__ == "__main__":
    unittest.main()
