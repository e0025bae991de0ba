"""The table of the long proofs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PARTS = Path(__file__).resolve().parent / "parts.tsv"


class PartError(Exception):
    """A table is wrong, or the command line; the text says which and how."""


@dataclass
class Part:
    """One part of the proofs."""

    name: str
    about: str
    # Kind and words of each row.
    rows: list[tuple[str, list[str]]] = field(default_factory=list)


def parts(table: Path = PARTS) -> dict[str, Part]:
    """All of them, in their order."""
    found: dict[str, Part] = {}
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = line.split("\t")
        if len(words) < 3 or words[1] not in ("about", "test", "scenarios", "command") or (words[0] in found) == (words[1] == "about"):
            raise PartError(f"{table}:{number}: a part begins with `NAME, about, TEXT`; then come rows `NAME, test|scenarios|command, WHAT`")
        if words[1] == "about":
            found[words[0]] = Part(words[0], words[2])
        else:
            found[words[0]].rows.append((words[1], words[2].split()))
    return found


def sampled(table: Path = PARTS) -> set[tuple[str, str, str]]:
    """Part, program and name of each test that is only sampled in ./dev test."""
    rows = [(part.name, words) for part in parts(table).values() for kind, words in part.rows if kind == "test"]
    return {(part, words[0], name) for part, words in rows for name in words[1:]}
