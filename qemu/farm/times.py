"""Where the time of a flash goes, from power-on to power-off."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from machine import Machine
from place import FarmError

# Seconds; shorter steps of the flasher are not shown.
LONG = 0.5
UNIT = "resin-init-flasher.service"


@dataclass(frozen=True)
class Begun:
    """When things began; seconds of the host's clock."""

    kernel: float
    flasher: float


def begun(machine: Machine, seconds: float) -> Begun:
    """Asks the system on the medium, which has to run; waits until its flasher has started."""
    end = time.monotonic() + seconds
    script = f"cat /proc/uptime; systemctl show --property=ExecMainStartTimestampMonotonic --value {UNIT}"
    while True:
        before = time.time()
        uptime, started = machine.must(script).split("\n")[:2]
        if int(started) > 0:
            # The answer takes a few tenths of a second; it was true somewhere in them.
            kernel = (before + time.time()) / 2 - float(uptime.split()[0])
            return Begun(kernel, kernel + int(started) / 1e6)
        if time.monotonic() > end:
            raise FarmError(f"{UNIT} has not started within {seconds:.0f} s")
        time.sleep(0.2)


def report(on: float, begun_at: Begun, off: float, receipt: dict[str, Any]) -> str:
    """A line: the parts, in order, and what the flasher did with its own."""
    steps = receipt["timeline"]
    if not steps:
        raise FarmError("the receipt has no timeline")
    own = max(step["at"] + step["seconds"] for step in steps)
    parts = {
        "firmware and bootloader": begun_at.kernel - on,
        "kernel and services": begun_at.flasher - begun_at.kernel,
        "flasher": own,
        "switching off": off - begun_at.flasher - own,
    }
    for name, value in parts.items():
        if value < -1:
            raise FarmError(f"{name} took {value:.1f} s: clocks disagree")
    whole = off - on
    text = ", ".join(f"{name} {max(value, 0):.1f} s" for name, value in parts.items())
    long = ", ".join(f"{step['step']} {step['seconds']:.1f} s" for step in steps if step["seconds"] >= LONG)
    return (
        f"{whole:.1f} s from power-on to power-off: {text}. The flasher's share is {own / whole:.0%}: {long} "
        f"(of that, writing {receipt['write']['seconds']:.1f} s and reading back {receipt['verify']['seconds']:.1f} s)"
    )
