"""States of a board from which scenarios begin. Each is made once and kept, by the content of all that goes into it.

A dead state is what lies on the disks; a live one also is the memory of a machine that ran on them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import board as boards
import encrypted
import look
import machine as machines
import place
import recorded
import secure
from board import Board, Hardware
from machine import Machine
from place import FarmError, NotRun

# `pending`: the release `good` is installed and waits for a reboot; `pending-NAME`: another one.
LIVE = re.compile(r"running|pending(-[a-z-]+)?")
DEAD = ("blank", "dirty", "installer", "flashed", "encrypted", "recorded")
# What decides how a saved machine looks.
SOURCES = ("board.py", "machine.py", "states.py", "agent.py", "encrypted.py", "look.py", "recorded.py", "recorder.py", "nbd.py")
# The internal disk, where no image says how large it is; larger than any.
DISK = 3 << 30
# How long another run may take to make a state that this one waits for.
MAKING = 1200.0
# Longer than any run.
KEEP = 2 * 3600.0
IMAGES = 2400.0


@dataclass(frozen=True)
class State:
    """One that was made."""

    name: str
    folder: Path
    facts: dict[str, Any]

    @property
    def live(self) -> bool:
        """Whether it is of a machine that runs."""
        return (self.folder / "memory").exists()


class Images:
    """The images of a board, made when they are first asked for."""

    cache: dict[str, Any] = {}

    @classmethod
    def of(cls, board: str) -> Any:
        """What images.build has made for that board."""
        with place.locked(place.farm() / "images.lock", IMAGES, "the making of images"):
            if board not in cls.cache:
                # Only where they are needed: looking at scenarios does without.
                import images
                import tree

                wanted = boards.load(board)
                for kind, made in images.BOARDS.items():
                    if (made.machine, made.backend, made.secure, made.sector) == (wanted.arch, wanted.backend, wanted.secure, wanted.sector):
                        break
                else:
                    raise FarmError(
                        f"there is no recipe of images for {wanted.arch} with {wanted.backend}{' and secure boot' * wanted.secure}, which {board} is: see BOARDS in "
                        "qemu/farm/images.py"
                    )
                copal = place.binary(images.BOARDS[kind].machine)
                try:
                    cls.cache[board] = images.build(kind, place.guests(), place.farm(), copal)
                except (tree.Fault, ValueError, OSError, subprocess.SubprocessError) as error:
                    raise FarmError(f"the images of {board}: {error}") from None
            return cls.cache[board]


def identity(path: Path) -> str:
    """Of an image: its content decides its path, so this says enough."""
    at = path.stat()
    return f"{path} {at.st_size} {at.st_mtime_ns}"


def key(board: Board, accelerator: str) -> str:
    """Of everything that the states of a board come from."""
    built = Images.of(board.name)
    here = Path(__file__).resolve().parent
    parts = [board.text, board.disk, accelerator, (place.part(board.qemu.partition("/")[0]) / "stamp").read_text()]
    parts += [identity(Path(path)) for path in (built.disk, built.releases, built.flasher)]
    parts += [(here / name).read_text() for name in SOURCES]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextmanager
def folder(name: str) -> Iterator[tuple[Path, Path]]:
    """A folder for one run's disks, and a short one for sockets; both go away."""
    runs = place.farm() / "runs"
    runs.mkdir(exist_ok=True)
    at = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=runs))
    sockets = Path(tempfile.mkdtemp(prefix="farm-"))
    try:
        yield at, sockets
    finally:
        shutil.rmtree(at, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)


def hardware(board: Board, at: Path, sockets: Path, live: bool) -> Hardware:
    """The disks and chips in a folder, plugged in."""
    return Hardware(
        folder=at,
        sockets=sockets,
        disk=at / "disk",
        flash=tuple(sorted(at.glob("flash?"))),
        # A saved machine does not have the registers of its SD controller.
        emmc=at / "emmc" if board.emmc and not live else None,
        tpm=at / "tpm" if board.tpm else None,
        releases=Path(Images.of(board.name).releases),
        incoming=live,
    )


