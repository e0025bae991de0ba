"""The board farm: `python3 qemu/farm COMMAND`."""

from __future__ import annotations

import argparse
import os
import queue
import random
import select
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import traceback
import tty
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import board as boards
import demo
import leviathan
import machine as machines
import place
import runner
import scenario as scenarios
import scripts
import shell_release
import states
import lifecycle
import lifecycle_times
import tamper
from place import FarmError, NotRun
from runner import Result
from scenario import Scenario

PRINTING = threading.Lock()
BEGUN = time.monotonic()
# Exit code where this machine lacks what is needed; the usual one for tests that are skipped.
NOT_RUN = 77


def say(text: str) -> None:
    """One line, whole, however many threads talk."""
    with PRINTING:
        print(text, flush=True)


def speaker(name: str) -> Callable[[str], None]:
    """Progress lines of one run."""
    return lambda text: say(f"{time.monotonic() - BEGUN:7.1f} s  {name}: {text}")


def choose(words: list[str], wanted_boards: list[str]) -> list[tuple[Scenario, str]]:
    """The runs asked for: `NAME`, `NAME@BOARD`, `@BOARD`; everything where nothing is said. All files are read, so that none is broken."""
    known = boards.names()
    runner.checked()
    found = {scenario.name: scenario for scenario in scenarios.all_in(place.SCENARIOS, known)}
    runs: list[tuple[Scenario, str]] = []
    for word in words or [""]:
        name, _, board = word.partition("@")
        if name and name not in found:
            raise FarmError(f"no scenario {name!r} in {place.SCENARIOS}; there are {', '.join(found)}")
        for one_board in [board] if board else wanted_boards:
            if one_board not in known:
                raise FarmError(f"no board {one_board!r} in {place.BOARDS}; there are {', '.join(known)}")
        of = [found[name]] if name else list(found.values())
        runs += [
            (one, at) for one in of for at in one.boards if at == board or (not board and (not wanted_boards or at in wanted_boards))
        ]
    if not runs:
        raise FarmError("none of these scenarios is for these boards")
    return list(dict.fromkeys(runs))


def one(scenario: Scenario, board: str, seed: int) -> Result:
    """One run. A mistake of the farm's own is that run's failure, not the end of the others."""
    begun = time.monotonic()
    try:
        if os.geteuid() != 0:
            raise NotRun("only root can fill the slot of an image: run this as root")
        return runner.Run(scenario, boards.load(board), seed, speaker(f"{scenario.name} {board}")).run()
    except NotRun as error:
        return Result(scenario.name, board, time.monotonic() - begun, "not run", str(error))
    except FarmError as error:
        return Result(scenario.name, board, time.monotonic() - begun, "failed", str(error))
    except Exception:  # pylint: disable=broad-except
        return Result(scenario.name, board, time.monotonic() - begun, "failed", traceback.format_exc())


def run(options: argparse.Namespace) -> int:
    """Runs scenarios, side by side, and sums up."""
    runs = choose(options.scenario, options.board) * options.repeat
    is_demo = {scenario.name for scenario, _ in runs} == {"demo"}
    place.need_space(len({board for _, board in runs}), place.DEMO_SPACE if is_demo else place.SPACE)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    say(f"{len(runs)} runs, {options.jobs} at a time, --seed {seed}")
    waiting: queue.Queue[tuple[int, Scenario, str]] = queue.Queue()
    # The longest first: with short ones left, the places fall empty at the same time.
    for number, (scenario, board) in sorted(enumerate(runs), key=lambda run: -run[1][0].work(run[1][1])):
        waiting.put((number, scenario, board))
    results: list[Result | None] = [None] * len(runs)

    def work() -> None:
        while not place.STOPPED.is_set():
            try:
                number, scenario, board = waiting.get_nowait()
            except queue.Empty:
                return
            # A repeated run is to be another one.
            result = one(scenario, board, seed + number)
            results[number] = result
            say(f"{time.monotonic() - BEGUN:7.1f} s  {scenario.name} {board}: {result.state.upper()}")
            if result.why and result.state == "failed":
                say(result.why)

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary(runs, results)


def summary(runs: list[tuple[Scenario, str]], results: list[Result | None]) -> int:
    """The table, and whether all went well."""
    width = max(len(scenario.name) for scenario, _ in runs)
    wide = max(len(board) for _, board in runs)
    say("")
    failed = 0
    for (scenario, board), result in zip(runs, results):
        state = result.state if result else "failed (no time left)"
        seconds = f"{result.seconds:6.1f} s" if result else "       -"
        say(f"farm: {scenario.name:{width}}  {board:{wide}}  {seconds}  {state}")
        failed += state.startswith("failed")
    for result in results:
        if result and result.times:
            say(f"farm times: {result.scenario} on {result.board}: {result.times}")
    for (scenario, board), result in zip(runs, results):
        if result and result.state == "not run":
            say(f"not run: {scenario.name} on {board}: {result.why}")
    report(runs, results)
    passed = sum(1 for result in results if result and result.state == "passed")
    say(f"farm result: {passed} passed; {failed} failed; {len(runs) - passed - failed} not run; {time.monotonic() - BEGUN:.0f} s")
    return 1 if failed else 0


