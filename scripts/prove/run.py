"""Runs a row within its time, and says how it ended."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import results
import suite
from table import Row

TOP = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
#: Loop devices, ports and memory are those of the whole machine: `alone` of scripts/lib.sh takes it for ./dev test.
LOCK = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "copal/tests.lock"

#: `passed`, `failed`, `not-run`, or `left` where the time was over; and facts for the record.
Ended = tuple[str, str]


@contextmanager
def locked(end: float) -> Iterator[bool]:
    """Whether the machine is this row's own before that moment."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    yield False
                    return
                time.sleep(1)
        yield True


def run(row: Row, end: float, programs: Callable[[], dict[str, Path]], seed: int) -> Ended:
    """Until that moment at most, and no longer than a row may take."""
    own = time.monotonic() + 60 * row.minutes
    ended, facts = (test if row.kind == "test" else command)(row, min(end, own), programs, seed)
    if ended == "left" and own <= end:
        results.add("note", f"{row.name} takes over {row.minutes} minutes, and is not proved: cut it into shares (scripts/prove/parts.tsv)")
    return ended, facts


def test(row: Row, end: float, programs: Callable[[], dict[str, Path]], seed: int) -> Ended:
    """A test with all of its cases, or with a share of them."""
    program, name = row.words
    own = {"COPAL_PROVE": row.part, "COPAL_SHARE": f"{row.share[0]}/{row.share[1]}", "COPAL_SEED": str(seed)}
    outcome = suite.run(program, programs()[program], end, [name], own, f"prove-{program}")
    print(suite.shown(outcome), flush=True)
    if outcome.broken and time.monotonic() >= end and not outcome.failed:
        return "left", ""
    if name not in outcome.passed + outcome.failed and not outcome.broken:
        outcome.broken = f"no such test: {name}"
    suite.report(outcome)
    if not outcome.good:
        return "failed", ""
    # What this machine cannot do stays unproved.
    return ("not-run" if suite.NOT_RUN.search(outcome.text) or outcome.ignored else "passed"), ""


def command(row: Row, end: float, _: object, seed: int) -> Ended:
    """A scenario, or a command; both add their own results."""
    if row.kind == "scenario":
        words = [sys.executable, "-B", "qemu/farm", "run", row.name, "--seed", str(seed % 2**32)]
    else:
        words = ["sh", f"{HERE}/part.sh", *row.words]
    status, lines = step(end, words)
    if status == 124:
        return "left", ""
    for line in lines:
        if line[0] != "left":
            results.add(*line)
    if status != 0 and not results.failures(lines):
        results.add("failed", row.name, f"it ended with {status}")
    facts = "; ".join(line[2] for line in lines if line[0] == "record")
    if status != 0:
        return "failed", facts
    return ("not-run" if results.not_run(lines) else "passed"), facts


def step(end: float, words: list[str]) -> tuple[int, list[list[str]]]:
    """Runs a command until that moment, with everything it starts; its exit code, and the results that it has reported."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        return 124, []
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        environ = {**os.environ, "COPAL_RESULTS": file.name}
        done = subprocess.run([sys.executable, "-B", f"{HERE}/step.py", f"{seconds:.1f}", *words], cwd=TOP, env=environ, check=False)
        return done.returncode, results.read(Path(file.name))
