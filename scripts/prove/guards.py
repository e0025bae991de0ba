"""The rows that guard a directory of the sources (guards.tsv), and those whose last run is from before a change in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from record import Record
from table import TableError

TABLE = Path(__file__).resolve().parent / "guards.tsv"
#: The board of a scenario that is named without one.
BOARD = "qemu-amd64"
#: Commits after which a guard of a changed directory is to have run again.
RECENT = 60


def table(path: Path = TABLE) -> dict[str, list[str]]:
    """The rows that guard each directory."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        directory, _, names = line.partition("\t")
        if not names.split() or directory in found:
            raise TableError(f"{path}:{number}: a directory once, a tab, and its rows")
        found[directory] = [name if "@" in name else f"{name}@{BOARD}" for name in names.split()]
    return found


@dataclass(frozen=True)
class History:
    """The commits of a checkout. Without git, as in an unpacked archive, and for a commit that it does not have, everything has changed."""

    top: Path

    def git(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What git says."""
        return subprocess.run(["git", "-C", str(self.top), *words], capture_output=True, text=True, check=False)

    def changed(self, commit: str, directories: list[str]) -> bool:
        """Whether one of them has changed since that commit."""
        return self.git("diff", "--quiet", commit, "HEAD", "--", *directories).returncode != 0

    def since(self, commit: str) -> int | None:
        """How many commits there are after that one."""
        found = self.git("rev-list", "--count", f"{commit}..HEAD")
        return int(found.stdout) if found.returncode == 0 else None

    def count(self) -> int:
        """How many commits there are."""
        return int(self.git("rev-list", "--count", "HEAD").stdout or 0)


def due(records: dict[str, Record], history: History, known: dict[str, list[str]]) -> set[str]:
    """The rows whose directory has changed since their last record, or that have none."""
    rows: dict[str, list[str]] = {}
    for directory, names in known.items():
        for name in names:
            rows.setdefault(name, []).append(directory)
    return {name for name, directories in rows.items() if name not in records or history.changed(records[name].commit, directories)}


def overdue(records: dict[str, Record], history: History, known: dict[str, list[str]]) -> list[str]:
    """Those of them whose last record is older than RECENT commits."""
    ages = {name: history.since(records[name].commit) if name in records else None for name in due(records, history, known)}
    return sorted(name for name, age in ages.items() if age is None or age > RECENT)
