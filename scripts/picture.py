"""Makes the pictures of README.md: what a terminal shows of copal at work, recorded from real runs.

    python3 scripts/picture.py --copal BINARY [--out FOLDER] [flash] [rollback]

`flash`: an image onto a disk that is as slow as a card, by a storage daemon. `rollback`: on a virtual board (qemu/README.md), an update whose
container engine does not start. Commands are typed into a shell; what comes is drawn as it came. Needs root, and what those two need;
`./dev picture` sees to that. Each picture is made in both themes, and names the program in its metadata.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from screen import COLUMNS, SILENT, THEMES, Scene, drawing

TOP = Path(__file__).resolve().parent.parent
PICTURES = TOP / "docs/pictures"

# Seconds between two keys, and how long a line that is being drawn may pause.
KEY, PAUSE = 0.05, 0.03

# The disk: MiB, and bytes a second.
SIZE, WRITES, READS = 320, 40_000_000, 90_000_000

BOARD, RELEASE, PROMPT = "qemu-amd64", "/releases/broken-engine.tar", "root@board:~# "


class Fault(Exception):
    """It did not go as it has to."""


class Shell:
    """A shell at the other end of a terminal's line."""

    def __init__(self, line: int, prompt: str) -> None:
        self.line, self.prompt = line, prompt
        self.decoder = codecs.getincrementaldecoder("utf-8")("strict")

    def read(self, seconds: float) -> str:
        """What comes within that time."""
        if not select.select([self.line], [], [], seconds)[0]:
            return ""
        data = os.read(self.line, 1 << 16)
        if not data:
            raise Fault("the shell is gone")
        return self.decoder.decode(data)

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self.line, text.encode())

    def until_prompt(self, seconds: float, took: Callable[[str], None] | None = None, last: str = "") -> None:
        """Waits for the prompt, at the begin of a line: the first one for who takes what comes, otherwise the last one of those that wait.

        With `last`, for the end of a line that has these words: after it the system goes down.
        """
        end, seen = time.monotonic() + seconds, ""
        while True:
            text = self.read(0.2)
            if took:
                took(text)
            seen += text
            if last and last in seen and seen.partition(last)[2].endswith("\n"):
                return
            plain = seen
            for word in SILENT:
                plain = plain.replace(word, "")
            if (took or not text) and plain.endswith(self.prompt) and plain[: -len(self.prompt)][-1:] in ("", "\n", "\r"):
                return
            if time.monotonic() > end:
                raise Fault(f"no prompt within {seconds:.0f} s; there is {seen[-2000:]!r}")

    def quiet(self, command: str) -> None:
        """Runs one that is not shown."""
        self.type(f"{command}\r")
        self.until_prompt(30)

    def record(self, caption: str, command: str, seconds: float, last: str = "") -> Scene:
        """Types a command, and takes down all that comes until the prompt is there again, or the line with the last words."""
        scene = Scene(caption, [(time.monotonic(), self.prompt)])

        def took(text: str) -> None:
            now = time.monotonic()
            if text and now - scene.written[-1][0] < PAUSE:
                scene.written[-1] = (now, scene.written[-1][1] + text)
            elif text:
                scene.written.append((now, text))

        for key in command:
            self.type(key)
            end = time.monotonic() + KEY
            while (left := end - time.monotonic()) > 0:
                took(self.read(left))
        time.sleep(5 * KEY)
        self.type("\r")
        self.until_prompt(seconds, took, last)
        return scene


@contextmanager
def local_shell(folder: Path, programs: Path) -> Iterator[Shell]:
    """A shell of this machine, in that folder, with these programs before others."""
    child, line = pty.fork()
    if child == 0:
        os.chdir(folder)
        environment = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin", "PS1": "# ", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        os.execve("/bin/sh", ["sh", "-i"], environment)
    try:
        fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        shell = Shell(line, "# ")
        shell.until_prompt(30)
        yield shell
    finally:
        os.close(line)
        os.waitpid(child, 0)


