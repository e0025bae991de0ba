"""Where things are: the prepared guests, the farm's cache, the binaries under test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BOARDS = TOP / "qemu/boards"
SCENARIOS = TOP / "qemu/scenarios"

# Everything is to end: who waits fails.
STOPPED = threading.Event()

# Guests that run at the same time, over all programs of this user: each takes a processor. tests/guest counts them too.
GUESTS = 2

# Bytes that a board takes in the farm's cache: 2.5 GiB of images, 5 of states, 3 of two runs with their records of writes.
SPACE = 10 << 30
# And the demo: images, and one run.
DEMO_SPACE = 5 << 30


class FarmError(Exception):
    """Something did not go as expected; the text names it and what to do."""


class NotRun(Exception):
    """This machine lacks what a scenario needs."""


def guests() -> Path:
    """The folder that qemu/prepare.sh filled."""
    if given := os.environ.get("COPAL_GUESTS"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "copal/guests"


def part(name: str, top: Path | None = None) -> Path:
    """A part of it, or of another such directory."""
    top = top or guests()
    at = top / name
    if not (at / "stamp").is_file():
        why = top / f"{name}.why"
        raise NotRun(f"no {at}: {why.read_text().strip() if why.is_file() else f'run qemu/prepare.sh {top}'}")
    return at


def farm() -> Path:
    """The farm's own cache: images, states."""
    at = Path(os.environ.get("COPAL_FARM") or guests().parent / "farm")
    at.mkdir(parents=True, exist_ok=True)
    return at


def need_space(boards: int, each: int = SPACE) -> None:
    """Fails where there is no space for the images, states and disks of so many boards."""
    at = farm()
    free = shutil.disk_usage(at).free
    ours = 0
    # Another run may be at work there: what vanishes is passed over, folders by os.walk itself.
    for top, folders, files in os.walk(at):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                ours += Path(top, name).lstat().st_blocks * 512
    if free + ours < boards * each:
        raise FarmError(
            f"{at}: {boards} board{'s' * (boards > 1)} need {boards * each >> 30} GiB there, and {free + ours >> 30} GiB are "
            "free: free some space, or name another folder with COPAL_FARM"
        )


def binary(arch: str) -> Path:
    """The static binary under test for that processor: that of ./dev build, or else that of ./dev demo."""
    at = Path(os.environ.get("COPAL_DIST") or TOP / "target/dist") / f"copal-{arch}"
    if "COPAL_DIST" not in os.environ and not at.is_file() and (of_demo := TOP / "target/demo" / at.name).is_file():
        return of_demo
    if not at.is_file():
        raise FarmError(f"no {at}: run ./dev build")
    return at


def pause(what: str) -> None:
    """Between two looks at what is waited for."""
    if STOPPED.wait(0.1):
        raise FarmError(f"{what}: ended while waiting")


@contextlib.contextmanager
def locked(path: Path, seconds: float, what: str) -> Iterator[None]:
    """Holds a lock over all programs of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise FarmError(f"{what}: {path} has been locked by another program for {seconds:.0f} s") from None
            pause(what)
        yield


@contextlib.contextmanager
def guest_place(seconds: float = 1500) -> Iterator[None]:
    """One of the places for guests."""
    end = time.monotonic() + seconds
    while True:
        for number in range(GUESTS):
            file = (guests() / f"place-{number}").open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            with file:
                yield
            return
        if time.monotonic() > end:
            raise FarmError(f"no place for another guest within {seconds:.0f} s: see who holds {guests()}/place-*")
        pause("a place for another guest")
