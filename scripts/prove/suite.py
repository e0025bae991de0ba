#!/usr/bin/env python3
"""Compiles the test programs and runs them side by side.

    suite.py [--limit SECONDS] [PROGRAM…]

Most tests wait (for a bus, a process, a disk), so more of them run at once than there are processors. Each program's output is
in target/tests/; what failed is printed in full, and each result goes to the file that COPAL_RESULTS names.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import results
from table import sampled

TOP = Path(__file__).resolve().parents[2]
LOGS = TOP / "target/tests"
# Programs that run at once, and tests of each of them.
PROGRAMS, THREADS = 2, 4
# The longest first: with short ones left, both places fall empty at the same time.
FIRST = ("guest", "update", "flash", "engine", "daemon", "install")
# The standard harness reports the time of each test as an unstable feature. What compiles here was compiled without this.
TIMED = {"RUSTC_BOOTSTRAP": "1"}
RESULT = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored|ignored, .*?)(?: <([\d.]+)s>)?$", re.MULTILINE)
TOTAL = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed;", re.MULTILINE)
NOT_RUN = re.compile(r"^(?:test .* \.\.\. )?not run: (.*)$", re.MULTILINE)
# Most of these lines begin with the test that says it.
NOT_RUN_NAME = re.compile(r"[\w:]+(?=: )")
# What a test leaves to `./dev prove`; a test that was drawn from its group leaves nothing this time.
LEFT = re.compile(r"^(?:test .* \.\.\. )?(left to|drawn from) prove: ([\w-]+): (\w+)(.*)$", re.MULTILINE)


class CompileError(Exception):
    """The tests do not compile; cargo has said why."""


@dataclass
class Outcome:
    """What a test program did."""

    program: str
    seconds: float
    text: str
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    # Why it has no result of its own: a crash, the limit.
    broken: str = ""

    @property
    def good(self) -> bool:
        """Whether it ran to its end, and nothing failed."""
        return not self.failed and not self.broken


def compiled() -> dict[str, Path]:
    """The test programs by name, compiled where they are not. The program's own unit tests are `lib` and `main`."""
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise CompileError
    found: dict[str, Path] = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message.get("executable"):
            continue
        kind, name = message["target"]["kind"][0], message["target"]["name"]
        if kind != "example":
            found[{"lib": "lib", "bin": "main"}.get(kind, name)] = Path(message["executable"])
    return found


def parsed(program: str, seconds: float, text: str, status: int) -> Outcome:
    """What its output says."""
    outcome = Outcome(program, seconds, text)
    for name, state, took in RESULT.findall(text):
        {"ok": outcome.passed, "FAILED": outcome.failed}.get(state, outcome.ignored).append(name)
        if took:
            outcome.times[name] = float(took)
    total = TOTAL.search(text)
    if total is None:
        outcome.broken = f"it ended with {status} without a result"
    elif (int(total[1]), int(total[2])) != (len(outcome.passed), len(outcome.failed)):
        # Another process wrote into a line: the count of the program itself is right.
        outcome.broken = f"its output names {len(outcome.passed)} tests that passed, its result says {total[0]!r}"
    elif status != 0 and not outcome.failed:
        outcome.broken = f"it ended with {status}"
    return outcome


def names_of(executable: Path) -> list[str]:
    """The tests of a program."""
    done = subprocess.run([executable, "--list", "--format=terse"], cwd=TOP, capture_output=True, text=True, check=True)
    return [line.removesuffix(": test") for line in done.stdout.splitlines() if line.endswith(": test")]