def report(runs: list[tuple[Scenario, str]], results: list[Result | None]) -> None:
    """Adds everything to the summary of ./dev, where this is a step of it."""
    if "COPAL_RESULTS" not in os.environ:
        return
    sys.path.append(str(place.TOP / "scripts/prove"))
    from results import add

    for (scenario, board), result in zip(runs, results):
        name = f"{scenario.name} {board}"
        if result is None:
            add("failed", name, "no time was left for it")
        elif result.state == "not run":
            add("not-run", f"{scenario.name} on {board}: {result.why}")
        else:
            add("scenario", f"{result.seconds:.1f}", name, result.state)
            add(result.state, name, *([result.why.splitlines()[0]] if result.why and result.state == "failed" else []))
        if result and result.times:
            add("note", f"times of {result.scenario} on {result.board}: {result.times}")


def listing(options: argparse.Namespace) -> int:
    """What there is."""
    known = boards.names()
    if options.board:
        for scenario in scenarios.all_in(place.SCENARIOS, known):
            if options.board in scenario.boards:
                print(scenario.name)
        return 0
    print("boards:")
    for name in known:
        board = boards.load(name)
        print(f"  {name}: {board.machine}, {board.backend}, {board.disk} disk")
    print("scenarios:")
    for scenario in scenarios.all_in(place.SCENARIOS, known):
        where = "" if set(scenario.boards) == set(known) else f" [{', '.join(scenario.boards)}]"
        print(f"  {scenario.name}{where}: {scenario.title}")
    return 0


def steps(_: argparse.Namespace) -> int:
    """What a scenario may say."""
    for words, _, meaning in scenarios.STEPS:
        print(f"  {words}\n      {meaning}")
    return 0


def images(options: argparse.Namespace) -> int:
    """Makes images, and says where they are."""
    for name in options.board or boards.names():
        boards.load(name)
        built = states.Images.of(name)
        for kind in ("disk", "flasher", "releases"):
            path = getattr(built, kind)
            if path is None:
                continue
            print(f"{name} {kind}: {path} ({path.stat().st_blocks * 512 >> 20} MiB on this disk)")
        for release, version in built.versions.items():
            print(f"{name} release {release}: {version}")
    return 0


def shell(options: argparse.Namespace) -> int:
    """A shell in a board, on its serial console."""
    board = boards.load(options.board)
    accelerator = machines.accelerator(board.arch)
    talk = speaker(f"shell {board.name}")
    state = states.make(board, options.state, accelerator, talk)
    with place.guest_place(), states.folder(f"shell-{board.name}") as (at, sockets):
        states.plug(state, at)
        machine = machines.Machine(board, states.hardware(board, at, sockets, state.live), accelerator)
        try:
            if state.live:
                machine.restore(state.folder / "memory")
            else:
                machine.start()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
                console.connect(str(sockets / "console"))
                if options.execute:
                    machine.ready(board.boot_seconds)
                    answer = machine.call(options.execute, 600)
                    print(answer.output, end="")
                    return answer.status
                if not options.console:
                    talk("waiting for the system")
                    machine.ready(board.boot_seconds)
                    # A board has a shell on its console. A second one would take half of the keys.
                    console.sendall(greeting())
                talk("control-] ends it, and the machine with it")
                terminal(console)
        finally:
            machine.kill()
    return 0


def greeting() -> bytes:
    """What is typed first: a serial line does not know how large the terminal is. The shell answers with a prompt."""
    size = shutil.get_terminal_size()
    return f"stty rows {size.lines} cols {size.columns}\r".encode()


def run_demo(options: argparse.Namespace) -> int:
    """Install, update and rollback, to watch."""
    scenario = scenarios.load(place.SCENARIOS / "demo.scenario", boards.names())
    board = boards.load(scenario.boards[0])
    place.need_space(1, place.DEMO_SPACE)
    # What takes long and has nothing to show.
    talk = speaker("demo")
    talk("trying whether guests run with KVM here")
    accelerator = machines.accelerator(board.arch)
    talk("they do" if accelerator == "kvm" else "they do not: QEMU emulates the processor, which takes some minutes longer")
    states.make(board, "blank", accelerator, talk)
    if options.prepare:
        return 0
    return demo.show(scenario, board, options.seed)


