#!/usr/bin/env python3
"""Runs one command within a time limit, and ends everything that it has started when it ends.

    step.py [--grace SECONDS] [--hangup] SECONDS COMMAND…

--hangup: the command obeys SIGHUP, also below `nohup`. The exit code is that of the command; 124 after the limit; 128 and the signal's number where a signal ended it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

# <linux/prctl.h>: a process whose parent ends becomes a child of this one, in whatever session or group it is.
PR_SET_CHILD_SUBREAPER = 36
OVER = 124
# How long a process that was asked to end may take: a virtual board needs some seconds to end its guests.
GRACE = 20.0
# How long a process that was killed may stay: one in a system call on a disk ends after it.
KILLED = 30.0


class Ended(Exception):
    """The limit is over, or this process was asked to end; the argument is the exit code."""


def descendants() -> dict[int, str]:
    """The processes that come from this one, with their names."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        # A name may hold blanks and parentheses.
        name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
        state, parent = rest.split()[:2]
        if state not in "ZX":
            parents[int(entry.name)] = int(parent)
            names[int(entry.name)] = name
    found: dict[int, str] = {}
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in found}
        found.update((pid, names[pid]) for pid in new)
    return found


def send(number: int) -> None:
    """A signal to all descendants."""
    for pid in descendants():
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            # It has just ended; or it is root's, as what sudo starts.
            pass


def reap() -> None:
    """Takes note of what has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def gone(seconds: float) -> bool:
    """Whether all descendants end within that time."""
    end = time.monotonic() + seconds
    while True:
        reap()
        if not descendants():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)


def end_all(grace: float) -> None:
    """Ends all descendants, by force after a while."""
    if gone(0):
        return
    send(signal.SIGTERM)
    if gone(grace):
        return
    end = time.monotonic() + KILLED
    while time.monotonic() < end:
        # One may have started another meanwhile.
        send(signal.SIGKILL)
        if gone(0.2):
            return
    left = ", ".join(f"{name} ({pid})" for pid, name in descendants().items())
    print(f"dev: cannot end: {left}", file=sys.stderr)


def defaults(hangup: bool) -> None:
    """Signals as a shell has them for what it starts in the foreground: in the background it ignores two, and so would the command."""
    for number in [signal.SIGINT, signal.SIGQUIT] + [signal.SIGHUP] * hangup:
        signal.signal(number, signal.SIG_DFL)


def ended(number: int, _: FrameType | None) -> None:
    """A signal handler."""
    raise Ended(OVER if number == signal.SIGALRM else 128 + number)


def main() -> int:
    """Reads the command line."""
    words, grace, hangup = sys.argv[1:], GRACE, False
    if words[0] == "--grace":
        grace, words = float(words[1]), words[2:]
    if words[0] == "--hangup":
        hangup, words = True, words[1:]
    seconds, command = float(words[0]), words[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    for number in [*signals, signal.SIGALRM]:
        signal.signal(number, ended)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            child = subprocess.Popen(command, preexec_fn=lambda: defaults(hangup))
        except OSError as error:
            print(f"dev: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        while True:
            pid, status = os.wait()
            if pid == child.pid:
                break
        code = child.returncode = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
    except Ended as why:
        code = int(why.args[0])
        if code == OVER:
            print(f"dev: ended after {seconds:.0f} s: {' '.join(command)[:200]}", file=sys.stderr)
    # What comes now is bounded, and a second signal (one comes from the terminal, one from the parent) must not leave a half.
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    if code == 0 and not gone(2):
        left = ", ".join(sorted(set(descendants().values())))
        print(f"dev: still running after {' '.join(command)[:200]}, ended now: {left}", file=sys.stderr)
    end_all(grace)
    return code


if __name__ == "__main__":
    sys.exit(main())