def flash(copal: Path, _: str) -> tuple[str, str, str, list[Scene]]:
    """An image onto a slow disk."""
    sys.path.append(str(TOP / "benches"))
    from flash import MIB, ThrottledDisk, cold

    with tempfile.TemporaryDirectory(prefix="copal-picture.", dir=TOP / "target") as name:
        work = Path(name)
        (work / "bin").mkdir()
        (work / "bin/copal").symlink_to(copal)
        raw = work / "balena.img"
        subprocess.run(["sh", TOP / "scripts/make-image.sh", raw, "--size", str(SIZE)], check=True, stdout=subprocess.DEVNULL, timeout=300)
        subprocess.run(["zstd", "-q", "--rm", raw], check=True, timeout=300)
        disk = ThrottledDisk(work, SIZE * MIB, WRITES, READS)
        try:
            disk.fill(0xA5)
            cold()
            with local_shell(work, work / "bin") as shell:
                caption = f"A disk that writes {WRITES // 10**6} MB/s and reads {READS // 10**6} MB/s"
                command = f"copal flash balena.img.zst {disk.loop} --yes"
                scene = shell.record(caption, command, 300)
        finally:
            disk.close()
    about = (
        "A terminal. One progress bar goes through all stages of the flash: check, write, verify. At the end four lines say what was "
        "written, that the image was read back from the disk and is right, its digest, and how long each stage took."
    )
    return "copal flash writes an image and reads it back", about, command, [scene]


def rollback(_: Path, version: str) -> tuple[str, str, str, list[Scene]]:
    """An update on a board that undoes it."""
    sys.path.append(str(TOP / "qemu/farm"))
    import board as boards
    import machine as machines
    import place
    import states

    board = boards.load(BOARD)
    accelerator = machines.accelerator(board.arch)
    state = states.make(board, "running", accelerator, lambda text: print(text, file=sys.stderr))
    with place.guest_place(), states.folder("picture") as (at, sockets):
        states.plug(state, at)
        machine = machines.Machine(board, states.hardware(board, at, sockets, state.live), accelerator)
        try:
            machine.restore(state.folder / "memory")
            machine.ready(60)
            if (there := machine.must("copal --version").strip()) != version:
                raise Fault(f"the board has {there}, and this is {version}: COPAL_DIST has to name its folder")
            with board_shell(sockets) as shell:
                update = f"copal update -f {RELEASE} -r"
                first = shell.record("A board that runs 5.0.0, and an update whose container engine does not start", update, 900, "boots next")
            begun = time.monotonic()
            machine.wait_reset(300)
            machine.wait_reset(board.boot_seconds + 600)
            machine.ready(board.boot_seconds)
            done = "copal status | grep -q '^phase  *healthy' && systemctl is-active multi-user.target"
            machine.until("the board to be healthy", 300, lambda: machine.call(done).status == 0, machine.steady)
            minutes = round((time.monotonic() - begun) / 60)
            with board_shell(sockets) as shell:
                second = shell.record(f"The same board {minutes} minutes later, after two reboots", "copal status", 60)
            # What copal status says all that from: tests compare the picture with what the program says of it today.
            records = [json.loads(line) for line in machine.must("cat /mnt/state/copal/history.jsonl").splitlines()]
        finally:
            machine.kill()
    # Of each log one line: that there is one, is said as well.
    short = [record | {"journal": record["journal"][:1]} if "journal" in record else record for record in records]
    about = (
        "A terminal of a virtual board. copal update installs a release and reboots into it. Some minutes later copal status says that the "
        "board has rolled back by itself to the earlier release, and why: the health check of the container engine failed three times."
    )
    return "copal update, and the rollback of a release that does not work", about, "\n".join([update, "copal status", *map(json.dumps, short)]), [first, second]


@contextmanager
def board_shell(sockets: Path) -> Iterator[Shell]:
    """The shell on the board's console, on which the kernel is silent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
        console.connect(str(sockets / "console"))
        shell = Shell(console.fileno(), PROMPT)
        shell.type("\r")
        shell.until_prompt(60)
        shell.quiet(f"dmesg -n 1; stty rows 24 cols {COLUMNS}")
        yield shell


MAKERS = {"flash": flash, "rollback": rollback}


def main(words: list[str]) -> int:
    """Makes those that are named, or all."""
    parser = argparse.ArgumentParser(prog="picture", description="Make the pictures of README.md")
    parser.add_argument("--copal", required=True, type=Path, help="the program, a release build")
    parser.add_argument("--out", type=Path, default=PICTURES, help="their folder")
    parser.add_argument("name", nargs="*", choices=[[], *MAKERS], help="all where none is named")
    given = parser.parse_args(words)
    # No machine, disk or loop device outlives this program.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    version = subprocess.run([given.copal, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    for name in given.name or MAKERS:
        title, about, commands, scenes = MAKERS[name](given.copal.resolve(), version)
        made = f"Recorded by ./dev picture from a real run of {version}:\n{commands}\n"
        given.out.mkdir(parents=True, exist_ok=True)
        for theme in THEMES:
            path = given.out / f"{name}-{theme.name}.svg"
            path.write_text(drawing(theme, title, about, made, scenes))
            print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}  {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
