"""What a board keeps, with each change of it. And the state `recorded` of a secure board: an encrypted installation onto a used disk, with each change of
disk, variables and TPM.

A power cut between two changes leaves what was there before them, and what came until then: of the disk all that was flushed, and of the writes after
that any part.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import cut
import machine as machines
import recorder
from board import Board, Hardware
from machine import Machine
from place import FarmError
from recorder import Change, Recorder, RecordedDisk, RecordedTpm

#: Of a medium that installs.
SECONDS = 900.0
#: What is in the folder of the state besides disks and chips as they are in the end: those from before, and the changes.
BEFORE, CHANGES = "before", "changes"


class Recording:
    """Records each change of a board from now on, in a folder; as disks and chips were before is there, too. With a medium, also its changes: as that was
    before is in the cache of images."""

    def __init__(self, hardware: Hardware, to: Path, medium: Path | None = None) -> None:
        (to / BEFORE).mkdir(parents=True)
        (to / CHANGES).mkdir()
        for path in (hardware.disk, hardware.flash[1], hardware.tpm):
            if path is not None and path.exists():
                machines.copy(path, to / BEFORE / path.name)
        self.folder = to
        self.changes = Recorder(to / CHANGES)
        at = hardware.sockets
        self.servers: list[RecordedDisk | RecordedTpm] = [
            RecordedDisk(hardware.disk, at / "disk", recorder.DISK, self.changes),
            RecordedDisk(hardware.flash[1], at / "variables", recorder.VARIABLES, self.changes),
        ]
        self.hardware = replace(hardware, disk_server=at / "disk", variables_server=at / "variables")
        if hardware.tpm is not None:
            self.servers.append(RecordedTpm(at / "tpm-recorded", at / "tpm", hardware.tpm, self.changes))
            self.hardware = replace(self.hardware, tpm_socket=at / "tpm-recorded")
        if medium is not None:
            self.servers.append(RecordedDisk(medium, at / "medium", recorder.MEDIUM, self.changes))
            self.hardware = replace(self.hardware, medium_server=at / "medium")

    def end(self) -> None:
        """Once the power is off. Can be repeated."""
        for server in self.servers:
            server.close()
        if self.servers:
            self.changes.save()
        self.servers = []


def record(board: Board, hardware: Hardware, medium: Path, accelerator: str, to: Path) -> None:
    """Installs from the medium onto new hardware; `to` gets what was there before, and the changes."""
    recording = Recording(hardware, to)
    machine = Machine(board, replace(recording.hardware, medium=medium), accelerator)
    try:
        machine.start()
        machine.wait_power_off(SECONDS)
    except FarmError as error:
        raise FarmError(f"the recorded installation: {error}\n{machines.tail(machine.console())}") from None
    finally:
        machine.kill()
        recording.end()


@dataclass(frozen=True)
class Cut:
    """A power cut after so many changes; the seed says what the disk keeps of what was not flushed."""

    count: int
    seed: int


def first_change(changes: list[Change]) -> int:
    """The first one that copal makes: an index for the passphrase in the TPM."""
    for number, change in enumerate(changes):
        if recorder.code(change) in (recorder.NV_UNDEFINE, recorder.NV_DEFINE):
            return number
    raise FarmError("the recorded installation does not use the TPM's memory")


def restore(state: Path, at: Path, after: Cut) -> dict[str, int]:
    """Makes of the disks and chips in the folder of a run what they are after a cut; how many sectors the disk kept and lost."""
    before, changes = state / BEFORE, recorder.load(state / CHANGES)[: after.count]
    data = state / CHANGES / "data"
    for name in ("disk", "flash1"):
        (at / name).unlink()
        machines.copy(before / name, at / name)
    writes = {store: [change.request for change in changes if change.store == store and change.request] for store in (recorder.DISK, recorder.VARIABLES)}
    counts = cut.play(at / "disk", data, writes[recorder.DISK], cut.chance(after.seed))
    # A chip keeps what was written at once.
    cut.play(at / "flash1", data, writes[recorder.VARIABLES], lambda *_: True)
    shutil.rmtree(at / "tpm")
    machines.copy(before / "tpm", at / "tpm")
    number = max((change.state for change in changes), default=0)
    if number:
        (at / "tpm" / recorder.STATE).write_bytes((state / CHANGES / f"tpm-{number}").read_bytes())
    return counts
