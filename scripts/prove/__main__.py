#!/usr/bin/env python3
"""The long proofs: everything exhaustive, everything slow, and what only changes when a dependency does.

    prove list                            the parts: their rows, and how many are done, stale, failed
    prove run [--minutes N] [--rotate] [PART|ROW…]   rows that are due, of all parts or of these
    prove complete                        whether each row has passed with the inputs that it has now
    prove needs [PART…]                   `static` where rows of these parts are due that want the static binaries
    prove seed                            what samples are drawn with on this commit

A row (table.py, parts.tsv) is run as a whole (run.py) and recorded (record.py, scripts/proved.tsv) with a digest of all that it depends on (inputs.py).
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import guards
import inputs
import record
import results
import run
import suite
from table import LIMIT, Row, TableError, parts

TOP = run.TOP
PROVED = TOP / "scripts/proved.tsv"
#: Runs only where it is named: new advisories appear without a commit, and must not fail one.
BY_NAME = ("advisories",)


def git(*words: str) -> str:
    """What git says of this checkout; nothing where there is none."""
    done = subprocess.run(["git", "-C", str(TOP), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def head() -> str:
    """The commit, or nothing without git."""
    return git("rev-parse", "HEAD").strip()


def seed() -> int:
    """What samples are drawn with: different commits try different cases."""
    return int(head()[:12] or "0", 16)


@functools.cache
def scenarios() -> dict[str, list[str]]:
    """The scenarios of each board."""
    found = {}
    for board in (path.stem for path in (TOP / "qemu/boards").glob("*.ini")):
        words = [sys.executable, "-B", "qemu/farm", "list", "--board", board]
        found[board] = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
    return found


def rows_of(named: list[str]) -> list[Row]:
    """The rows of the parts that are named, and those that are named themselves; all where nothing is."""
    known = parts()
    rows = [row for part in known.values() for row in part.rows(scenarios())]
    for name in named:
        if name not in known and name != "all" and name not in {row.name for row in rows}:
            raise TableError(f"no part and no row {name!r}; the parts are {', '.join(known)}, and all")
    return [row for row in rows if {row.part, row.name, "all"} & set(named) or (not named and row.part not in BY_NAME)]


def due_of(rows: list[Row], record_in: Path, rotate: bool = False) -> list[Row]:
    """Those that are due. `rotate`: not the oldest first, but others at other commits."""
    records, history = record.read(record_in), guards.History(TOP)
    digests = {row: inputs.digest(row, TOP) for row in rows}
    return record.due(rows, records, digests, guards.due(records, history, guards.table()), history.count() if rotate else None)


def prove(due: list[Row], end: float, record_in: Path, programs: Callable[[], dict[str, Path]]) -> bool:
    """Runs rows until that moment; whether nothing failed."""
    commit, ok, ran = head(), True, 0
    known = record.read(record_in)
    for row in due:
        left = end - time.monotonic()
        # A long row is not begun where it would be cut off.
        if row.minutes > LIMIT and left < (1.5 * known[row.name].seconds if row.name in known else 60 * row.minutes):
            continue
        with run.locked(end) as is_ours:
            if not is_ours or time.monotonic() >= end:
                break
            print(f"\n-- {row.name} ({row.part})", flush=True)
            begun = time.monotonic()
            digest = inputs.digest(row, TOP)
            ended, facts = run.run(row, end, programs, seed())
        seconds = time.monotonic() - begun
        if ended in ("passed", "failed"):
            record.write(record_in, row, ended, commit, seconds, digest, facts)
            ran += 1
        results.add("step", f"{seconds:.0f}", f"{row.name}: {ended}")
        ok = ok and ended != "failed"
    results.add("note", f"{ran} rows recorded in {record_in.name}, {len(due) - ran} are left to the next call")
    if ok:
        results.add("passed", f"{ran} rows of the proofs")
    return ok


def listing() -> None:
    """The parts."""
    records = record.read(PROVED)
    print("  part            rows  done stale failed  oldest       minutes for all")
    for part in parts().values():
        rows = part.rows(scenarios())
        known = [records[row.name] for row in rows if row.name in records]
        states = [record.state(records.get(row.name), inputs.digest(row, TOP)) for row in rows]
        oldest = min((one.date[:10] for one in known), default="-")
        seconds = sum(one.seconds for one in known)
        whole = f"{seconds / 60:.0f}" + ("" if len(known) == len(rows) else f" for {len(known)} of them")
        counts = " ".join(f"{states.count(name):5}" for name in ("done", "stale", "failed"))
        print(f"  {part.name:14} {len(rows):5} {counts}   {oldest:11}  {whole}\n    {part.about}")
    if late := guards.overdue(records, guards.History(TOP), guards.table()):
        results.add("note", f"no run for {guards.RECENT} commits of what guards a changed directory: {', '.join(late)}")


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="prove", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["list", "run", "complete", "seed", "needs"])
    parser.add_argument("part", nargs="*", help="a part, or a row by its name")
    parser.add_argument("--minutes", type=float, default=2880)
    parser.add_argument("--rotate", action="store_true", help="not the oldest first, but others at other commits: for a machine whose records are not kept")
    parser.add_argument("--record", type=Path, default=PROVED, help="the table of another checkout")
    options = parser.parse_args()
    if options.command == "seed":
        print(seed())
    elif options.command == "list":
        listing()
    elif options.command == "needs":
        rows = rows_of(options.part)
        if any(inputs.wants_binaries(row, TOP) for row in due_of(rows, options.record) or rows):
            print("static")
    elif options.command == "complete":
        records = record.read(PROVED)
        states = {row.name: record.state(records.get(row.name), inputs.digest(row, TOP)) for row in rows_of(["all"])}
        why = {"failed": "its last run failed", "missing": "it has no record", "stale": "its inputs have changed since its record"}
        for name, state in states.items():
            if state != "done":
                print(f"not proved: {name}: {why[state]}", file=sys.stderr)
        return 0 if set(states.values()) <= {"done"} else 1
    else:
        rows = rows_of(options.part)
        end = time.monotonic() + 60 * options.minutes
        due = due_of(rows, options.record, options.rotate)
        print(f"{len(due)} of {len(rows)} rows are due", flush=True)
        try:
            # What is named runs also where nothing of it is due.
            return 0 if prove(due or (rows if options.part else []), end, options.record, functools.cache(suite.compiled)) else results.REPORTED
        except suite.CompileError:
            results.add("failed", "the tests compile")
            return results.REPORTED
    return 0


if __name__ == "__main__":
    os.environ.setdefault("COPAL_RESULTS", os.devnull)
    try:
        sys.exit(main())
    except TableError as error:
        print(f"dev: {error}", file=sys.stderr)
        sys.exit(2)
