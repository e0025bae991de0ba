"""The host's end of the agent's port: requests and answers are lines."""

from __future__ import annotations

import base64
import itertools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from place import FarmError

# A request without an answer may have been lost with the system: it is sent again.
ASK_AGAIN = 3.0


@dataclass(frozen=True)
class Answer:
    """What a command in the guest came to."""

    status: int
    output: str


class Agent:
    """The program in the guest that runs commands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket: socket.socket | None = None
        self.left = b""
        self.ids = itertools.count(1)

    def close(self) -> None:
        """Lets go of the port."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.left = b""

    def send(self, line: str) -> None:
        """Sends one line. QEMU's end of the socket is there as long as QEMU is."""
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(5)
            self.socket.connect(str(self.path))
        self.socket.sendall(line.encode() + b"\n")

    def line(self, seconds: float) -> str | None:
        """The next line, or none in that time."""
        assert self.socket is not None
        end = time.monotonic() + seconds
        while b"\n" not in self.left:
            left = end - time.monotonic()
            if left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                return None
            except OSError as error:
                # Another thread has ended the machine.
                raise FarmError(f"the agent's port is gone: {error}") from None
            if not data:
                raise FarmError("QEMU has closed the agent's port")
            self.left += data
        line, self.left = self.left.split(b"\n", 1)
        return line.decode(errors="replace")

    def ping(self, seconds: float, check: Callable[[], None]) -> None:
        """Waits until the agent answers. `check` is called again and again, and may raise."""
        end = time.monotonic() + seconds
        asked = 0.0
        mine: set[str] = set()
        while True:
            check()
            if time.monotonic() - asked > ASK_AGAIN:
                word = str(next(self.ids))
                mine.add(word)
                try:
                    self.send(f"{word} ping")
                except OSError:
                    # QEMU may not listen yet, and a guest that does not read lets the socket fill up.
                    self.close()
                asked = time.monotonic()
            line = self.line(0.2) if self.socket is not None else time.sleep(0.2)
            if line and line.split(" ")[0] in mine:
                return
            if time.monotonic() > end:
                raise FarmError(f"the agent does not answer within {seconds:.0f} s")

    def call(self, script: str, seconds: float, check: Callable[[], None]) -> Answer:
        """Runs a script with bash, to its end."""
        word = str(next(self.ids))
        self.send(f"{word} {base64.b64encode(script.encode()).decode()}")
        end = time.monotonic() + seconds
        while True:
            check()
            line = self.line(0.2)
            if line and line.startswith(word + " "):
                _, status, output = (line + " ").split(" ")[:3]
                return Answer(int(status), base64.b64decode(output).decode(errors="replace"))
            if time.monotonic() > end:
                raise FarmError(f"`{script.splitlines()[0]}` has not ended within {seconds:.0f} s")
