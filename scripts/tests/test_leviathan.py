"""`./dev leviathan` refuses what it cannot run before it installs or builds anything."""

import subprocess
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


class Leviathan(unittest.TestCase):
    def dev(self, *words: str) -> tuple[int, str]:
        """The exit code of the command, and what it prints."""
        done = subprocess.run(["sh", TOP / "dev", "leviathan", *words], cwd=TOP, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_without_a_clone_it_shows_its_usage(self) -> None:
        for words in ((), ("--list",)):
            status, said = self.dev(*words)
            self.assertEqual(status, 2)
            self.assertIn("leviathan without a clone of meta-balena", said)
            self.assertIn("leviathan CHECKOUT", said)

    def test_another_folder_is_refused_by_name(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            status, said = self.dev(folder, "hup/smoke")
        self.assertEqual((status, said.strip()), (1, f"dev: there is no {folder}/tests/suites/hup/suite.js: name a clone of balena-os/meta-balena"))


if __name__ == "__main__":
    unittest.main()
