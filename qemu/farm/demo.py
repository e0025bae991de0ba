"""The demo on one board: prints each step and shows the board's console."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import threading
import time
from pathlib import Path

import runner
from board import Board
from runner import Result
from scenario import Scenario, Step

# Colours, cursor movements, window titles, and what the serial console's terminal is asked.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()*+][0-9A-Za-z]|[=>78cDEHM])|[\x00-\x08\x0b-\x1f\x7f]")
# Lines of the firmware, the kernel and a waiting shell, which say nothing about copal.
_DULL = re.compile(
    r"^(\[ *\d+\.\d+\] |BdsDxe: |Loading |EFI stub: |error: no suitable video mode|Booting in blind mode|SELinux: |root@board:|\s*$|[^ -~]*$)"
)
# The picture of a bar, and who shows it: what can be left out where a line is short.
_BAR = re.compile(r"^\[[\w-]+\]\[INFO\] | *\[[=> ]*\]")
_PERCENT = re.compile(r"(\d+) ?%")


# Seconds without a word after which the demo says what it waits for.
QUIET = 15.0


class Screen:
    """Prints whole lines, in one order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun = self.spoken = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.width = max(50, shutil.get_terminal_size((200, 40)).columns - 1)
        self.open = False

    def heading(self, text: str) -> None:
        """What happens now."""
        at = int(time.monotonic() - self.begun)
        self.print(f"\n{at // 60:2}:{at % 60:02}  ", " " * 7, text)

    def line(self, mark: str, text: str) -> None:
        """A line of the board, in as many lines as it takes; what it begins with decides where they begin."""
        bare = text.lstrip()
        first = f"       {mark} {' ' * (len(text) - len(bare))}"
        self.print(first, " " * min(len(first) + 2, self.width // 2), bare)

    def print(self, first: str, others: str, text: str) -> None:
        """Text after what its first line and its other lines begin with."""
        with self.lock:
            self.end_line()
            wrapped = textwrap.wrap(
                text, self.width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, replace_whitespace=False
            )
            print("\n".join(wrapped) or first.rstrip(), flush=True)

    def progress(self, text: str) -> None:
        """A bar that moves: on a terminal one line, elsewhere a line for every tenth."""
        if not self.terminal:
            self.line("|", text)
            return
        columns = self.width - 9
        if len(text) > columns:
            text = _BAR.sub("", text)
        with self.lock:
            self.spoken = time.monotonic()
            print(f"\r\x1b[K       | {text[:columns]}", end="", flush=True)
            self.open = True

    def waiting(self, what: str) -> None:
        """Says what is waited for, where nothing has been said for a while."""
        if time.monotonic() - self.spoken > QUIET:
            self.line(" ", f"… {what}")

    def end_line(self) -> None:
        """Leaves the line of a bar."""
        self.spoken = time.monotonic()
        if self.open:
            print(flush=True)
            self.open = False


class Console(threading.Thread):
    """Shows what a board's console says, as it comes."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(daemon=True)
        self.screen = screen
        self.path: Path | None = None
        self.at = 0
        self.ended = threading.Event()
        self.tenth = -1
        # The step that runs, and since when.
        self.step = ("", 0.0)

    def follow(self, path: Path) -> None:
        """From now on this file, from its end."""
        if path != self.path:
            self.at = path.stat().st_size if path.exists() else 0
            self.path = path

    def run(self) -> None:
        rest = b""
        while not self.ended.is_set():
            time.sleep(0.1)
            step, begun = self.step
            self.screen.waiting(f"{step}: {time.monotonic() - begun:.0f} s so far")
            if self.path is None or not self.path.exists():
                continue
            with self.path.open("rb") as file:
                file.seek(self.at)
                new = file.read()
            self.at += len(new)
            *lines, rest = re.split(rb"(?<=[\r\n])", rest + new)
            for line in lines:
                self.show(line)

    def show(self, raw: bytes) -> None:
        """One line, or one state of a line that is written again and again."""
        text = _ESCAPES.sub("", raw.decode("utf-8", "replace").replace("\r", "").replace("\n", "")).rstrip()
        if _DULL.match(text):
            return
        if percent := _PERCENT.search(text):
            tenth = int(percent[1]) // 10
            if self.screen.terminal or tenth != self.tenth:
                self.tenth = tenth
                self.screen.progress(text)
            return
        self.screen.line("|", text)


class Demo(runner.Run):
    """A scenario of which each step is printed, after the comments that stand before it in the file."""

    def __init__(self, scenario: Scenario, board: Board, seed: int) -> None:
        self.screen = Screen()
        super().__init__(scenario, board, seed, lambda text: None)
        self.comments = _comments(Path(scenario.path).read_text(encoding="utf-8"))
        self.pump = Console(self.screen)

    def run(self) -> Result:
        self.pump.start()
        try:
            return super().run()
        finally:
            self.pump.ended.set()
            self.pump.join(5)

    def do(self, step: Step) -> None:
        for comment in self.comments.get(step.number, []):
            self.screen.heading(comment)
        self.screen.line(">", step.text)
        self.pump.step = (step.text, time.monotonic())
        before = self.last
        super().do(step)
        if self.machine is not None:
            self.pump.follow(self.machine.console_path)
        if self.last is not before and self.last is not None:
            for line in self.last.output.splitlines():
                self.screen.line(" ", line)


def _comments(text: str) -> dict[int, list[str]]:
    """The comments of a scenario's file by the number of the line that follows them; not its title."""
    found: dict[int, list[str]] = {}
    waiting: list[str] = []
    titled = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#"):
            waiting.append(line.lstrip("# "))
        elif line and not titled:
            titled, waiting = True, []
        elif line:
            if waiting:
                found[number] = [" ".join(waiting)]
            waiting = []
    return found


BEFORE = (
    "The board is a virtual machine with firmware, GRUB, a disk and a stick. Its system stands in for balenaOS: Debian's packages, with "
    "balenaOS's partitions, boot logic and container engine, and with copal in its place.",
    "Lines with > are steps, or what is waited for (powers off, boots, reboots); lines with | are the board's console.",
)
AFTER = (
    "What this shows: the disk was written, read back and made bootable; an update was tried and then committed; one that does not work was "
    "undone by the device itself, which reports why. The system that runs is never touched meanwhile.",
)


def show(scenario: Scenario, board: Board, seed: int) -> int:
    """Runs it and prints it; the exit code."""
    shown = Demo(scenario, board, seed)
    for text in BEFORE:
        shown.screen.print("", "", text)
    result = shown.run()
    print()
    if result.state != "passed":
        print(result.why, file=sys.stderr)
        print(f"demo: {result.state}", file=sys.stderr)
        return 1
    for text in AFTER:
        shown.screen.print("", "", text)
    print(f"demo: all steps succeeded on {board.name}, in {result.seconds:.0f} s")
    return 0
