#!/usr/bin/env python3
"""The long proofs: everything exhaustive, everything slow, and what only changes when a dependency does.

    prove.py list                            the parts, their times, their last complete run
    prove.py run [--minutes N] PART…|all     all of them; with a limit, what is left is run by the next call
    prove.py turn --minutes N                the part whose turn it is
    prove.py ages                            how old the last complete run of each part is
    prove.py complete                        whether each part has a complete run for this tree
    prove.py needs [PART…]                   `static` where those parts, or that of the turn, want the static binaries
    prove.py seed                            what samples are drawn with on this commit

scripts/parts.tsv says what is in a part, scripts/proved.tsv which runs were complete.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import results
import suite
from parts import Part, PartError, parts

TOP = Path(__file__).resolve().parents[1]
PROVED = TOP / "scripts/proved.tsv"
# What a part has done by now, for the next call.
STATE = TOP / "target/prove"
# Minutes that any part takes on two cores at most; a longer one says so by being cut off.
PART_LIMIT = 60.0


@dataclass
class Unit:
    """What is run as a whole, or not at all."""

    name: str
    # Runs it until that moment at most; says how it ended: `passed`, `failed`, or `left` where the time was over.
    run: Callable[[float], str]


# --- the tree, and what was proved of it ------------------------------------------------------------------------------------


def git(*words: str) -> str:
    """What git says of this checkout; nothing where there is none."""
    done = subprocess.run(["git", "-C", str(TOP), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def tree() -> str:
    """A digest of everything that is committed, but for the table of what was proved; with `+` where more has changed since."""
    table = PROVED.relative_to(TOP).as_posix()
    listed = "".join(line + "\n" for line in git("ls-tree", "-r", "HEAD").splitlines() if not line.endswith(f"\t{table}"))
    changed = [line for line in git("status", "--porcelain").splitlines() if line[3:] != table]
    if changed:
        listed += git("diff", "HEAD")
    return hashlib.sha256(listed.encode()).hexdigest()[:16] + ("+" if changed else "")


def commits() -> int:
    """How many there are."""
    return int(git("rev-list", "--count", "HEAD") or 0)


def head() -> str:
    """The commit, or nothing without git."""
    return git("rev-parse", "HEAD").strip()


def seed() -> int:
    """What samples are drawn with: different commits try different cases."""
    return int(head()[:12] or "0", 16)


def proved() -> dict[str, list[str]]:
    """Part: minutes, commit, date and tree of its last complete run, and what the run recorded."""
    if not PROVED.exists():
        return {}
    rows = [line.split("\t") for line in PROVED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {words[0]: words[1:] for words in rows}


def record(part: str, seconds: float, proved_tree: str, *recorded: str) -> None:
    """Notes a complete run of that tree."""
    rows = proved()
    rows[part] = [f"{seconds / 60:.0f}", head()[:12], datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), proved_tree, *recorded]
    write(rows)


def withdraw(part: str, failed_tree: str) -> None:
    """Removes the complete run of a tree that has failed since: against newer advisories, or in a case that does not always fail."""
    rows = proved()
    if rows.get(part, [""] * 4)[3] == failed_tree:
        del rows[part]
        write(rows)


def write(rows: dict[str, list[str]]) -> None:
    """Replaces the table."""
    lines = ["# Complete runs without a failure, written by ./dev prove: part, minutes, commit, date, digest of the tree, further facts."]
    lines += ["\t".join([name, *rows[name]]) for name in parts() if name in rows]
    new = PROVED.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.replace(PROVED)


def age(part: str) -> str:
    """Of its last complete run."""
    row = proved().get(part)
    if row is None:
        return "no complete run yet"
    since = git("rev-list", "--count", f"{row[1]}..HEAD").strip()
    recorded = "".join(f"; {text}" for text in row[4:])
    if row[3] == tree():
        return f"complete for this tree on {row[2]}{recorded}"
    return f"last complete run on {row[2]}, {since or 'an unknown number of'} commits ago ({row[1]}){recorded}"


# --- units ------------------------------------------------------------------------------------------------------------------


def test_unit(programs: dict[str, Path], part: str, program: str, tests: list[str], limit: float) -> Unit:
    """Some tests of a program, with all of their cases."""

    def run(end: float) -> str:
        own = time.monotonic() + limit
        outcome = suite.run(program, programs[program], min(end, own), tests, {"COPAL_PROVE": part, "COPAL_SEED": str(seed())}, f"prove-{program}")
        print(suite.shown(outcome), flush=True)
        if outcome.broken and time.monotonic() >= end and not outcome.failed:
            return "left"
        missing = [name for name in tests if name not in outcome.passed + outcome.failed]
        if missing and not outcome.broken:
            outcome.broken = f"no such test: {', '.join(missing)}"
        suite.report(outcome)
        if not outcome.good:
            return "failed"
        # What this machine cannot do stays unproved.
        return "left" if suite.NOT_RUN.search(outcome.text) or outcome.ignored else "passed"

    return Unit(f"{program} {' '.join(tests)}", run)


def command_unit(name: str, command: list[str], limit: float) -> Unit:
    """A command, which adds its own results."""

    def run(end: float) -> str:
        own = time.monotonic() + limit
        status, lines = step(min(end, own), command)
        if status == 124 and end < own:
            return "left"
        for words in lines:
            results.add(*words)
        if status != 0 and not results.failures(lines):
            results.add("failed", name, "it met its time limit" if status == 124 else f"it ended with {status}")
        if status != 0:
            return "failed"
        # What this machine cannot do stays unproved.
        return "left" if results.not_run(lines) else "passed"

    return Unit(name, run)


def step(end: float, command: list[str]) -> tuple[int, list[list[str]]]:
    """Runs a command until that moment, with everything it starts; its exit code, and the results that it has reported."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        return 124, []
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        environ = {**os.environ, "COPAL_RESULTS": file.name}
        done = subprocess.run([sys.executable, "-B", "scripts/step.py", f"{seconds:.1f}", *command], cwd=TOP, env=environ, check=False)
        return done.returncode, results.read(Path(file.name))


