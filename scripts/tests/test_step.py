"""A step ends with everything it has started."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

STEP = [sys.executable, "-B", str(Path(__file__).resolve().parents[1] / "prove/step.py")]
# Bounds for machines that are much slower than this one; nothing waits for them to pass.
LONG = 60.0


def alive(mark: str) -> list[str]:
    """Processes that have this word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(entry.name)
            except OSError:
                pass
    return found


class Step(unittest.TestCase):
    def setUp(self) -> None:
        # A number that no other process has for an argument.
        self.mark = f"{100000 + os.getpid()}.{time.monotonic_ns() % 1000000}"

    def run_step(self, seconds: str, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*STEP, seconds, "sh", "-c", script], capture_output=True, text=True, timeout=LONG, check=False)

    def test_its_exit_code_is_that_of_the_command(self) -> None:
        self.assertEqual(self.run_step("60", "exit 3").returncode, 3)
        self.assertEqual(self.run_step("60", "kill -9 $$").returncode, 137)
        self.assertEqual(subprocess.run([*STEP, "60", "/no/such/program"], capture_output=True, timeout=LONG, check=False).returncode, 127)

    def test_the_command_obeys_ctrl_c_in_the_background_too(self) -> None:
        ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *STEP, "60", "sh", "-c", "kill -INT $$"]
        self.assertEqual(subprocess.run(ignoring, timeout=LONG, check=False).returncode, 130)

    def test_below_nohup_a_command_obeys_a_hangup_where_that_is_asked_for(self) -> None:
        for words, expected in (["--hangup"], 129), ([], 0):
            ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *STEP, *words, "60", "sh", "-c", "kill -HUP $$"]
            self.assertEqual(subprocess.run(ignoring, timeout=LONG, check=False).returncode, expected)

    def test_the_limit_ends_what_has_left_the_session_too(self) -> None:
        done = self.run_step("1", f"setsid sleep {self.mark} & (setsid sleep {self.mark} &) ; sleep {self.mark}")
        self.assertEqual(done.returncode, 124)
        self.assertIn("ended after 1 s", done.stderr)
        self.assertEqual(alive(self.mark), [])

    def test_what_is_left_after_the_end_holds_nothing_up(self) -> None:
        # It holds the pipe: a reader of the output would wait for it.
        done = self.run_step("60", f"(setsid sleep {self.mark} &) ; exit 0")
        self.assertEqual(done.returncode, 0)
        self.assertIn("still running", done.stderr)
        self.assertEqual(alive(self.mark), [])

    def test_a_process_that_obeys_no_signal_is_killed(self) -> None:
        script = f"trap '' TERM; while :; do sleep {self.mark}; done"
        with subprocess.Popen([*STEP, "--grace", "0.5", "60", "sh", "-c", script], stderr=subprocess.DEVNULL) as step:
            end = time.monotonic() + LONG
            while not alive(self.mark) and time.monotonic() < end:
                time.sleep(0.05)
            step.send_signal(signal.SIGTERM)
            self.assertEqual(step.wait(LONG), 143)
        self.assertEqual(alive(self.mark), [])


if __name__ == "__main__":
    unittest.main()
