"""balenaOS's own test suites on a board: Node runs the files of a checkout (qemu/leviathan), and this process has the board.

Requests and answers are JSON objects, one a line, over a socket pair. All is done in one thread: QEMU ends with the thread that
started it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import board as boards
import images
import look
import machine as machines
import place
import shell_release
import states
import suite_images
import tree
from agent import Agent
from board import Board, Hardware
from machine import Machine
from place import FarmError, NotRun

SHIM = place.TOP / "qemu/leviathan/run.js"
#: It says of each test whether it runs here.
PAGE = place.TOP / "docs/leviathan.md"
#: In a checkout of meta-balena.
SUITES = "tests/suites"
FILES = ("hup/suite.js", "hup/tests/rollbacks.js", "hup/tests/smoke.js", "os/suite.js")
#: Seconds: of a whole run, of one command, of one wait for the agent, which is repeated, of the copy of a file, and of an encrypted installation.
LIMIT, COMMAND, REACH, SEND, INSTALL = 4800.0, 1200.0, 20.0, 600.0, 1800.0
#: The suites allow for a device that starts in 20 seconds or less. A secure board without KVM takes a minute.
SLOWNESS = 3
#: What systemd says on the console of a medium.
INSTALLATION_FAILED = re.compile(r"Failed to start \S*resin-init")
#: A balenaOS answers over ssh only when these are there.
MOUNTED = "mountpoint -q /mnt/boot && mountpoint -q /mnt/state && mountpoint -q /mnt/data"
#: Standard error is not part of what a command prints.
ERRORS = "/run/leviathan.errors"


class Away(FarmError):
    """The board does not answer now, and may do so later."""


def check(checkout: Path) -> None:
    """The folder has the suites."""
    for name in FILES:
        if not (checkout / SUITES / name).is_file():
            raise FarmError(f"there is no {checkout / SUITES / name}: name a checkout of balena-os/meta-balena, of v8.0.2 or a release like it")


def check_scripts(name: str, scripts: shell_release.Checkouts) -> None:
    """A release with these scripts can be made for the board."""
    if suite_images.BOARDS[kind_of(name)].arch != shell_release.ARCH:
        names = [board.name for board in suite_images.BOARDS.values() if board.arch == shell_release.ARCH]
        raise FarmError(f"a release with the scripts is made for {' and '.join(names)} only, not for {name}")
    scripts.check()


def unlisted(checkout: Path) -> list[str]:
    """Tests of the two suites that the page does not list: it was written for another release."""
    page = PAGE.read_text()
    found = [(suite, name) for suite in ("hup", "os") for name in re.findall(r"'\./tests/([^']+?)/?'", (checkout / SUITES / suite / "suite.js").read_text())]
    return [f"{suite}/{name}" for suite, name in found if f"\n| `{name}`" not in page]


class Device:
    """The board. Its methods are the requests."""

    REQUESTS = ("image", "configure", "flash", "on", "off", "run", "send", "serial")

    def __init__(self, board: Board, built: suite_images.Images, at: Path, sockets: Path, accelerator: str, check_time: Callable[[], None]) -> None:
        self.board = board
        self.built = built
        self.at = at
        self.sockets = sockets
        self.accelerator = accelerator
        self.check_time = check_time
        self.power: Machine | None = None
        # Whether the system that runs has answered, and whether its disk has the image `alpine`.
        self.reached = False
        self.supplied = False
        # Length of the console log at the last power-on.
        self.shown = 0

    # --- requests -----------------------------------------------------------------------------------------------------

    def image(self) -> str:
        """A copy of the image to be flashed, to be configured: the disk, or the medium that installs it."""
        to = self.at / "image"
        machines.copy(self.built.flasher or self.built.disk, to)
        return str(to)

    def configure(self, image: str, config: dict[str, Any]) -> None:
        """Adds to `config.json` on an image's boot partition."""
        found = json.loads(look.boot_file(Path(image), "config.json") or b"{}")
        new = self.at / "config.json"
        new.write_text(json.dumps({**found, **config}))
        look.put_boot_file(Path(image), "config.json", new)

    def flash(self, image: str) -> None:
        """Gives the board this disk, and chips as the factory delivers them. A medium installs itself, as on a device."""
        if self.power is not None:
            raise FarmError("the power is on")
        for path in states.plugged(self.at):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.built.flasher:
            self.install(Path(image))
        else:
            states.chips(self.board, self.at)
            machines.copy(Path(image), self.at / "disk")
            os.truncate(self.at / "disk", states.DISK)
        self.supplied = False

    def on(self) -> None:
        """Switches it on; nothing is waited for."""
        if not (self.at / "disk").exists():
            raise FarmError("nothing has been flashed")
        self.power = Machine(self.board, self.hardware(), self.accelerator)
        self.reached = False
        self.shown = len(self.power.console())
        self.power.start()

    def off(self) -> None:
        """Takes the power away."""
        if self.power is not None:
            self.power.kill()
            self.power = None

    def run(self, command: str) -> dict[str, Any]:
        """Runs a command in the host OS, once the system is as far as it is where ssh is answered."""
        self.reach()
        if not self.supplied:
            self.supply()
        return self.call(command)

    def send(self, file: str, to: str) -> None:
        """Copies a file to the device, into a folder if the path ends with a slash."""
        self.reach()
        self.copy(Path(file), to + Path(file).name if to.endswith("/") else to)

    def serial(self) -> str:
        """What the console has shown since the power came."""
        return self.machine().console()[self.shown :]

    # --- how ----------------------------------------------------------------------------------------------------------

    def hardware(self, medium: Path | None = None) -> Hardware:
        """What the board has."""
        emmc, tpm = (self.at / name if has else None for name, has in (("emmc", self.board.emmc), ("tpm", self.board.tpm)))
        return Hardware(self.at, self.sockets, self.at / "disk", flash=tuple(sorted(self.at.glob("flash?"))), emmc=emmc, medium=medium, tpm=tpm)

    def install(self, medium: Path) -> None:
        """Starts a new board from the medium, and waits until it has installed and switched off. The result is kept for each `config.json`, and goes like other
        states of the board (states.forget)."""
        config = look.boot_file(medium, "config.json") or b""
        here = Path(__file__).resolve()
        parts = [str(self.built.flasher), self.board.text, self.accelerator, (place.part(self.board.qemu.partition("/")[0]) / "stamp").read_text(),
                 *((here.parent / name).read_text() for name in (*states.SOURCES, here.name))]
        key = hashlib.sha256("\0".join(parts).encode() + config).hexdigest()[:16]
        kept = place.farm() / "states" / f"{self.board.name}-suite-{key}"
        states.forget_others(self.board, kept)
        with place.locked(place.farm() / "suite-install.lock", INSTALL, "the installation of a board"):
            if not kept.is_dir():
                states.chips(self.board, self.at, self.built.signed)
                states.empty(self.at / "disk", states.DISK)
                machine = Machine(self.board, self.hardware(medium), self.accelerator)

                def check() -> None:
                    self.check_time()
                    machine.alive()
                    if INSTALLATION_FAILED.search(machine.console()):
                        raise FarmError("the installation has failed")

                try:
                    machine.start()
                    machine.until("the installation", INSTALL, machine.has_powered_off, check)
                except FarmError as error:
                    raise FarmError(f"{error}\n{machines.tail(machine.console())}") from None
                finally:
                    machine.kill()
                if not look.encrypted(self.at / "disk"):
                    raise FarmError(f"the installation is not encrypted:\n{machines.tail(machine.console())}")
                new = kept.with_suffix(".new")
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir(parents=True)
                for path in states.plugged(self.at):
                    machines.copy(path, new / path.name)
                new.rename(kept)
                return
            os.utime(kept)
            for path in states.plugged(kept):
                machines.copy(path, self.at / path.name)

    def machine(self) -> Machine:
        """The machine, which has to be on."""
        if self.power is None:
            raise FarmError("the power is off")
        return self.power

    def steady(self) -> None:
        """Fails where an answer will not come."""
        self.check_time()
        machine = self.machine()
        machine.alive()
        if machine.has_powered_off():
            raise FarmError("the device has switched itself off")
        if machine.resets() > machine.resets_seen:
            raise Away("the device has restarted")

    def reach(self) -> None:
        """Waits until commands can be run."""
        machine = self.machine()
        if machine.resets() > machine.resets_seen:
            machine.resets_seen = machine.resets()
            self.reached = False
        if self.reached:
            self.steady()
            return
        machine.agent.close()
        machine.agent = Agent(machine.sockets / "agent")
        try:
            machine.agent.ping(REACH, self.steady)
            answer = machine.agent.call(MOUNTED, REACH, self.steady)
        except FarmError as error:
            self.steady()
            raise Away(str(error)) from None
        if answer.status != 0:
            raise Away("boot, state and data are not mounted")
        self.reached = True

    def call(self, command: str) -> dict[str, Any]:
        """Runs a command."""
        agent = self.machine().agent
        answer = agent.call(f"exec 2>{ERRORS}\n{command}", COMMAND, self.steady)
        errors = agent.call(f"tail -c 2000 {ERRORS}", REACH, self.steady).output if answer.status else ""
        return {"status": answer.status, "stdout": answer.output, "stderr": errors}

    def must(self, command: str) -> None:
        """Runs a command that may fail while the engine or the network starts."""
        answer = self.call(command)
        if answer["status"] != 0:
            raise Away(f"`{command}` ended with {answer['status']}: {answer['stderr']}")

    def supply(self) -> None:
        """Loads the image that a device would pull: the board is in a network without a registry."""
        to = "/mnt/data/alpine.tar"
        self.copy(self.built.alpine, to)
        self.must(f"balena load -i {to} && rm {to}")
        self.supplied = True

    def copy(self, file: Path, to: str) -> None:
        """Sends a file over the emulator's network, and compares digests. A file of that name is replaced as a whole."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(SEND)
            sender = threading.Thread(target=send, args=(server, file), daemon=True)
            sender.start()
            port, new = server.getsockname()[1], shlex.quote(f"{to}.new")
            self.must(f"nc -d -w 60 10.0.2.2 {port} >{new} </dev/null && echo {file_digest(file)} {new} | sha256sum --check --status && "
                      f"mv {new} {shlex.quote(to)}")


def send(server: socket.socket, file: Path) -> None:
    """Gives the file to the first one who connects. A reader that does not get it in full finds another digest."""
    try:
        client, _ = server.accept()
        with client, file.open("rb") as source:
            client.settimeout(SEND)
            client.sendfile(source)
    except OSError:
        pass


def file_digest(path: Path) -> str:
    """SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the protocol -----------------------------------------------------------------------------------------------------