def scenario_names(board: str) -> list[str]:
    """The scenarios that there are for a board."""
    done = subprocess.run([sys.executable, "-B", "qemu/farm", "list", "--board", board], cwd=TOP, capture_output=True, text=True, check=True)
    return done.stdout.split()


def units(part: Part, programs: Callable[[], dict[str, Path]]) -> list[Unit]:
    """What a part consists of."""
    found: list[Unit] = []
    limit = PART_LIMIT * 60
    for kind, words in part.rows:
        if kind == "test":
            found.append(test_unit(programs(), part.name, words[0], words[1:], limit))
        elif kind == "command":
            found.append(command_unit(" ".join(words), ["sh", "scripts/part.sh", *words], limit))
        elif kind == "scenarios":
            # Run together, two at a time.
            found += [Unit(f"{name}@{words[0]}", lambda _: "left") for name in scenario_names(words[0])]
    return found


# Seconds that a scenario takes at most where the machine has nothing else to do: none begins that would be cut off.
SCENARIO = 300.0


def run_scenarios(names: list[str], end: float) -> dict[str, str]:
    """Scenarios on virtual boards, two at a time; how each ended."""
    left = end - time.monotonic()
    if left < SCENARIO:
        return {name: "left" for name in names}
    limits = ["--start-within", f"{left - SCENARIO:.0f}", "--deadline", f"{left + SCENARIO:.0f}"]
    status, lines = step(end + SCENARIO + 60, [sys.executable, "-B", "qemu/farm", "run", *names, *limits])
    for words in lines:
        if words[0] != "left":
            results.add(*words)
    found = {"@".join(words[2].rsplit(" ", 1)): words[3] for words in lines if words[0] == "scenario"}
    if status != 0 and not results.failures(lines):
        results.add("failed", "run of the board farm", f"it ended with {status}")
        return {name: "failed" for name in names}
    return {name: found.get(name, "left") for name in names}


# --- commands ---------------------------------------------------------------------------------------------------------------


