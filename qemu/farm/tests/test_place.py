"""Free space, and waiting that ends."""

import contextlib
import os
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import place
from place import FarmError


class Space(unittest.TestCase):
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
        place.need_space(1)
        with self.assertRaisesRegex(FarmError, "2 boards need 20 GiB there, and 15 GiB are free.*COPAL_FARM"):
            place.need_space(2)

    def test_what_is_there_already_counts(self) -> None:
        (self.top / "image").write_bytes(b"x" * (8 << 20))
        self.free((10 << 30) - (4 << 20))
        place.need_space(1)
        (self.top / "image").unlink()
        with self.assertRaises(FarmError):
            place.need_space(1)

    def test_a_folder_that_another_run_removes_meanwhile_is_passed_over(self) -> None:
        (self.top / "new").mkdir()
        (self.top / "image").write_bytes(b"x" * (8 << 20))
        self.free((10 << 30) - (4 << 20))
        real = os.scandir

        def scandir(path: str) -> object:
            if str(path).endswith("/new"):
                raise FileNotFoundError(path)
            return real(path)

        with mock.patch("os.scandir", scandir):
            place.need_space(1)


class Binary(unittest.TestCase):
    def test_one_that_is_not_there_is_an_error_that_names_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"COPAL_DIST": folder}):
            binary = Path(folder) / "copal-x86_64"
            with self.assertRaisesRegex(FarmError, "copal-x86_64"):
                place.binary("x86_64")
            binary.touch()
            self.assertEqual(place.binary("x86_64"), binary)


class Ended(unittest.TestCase):
    def test_who_waits_for_a_place_or_a_lock_ends_with_everything(self) -> None:
        stopped = threading.Event()
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"COPAL_GUESTS": folder}), \
                mock.patch.object(place, "STOPPED", stopped), contextlib.ExitStack() as held:
            for _ in range(place.GUESTS):
                held.enter_context(place.guest_place(5))
            lock = Path(folder) / "lock"
            held.enter_context(place.locked(lock, 5, "a lock"))
            stopped.set()
            for waiting in (place.guest_place(60), place.locked(lock, 60, "a lock")):
                with self.assertRaisesRegex(FarmError, "ended while waiting"), waiting:
                    self.fail("two have it")


if __name__ == "__main__":
    unittest.main()