def answer(device: Any, line: bytes) -> dict[str, Any]:
    """Answers a request. `fatal`: repeating it would be useless."""
    request = json.loads(line)
    number, what = request.pop("id"), request.pop("do")
    try:
        if what not in device.REQUESTS:
            raise FarmError(f"unknown request {what!r}")
        return {"id": number, "value": getattr(device, what)(**request)}
    except Away as error:
        return {"id": number, "error": str(error), "fatal": False}
    except (FarmError, OSError, tree.Fault) as error:
        return {"id": number, "error": str(error), "fatal": True}


def serve(link: socket.socket, device: Any, check_time: Callable[[], None]) -> None:
    """Answers one request after another until the other end closes."""
    left = b""
    link.settimeout(0.5)
    while True:
        try:
            data = link.recv(1 << 16)
        except TimeoutError:
            check_time()
            continue
        except ConnectionResetError:
            return
        if not data:
            return
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            text = json.dumps(answer(device, line)).encode() + b"\n"
            link.settimeout(60)
            try:
                link.sendall(text)
            except OSError:
                # Node has ended.
                return
            link.settimeout(0.5)


# --- a run ------------------------------------------------------------------------------------------------------------


def node(checkout: Path, what: str, words: list[str], across: bool = False) -> list[str]:
    """The command line of the shim. `across`: with the suite that needs a release with the scripts."""
    program = shutil.which("node") or shutil.which("nodejs")
    if program is None:
        raise NotRun("no node here: install nodejs")
    # It ends with who started it.
    return ["setpriv", "--pdeathsig", "KILL", "--", program, str(SHIM), str(checkout), what, *(["--across"] if across else []), *words]


