"""What each row came to: scripts/proved.tsv, one line for the last run of a row."""

from __future__ import annotations

import datetime
import fcntl
import os
import platform
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from table import Row, TableError

HEAD = "# The last run of each row, written by ./dev prove: row, result, commit, date, seconds, machine, digest of its inputs, facts."


@dataclass(frozen=True)
class Record:
    """One line."""

    row: str
    result: str
    commit: str
    date: str
    seconds: int
    machine: str
    digest: str
    facts: str = ""


def read(path: Path) -> dict[str, Record]:
    """By the names of the rows."""
    if not path.exists():
        return {}
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    try:
        return {words[0]: Record(*words[:4], int(words[4]), *words[5:8]) for words in lines}
    except (IndexError, ValueError, TypeError) as error:
        raise TableError(f"{path} has a line that is no record: {error}") from error


def machine() -> str:
    """What kind of machine this is."""
    return f"{platform.machine()}, {os.cpu_count()} processors"


def write(path: Path, row: Row, result: str, commit: str, seconds: float, digest: str, facts: str = "") -> None:
    """Puts a run into the place of the one before it, whatever else has changed in the file meanwhile."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    new = Record(row.name, result, commit[:12], now, round(seconds), machine(), digest, " ".join(facts.split()))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        records = {**read(path), row.name: new}
        lines = ["\t".join(str(value) for value in vars(one).values()).rstrip("\t") for _, one in sorted(records.items())]
        other = path.with_suffix(".new")
        other.write_text("\n".join([HEAD, *lines]) + "\n", encoding="utf-8")
        other.replace(path)
    finally:
        os.close(folder)


def state(record: Record | None, digest: str) -> str:
    """`failed`, `missing`, `stale` or `done`."""
    if record is None:
        return "missing"
    if record.result == "failed":
        return "failed"
    return "done" if record.digest == digest else "stale"


def due(rows: Iterable[Row], records: dict[str, Record], digests: dict[Row, str], guards: Container[str] = (), turn: int | None = None) -> list[Row]:
    """What is to be run, in this order: what failed, guards of what has changed, what has no record, what has changed; of each the oldest first. With
    `turn`, for a machine whose records are not kept: of each as many further on as that number says."""
    order = ["failed", "guard", "missing", "stale"]
    found: dict[str, list[Row]] = {name: [] for name in order}
    for row in rows:
        known = state(records.get(row.name), digests[row])
        if known != "done":
            found["guard" if known != "failed" and row.name in guards else known].append(row)
    for name, some in found.items():
        if turn is None:
            some.sort(key=lambda row: records[row.name].date if row.name in records else "")
        elif some:
            at = turn % len(some)
            found[name] = some[at:] + some[:at]
    return [row for name in order for row in found[name]]
