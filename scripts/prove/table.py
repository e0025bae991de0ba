"""The table of the long proofs, and the rows that it makes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

PARTS = Path(__file__).resolve().parent / "parts.tsv"
KINDS = ("about", "long", "test", "scenarios", "command")
#: Minutes that a row takes at most; of a part that says why it has longer ones.
LIMIT, LONG_LIMIT = 15, 60


class TableError(Exception):
    """A table is wrong, or the command line; the text says which and how."""


@dataclass(frozen=True)
class Row:
    """What is run as a whole, and recorded."""

    part: str
    kind: str
    # Program and test; or scenario and board; or the words of a command.
    words: tuple[str, ...]
    # Of how many shares of the cases of a test this is which; (1, 1) is all of them.
    share: tuple[int, int] = (1, 1)
    # Modules of src that it guards; none named: all.
    guards: tuple[str, ...] = ()
    minutes: int = LIMIT

    @property
    def name(self) -> str:
        """As in the record."""
        if self.kind == "scenario":
            return "@".join(self.words)
        return " ".join(self.words) + (f" {self.share[0]}/{self.share[1]}" if self.share[1] > 1 else "")


@dataclass
class Part:
    """One part of the proofs."""

    name: str
    about: str
    minutes: int = LIMIT
    # Kind, words and guarded modules of each line.
    lines: list[tuple[str, list[str], tuple[str, ...]]] = field(default_factory=list)

    def rows(self, scenarios: dict[str, list[str]]) -> list[Row]:
        """All of them; `scenarios` has those of each board."""
        found = []
        # What a command repeats, with other power cuts each time, is no row by itself.
        repeated = {words[0] for kind, words, _ in self.lines if kind == "command"}
        for kind, words, guards in self.lines:
            if kind == "command":
                found.append(Row(self.name, kind, tuple(words), guards=guards, minutes=self.minutes))
            elif kind == "scenarios":
                found += [Row(self.name, "scenario", (name, words[0]), guards=guards) for name in scenarios[words[0]] if name not in repeated]
            else:
                for test in words[1:]:
                    name, _, count = test.partition("/")
                    total = int(count or 1)
                    found += [Row(self.name, kind, (words[0], name), (n, total), guards, self.minutes) for n in range(1, total + 1)]
        return found


def parts(table: Path = PARTS) -> dict[str, Part]:
    """All of them, in their order."""
    found: dict[str, Part] = {}
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = line.split("\t")
        if len(words) not in (3, 4) or words[1] not in KINDS or (words[0] in found) == (words[1] == "about"):
            raise TableError(f"{table}:{number}: a part begins with `NAME, about, TEXT`; then come `NAME, test|scenarios|command, WHAT[, MODULES]`")
        name, kind, text = words[:3]
        if kind == "about":
            found[name] = Part(name, text)
        elif kind == "long":
            found[name].minutes = LONG_LIMIT
        elif kind == "test" and not all(re.fullmatch(r"[\w:]+(/[1-9]\d*)?", word) for word in text.split()):
            raise TableError(f"{table}:{number}: a test is NAME, or NAME/N for N shares of its cases")
        else:
            found[name].lines.append((kind, text.split(), tuple(words[3].split()) if len(words) > 3 else ()))
    return found


def sampled(table: Path = PARTS) -> set[tuple[str, str, str]]:
    """Part, program and name of each test that is only sampled in ./dev test."""
    lines = [(part.name, words) for part in parts(table).values() for kind, words, _ in part.lines if kind == "test"]
    return {(part, words[0], name.partition("/")[0]) for part, words in lines for name in words[1:]}