def tests(checkout: Path, what: str, words: list[str], across: bool = False) -> int:
    """Prints the tests, or looks at the names of those that are wanted. `across`: also those that need a release with the scripts."""
    return subprocess.run(node(checkout, what, words, across), timeout=60, check=False).returncode


#: The file whose tests do not need each other: each leaves the device as it was.
APART = "hup/rollbacks/"


def units(checkout: Path, words: list[str], across: bool = False) -> list[str]:
    """What of these names runs by itself, on a device as it was installed: the tests of a file together, or one test."""
    listed = subprocess.run(node(checkout, "list", words, across), timeout=60, check=True, capture_output=True, text=True).stdout.splitlines()
    names = [line for line in listed if " (not run: " not in line]
    return list(dict.fromkeys(name if name.startswith(APART) else "/".join(name.split("/")[:2]) for name in names))


def each(checkout: Path, name: str, words: list[str], results: Path, limit: float, say: Callable[[str], None],
         scripts: shell_release.Checkouts | None = None) -> int:
    """As `run`, but one test after another, each with a limit of its own and after a failure too. What has passed with the same images and suites is not
    run again."""
    check(checkout)
    if status := tests(checkout, "check", words, scripts is not None):
        return status
    built = build(boards.load(name), checkout, scripts)
    of = hashlib.sha256(f"{built} {images.sources(SHIM.parent, Path(__file__).resolve())}".encode())
    for words_of_git in (("rev-parse", "HEAD"), ("diff", "HEAD", "--", SUITES)):
        of.update(shell_release.git(checkout, *words_of_git).encode())
    rows, failed = [], 0
    for unit in units(checkout, words, scripts is not None):
        at = results / f"{name}{'-scripts' if scripts else ''}" / re.sub(r"\W+", "-", unit.lower())
        passed, report = at / "passed", at / f"{name}.tap"
        if not passed.is_file() or passed.read_text() != of.hexdigest():
            for old in (passed, report):
                old.unlink(missing_ok=True)
            try:
                if run(checkout, name, [unit], at, limit, say, scripts, built) == 0:
                    passed.write_text(of.hexdigest())
            except FarmError as error:
                if place.STOPPED.is_set():
                    raise
                say(f"{unit}: {error}")
        said = re.findall(r"^# leviathan: .*?: (\d+) assertions passed, (\d+) failed, in (\d+) s$", report.read_text() if report.is_file() else "", re.MULTILINE)
        failed += not passed.is_file()
        rows.append(" | ".join((f"| `{name}`", unit, *(said[-1] if said else ("no end", "", "")))) + " |")
    say("\n".join([f"results of {len(rows)} tests:", "| board | test | assertions passed | failed | seconds |", "|---|---|---|---|---|", *rows]))
    return 1 if failed or not rows else 0


