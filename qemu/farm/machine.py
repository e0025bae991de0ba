"""A running QEMU: power, console, agent, events. Every wait has a limit and names what it waited for."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import board as boards
import place
from agent import Agent, Answer
from board import Board, Hardware
from place import STOPPED, FarmError

# Those that run, so that none outlives this program.
RUNNING: set["Machine"] = set()

# Seconds. No system comes so far in it that it restarts again.
SAME_RESET = 0.5


class Reset(FarmError):
    """The guest restarted while something else was waited for."""


def stop_all() -> None:
    """Ends every machine; waits in other threads fail."""
    STOPPED.set()
    for machine in list(RUNNING):
        machine.kill()


class Qmp:
    """QEMU's monitor."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("r", encoding="utf-8")
        self.changed = threading.Condition()
        self.events: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.ended = False
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.command("qmp_capabilities")

    def read(self) -> None:
        """Sorts what comes into events and answers."""
        try:
            for line in self.file:
                message = json.loads(line)
                with self.changed:
                    if "event" in message:
                        self.events.append(message)
                    elif "QMP" not in message:
                        self.answers.append(message)
                    self.changed.notify_all()
        except (OSError, ValueError):
            pass
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def command(self, name: str, seconds: float = 30, **arguments: Any) -> Any:
        """One command, and what it returns."""
        with self.changed:
            self.answers.clear()
            text = json.dumps({"execute": name, "arguments": arguments} if arguments else {"execute": name})
            try:
                self.socket.sendall(text.encode() + b"\n")
            except OSError as error:
                raise FarmError(f"QEMU's monitor: {name}: {error}") from None
            if not self.changed.wait_for(lambda: self.answers or self.ended, seconds):
                raise FarmError(f"QEMU's monitor does not answer {name} within {seconds:.0f} s")
            if not self.answers:
                raise FarmError(f"QEMU ended during {name}")
            answer = self.answers.pop(0)
        if "error" in answer:
            raise FarmError(f"QEMU's monitor: {name}: {answer['error'].get('desc')}")
        return answer.get("return")

    def close(self) -> None:
        """Lets go of the monitor."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


class Machine:
    """One board with its hardware. Between power-off and power-on there is no process."""

    def __init__(self, board: Board, hardware: Hardware, accelerator: str = "tcg") -> None:
        self.board = board
        self.hardware = hardware
        self.accelerator = accelerator
        self.folder = hardware.folder
        self.sockets = hardware.sockets
        self.process: subprocess.Popen[bytes] | None = None
        self.tpm: subprocess.Popen[bytes] | None = None
        self.qmp: Qmp | None = None
        self.agent = Agent(self.sockets / "agent")
        self.resets_seen = 0
        # When the power came, and when the guest switched itself off: seconds of the host's clock.
        self.on_at = self.off_at = 0.0
        self.console_path = self.folder / "console"
        self.console_path.touch()

    # --- power --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts QEMU; the guest runs, unless a saved machine is to come."""
        if self.process is not None:
            raise FarmError("the power is on already")
        if STOPPED.is_set():
            raise FarmError("ended by a signal")
        for name in ("qmp", "agent", "console", "tpm"):
            (self.sockets / name).unlink(missing_ok=True)
        argv = boards.program(self.board.qemu)
        argv += boards.arguments(self.board, self.hardware, self.accelerator)
        (self.folder / "command").write_text("\n".join(argv) + "\n")
        self.resets_seen = 0
        self.on_at = time.time()
        RUNNING.add(self)
        with (self.folder / "errors").open("ab") as errors:
            if self.hardware.tpm is not None:
                self.start_tpm(errors)
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self.agent = Agent(self.sockets / "agent")
        self.until("QEMU's monitor", 30, lambda: (self.sockets / "qmp").exists())
        end = time.monotonic() + 30
        while self.qmp is None:
            try:
                self.qmp = Qmp(self.sockets / "qmp")
            except OSError:
                self.alive()
                if time.monotonic() > end:
                    raise FarmError("QEMU's monitor takes no connection within 30 s") from None
                time.sleep(0.05)

    def start_tpm(self, errors: IO[bytes]) -> None:
        """Starts the TPM, which QEMU connects to."""
        assert self.hardware.tpm is not None
        self.hardware.tpm.mkdir(exist_ok=True)
        argv = boards.tpm_program(self.board, self.hardware)
        self.tpm = process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

        def check() -> None:
            if process.poll() is not None:
                text = (self.folder / "errors").read_text(errors="replace").strip()
                raise FarmError(f"the emulated TPM ended by itself ({process.returncode}): {text[-2000:]}")

        self.until("the emulated TPM", 30, (self.sockets / "tpm").exists, check)

    def kill(self) -> None:
        """Ends QEMU at once."""
        self.agent.close()
        if self.qmp is not None:
            self.qmp.close()
            self.qmp = None
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None
        if self.tpm is not None:
            # It has answered each command that QEMU sent: its state is on the disk.
            self.tpm.send_signal(signal.SIGKILL)
            self.tpm.wait()
            self.tpm = None
        RUNNING.discard(self)

    @property
    def on(self) -> bool:
        """Whether there is a QEMU."""
        return self.process is not None

    def alive(self) -> None:
        """Fails when QEMU has ended by itself."""
        if STOPPED.is_set():
            raise FarmError("ended by a signal")
        if self.process is None:
            raise FarmError("the power is off")
        if self.process.poll() is not None:
            text = (self.folder / "errors").read_text(errors="replace").strip()
            raise FarmError(f"QEMU ended by itself ({self.process.returncode}): {text[-2000:]}")

    # --- events -------------------------------------------------------------------------------------------------------

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of that name since the power came."""
        if self.qmp is None:
            return []
        with self.qmp.changed:
            return [event for event in self.qmp.events if event["event"] == name]

    def resets(self) -> int:
        """How often the guest has restarted since the power came."""
        times = [stamp(event) for event in self.events("RESET") if event["data"].get("guest")]
        # A kernel that tries several ways to restart may get more than one through before the processor stops.
        return sum(1 for number, time in enumerate(times) if number == 0 or time - times[number - 1] > SAME_RESET)

    def has_powered_off(self) -> bool:
        """Whether the guest has switched itself off."""
        return bool(self.events("SHUTDOWN"))

    def until(self, what: str, seconds: float, done: Callable[[], Any], check: Callable[[], None] | None = None) -> Any:
        """Waits for something, and gives what `done` gave."""
        end = time.monotonic() + seconds
        while True:
            if result := done():
                return result
            (check or self.alive)()
            if time.monotonic() > end:
                raise FarmError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.05)

    def steady(self) -> None:
        """Fails when the guest has ended or restarted without anybody having asked for it."""
        self.alive()
        if self.resets() > self.resets_seen:
            raise Reset("the guest restarted, which nothing here expects")
        if self.has_powered_off():
            raise FarmError("the guest switched itself off, which nothing here expects")

    def wait_reset(self, seconds: float) -> None:
        """Waits for one restart more than those that were waited for already."""
        self.until("a restart of the guest", seconds, lambda: self.resets() > self.resets_seen, self.not_off)
        self.resets_seen += 1

    def not_off(self) -> None:
        """Fails when the guest is off."""
        self.alive()
        if self.has_powered_off():
            raise FarmError("the guest switched itself off where a restart was expected")

    def wait_power_off(self, seconds: float) -> None:
        """Waits until the guest has switched itself off, and takes the power away."""

        def check() -> None:
            self.alive()
            if self.resets() > self.resets_seen:
                raise Reset("the guest restarted where it was to switch itself off")

        self.until("the guest to switch itself off", seconds, self.has_powered_off, check)
        self.off_at = stamp(self.events("SHUTDOWN")[0])
        self.quit()

    def quit(self) -> None:
        """Ends QEMU in order: what it holds back is written."""
        assert self.qmp is not None and self.process is not None
        self.qmp.command("quit")
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise FarmError("QEMU does not end within 60 s") from None
        self.kill()

    # --- console and agent --------------------------------------------------------------------------------------------

    def console(self) -> str:
        """All that the console has said, over all power cycles."""
        return self.console_path.read_bytes().decode(errors="replace").replace("\r", "")

    def ready(self, seconds: float) -> None:
        """Waits until the agent answers."""
        self.agent.close()
        self.agent = Agent(self.sockets / "agent")
        self.agent.ping(seconds, self.steady)

    def call(self, script: str, seconds: float = 60, check: Callable[[], None] | None = None) -> Answer:
        """Runs a script in the guest."""
        return self.agent.call(script, seconds, check or self.steady)

    def must(self, script: str, seconds: float = 60) -> str:
        """Runs one that has to succeed, and gives its output."""
        answer = self.call(script, seconds)
        if answer.status != 0:
            raise FarmError(f"`{script.splitlines()[0]}` ended with {answer.status}: {answer.output.strip()[-2000:]}")
        return answer.output

    def save_journal(self, path: Path) -> bool:
        """What the system says of itself, for a failure; whether there is anything."""
        script = "copal status; copal status --log; systemctl --failed --no-legend; journalctl --no-pager -o short-monotonic | tail -n 3000"
        try:
            self.agent.close()
            self.agent.ping(10, self.alive)
            path.write_text(self.call(script, 60, self.alive).output)
            return True
        except (FarmError, OSError):
            return self.ask_console()

    def type(self, text: str, seconds: float) -> None:
        """As a person at the console, who waits for what comes next: QEMU forgets what the guest has not read by the end of the connection."""
        before = len(self.console())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
            console.settimeout(5)
            console.connect(str(self.sockets / "console"))
            console.sendall(text.encode())
            self.until("an answer to what was typed", seconds, lambda: len(self.console()) > before)

    def ask_console(self) -> bool:
        """Where the agent is silent: types into the shell that the boards have on their console. False: it is in the console."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
                console.settimeout(5)
                console.connect(str(self.sockets / "console"))
                for command in ("systemctl --no-pager status board-agent", "systemctl --no-pager list-jobs", "ls -l /dev/virtio-ports/"):
                    console.sendall(f"{command} | cat\r".encode())
                    time.sleep(5)
        except OSError:
            pass
        return False

    # --- the medium ---------------------------------------------------------------------------------------------------

    def plug(self, medium: Path) -> None:
        """Plugs the medium into the running machine."""
        assert self.qmp is not None
        self.qmp.command("blockdev-add", **nested(boards.raw("medium", medium)))
        pairs = dict(pair.split("=", 1) for pair in boards.medium_device().split(",")[1:])
        self.qmp.command("device_add", driver="usb-storage", **pairs)

    def unplug(self) -> None:
        """Pulls it out of the running machine."""
        assert self.qmp is not None
        self.qmp.command("device_del", id="medium")
        gone = lambda: any(event["data"].get("device") == "medium" for event in self.events("DEVICE_DELETED"))
        self.until("the medium to be unplugged", 30, gone)
        self.qmp.command("blockdev-del", **{"node-name": "medium"})

    # --- saving and restoring -----------------------------------------------------------------------------------------

    def save(self, path: Path, seconds: float = 120) -> None:
        """Stops the machine and saves its memory and devices. The disks are the caller's; the machine ends."""
        assert self.qmp is not None
        self.qmp.command("stop")
        self.migrate("migrate", seconds, uri=f"file:{path}")
        self.quit()

    def restore(self, path: Path, seconds: float = 120) -> None:
        """Starts a machine that was saved, with disks as they were."""
        assert self.hardware.incoming
        self.start()
        assert self.qmp is not None
        self.migrate("migrate-incoming", seconds, uri=f"file:{path}")
        self.qmp.command("cont")

    def migrate(self, command: str, seconds: float, uri: str) -> None:
        """Runs one of the two directions to its end."""
        assert self.qmp is not None
        # As fast as it goes.
        self.qmp.command("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.qmp.command(command, uri=uri)

        def completed() -> bool:
            assert self.qmp is not None
            status = self.qmp.command("query-migrate")
            if status.get("status") in ("failed", "cancelled"):
                raise FarmError(f"the machine's state cannot be moved: {status.get('error-desc', status['status'])}")
            return status.get("status") == "completed"

        self.until(f"{command} of the machine's state", seconds, completed)


def stamp(event: dict[str, Any]) -> float:
    """When an event took place."""
    return float(event["timestamp"]["seconds"]) + event["timestamp"]["microseconds"] / 1e6


def nested(options: str) -> dict[str, Any]:
    """`a=1,b.c=on` as the monitor wants it."""
    result: dict[str, Any] = {}
    for pair in options.split(","):
        key, _, value = pair.partition("=")
        at = result
        *folders, last = key.split(".")
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = {"on": True, "off": False}.get(value, value) if last != "locking" else value
    return result


# Colours, the cursor's moves, and systemd's line about what it waits for, printed every half second.
NOISE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>()].?)")
WAITING = re.compile(r"^.{0,12}\(\d+ of \d+\) (?:A |\d+ )?(?:start |stop )?[Jj]ob .* running")