def done_before(part: str, now: str) -> dict[str, float]:
    """Units that passed in earlier calls for this very tree, with their seconds."""
    try:
        state = json.loads((STATE / f"{part}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(state["done"]) if state.get("tree") == now else {}


def keep(part: str, now: str, done: dict[str, float]) -> None:
    """For the next call."""
    STATE.mkdir(parents=True, exist_ok=True)
    new = STATE / f"{part}.new"
    new.write_text(json.dumps({"tree": now, "done": done}), encoding="utf-8")
    new.replace(STATE / f"{part}.json")


def prove(part: Part, end: float, programs: Callable[[], dict[str, Path]]) -> bool:
    """Runs what is left of a part; whether nothing failed."""
    print(f"\n-- {part.name}: {part.about}", flush=True)
    now = tree()
    done = done_before(part.name, now)
    all_units = units(part, programs)
    todo = [unit for unit in all_units if unit.name not in done]
    if not todo:
        # Complete: begin again.
        done, todo = {}, all_units
    # A call that does not get to the end sees another share of it at each commit.
    random.Random(seed()).shuffle(todo)
    ok = True
    farm = [unit.name for unit in todo if "@" in unit.name]
    begun = time.monotonic()
    states = run_scenarios(farm, end) if farm else {}
    for name, state in states.items():
        if state == "passed":
            done[name] = (time.monotonic() - begun) / len(farm)
        ok = ok and state != "failed"
    for unit in todo:
        if unit.name in states or time.monotonic() >= end:
            continue
        begun = time.monotonic()
        state = unit.run(end)
        if state == "passed":
            done[unit.name] = time.monotonic() - begun
        ok = ok and state != "failed"
        keep(part.name, now, done)
    keep(part.name, now, done)
    left = [unit.name for unit in all_units if unit.name not in done]
    print(f"{part.name}: {len(all_units) - len(left)} of {len(all_units)} done for this tree", flush=True)
    if not ok:
        withdraw(part.name, now)
    elif left:
        results.add("left", part.name, f"{len(left)} of {len(all_units)}: {', '.join(left)}")
    elif now.endswith("+") or tree() != now:
        results.add("note", f"{part.name}: complete, and not recorded: not everything is committed, or something changed meanwhile")
    else:
        recorded = [words[2] for words in results.read(Path(os.environ["COPAL_RESULTS"])) if words[:2] == ["record", part.name]]
        record(part.name, sum(done.values()), now, *recorded[-1:])
        results.add("note", f"{part.name}: complete; recorded in {PROVED.relative_to(TOP)}")
    return ok


def listing() -> None:
    """The parts."""
    for part in parts().values():
        minutes = proved().get(part.name, ["?"])[0]
        print(f"  {part.name:14} {minutes:>3} min  {part.about}\n{'':25}{age(part.name)}")


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["list", "run", "turn", "ages", "complete", "seed", "needs"])
    parser.add_argument("part", nargs="*")
    parser.add_argument("--minutes", type=float)
    options = parser.parse_args()
    known = parts()
    if options.command == "seed":
        print(seed())
    elif options.command == "list":
        listing()
    elif options.command == "ages":
        for name in known:
            results.add("note", f"proof {name}: {age(name)}")
    elif options.command == "complete":
        missing = [f"{name}: {age(name)}" for name in known if proved().get(name, [""] * 4)[3] != tree()]
        for line in missing:
            print(f"not proved for this tree: {line}", file=sys.stderr)
        return 1 if missing else 0
    elif options.command == "needs":
        chosen = [known[name] for name in wanted(known, options.part)]
        if any(part.rows[0][0] != "command" or part.name in ("coverage", "tamper") for part in chosen):
            print("static")
    else:
        return run(known, options)
    return 0


def wanted(known: dict[str, Part], named: list[str]) -> list[str]:
    """The parts that are named; the one whose turn it is where none is."""
    if not named:
        # New advisories appear without a commit, and must not fail one.
        turns = [name for name in known if name != "advisories"]
        return [turns[commits() % len(turns)]]
    for name in named:
        if name not in known and name != "all":
            raise PartError(f"no part {name!r}; there are {', '.join(known)}, and all")
    return list(known) if "all" in named else named


def run(known: dict[str, Part], options: argparse.Namespace) -> int:
    """`run` and `turn`."""
    chosen = wanted(known, options.part)
    if options.command == "turn":
        print(f"the turn of commit {commits()}: {chosen[0]}")
    begun = time.monotonic()
    made: dict[str, Path] = {}

    def programs() -> dict[str, Path]:
        if not made:
            made.update(suite.compiled())
        return made

    ok = True
    for name in chosen:
        end = begun + 60 * options.minutes if options.minutes else time.monotonic() + 60 * PART_LIMIT
        part_begun = time.monotonic()
        try:
            ok = prove(known[name], end, programs) and ok
        except suite.CompileError:
            results.add("failed", "the tests compile")
            return results.REPORTED
        results.add("step", f"{time.monotonic() - part_begun:.0f}", name)
    return 0 if ok else results.REPORTED


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PartError as error:
        print(f"dev: {error}", file=sys.stderr)
        sys.exit(2)
