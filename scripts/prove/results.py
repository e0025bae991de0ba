"""What the steps of ./dev report, and its summary.

Each step adds lines to the file that COPAL_RESULTS names, words separated by tabs:

    passed NAME                one check, test or scenario
    failed NAME WHY            WHY may be left out
    not-run TEXT               what this machine cannot do, and why
    left PART TEXT             what only `./dev prove PART` does
    step SECONDS NAME          how long a step took
    test SECONDS NAME          how long a test took
    scenario SECONDS NAME STATE
    note TEXT                  for the summary
    record PART TEXT           for the summary, and for the row of a complete run in scripts/proved.tsv
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The exit code of a step that has reported what failed. Any other one than this and 0 is a failure that is in no result.
REPORTED = 3
# How many of the slowest tests the summary lists.
SLOWEST = 20
# Seconds that a test may take on an idle machine. A slower one belongs into a part of `./dev prove`, or is to be made faster.
LONG = 20.0


def add(*words: object) -> None:
    """One line."""
    text = "\t".join(" ".join(str(word).split()) for word in words)
    with open(os.environ["COPAL_RESULTS"], "a", encoding="utf-8") as file:
        file.write(text + "\n")


def read(path: Path) -> list[list[str]]:
    """All lines, as lists of words."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def failures(lines: list[list[str]]) -> list[str]:
    """What failed, and why."""
    return [": ".join(words[1:3]) for words in lines if words[0] == "failed"]


def counted(lines: list[list[str]], strict: bool) -> tuple[int, int]:
    """How many passed and failed. `strict`: what was not run counts as failed."""
    passed = sum(words[0] == "passed" for words in lines)
    failed = sum(words[0] == "failed" for words in lines)
    return passed, failed + (len(not_run(lines)) if strict else 0)


def not_run(lines: list[list[str]]) -> list[str]:
    """Each reason once."""
    return sorted({words[1] for words in lines if words[0] == "not-run"})


def table(lines: list[list[str]]) -> list[str]:
    """The summary without its verdict."""
    text: list[str] = []
    steps = [words for words in lines if words[0] == "step"]
    if steps:
        text += ["steps:"] + [f"  {clock(float(seconds)):>6}  {name}" for _, seconds, name in steps]
    scenarios = [words for words in lines if words[0] == "scenario"]
    if scenarios:
        text.append("scenarios on virtual boards:")
        text += [f"  {float(seconds):6.1f} s  {name}: {state}" for _, seconds, name, state in scenarios]
    tests = sorted(((float(words[1]), words[2]) for words in lines if words[0] == "test"), reverse=True)
    if tests:
        text.append(f"slowest tests (one that takes over {LONG:.0f} s alone belongs to a part of ./dev prove):")
        text += [f"  {seconds:6.1f} s  {name}" for seconds, name in tests[:SLOWEST]]
    left: dict[str, dict[str, None]] = {}
    for words in lines:
        if words[0] == "left":
            left.setdefault(words[1], {})[words[2]] = None
    if left:
        text.append("left to prove (./dev prove PART):")
    for part, what in sorted(left.items()):
        text.append(f"  {part}: {len(what)}: {', '.join(sorted(what))}")
    text += [": ".join(words[1:]) for words in lines if words[0] in ("note", "record")]
    failed = failures(lines)
    if failed:
        text += ["failed:"] + [f"  {name}" for name in failed]
    return text


def main() -> int:
    """`results.py add WORD…`, or `results.py summary`: prints the summary, and ends with 1 where something failed."""
    if sys.argv[1] == "add":
        add(*sys.argv[2:])
        return 0
    lines = read(Path(os.environ["COPAL_RESULTS"]))
    strict = os.environ.get("CI") == "true"
    for line in table(lines) + [f"not run: {why}" for why in not_run(lines)]:
        print(line)
    if strict and not_run(lines):
        # A machine that is meant to test everything must not become one that tests less.
        print("not run tests count as failed where CI=true")
    passed, failed = counted(lines, strict)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