def tail(text: str, lines: int = 60) -> str:
    """The last lines of a console, as one reads them."""
    plain: list[str] = []
    for line in NOISE.sub("", text).splitlines():
        if not line.strip() or (WAITING.match(line.strip()) and plain and WAITING.match(plain[-1].strip())):
            continue
        plain.append(line.rstrip())
    return "\n".join(plain[-lines:])


def copy(source: Path, target: Path) -> None:
    """A copy of a file or folder that keeps holes, and shares blocks where the file system can."""
    result = subprocess.run(
        ["cp", "--recursive", "--sparse=always", "--reflink=auto", str(source), str(target)], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise FarmError(f"cannot copy {source}: {result.stderr.strip()}")


def accelerator(arch: str) -> str:
    """`kvm` only where a guest really ran with it since this machine came up; else `tcg`."""
    if arch != os.uname().machine or not os.access("/dev/kvm", os.W_OK):
        return "tcg"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    verdict = place.farm() / f"kvm-{boot}"
    with place.locked(place.farm() / "kvm.lock", 60, "the probe of KVM"):
        if not verdict.is_file():
            for old in place.farm().glob("kvm-*-*"):
                old.unlink()
            verdict.write_text("kvm\n" if kvm_works() else "tcg\n")
        return verdict.read_text().strip()


def kvm_works(seconds: float = 10) -> bool:
    """Boots a kernel that finds no root, panics and restarts: that needs timers, memory and devices to work."""
    argv = boards.program("qemu/usr/bin/qemu-system-x86_64") + [
        *("-machine", "q35", "-accel", "kvm", "-cpu", "max", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(place.part("kernel") / "vmlinuz"), "-append", "console=ttyS0 panic=-1"),
    ]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    return process.returncode == 0 and b"Kernel panic" in output
