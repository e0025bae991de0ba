"""All that a board keeps while its power is off, and each change of it in one order: its disk, the variables of its firmware, its TPM.

Disk and variables are served by NBD, and commands of the TPM pass through here. A board does one thing after the other: what comes in first was
done first.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from cut import Request
from nbd import Served
from place import FarmError

DISK, VARIABLES, TPM, MEDIUM = "disk", "variables", "tpm", "medium"
#: Where swtpm keeps what outlasts the power, in its folder.
STATE = "tpm2-00.permall"
#: Of swtpm's control channel (its man page swtpm_ioctls): the command that comes with the descriptor for the commands of the TPM.
SET_DATAFD = 0x10
#: Commands that make and remove an index of the TPM's memory, and write it (TCG, TPM 2.0 Library, part 2: TPM_CC).
NV_DEFINE, NV_UNDEFINE, NV_WRITE = 0x12A, 0x122, 0x137


@dataclass(frozen=True)
class Change:
    """A request to a disk, or a command of the TPM with its answer. `state` is the number of the TPM's state afterwards."""

    store: str
    request: Request | None = None
    command: bytes = b""
    answer: bytes = b""
    state: int = 0


def code(change: Change) -> int:
    """The command of the TPM that was carried out; 0 for a failed one, and for another change."""
    if change.store != TPM or struct.unpack_from(">I", change.answer, 6)[0] != 0:
        return 0
    return int(struct.unpack_from(">I", change.command, 6)[0])


class Recorder:
    """The changes, in a folder: the data of all writes in `data`, a state of the TPM in `tpm-NUMBER`, the rest in `changes`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes: list[Change] = []
        self.lock = threading.Lock()
        self.data = (folder / "data").open("r+b" if (folder / "data").exists() else "w+b")
        self.end = 0
        self.tpm = b""
        self.states = 0

    def add_write(self, store: str, at: int, length: int, data: bytes | None) -> None:
        """A write; zeroes where there are no data."""
        with self.lock:
            request = Request(at, length, self.end, flush=False, fua=False, discard=False)
            # A hole takes no space.
            if data is None or data.count(0) == length:
                self.data.truncate(self.end + length)
            else:
                self.data.seek(self.end)
                self.data.write(data)
            self.end += length
            self.changes.append(Change(store, request))

    def add_flush(self, store: str) -> None:
        """A flush."""
        with self.lock:
            self.changes.append(Change(store, Request(0, 0, self.end, flush=True, fua=False, discard=False)))

    def add_command(self, command: bytes, answer: bytes, state: bytes) -> None:
        """A command of the TPM, and what it keeps afterwards."""
        with self.lock:
            if state != self.tpm:
                self.states += 1
                (self.folder / f"tpm-{self.states}").write_bytes(state)
                self.tpm = state
            self.changes.append(Change(TPM, command=command, answer=answer, state=self.states))

    def save(self) -> None:
        """Writes the list; nothing more comes."""
        self.data.close()
        with (self.folder / "changes").open("w") as file:
            for change in self.changes:
                at = change.request
                words = [change.store, at.at, at.length, at.data, at.flush] if at else [change.store, change.command.hex(), change.answer.hex(), change.state]
                file.write(json.dumps(words) + "\n")


def load(folder: Path) -> list[Change]:
    """The changes in a folder."""
    found = []
    for line in (folder / "changes").read_text().splitlines():
        store, *words = json.loads(line)
        if store == TPM:
            found.append(Change(store, None, bytes.fromhex(words[0]), bytes.fromhex(words[1]), words[2]))
        else:
            at, length, data, flush = words
            found.append(Change(store, Request(at, length, data, flush, fua=False, discard=False)))
    return found


class RecordedDisk(Served):
    """A disk, or the chip with the variables."""

    def __init__(self, path: Path, at: Path, store: str, recorder: Recorder) -> None:
        self.store = store
        self.recorder = recorder
        super().__init__(path, at)

    def write(self, offset: int, data: bytes) -> None:
        self.recorder.add_write(self.store, offset, len(data), data)
        super().write(offset, data)

    def zero(self, offset: int, length: int) -> None:
        self.recorder.add_write(self.store, offset, length, None)
        super().write(offset, bytes(length))

    def flush(self) -> None:
        self.recorder.add_flush(self.store)


class RecordedTpm:
    """Stands between QEMU, which connects to `at`, and swtpm, which listens on `to` and keeps its state in `folder`."""

    def __init__(self, at: Path, to: Path, folder: Path, recorder: Recorder) -> None:
        self.to = to
        self.state = folder / STATE
        self.recorder = recorder
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(at))
        self.server.listen(1)
        self.peers: list[socket.socket] = []
        self.seen: tuple[int, int, int] | None = None
        self.kept = b""
        threading.Thread(target=self.serve, daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        for peer in [*self.peers, self.server]:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            peer.close()

    def serve(self) -> None:
        """The control channel, with the descriptor exchanged that the commands come through."""
        try:
            guest, _ = self.server.accept()
            tpm = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            tpm.connect(str(self.to))
            self.peers += [guest, tpm]
            while True:
                ready, _, _ = select.select([guest, tpm], [], [])
                if tpm in ready:
                    data = tpm.recv(65536)
                    if not data:
                        break
                    guest.sendall(data)
                if guest in ready:
                    data, descriptors, _, _ = socket.recv_fds(guest, 65536, 1)
                    if not data:
                        break
                    if descriptors:
                        if struct.unpack_from(">I", data)[0] != SET_DATAFD:
                            raise FarmError("QEMU gives a descriptor with another command than expected")
                        ours, its = socket.socketpair()
                        self.peers += [ours, socket.socket(fileno=descriptors[0])]
                        threading.Thread(target=self.commands, args=(self.peers[-1], ours), daemon=True).start()
                        socket.send_fds(tpm, [data], [its.fileno()])
                        its.close()
                    else:
                        tpm.sendall(data)
        except (OSError, ValueError):
            # One of the two is gone: the power is off.
            pass
        self.close()

    def commands(self, guest: socket.socket, tpm: socket.socket) -> None:
        """The commands and their answers."""
        try:
            while True:
                command = message(guest)
                tpm.sendall(command)
                answer = message(tpm)
                self.recorder.add_command(command, answer, self.current())
                guest.sendall(answer)
        except (OSError, EOFError):
            pass

    def current(self) -> bytes:
        """What swtpm keeps now. It writes another file and gives that the name, before it answers."""
        try:
            at = os.stat(self.state)
            seen = (at.st_ino, at.st_mtime_ns, at.st_size)
            if seen != self.seen:
                self.kept = self.state.read_bytes()
                self.seen = seen
        except FileNotFoundError:
            pass
        return self.kept


def message(peer: socket.socket) -> bytes:
    """A command or an answer: a tag, the length of all, a code, the rest."""
    data = b""
    length = 10
    while len(data) < length:
        part = peer.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
        if len(data) == 10:
            (length,) = struct.unpack_from(">I", data, 2)
    return data