def chips(board: Board, at: Path, signed: Path | None = None) -> None:
    """The firmware's flash and the eMMC as the factory delivers them. `signed`: the signed parts of a secure board's images, where those are not its own."""
    shutil.copyfile(boards.prepared(board.code), at / "flash0")
    if board.variables:
        (at / "flash1").write_bytes(variables(board, signed))
    if board.flash_size:
        # Holes where an erased flash has ones: no program reads what is not used.
        empty(at / "flash1", 0)
        for path in (at / "flash0", at / "flash1"):
            os.truncate(path, board.flash_size)
    if board.tpm:
        # One that was never switched on.
        (at / "tpm").mkdir()
    if board.emmc:
        empty(at / "emmc", 2 * board.emmc_boot + board.emmc)


def variables(board: Board, signed: Path | None = None) -> bytes:
    """The flash with the firmware's variables of a new board."""
    data = boards.prepared(board.variables).read_bytes()
    return secure.factory(data, signed or Images.of(board.name).signed) if board.secure else data


def empty(path: Path, size: int) -> None:
    """A file of holes."""
    with path.open("wb") as file:
        file.truncate(size)


def make(board: Board, name: str, accelerator: str, say: Callable[[str], None]) -> State:
    """A state, made if it is not there."""
    top = place.farm() / "states" / f"{board.name}-{key(board, accelerator)}"
    at = top / name
    forget(board, top)
    with place.locked(top / f"{name}.lock", MAKING, f"the making of the state {name} of {board.name}"):
        if not (at / "facts").is_file():
            begun = time.monotonic()
            say(f"making the state {name}")
            shutil.rmtree(at, ignore_errors=True)
            if LIVE.fullmatch(name):
                make_live(board, name, accelerator, at, say)
            else:
                make_dead(board, name, accelerator, at)
            facts = {"seconds": round(time.monotonic() - begun, 1)}
            (at / "facts.new").write_text(json.dumps(facts))
            os.rename(at / "facts.new", at / "facts")
            say(f"the state {name} took {facts['seconds']} s")
    return State(name, at, json.loads((at / "facts").read_text()))


def forget(board: Board, wanted: Path) -> None:
    """Removes states of other images, once no run can be at work with them."""
    wanted.mkdir(parents=True, exist_ok=True)
    os.utime(wanted)
    forget_others(board, wanted)


def forget_others(board: Board, wanted: Path) -> None:
    """The same, where the wanted one may not be there yet."""
    for old in wanted.parent.glob(f"{board.name}-*"):
        if old != wanted and time.time() - old.stat().st_mtime > KEEP:
            shutil.rmtree(old, ignore_errors=True)


def make_dead(board: Board, name: str, accelerator: str, at: Path) -> None:
    """Disks and chips of a machine that is off."""
    at.mkdir(parents=True)
    image = Path(Images.of(board.name).disk)
    size = max(image.stat().st_size, DISK)
    if name == "encrypted" and board.secure:
        with place.guest_place(), folder(f"state-{name}-{board.name}") as (run, sockets):
            chips(board, run)
            encrypted.make(board, Images.of(board.name), hardware(board, run, sockets, live=False), accelerator, size)
            for path in plugged(run):
                machines.copy(path, at / path.name)
        return
    if name == "recorded" and board.secure:
        with place.guest_place(), folder(f"state-{name}-{board.name}") as (run, sockets):
            chips(board, run)
            dirty(run / "disk", image, size)
            medium = run / "medium"
            machines.copy(Path(Images.of(board.name).flasher), medium)
            recorded.record(board, hardware(board, run, sockets, live=False), medium, accelerator, run / "recording")
            for folder_of in (recorded.BEFORE, recorded.CHANGES):
                machines.copy(run / "recording" / folder_of, at / folder_of)
            for path in plugged(run):
                machines.copy(path, at / path.name)
        return
    chips(board, at)
    if name == "flashed":
        machines.copy(image, at / "disk")
        os.truncate(at / "disk", size)
    elif name == "blank":
        empty(at / "disk", size)
    elif name == "dirty":
        dirty(at / "disk", image, size)
    elif name == "installer":
        installer(board, at / "disk", size)
    else:
        raise FarmError(f"there is no recipe of the state {name} for {board.name}")


