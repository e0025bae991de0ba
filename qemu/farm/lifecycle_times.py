"""How long an installation and an update take by the scripts of meta-balena, and by copal, in turn on the same guest: `qemu/times.scenario`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import lifecycle
import machine as machines
import place
import shell_release
from lifecycle import COPAL, SCRIPTS
from place import FarmError, NotRun

#: In the folder of the results: each round of the last call.
TABLE = "times.tsv"
TIMES = place.TOP / "qemu/times.scenario"
#: Phases of that one whose times are compared, and those from the start of an update to the healthy new system.
TIMED = ("flash", "first boot", "update", "restart", "trial")
TO_HEALTHY = ("update", "restart", "trial")


def times(checkouts: shell_release.Checkouts, results: Path, rounds: int, seed: int, say: Callable[[str], None]) -> int:
    """Installs and updates the same guest, by the scripts and by copal in turn, and prints how long they take."""
    lifecycle.ready(checkouts)
    for side in lifecycle.SIDES:
        lifecycle.images_of(side, checkouts)
    results.mkdir(parents=True, exist_ok=True)
    (results / TABLE).unlink(missing_ok=True)
    found: list[dict[str, dict[str, float]]] = []
    for number in range(rounds):
        found.append({})
        # Each begins as often as the other.
        for side in lifecycle.SIDES if number % 2 == 0 else lifecycle.SIDES[::-1]:
            run = lifecycle.Phases(TIMES, side, seed + number, lambda text, side=side: say(f"{side}: {text}"))
            result = run.run()
            if result.state == "not run":
                raise NotRun(result.why)
            if result.state != "passed":
                raise FarmError(f"{side} does not come to its end: {result.why}")
            found[-1][side] = run.seconds
            lifecycle.add(results / TABLE, {"round": number, "side": side, **{name: f"{run.seconds[name]:.1f}" for name in TIMED}})
    say(f"{checkouts.versions()}; QEMU with {machines.accelerator('x86_64')}\n\n{times_table(found)}")
    return 0


def times_table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """The middle value of all rounds, with the lowest and the highest; the ratios are those of rounds."""
    lines = [f"| of {len(rounds)} rounds | scripts: s | copal: s | copal : scripts |", "|---|---|---|---|"]
    for name, phases in {**{name: (name,) for name in TIMED}, "update until it is healthy": TO_HEALTHY}.items():
        of = {side: [sum(one[side][phase] for phase in phases) for one in rounds] for side in lifecycle.SIDES}
        ratios = [copal / scripts for scripts, copal in zip(of[SCRIPTS], of[COPAL])]
        lines.append(f"| {name} | {spread(of[SCRIPTS], 1)} | {spread(of[COPAL], 1)} | {spread(ratios, 2)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    """A median and what it lies in."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
