"""Which scenarios `./dev test` runs: some always, those whose part of the sources has changed, and a quarter of the others by turns."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import place
from place import FarmError

TABLE = place.SCENARIOS / "guards.tsv"
# The main jobs, on both processors.
ALWAYS = (
    "flash@qemu-amd64",
    "update-healthy@qemu-amd64",
    "rollback-engine@qemu-amd64",
    "altboot-no-init@qemu-amd64",
    "flash@qemu-aarch64",
    "update-light@qemu-aarch64",
)
# Where a scenario does not need the second board's firmware and bootloader, this one is enough.
BOARD = "qemu-amd64"
# What `./dev test` runs on the other one by turns.
OTHERS_ELSEWHERE = (
    "bootloader-writes@qemu-aarch64",
    "rollback-engine@qemu-aarch64",
    "altboot-no-init@qemu-aarch64",
    "update-healthy@qemu-aarch64",
    "device-tree-kept@qemu-aarch64",
    "device-tree-missing@qemu-aarch64",
    "device-tree-before-copal@qemu-aarch64",
    "device-tree-replaced@qemu-aarch64",
    "secure-cuts@qemu-amd64-secure",
    "secure-rollback@qemu-amd64-secure",
    "secure-update@qemu-amd64-secure",
)
# What is left to `./dev prove secure-boot`.
NOT_CHOSEN = (
    "secure-altboot@qemu-amd64-secure",
    "secure-boot@qemu-amd64-secure",
    "secure-boot-refused@qemu-amd64-secure",
    "secure-install@qemu-amd64-secure",
    "secure-recovery@qemu-amd64-secure",
    "secure-reinstall@qemu-amd64-secure",
    "secure-rollback-cuts@qemu-amd64-secure",
    "secure-update-cuts@qemu-amd64-secure",
    "secure-update-refused@qemu-amd64-secure",
    "secure-update-twice@qemu-amd64-secure",
)
# So many runs of `./dev test` on commits in a row see everything.
TURNS = 4
# So many commits back, a change still has its scenarios run.
RECENT = 20


def table(path: Path = TABLE) -> dict[str, list[str]]:
    """The table: folder of the sources, scenarios, with their board where that is another one than `BOARD`."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        folder, _, names = line.partition("\t")
        if not names.split() or folder in found:
            raise FarmError(f"{path}:{number}: a folder once, a tab, and its scenarios")
        found[folder] = names.split()
    return found


def git(*words: str) -> str:
    """What git says of this checkout; nothing where there is none, as in an unpacked archive."""
    done = subprocess.run(["git", "-C", str(place.TOP), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def changed() -> list[str]:
    """Files that the last commits, and whatever is not committed yet, have changed; the latest first."""
    now = [line[3:] for line in git("status", "--porcelain").splitlines()]
    return list(dict.fromkeys(now + git("log", f"-{RECENT}", "--name-only", "--format=").split("\n")))


def commits() -> int:
    """How many commits there are."""
    return int(git("rev-list", "--count", "HEAD") or 0)


def on_its_board(name: str) -> str:
    """A name of the table as a run."""
    return name if "@" in name else f"{name}@{BOARD}"


def guards(files: Iterable[str], known: dict[str, list[str]]) -> list[str]:
    """The scenarios of what has changed, in the order of the files."""
    found: dict[str, None] = {}
    for file in files:
        for folder, names in known.items():
            if file.startswith(f"{folder}/"):
                found.update(dict.fromkeys(on_its_board(name) for name in names))
    return list(found)


def choice(names: Iterable[str], files: Iterable[str], turn: int, known: dict[str, list[str]]) -> list[str]:
    """The runs in the order of their weight: without those at the end, a test says less. `names`: the scenarios for `BOARD`."""
    others = sorted({f"{name}@{BOARD}" for name in names} | set(OTHERS_ELSEWHERE))
    others = [run for run in others if run not in ALWAYS]
    return list(dict.fromkeys([*ALWAYS, *guards(files, known), *others[turn % TURNS :: TURNS]]))