def tampered(options: argparse.Namespace) -> int:
    """Whether scenarios notice what they are for."""
    kinds = options.kind or list(tamper.KINDS)
    try:
        unnoticed = tamper.prove(place.TOP, place.farm(), options.board, kinds, say)
    except RuntimeError as error:
        raise FarmError(str(error)) from None
    say(f"tamper result: {len(kinds) - unnoticed} noticed; {unnoticed} not")
    return 1 if unnoticed else 0


def compared(options: argparse.Namespace) -> int:
    """Updates of an encrypted board by the scripts of meta-balena, and by copal."""
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    checkouts = scripts.Checkouts(options.meta_balena.resolve(), options.tcgtool.resolve())
    return scripts.compare(checkouts, options.hooks or ["scripts", "copal"], seed, speaker("scripts"))


def suites(options: argparse.Namespace) -> int:
    """Test suites of balenaOS."""
    checkout = options.checkout.resolve()
    leviathan.check(checkout)
    leviathan.kind_of(options.board)
    tcgtool = (options.tcgtool or checkout.parent / "tcgtool").resolve() if boards.load(options.board).secure else None
    previous = checkouts_of(checkout, options.fatrw, tcgtool) if options.previous == lifecycle.SCRIPTS else None
    if previous:
        leviathan.check_scripts(options.board, previous)
    if options.list:
        return leviathan.tests(checkout, "list", options.test, previous is not None)
    run = leviathan.each if options.each else leviathan.run
    return run(checkout, options.board, options.test, options.results, options.limit, speaker("leviathan"), previous)


def checkouts_of(meta_balena: Path, fatrw: Path | None, tcgtool: Path | None = None) -> shell_release.Checkouts:
    """What a release with the scripts is made of. `tcgtool`: only of a secure board."""
    return shell_release.Checkouts(meta_balena, (fatrw or meta_balena.parent / "fatrw").resolve(), tcgtool)