def run(
    program: str, executable: Path, end: float, tests: Iterable[str] = (), environment: dict[str, str] | None = None, log_name: str = ""
) -> Outcome:
    """Runs one program, or some tests of it, until that moment (of `time.monotonic`) at most."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{log_name or program}.log"
    chosen = list(tests)
    arguments = ["--show-output", "-Zunstable-options", "--report-time", f"--test-threads={THREADS}"]
    arguments += ["--exact", *chosen] if chosen else []
    begun = time.monotonic()
    limit = end - begun
    if limit <= 0:
        return Outcome(program, 0, "", broken="no time was left for it")
    over = False
    with log.open("wb") as file:
        # Tests send it to the program, which obeys it unless it was ignored at its start.
        step = [sys.executable, str(TOP / "scripts/prove/step.py"), "--hangup", str(limit), str(executable), *arguments]
        environ = {**os.environ, **TIMED, **(environment or {})}
        status = subprocess.run(step, cwd=TOP, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        over = status == 124
    text = log.read_text(encoding="utf-8", errors="replace")
    outcome = parsed(program, time.monotonic() - begun, text, status)
    if over:
        ended = {*outcome.passed, *outcome.failed, *outcome.ignored}
        left = [name for name in chosen or names_of(executable) if name not in ended]
        outcome.broken = f"ended after {limit:.0f} s; {len(left)} tests were cut off: {', '.join(left)}"
    return outcome


def shown(outcome: Outcome) -> str:
    """A line for the program, and all that failed."""
    text = f"{outcome.program}: {len(outcome.passed)} passed, {len(outcome.failed)} failed, {outcome.seconds:.0f} s"
    if outcome.broken:
        text += f"\n{outcome.program}: {outcome.broken}"
    if outcome.failed:
        at = outcome.text.rfind("\nfailures:\n", 0, outcome.text.rfind("\nfailures:\n"))
        text += "\n" + outcome.text[at:].strip()
    elif outcome.broken:
        text += "\n" + "\n".join(outcome.text.splitlines()[-60:])
    return text


def named(outcome: Outcome, short: str) -> list[str]:
    """The tests with that name, in whatever module."""
    return [name for name in outcome.passed + outcome.failed if name == short or name.endswith(f"::{short}")] or [short]


def not_run(outcome: Outcome) -> set[str]:
    """The tests that could not run here, or not in full."""
    found = (NOT_RUN_NAME.match(why) for why in NOT_RUN.findall(outcome.text))
    return {name for short in found if short for name in named(outcome, short[0])}


def report(outcome: Outcome) -> None:
    """Adds everything to the results. A test that has tried no case at all, or could not run, has not passed."""
    untried = {name for kind, _, short, more in LEFT.findall(outcome.text) if kind == "left to" and not more.startswith(":") for name in named(outcome, short)}
    untried |= not_run(outcome)
    for name in outcome.passed:
        if name not in untried:
            results.add("passed", f"{outcome.program} {name}")
    for name in outcome.failed:
        results.add("failed", f"{outcome.program} {name}")
    for name in outcome.ignored:
        # A test is never left out like that: it would stay so.
        results.add("not-run", f"{outcome.program} {name}: ignored")
    if outcome.broken:
        results.add("failed", f"test program {outcome.program}", outcome.broken)
    for why in NOT_RUN.findall(outcome.text):
        results.add("not-run", why)
    for name, seconds in outcome.times.items():
        if name in untried:
            continue
        results.add("test", f"{seconds:.1f}", f"{outcome.program} {name}")


def left_out(outcomes: list[Outcome]) -> None:
    """Adds what the tests have left to `./dev prove`; that is what its table says, or tests would be left out of both. A test that could not run says
    nothing about that."""
    table = {row for row in sampled() if row[1] in {outcome.program for outcome in outcomes}}
    table -= {row for row in table for outcome in outcomes if row[1] == outcome.program and row[2] in not_run(outcome)}
    found = set()
    for outcome in outcomes:
        for kind, part, short, more in LEFT.findall(outcome.text):
            names = named(outcome, short)
            found.update((part, outcome.program, name) for name in names)
            if kind == "left to":
                how = "but a sample" if more.startswith(":") else "whole"
                for name in names:
                    results.add("left", part, f"{outcome.program} {name} ({how})")
    for part, program, name in sorted(found - table):
        results.add("failed", f"{program} {name}", f"it leaves cases to ./dev prove {part}, whose table (scripts/prove/parts.tsv) does not name it")
    for part, program, name in sorted(table - found):
        results.add("failed", f"{program} {name}", f"scripts/prove/parts.tsv names it in {part}, and it leaves nothing out")


def order(programs: Iterable[str]) -> list[str]:
    """The longest first."""
    return sorted(programs, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def run_all(programs: dict[str, Path], end: float) -> list[Outcome]:
    """All of them, side by side."""
    waiting: queue.Queue[str] = queue.Queue()
    for name in order(programs):
        waiting.put(name)
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            outcome = run(name, programs[name], end)
            with lock:
                print(shown(outcome), flush=True)
                report(outcome)
                outcomes.append(outcome)

    threads = [threading.Thread(target=work) for _ in range(PROGRAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=3600, help="seconds for all of it (3600)")
    parser.add_argument("program", nargs="*", help="only these")
    options = parser.parse_args()
    begun = time.monotonic()
    end = begun + options.limit
    try:
        programs = compiled()
    except CompileError:
        results.add("failed", "the tests compile")
        return results.REPORTED
    results.add("step", f"{time.monotonic() - begun:.0f}", "compile the tests")
    begun = time.monotonic()
    for name in options.program:
        if name not in programs:
            parser.error(f"no test program {name!r}; there are {', '.join(sorted(programs))}")
    if options.program:
        programs = {name: programs[name] for name in options.program}
    outcomes = run_all(programs, end)
    left_out([outcome for outcome in outcomes if not outcome.broken])
    results.add("step", f"{time.monotonic() - begun:.0f}", "run the tests")
    return 0 if all(outcome.good for outcome in outcomes) else results.REPORTED


if __name__ == "__main__":
    sys.exit(main())