def kind_of(board: str) -> str:
    """The recipe of the images for a board."""
    for kind, made in suite_images.BOARDS.items():
        if made.name == board:
            return kind
    *others, last = [made.name for made in suite_images.BOARDS.values()]
    raise FarmError(f"the suites run on {', '.join(others)} or {last}, not on {board}")


def build(board: Board, checkout: Path, scripts: shell_release.Checkouts | None) -> suite_images.Images:
    """The images for a board, and for the suites of a checkout."""
    kind = kind_of(board.name)
    made = suite_images.BOARDS[kind]
    with place.locked(place.farm() / "images.lock", states.IMAGES, "the making of images"):
        try:
            return suite_images.build(kind, checkout, place.guests(), place.farm(), place.binary(made.machine), place.binary(os.uname().machine), scripts)
        except (tree.Fault, ValueError, OSError, subprocess.SubprocessError) as error:
            raise FarmError(f"the images of {board.name}: {error}") from None


def run(checkout: Path, name: str, words: list[str], results: Path, limit: float, say: Callable[[str], None],
        scripts: shell_release.Checkouts | None = None, built: suite_images.Images | None = None) -> int:
    """Runs the tests of these names; all without names. With `scripts`, the release that is installed first has those. `built`: images that were made before."""
    end = time.monotonic() + limit
    check(checkout)
    if status := tests(checkout, "check", words, scripts is not None):
        return status
    if os.geteuid() != 0:
        raise NotRun("only root can make the board's images: run this as root")
    board = boards.load(name)
    place.need_space(1)
    built = built or build(board, checkout, scripts)
    results.mkdir(parents=True, exist_ok=True)
    accelerator = machines.accelerator(board.arch)
    for one in unlisted(checkout):
        say(f"not run: {one}, which {PAGE.name} does not list")
    say(f"{checkout} on {name}, the first release with {'its scripts' if scripts else 'copal'}, QEMU with {accelerator}; logs: {results}")

    def check_time() -> None:
        if place.STOPPED.is_set():
            raise FarmError("ended by a signal")
        if time.monotonic() > end:
            raise FarmError(f"the limit of {limit:.0f} s is over")

    with place.guest_place(), states.folder(f"leviathan-{name}") as (at, sockets):
        device = Device(board, built, at, sockets, accelerator, check_time)
        ours, theirs = socket.socketpair()
        own = at / "suite"
        own.mkdir()
        options = {"board": name, "arch": board.arch, "hostapp": str(built.hostapp), "back": str(built.back or ""), "folder": str(own),
                   "results": str(results.resolve()), "slowness": SLOWNESS if board.secure and accelerator != "kvm" else 1}
        with theirs:
            shim = subprocess.Popen(node(checkout, "run", words, scripts is not None), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                                    env={**os.environ, "COPAL_LEVIATHAN": json.dumps(options), "COPAL_LEVIATHAN_LINK": str(theirs.fileno()),
                                         "FLASHER_SECUREBOOT": str(int(board.secure))})
        try:
            with ours:
                serve(ours, device, check_time)
            return shim.wait(60)
        except subprocess.TimeoutExpired:
            raise FarmError("the suites have closed their end and do not end") from None
        finally:
            shim.kill()
            shim.wait()
            device.off()
            if (at / "console").exists():
                shutil.copy(at / "console", results / f"{name}.console")