def rounds(text: str) -> int:
    """A number of rounds."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def cut_lifecycles(options: argparse.Namespace) -> int:
    """One lifecycle of a device by the scripts of meta-balena, and by copal, with power cuts."""
    checkouts = checkouts_of(options.meta_balena.resolve(), options.fatrw)
    if options.across:
        return lifecycle.across(checkouts, options.seed, speaker("across"))
    results = (options.results or place.TOP / "target/lifecycle").resolve()
    if options.times is not None:
        return lifecycle_times.times(checkouts, results, options.times, options.seed, speaker("times"))
    sides = options.side or list(lifecycle.SIDES)
    return lifecycle.compare(checkouts, results, sides, options.cuts, options.start, options.seed, speaker("lifecycle"))


def terminal(console: socket.socket) -> None:
    """Connects this terminal to a console until control-] is pressed or either end goes away."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard) if os.isatty(keyboard) else None
    try:
        if before is not None:
            tty.setraw(keyboard)
        while True:
            ready, _, _ = select.select([keyboard, console], [], [])
            if console in ready:
                data = console.recv(1 << 16)
                if not data:
                    return
                os.write(sys.stdout.fileno(), data)
            if keyboard in ready:
                data = os.read(keyboard, 1024)
                if not data or b"\x1d" in data:
                    return
                console.sendall(data)
    finally:
        if before is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python3 qemu/farm", description="The real thing on virtual boards.")
    commands = parser.add_subparsers(dest="command", required=True)
    at = commands.add_parser("list", help="the boards and scenarios there are")
    at.add_argument("--board", help="only the names of the scenarios for this board")
    at.set_defaults(function=listing)
    commands.add_parser("steps", help="what a scenario may say").set_defaults(function=steps)
    at = commands.add_parser("run", help="run scenarios")
    at.add_argument("scenario", nargs="*", help="NAME, NAME@BOARD or @BOARD; all where nothing is said")
    at.add_argument("--board", action="append", default=[], help="on this board only (may be repeated)")
    at.add_argument("--jobs", type=int, default=2, help="guests side by side (2)")
    at.add_argument("--repeat", type=int, default=1, help="run everything that often")
    at.add_argument("--seed", type=int, help="of the power cuts; one that failed says which it was")
    at.set_defaults(function=run)
    at = commands.add_parser("shell", help="a shell in a board")
    at.add_argument("board")
    at.add_argument("--from", dest="state", default="running", help=f"the state it begins in: {', '.join(scenarios.STATES)} (running)")
    at.add_argument("--console", action="store_true", help="its console from power-on, without waiting for the system")
    at.add_argument("--execute", "-c", help="this command instead of a shell")
    at.set_defaults(function=shell)
    at = commands.add_parser("images", help="make the images of boards")
    at.add_argument("board", nargs="*")
    at.set_defaults(function=images)
    at = commands.add_parser("demo", help="install, update and rollback on one board, to watch")
    at.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    at.add_argument("--prepare", action="store_true", help="only make what it starts from")
    at.set_defaults(function=run_demo)
    at = commands.add_parser("tamper", help="prove that scenarios fail with a copal that breaks its promises (builds it)")
    at.add_argument("kind", nargs="*", choices=[[], *tamper.KINDS], help=f"without this promise: {', '.join(tamper.KINDS)}; each where nothing is said")
    at.add_argument("--board", default="qemu-amd64")
    at.set_defaults(function=tampered)
    at = commands.add_parser("scripts", help="count the power cuts that lock an encrypted board out: updated by the scripts of meta-balena, and by copal",
                             description="Updates an encrypted board by the hooks of a checkout, and by copal's; judges a power cut after each change.")
    at.add_argument("meta_balena", type=Path, help="a checkout of balena-os/meta-balena; nothing of it is kept but in the farm's cache")
    at.add_argument("tcgtool", type=Path, help="a checkout of balena-os/tcgtool, which the hooks use; built with cc")
    at.add_argument("--hooks", action="append", choices=("scripts", "copal"), help="only these (both)")
    at.add_argument("--seed", type=int, help="of the power cuts that a board is started after")
    at.set_defaults(function=compared)
    at = commands.add_parser("leviathan", help="run balenaOS's own test suites, of a checkout of meta-balena, on a board")
    at.add_argument("checkout", type=Path, help="a checkout of balena-os/meta-balena; its files are run as they are, and nothing of it is kept")
    at.add_argument("test", nargs="*", help="tests by the beginning of their names, like hup/smoke; all where nothing is said")
    at.add_argument("--board", default="qemu-amd64", help="qemu-amd64, qemu-amd64-secure or qemu-aarch64 (qemu-amd64)")
    at.add_argument("--list", action="store_true", help="only print the names of the tests")
    at.add_argument("--previous", choices=(lifecycle.COPAL, lifecycle.SCRIPTS), default=lifecycle.COPAL,
                    help="what the release that is updated from has: copal, or the shell scripts of the checkout (copal)")
    at.add_argument("--fatrw", type=Path, help="for the scripts, a checkout of balena-os/fatrw, at the commit that meta-balena builds (a folder beside CHECKOUT)")
    at.add_argument("--tcgtool", type=Path, help="for the scripts of a secure board, a checkout of balena-os/tcgtool, likewise")
    at.add_argument("--results", type=Path, default=place.TOP / "target/leviathan", help="folder for report, console and logs (target/leviathan)")
    at.add_argument("--each", action="store_true", help="run each test by itself, with a limit of its own; a test that has passed with the same images is not repeated")
    at.add_argument("--limit", type=float, default=leviathan.LIMIT, help=f"seconds for a run, with --each for each test ({leviathan.LIMIT:.0f})")
    at.set_defaults(function=suites)
    at = commands.add_parser("lifecycle", help="cut the power in one lifecycle of a device: by the scripts of meta-balena, and by copal",
                             description="Installs, updates and rolls back a device by the scripts of a checkout, and by copal; judges what power cuts leave.")
    at.add_argument("meta_balena", type=Path, help="a checkout of balena-os/meta-balena; nothing of it is kept but in the farm's cache")
    at.add_argument("--fatrw", type=Path, help="a checkout of balena-os/fatrw, at the commit that meta-balena builds (a folder beside META_BALENA)")
    at.add_argument("--across", action="store_true", help="instead of all this, update a device from the scripts to copal, and back")
    at.add_argument("--times", type=rounds, metavar="ROUNDS", help="instead of all this, install and update by each in turn, and print how long that takes")
    at.add_argument("--side", action="append", choices=lifecycle.SIDES, help="only this one (both)")
    at.add_argument("--cuts", type=int, default=300, help="power cuts in each lifecycle, the same ones (300)")
    at.add_argument("--start", type=int, default=30, help="of them, how many a board is started after (30)")
    at.add_argument("--seed", type=int, default=1, help="of the power cuts (1)")
    at.add_argument("--results", type=Path, help="a folder for records and results; a run continues those that are there (target/lifecycle)")
    at.set_defaults(function=cut_lifecycles)
    options = parser.parse_args()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def ended(number: int, _: FrameType | None) -> None:
        # Often two come, from the terminal and from the parent: the second one must not leave a guest running.
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        machines.stop_all()
        raise SystemExit(128 + number)

    for number in signals:
        # `nohup` has it ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, ended)
    try:
        return int(options.function(options))
    except FarmError as error:
        print(f"farm: {error}", file=sys.stderr)
        return 1
    except NotRun as error:
        print(f"not run: {error}", file=sys.stderr)
        return NOT_RUN
    finally:
        machines.stop_all()


if __name__ == "__main__":
    sys.exit(main())