def installer(board: Board, disk: Path, size: int) -> None:
    """A disk that starts an installer which replaces it: the medium, with `installer.migrate.force` in its `config.json`."""
    machines.copy(Path(Images.of(board.name).flasher), disk)
    os.truncate(disk, size)
    settings = json.loads(look.boot_file(disk, "config.json") or b"{}")
    settings["installer"] = {**settings.get("installer", {}), "migrate": {"force": True}}
    changed = disk.with_name("config.json")
    changed.write_text(json.dumps(settings, indent=2) + "\n")
    look.put_boot_file(disk, "config.json", changed)
    changed.unlink()


def dirty(disk: Path, image: Path, size: int) -> None:
    """A disk that had another system: its table, a stale backup of it at the end, noise wherever the image has zeroes too."""
    noise = random.Random(1).randbytes(1 << 20)
    with image.open("rb") as source, disk.open("wb") as file:
        table = source.read(34 * 512)
        file.truncate(size)
        for offset in range(0, size, 16 << 20):
            file.seek(offset)
            file.write(noise)
        file.seek(0)
        file.write(table)
        source.seek(-33 * 512, os.SEEK_END)
        backup = source.read()
        file.seek(size - 33 * 512)
        file.write(backup[:-512] + moved(backup[-512:], size // 512 - 1))


def moved(header: bytes, last: int) -> bytes:
    """The header of a backup GPT as it is on a disk with that last sector: its own place, that of the entries before it, its checksum."""
    made = bytearray(header)
    struct.pack_into("<Q", made, 24, last)
    struct.pack_into("<Q", made, 72, last - 32)
    struct.pack_into("<I", made, 16, 0)
    struct.pack_into("<I", made, 16, zlib.crc32(made[:92]))
    return bytes(made)


def make_live(board: Board, name: str, accelerator: str, at: Path, say: Callable[[str], None]) -> None:
    """Runs a machine to where the state begins, and saves it."""
    before = make(board, "flashed" if name == "running" else "running", accelerator, say)
    release = name.partition("-")[2] or "good"
    with place.guest_place(), folder(f"state-{name}-{board.name}") as (run, sockets):
        plug(before, run)
        if before.live:
            # How the disk came to be what it is: a cut may come anywhere in that.
            (run / "log").touch()
        log = run / "log" if before.live else None
        has = replace(hardware(board, run, sockets, live=True), incoming=before.live, disk_log=log)
        machine = Machine(board, has, accelerator)
        try:
            if before.live:
                machine.restore(before.folder / "memory")
                machine.ready(60)
                machine.must(f"hostapp-update -f /releases/{release}.tar", 900)
            else:
                machine.start()
                machine.ready(board.boot_seconds)
                # Its first client starts it.
                machine.must("systemctl start balena-host.service", board.boot_seconds)
                settle(machine, board)
            machine.must("sync; echo 3 >/proc/sys/vm/drop_caches; sync")
            at.mkdir(parents=True)
            machine.save(at / "memory")
            for path in plugged(run):
                machines.copy(path, at / path.name)
            if log is not None:
                machines.copy(log, at / "log")
                os.link(before.folder / "disk", at / "before")
        except FarmError as error:
            kept = place.farm() / "failed" / f"state-{name}-{board.name}"
            kept.mkdir(parents=True, exist_ok=True)
            journal = f"the system's journal: {kept}/journal\n" if machine.on and machine.save_journal(kept / "journal") else ""
            raise FarmError(f"the state {name} of {board.name}: {error}\n{journal}{machines.tail(machine.console())}") from None
        finally:
            machine.kill()


def settle(machine: Machine, board: Board) -> None:
    """Waits until whatever the boot has started is up, the engine too."""
    end = time.monotonic() + board.boot_seconds
    script = "jobs=$(systemctl list-jobs --no-legend) && echo $jobs && [ -z \"$jobs\" ]"
    while True:
        answer = machine.call(script, 60)
        if answer.status == 0:
            return
        if time.monotonic() > end:
            raise FarmError(f"the system does not settle within {board.boot_seconds} s: {answer.output.strip()}")
        time.sleep(0.5)


def plugged(at: Path) -> list[Path]:
    """The disks and chips in a folder; of a TPM its folder."""
    return sorted(path for path in at.iterdir() if path.name in ("disk", "emmc", "tpm") or path.name.startswith("flash"))


def plug(state: State, at: Path) -> None:
    """A copy of a state's disks and chips for one run."""
    for path in plugged(state.folder):
        machines.copy(path, at / path.name)
