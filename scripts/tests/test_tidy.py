"""What tests have left is undone by the command that ran them, and by no other."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
LEAVE = "truncate -s 1M target/disk && losetup -f target/disk && mkdir -p target/mounted && mount -t tmpfs left target/mounted"


class Tidy(unittest.TestCase):
    def setUp(self) -> None:
        if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
            self.skipTest("not run: what tests leave is undone: needs root and loop devices")
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)
        (self.top / "scripts").mkdir()
        for name in ("scripts/lib.sh", "rust-toolchain.toml"):
            shutil.copy(HERE / name, self.top / name)
        (self.top / "target").mkdir()

    def run_there(self, script: str) -> subprocess.CompletedProcess[str]:
        # The lock of this machine is held by the command that runs these tests.
        own = {**os.environ, "XDG_CACHE_HOME": str(self.top / "cache")}
        return subprocess.run(["sh", "-ec", f". scripts/lib.sh; {script}"], cwd=self.top, env=own, capture_output=True, text=True, timeout=120, check=False)

    def left(self) -> tuple[bool, bool]:
        """Whether there is a loop device, and a mount."""
        loops = subprocess.run(["losetup", "-j", self.top / "target/disk"], capture_output=True, text=True, check=True).stdout
        return bool(loops), f" {self.top}/target/mounted " in Path("/proc/self/mountinfo").read_text()

    def test_a_command_that_ran_tests_leaves_neither_device_nor_mount(self) -> None:
        done = self.run_there(f"alone 60; {LEAVE}; exit 5")
        self.assertEqual((done.returncode, self.left()), (5, (False, False)), done.stderr)

    def test_another_command_touches_nothing(self) -> None:
        self.run_there(LEAVE)
        self.assertEqual(self.left(), (True, True))
        self.run_there("alone 60")
        self.assertEqual(self.left(), (False, False))

    def test_two_do_not_run_tests_at_once(self) -> None:
        done = self.run_there("alone 60; sh -ec '. scripts/lib.sh; alone 1' 9>&-")
        self.assertIn("waiting for another", done.stdout)
        self.assertIn("another ./dev test", done.stderr)

    def test_a_row_of_the_proofs_waits_for_them(self) -> None:
        row = "import run, time\nwith run.locked(time.monotonic()) as ours: print(ours)"
        alone = f"PYTHONPATH={HERE}/scripts/prove python3 -Bc '{row}' 9>&-"
        done = self.run_there(f"{alone}; alone 60; {alone}")
        self.assertEqual(done.stdout.split(), ["True", "False"], done.stderr)


if __name__ == "__main__":
    unittest.main()
