#!/usr/bin/env python3
"""Warns of figures of docs/benchmarks.md that are older than what they measure, for ./dev release.

    python3 scripts/figures.py

Each part of the page names the commit that was measured. A later commit counts if it changes what the part measures: comments, names and moves do
not. A part is old if the last commit that counts is more than MOST commits after the one that was measured.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PAGE = "docs/benchmarks.md"

#: So many commits may lie between the figures and the last change of what they measure.
MOST = 30

#: Parts of the page, and what they measure.
MEASURED = {
    "Flash": ["src/flash", "src/image", "src/disk", "src/sys/block.rs", "benches/flash.py"],
    "Update": ["src/update", "src/engine", "src/hooks", "src/job", "benches/update.py"],
    "Time left": ["src/progress", "benches/progress.py"],
    "Encrypted installation": ["src/install", "src/luks", "src/flash", "src/image", "benches/encrypted.py"],
}

#: As the benchmarks write it.
COMMIT = re.compile(r"^Measured on [0-9-]+, commit ([0-9a-f]{7,40})", re.MULTILINE)

COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^!\[\n][^\n]*$", re.DOTALL | re.MULTILINE)
NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
END = re.compile(r"[;{}]")


def git(top: Path, *words: str) -> str | None:
    """What git prints; nothing where it fails."""
    done = subprocess.run(["git", "-C", top, *words], capture_output=True, encoding="utf-8", errors="replace", timeout=120, check=False)
    return done.stdout if done.returncode == 0 else None


def statements(text: str) -> collections.Counter[str]:
    """The statements of a program, without comments, names and blanks."""
    bare = NAMES.sub("x", COMMENTS.sub("", text))
    return collections.Counter(filter(None, ("".join(one.split()) for one in END.split(bare))))


def counts(top: Path, commit: str, paths: list[str]) -> bool:
    """Whether a commit changes more there than comments, names and places."""
    changed = (git(top, "diff-tree", "-r", "--no-commit-id", "--name-only", "--no-renames", f"{commit}^", commit, "--", *paths) or "").split()

    def all_of(of: str) -> collections.Counter[str]:
        return sum((statements(git(top, "show", f"{of}:{path}") or "") for path in changed), collections.Counter())

    return all_of(f"{commit}^") != all_of(commit)


def warnings(top: Path) -> list[str]:
    """Which parts are old, and why."""
    found = []
    for part in re.split(r"(?m)^## ", (top / PAGE).read_text(encoding="utf-8"))[1:]:
        name = part.split("\n", 1)[0]
        if name not in MEASURED:
            found.append(f"{PAGE}: scripts/figures.py does not say what `{name}` measures")
            continue
        measured = COMMIT.search(part)
        later = measured and git(top, "rev-list", f"{measured[1]}..HEAD", "--", *MEASURED[name])
        if later is None or measured is None:
            found.append(f"{PAGE}: which commit the figures of `{name}` are of is not known: run ./dev bench")
            continue
        last = next((commit for commit in later.split() if counts(top, commit, MEASURED[name])), None)
        between = int((last and git(top, "rev-list", "--count", f"{measured[1]}..{last}")) or 0)
        if between > MOST:
            found.append(f"{PAGE}: the figures of `{name}` are {between} commits older than the last change of what they measure "
                         f"({(last or '')[:12]}): run ./dev bench")
    return found


def main() -> int:
    """Prints the warnings. They stop nothing."""
    for text in warnings(TOP):
        print(f"dev: {text}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
