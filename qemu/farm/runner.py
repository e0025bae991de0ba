"""Runs one scenario on one board."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import cut
import images
import judge
import look
import machine as machines
import place
import recorded
import recorder
import scenario as scenarios
import secure
import states
import times
import unlocking
from agent import Answer
from board import Board, Hardware, prepared
from look import Selection
from lying import LyingDisk
from machine import Machine
from place import FarmError, NotRun
from registry import Registry
from scenario import Scenario, Step

# Seconds that a step may take where the scenario does not say.
COMMAND = 600.0
RESTART = 300.0
POWER_OFF = 300.0
CONSOLE = 600.0
# Bytes at a disk's beginning that have no table, nor a loader, until all else is there.
FIRST = 1 << 20
# A few requests before and after a change of the bootloader's selection.
AROUND = (-3, 4)
# Steps that need what was recorded, and not the machine that made it.
OF_A_RECORDING = ("judge_cuts", "restore_cut", "restore_between", "start_after_cuts")
# So many changes an installation makes at least, in all that a board keeps.
ENOUGH_CUTS = 1000
#: At the console, of an encrypted disk that the TPM does not unlock.
QUESTION = "recovery passphrase (64 hex digits): "
#: The guest may unlock and start a kernel before it says something; it waits for a person for a minute.
ANSWER = 60.0


class Unmet(FarmError):
    """An expectation that is not met, and may be later."""


@dataclass(frozen=True)
class Result:
    """What a scenario came to on a board."""

    scenario: str
    board: str
    seconds: float
    state: str
    why: str = ""
    times: str = ""


class Run:
    """One scenario on one board. Each step of the language is a method."""

    def __init__(self, scenario: Scenario, board: Board, seed: int, say: Callable[[str], None]) -> None:
        self.scenario = scenario
        self.board = board.with_disk(scenario.disk) if scenario.disk else board
        self.seed = seed
        self.random = random.Random(f"{seed} {scenario.name} {board.name}")
        self.say = say
        self.steps = scenario.of(board.name)
        self.at = 0
        self.stack = ExitStack()
        self.machine: Machine | None = None
        self.hardware: Hardware | None = None
        self.plugged = False
        self.marked = 0
        self.console_from = 0
        self.last: Answer | None = None
        self.boot_id = ""
        self.cuts = 0
        # After so many requests the power went; nothing was started since.
        self.cut_behind: int | None = None
        self.registry_at: Registry | None = None
        self.lying: LyingDisk | None = None
        self.recording: recorded.Recording | None = None
        # What an earlier run of this scenario has recorded; its steps until then are not repeated.
        self.kept: Path | None = None
        self.repeated = False
        # After these of its changes a shell initramfs does not unlock the disk, and after these it is in place.
        self.shell: frozenset[int] = frozenset()
        self.locked: frozenset[int] = frozenset()
        # What the summary says of this run.
        self.times = ""
        self.accelerator = machines.accelerator(board.arch)

    # --- running it ---------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """From the first step to the last, or to the one that fails."""
        begun = time.monotonic()
        step = self.steps[0]
        try:
            with self.stack:
                try:
                    for self.at, step in enumerate(self.steps):
                        if time.monotonic() - begun > self.scenario.limit:
                            raise FarmError(f"the scenario's limit of {self.scenario.limit:.0f} s is over")
                        self.say(step.text)
                        if step.method in OF_A_RECORDING:
                            self.repeated = False
                        if not self.repeated:
                            self.do(step)
                        if self.at == 0:
                            # Making a state is not the scenario's time.
                            begun = time.monotonic()
                except FarmError as error:
                    where = f"{self.scenario.path}:{step.number}: `{step.text}`: {error}"
                    return Result(self.scenario.name, self.board.name, time.monotonic() - begun, "failed", self.report(where))
                finally:
                    if self.machine is not None:
                        self.machine.kill()
        except NotRun as error:
            return Result(self.scenario.name, self.board.name, time.monotonic() - begun, "not run", str(error))
        return Result(self.scenario.name, self.board.name, time.monotonic() - begun, "passed", times=self.times)

    def do(self, step: Step) -> None:
        """One step."""
        method = getattr(self, step.method)
        arguments = step.arguments
        if step.method.startswith("expect_"):
            end = time.monotonic() + (step.within or 0)
            while True:
                try:
                    method(*arguments)
                    return
                except Unmet:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.3)
        else:
            method(*arguments)

    def report(self, where: str) -> str:
        """What a failure shows; the console is kept in the farm's cache."""
        lines = [where, f"cuts were made with --seed {self.seed}"] if self.cuts else [where]
        if self.machine is not None:
            kept = place.farm() / "failed" / f"{self.scenario.name}-{self.board.name}"
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            for name in ("console", "errors", "command"):
                if (self.machine.folder / name).is_file():
                    shutil.copy(self.machine.folder / name, kept / name)
            if self.machine.on and self.machine.save_journal(kept / "journal"):
                lines.append(f"what the system says of itself: {kept}/journal")
            lines.append(f"the whole console: {kept}/console; its last lines:")
            lines.append(machines.tail(self.machine.console()))
        return "\n".join(lines)

    @property
    def within(self) -> float | None:
        """The time that the scenario gives this step."""
        return self.steps[self.at].within

    def next_method(self) -> str:
        """The step that comes next."""
        return self.steps[self.at + 1].method if self.at + 1 < len(self.steps) else ""

    def the_machine(self) -> Machine:
        """The machine, which has to be on."""
        if self.machine is None or not self.machine.on:
            raise FarmError("the power is off")
        return self.machine

    # --- power --------------------------------------------------------------------------------------------------------

    def from_state(self, name: str) -> None:
        """Takes a place and a copy of the state; a live one runs on at once."""
        state = states.make(self.board, name, self.accelerator, self.say)
        self.stack.enter_context(place.guest_place())
        at, sockets = self.stack.enter_context(states.folder(f"{self.scenario.name}-{self.board.name}"))
        states.plug(state, at)
        self.hardware = states.hardware(self.board, at, sockets, state.live)
        if state.live:
            self.start(state)
        else:
            self.machine = Machine(self.board, self.hardware, self.accelerator)

    def start(self, state: states.State | None = None) -> None:
        """Starts QEMU. Where a power cut is to come, the disk is kept as it is, and its writes are recorded: after those
        that have made the state, where it has them."""
        assert self.hardware is not None
        at = self.hardware.folder
        cuts = any(step.method.startswith("cut_") for step in self.steps[self.at :])
        if cuts and self.lying is not None:
            raise FarmError("a disk that forgets has no record of its writes to cut")
        log = at / "log" if cuts else None
        if log is not None and state is not None and (state.folder / "log").exists():
            machines.copy(state.folder / "before", at / "before")
            machines.copy(state.folder / "log", log)
        elif log is not None:
            machines.copy(at / "disk", at / "before")
            log.write_bytes(b"")
        self.marked = 0
        self.cut_behind = None
        medium = at / "medium" if self.plugged else None
        hardware = self.recording.hardware if self.recording is not None and self.recording.servers else self.hardware
        if self.lying is not None:
            hardware = replace(hardware, disk_server=self.hardware.sockets / "disk")
        self.hardware = replace(hardware, disk_log=log, medium=medium, incoming=state is not None)
        self.machine = Machine(self.board, self.hardware, self.accelerator)
        self.console_from = len(self.machine.console())
        if state is None:
            self.machine.start()
        else:
            self.machine.restore(state.folder / "memory")
            self.machine.ready(60)
            self.boot_id = self.machine.must("cat /proc/sys/kernel/random/boot_id").strip()

    def plug(self) -> None:
        assert self.hardware is not None
        medium = self.hardware.folder / "medium"
        if not medium.exists():
            machines.copy(Path(states.Images.of(self.board.name).flasher), medium)
        if self.machine is not None and self.machine.on:
            self.machine.plug(medium)
        self.plugged = True

    def forget(self, length: str, offset: str) -> None:
        assert self.hardware is not None
        if self.lying is not None or (self.machine is not None and self.machine.on):
            raise FarmError("the disk is what it is already")
        start = int(offset, 0)
        disk = self.hardware.folder / "disk"
        self.lying = LyingDisk(disk, self.hardware.sockets / "disk", start, start + int(length))
        # QEMU is ended first: it was started later.
        self.stack.callback(self.lying.close)

    def unplug(self) -> None:
        if self.machine is not None and self.machine.on:
            self.machine.unplug()
        self.plugged = False

    def without_power(self) -> Hardware:
        """The hardware, while the power is off."""
        if self.hardware is None or (self.machine is not None and self.machine.on):
            raise FarmError("this is possible only while the power is off")
        return self.hardware

    def put_boot_file(self, name: str, path: str) -> None:
        disk = self.without_power().disk
        of_board = states.Images.of(self.board.name)
        for folder in (of_board.boot, of_board.signed):
            if folder is not None and (folder / name).is_file():
                look.put_boot_file(disk, path, folder / name)
                return
        raise FarmError(f"the images have no program {name!r}")

    def forget_keys(self) -> None:
        flash = self.without_power().flash
        if not self.board.variables:
            raise FarmError(f"the firmware of {self.board.name} has no variables of its own")
        flash[1].write_bytes(states.variables(self.board))

    def update_firmware(self) -> None:
        if not self.board.other_code:
            raise FarmError(f"there is no other firmware for {self.board.name}")
        shutil.copyfile(prepared(self.board.other_code), self.without_power().flash[0])

    def take_power(self) -> None:
        self.the_machine().kill()

    def power_on(self) -> None:
        if self.machine is not None and self.machine.on:
            raise FarmError("the power is on already")
        self.boot_id = ""
        self.start()

    def power_off(self) -> None:
        machine = self.the_machine()
        self.ask("systemctl poweroff --no-block", ends=True)
        machine.wait_power_off(self.within or POWER_OFF)

    def powers_off(self) -> None:
        self.the_machine().wait_power_off(self.within or POWER_OFF)

    def flashes(self) -> None:
        machine = self.the_machine()
        machine.ready(self.within or self.board.boot_seconds)
        begun = times.begun(machine, self.within or self.board.boot_seconds)
        machine.wait_power_off(self.within or POWER_OFF)
        receipt = json.loads(self.boot_file("flash-receipt.json") or b"{}")
        if not receipt:
            raise FarmError("no receipt on the boot partition")
        self.times = times.report(machine.on_at, begun, machine.off_at, receipt)

    def reboot(self) -> None:
        self.ask("systemctl reboot --no-block")

    def reboots(self) -> None:
        machine = self.the_machine()
        machine.wait_reset(self.within or RESTART)
        self.console_from = len(machine.console())

    def boots(self, *words: str | None) -> None:
        machine = self.the_machine()
        more = int(words[4] or 0)
        for _ in range(more):
            machine.wait_reset(self.within or self.board.boot_seconds)
        machine.ready(self.within or self.board.boot_seconds)
        # The agent is there before much else is; what scenarios look at next is on these two.
        end = time.monotonic() + (self.within or self.board.boot_seconds)
        while machine.call("mountpoint -q /mnt/state && mountpoint -q /mnt/boot").status != 0:
            if time.monotonic() > end:
                raise FarmError("the state and boot partitions are not mounted in time")
            time.sleep(0.2)
        script = (
            "cat /proc/sys/kernel/random/boot_id; . /etc/os-release; echo \"$VERSION\"; "
            "numbers=$(findmnt -n -t ext4 -o MAJ:MIN /mnt/sysroot/active | tail -n 1); "
            # The partition itself, or the one below an encrypted volume.
            "at=/sys/dev/block/${numbers// /}; cat \"$at\"/uevent \"$at\"/slaves/*/uevent 2>/dev/null | sed -n 's/^PARTNAME=resin-root//p'"
        )
        lines = machine.must(script).split("\n")
        boot_id, version, slot = (lines + [""] * 3)[:3]
        if boot_id == self.boot_id:
            raise FarmError("this still is the boot from before")
        self.boot_id = boot_id
        wanted = [(words[0], words[1])] + ([(words[2], words[3])] if words[2] else [])
        if (version, slot) not in wanted:
            raise FarmError(f"{version or 'no version'} runs in slot {slot or '?'}")

    def boots_medium(self) -> None:
        machine = self.the_machine()
        machine.ready(self.within or self.board.boot_seconds)
        if machine.call("grep -q '[ =]LABEL=flash-root' /proc/cmdline").status != 0:
            raise FarmError(f"it is another system: {machine.must('cat /proc/cmdline').strip()}")

    def pause(self, seconds: str) -> None:
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            self.the_machine().steady()
            time.sleep(0.1)

    # --- commands -----------------------------------------------------------------------------------------------------

    def fill_in(self, command: str) -> str:
        """A command with what is known only now."""
        if "{registry}" in command:
            if self.registry_at is None:
                raise FarmError("{registry}: no registry has been started")
            command = command.replace("{registry}", f"10.0.2.2:{self.registry_at.port}")
        if "{recovery}" in command:
            command = command.replace("{recovery}", self.recovery_passphrase())
        return command

    def recovery_passphrase(self) -> str:
        """As its owner decrypts it from the disk."""
        file, keys = self.boot_file("recovery.enc"), states.Images.of(self.board.name).keys
        if file is None or keys is None:
            raise FarmError("the disk has no recovery passphrase")
        assert self.hardware is not None
        return secure.decrypted(secure.Tools(place.guests(), self.hardware.folder), keys, file)

    def enter_recovery_passphrase(self, times_asked: str) -> None:
        machine, passphrase = self.the_machine(), self.recovery_passphrase()
        for number in range(1, int(times_asked) + 1):
            asked = lambda: machine.console()[self.console_from :].count(QUESTION) >= number
            machine.until(f"the question {number} for the recovery passphrase", self.within or self.board.boot_seconds, asked)
            machine.type(f"{passphrase}\r", ANSWER)

    def ask(self, command: str, ends: bool = False) -> Answer | None:
        """Runs a command; none where the device restarts or switches off before it has answered, and that comes next. With `ends` it does."""
        machine = self.the_machine()
        ends = ends or self.next_method() in ("reboots", "powers_off")

        class Gone(Exception):
            """The end of the system was faster than the answer."""

        def check() -> None:
            machine.alive()
            if ends and (machine.resets() > machine.resets_seen or machine.has_powered_off()):
                raise Gone
            machine.steady()

        try:
            return machine.call(self.fill_in(command), self.within or COMMAND, check)
        except Gone:
            return None

    def run_command(self, command: str) -> None:
        self.last = self.ask(command)
        if self.last is not None and self.last.status != 0:
            # What is switching off may end a command that has done its work.
            if self.last.status < 128 or self.next_method() not in ("reboots", "powers_off"):
                raise FarmError(f"ended with {self.last.status}: {self.last.output.strip()[-3000:]}")

    def failing(self, command: str) -> None:
        self.last = self.the_machine().call(self.fill_in(command), self.within or COMMAND)
        if self.last.status == 0:
            raise FarmError(f"it succeeded: {self.last.output.strip()[-3000:]}")

    def start_command(self, command: str) -> None:
        text = base64.b64encode(self.fill_in(command).encode()).decode()
        inner = (
            'bash -c "$(base64 -d /run/farm.command)" 2>&1 | tee /run/farm.output >/dev/console; '
            "echo ${PIPESTATUS[0]} >/run/farm.status.new; mv /run/farm.status.new /run/farm.status"
        )
        script = f"rm -f /run/farm.status; echo {text} >/run/farm.command; "
        script += f"setsid bash -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1 &"
        self.the_machine().must(script)

    def ends(self, status: str) -> None:
        machine = self.the_machine()
        end = time.monotonic() + (self.within or COMMAND)
        while True:
            answer = machine.call("cat /run/farm.status && cat /run/farm.output")
            if answer.status == 0:
                break
            if time.monotonic() > end:
                raise FarmError("the command that was started has not ended")
            time.sleep(0.3)
        found, _, output = answer.output.partition("\n")
        self.last = Answer(int(found), output)
        if found != status:
            raise FarmError(f"it ended with {found}: {output.strip()[-3000:]}")

    def wait_until(self, command: str) -> None:
        end = time.monotonic() + (self.within or 120)
        while True:
            answer = self.the_machine().call(self.fill_in(command))
            if answer.status == 0:
                return
            if time.monotonic() > end:
                raise FarmError(f"it still ends with {answer.status}: {answer.output.strip()[-1000:]}")
            time.sleep(0.3)

    # --- expectations -------------------------------------------------------------------------------------------------

    def compare(self, what: str, text: str, relation: str, wanted: str) -> None:
        """`contains`, `does not contain`, `is`."""
        wanted = scenarios.unquoted(wanted)
        met = {"contains": wanted in text, "does not contain": wanted not in text, "is": text.strip() == wanted}[relation]
        if not met:
            raise Unmet(f"{what} is: {text.strip()[-2000:]!r}")

    def expect_output(self, relation: str, wanted: str) -> None:
        if self.last is None:
            raise FarmError("no command has answered")
        self.compare("the output", self.last.output, relation, wanted)

    def expect_output_of(self, command: str, relation: str, wanted: str) -> None:
        self.compare("the output", self.the_machine().must(self.fill_in(command)), relation, wanted)

    def expect_journal(self, relation: str, wanted: str) -> None:
        text = shlex.quote(scenarios.unquoted(wanted))
        found = self.the_machine().call(f"journalctl -b --no-pager -o short | grep -F -- {text} | tail -n 3; exit ${{PIPESTATUS[1]}}")
        if (found.status == 0) != (relation == "contains"):
            raise Unmet(f"the journal has {found.output.strip() or 'no such line'}")

    def expect_console(self, relation: str, wanted: str) -> None:
        assert self.machine is not None
        self.compare("the console", self.machine.console()[self.console_from :], relation, wanted)

    def boot_file(self, path: str) -> bytes | None:
        """From the host."""
        assert self.hardware is not None
        return look.boot_file(self.hardware.disk, path)

    def expect_boot_file_text(self, path: str, relation: str, wanted: str) -> None:
        data = self.boot_file(path)
        if data is None:
            raise Unmet(f"no {path} on the boot partition")
        self.compare(path, data.decode(errors="replace"), relation, wanted)

    def expect_boot_file(self, path: str) -> None:
        if self.boot_file(path) is None:
            raise Unmet("it is not on the boot partition")

    def expect_no_boot_file(self, path: str) -> None:
        if self.boot_file(path) is not None:
            raise Unmet("it is on the boot partition")

    def expect_own_boot_files(self) -> None:
        version = self.the_machine().must(". /etc/os-release; echo $VERSION").strip()
        self.compare("release.txt", (self.boot_file("release.txt") or b"").decode(errors="replace"), "is", version)

    def state_file(self, path: str) -> bytes | None:
        """A file of the state partition while the power is off."""
        assert self.hardware is not None
        if not path.startswith("/mnt/state/"):
            raise FarmError("the power is off: only files below /mnt/state can be looked at")
        return look.ext4_file(self.hardware.disk, "resin-state", path.removeprefix("/mnt/state"))

    def file_is_there(self, path: str) -> bool:
        """In the guest, or on the disk."""
        if self.machine is not None and self.machine.on:
            return self.machine.call(f"test -e {shlex.quote(path)}").status == 0
        return self.state_file(path) is not None

    def expect_file(self, path: str) -> None:
        if not self.file_is_there(path):
            raise Unmet("it is not there")

    def expect_no_file(self, path: str) -> None:
        if self.file_is_there(path):
            raise Unmet("it is there")

    def expect_text(self, path: str, relation: str, wanted: str) -> None:
        if self.machine is not None and self.machine.on:
            answer = self.machine.call(f"cat {shlex.quote(path)}")
            if answer.status != 0:
                raise Unmet(answer.output.strip())
            text = answer.output
        else:
            data = self.state_file(path)
            if data is None:
                raise Unmet("it is not there")
            text = data.decode(errors="replace")
        self.compare(path, text, relation, wanted)

    def status(self) -> dict[str, object]:
        """`copal status --json`."""
        text = self.the_machine().call("copal status --json").output
        for line in reversed(text.splitlines()):
            try:
                found = json.loads(line).get("status")
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
        raise Unmet(f"`copal status --json` says {text.strip()[-1000:]!r}")

    def expect_phase(self, phase: str) -> None:
        found = self.status().get("phase")
        if found != phase:
            raise Unmet(f"the phase is {found!r}")

    def expect_bootloader(self, *words: str | None) -> None:
        assert self.hardware is not None
        wanted = scenarios.selection(words)
        seen = {"the host": look.selection_of(self.board, self.hardware.disk)}
        if self.machine is not None and self.machine.on:
            if wanted.root == "running":
                wanted = replace(wanted, root=str(self.status().get("running")))
            files = [self.board.environment] + ([self.board.count] if self.board.count else [])
            script = "; ".join(f"base64 -w0 /mnt/boot/{name} 2>/dev/null; echo" for name in files)
            data = [base64.b64decode(line) or None for line in self.machine.must(script).split("\n")]
            shift = look.shift(self.hardware.disk)
            seen["the guest"] = look.selection(self.board, data[0], data[1] if len(files) > 1 else None, shift)
        for who, found in seen.items():
            if found != wanted:
                raise Unmet(f"{who} sees: {found}")

    def expect_image(self) -> None:
        assert self.hardware is not None
        look.equals_image(self.hardware.disk, Path(states.Images.of(self.board.name).disk))

    def expect_no_table(self) -> None:
        assert self.hardware is not None
        with self.hardware.disk.open("rb") as file:
            if any(file.read(FIRST)):
                raise Unmet("the first MiB is not empty")
        if self.cut_behind is None:
            return
        # What the cut has kept was left to chance; it must not be by chance that there is none.
        assert self.hardware.disk_log is not None
        part = self.hardware.folder / "first"
        for kept in (False, True):
            with (self.hardware.folder / "before").open("rb") as before:
                part.write_bytes(before.read(FIRST))
            cut.rebuild(part, self.hardware.disk_log, self.cut_behind, lambda *_, kept=kept: kept, FIRST)
            with part.open("rb") as file:
                if any(file.read(FIRST)):
                    raise Unmet(f"the first MiB is not empty where {'everything' if kept else 'nothing'} is kept that was not flushed")

    def expect_no_backup(self) -> None:
        assert self.hardware is not None
        look.ends_in_zeroes(self.hardware.disk)

    def expect_flash(self, chip: str, offset: str, name: str) -> None:
        assert self.hardware is not None
        wanted = (Path(states.Images.of(self.board.name).files) / name).read_bytes()
        at = int(offset, 0)
        if chip == "NOR":
            data = b"".join(path.read_bytes() for path in self.hardware.flash)
        else:
            if self.hardware.emmc is None:
                raise FarmError(f"the board {self.board.name} has no eMMC")
            # The image holds boot0, boot1, then the rest.
            start = self.board.emmc_boot * int(chip[-1])
            data = self.hardware.emmc.read_bytes()[start : start + self.board.emmc_boot]
        found = data[at : at + len(wanted)]
        if found != wanted:
            first = next((n for n, (a, b) in enumerate(zip(found, wanted)) if a != b), len(found))
            raise Unmet(f"it differs from byte {first} of {len(wanted)} on: {found[first : first + 16].hex(' ')}")

    # --- power cuts ---------------------------------------------------------------------------------------------------

    def requests(self) -> list[cut.Request]:
        """What the disk was asked for so far."""
        assert self.hardware is not None and self.hardware.disk_log is not None
        return cut.read(self.hardware.disk_log)

    def mark(self) -> None:
        if self.hardware is None or self.hardware.disk_log is None:
            raise FarmError("nothing is recorded: no power cut comes after this")
        self.marked = len(self.requests())

    def cut_at(self, choose: Callable[[list[cut.Request]], int]) -> None:
        """Takes the power away, and makes of the disk what it may hold after so many of its writes."""
        machine = self.the_machine()
        machine.kill()
        assert self.hardware is not None and self.hardware.disk_log is not None
        requests = self.requests()
        if len(requests) <= self.marked:
            raise FarmError("nothing was written since the mark")
        count = choose(requests)
        self.cuts += 1
        at = self.hardware.folder
        machines.copy(at / "before", at / "disk.new")
        seed = self.random.randrange(1 << 32)
        counts = cut.rebuild(at / "disk.new", self.hardware.disk_log, count, cut.chance(seed))
        (at / "disk.new").rename(at / "disk")
        self.cut_behind = count
        self.say(
            f"    power cut after {count} of {len(requests)} requests (mark at {self.marked}): "
            f"{counts['kept']} of {counts['kept'] + counts['lost']} sectors kept of what was not flushed; --seed {self.seed}"
        )

    def between(self, first: int, last: int) -> int:
        """A number of requests, both ends included."""
        if last < first:
            raise FarmError(f"no writes between request {first} and {last}")
        return self.random.randint(first, last)

    def cut_now(self) -> None:
        self.cut_at(len)

    def cut_console(self, text: str, later: str | None, up_to: str | None) -> None:
        machine = self.the_machine()
        wanted = scenarios.unquoted(text)
        machine.until(
            f"{wanted!r} on the console",
            self.within or CONSOLE,
            lambda: wanted in machine.console()[self.console_from :],
            machine.steady,
        )
        time.sleep(float(later or 0) + float(up_to or 0) * self.random.random())
        self.cut_at(len)

    def cut_random(self) -> None:
        self.cut_at(lambda requests: self.between(self.marked + 1, len(requests)))

    def first_boot_write(self, requests: list[cut.Request]) -> int:
        """The first request since the mark that changes the boot partition."""
        assert self.hardware is not None
        at = look.boot_partition(self.hardware.folder / "before")
        found = [number for number in cut.touching(requests, at.offset, at.size) if number >= self.marked]
        if not found:
            raise FarmError("nothing was written to the boot partition since the mark")
        return found[0]

    def change(self, requests: list[cut.Request], wanted: Selection) -> int:
        """The request since the mark that changes the bootloader's selection to this one."""
        assert self.hardware is not None
        before, now = self.hardware.folder / "before", self.hardware.folder / "now"
        at = look.boot_partition(before)
        machines.copy(before, now)
        touching = [number for number in cut.touching(requests, at.offset, at.size)]
        log = self.hardware.disk_log
        assert log is not None
        seen: list[str] = []
        last = look.selection_of(self.board, now)
        with log.open("rb") as source, now.open("r+b", buffering=0) as target:
            for number in touching:
                for offset, data in cut.pieces(source, requests[number]):
                    target.seek(offset)
                    target.write(data)
                try:
                    found = look.selection_of(self.board, now)
                except (FarmError, ValueError):
                    # Half a change of the file table.
                    continue
                if found != last:
                    seen.append(f"{number}: {found}")
                    if found == wanted and number >= self.marked:
                        return number
                last = found
        raise FarmError(f"no write since the mark ({self.marked}) selects {wanted}; changes were {seen}")

    def cut_layers(self) -> None:
        self.cut_at(lambda requests: self.between(self.marked + 1, self.first_boot_write(requests)))

    def cut_boot_files(self) -> None:
        def choose(requests: list[cut.Request]) -> int:
            trial = self.change(requests, Selection("B", 1, 0))
            return self.between(self.first_boot_write(requests) + 1, trial)

        self.cut_at(choose)

    def cut_around(self, *words: str | None) -> None:
        def choose(requests: list[cut.Request]) -> int:
            at = self.change(requests, scenarios.selection(words)) + 1
            return self.between(max(self.marked + 1, at + AROUND[0]), min(len(requests), at + AROUND[1]))

        self.cut_at(choose)

    def cut_after(self, *words: str | None) -> None:
        def choose(requests: list[cut.Request]) -> int:
            at = self.change(requests, scenarios.selection(words))
            for number in range(at + 1, len(requests)):
                if requests[number].flush:
                    return number + 1
            raise FarmError("this change was never flushed")

        self.cut_at(choose)

    def record_changes(self) -> None:
        hardware = self.without_power()
        if self.recording is not None or self.lying is not None:
            raise FarmError("the disk is served already")
        self.recording = recorded.Recording(hardware, hardware.folder / "recording")
        # QEMU is ended first: it was started later.
        self.stack.callback(self.recording.end)

    def record_once(self) -> None:
        # Beside the state that it begins with: it goes with it.
        state = states.make(self.board, str(self.steps[0].arguments[0]), self.accelerator, self.say).folder
        text = "\n".join(step.text for step in self.steps)
        self.kept = state.parent / f"{self.scenario.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.repeated = self.kept.is_dir()
        if self.repeated:
            self.say(f"    recorded before, in {self.kept}")
        else:
            self.record_changes()

    def phase(self, name: str) -> None:
        raise FarmError(f"there are no phases in a scenario: {name!r}")

    def recorded(self) -> Path:
        """The folder with each change of this run, or of the installation of the state."""
        if self.recording is not None:
            self.hardware = replace(self.without_power(), disk_server=None, variables_server=None, tpm_socket=None)
            self.recording.end()
            if self.kept is None:
                return self.recording.folder
            self.keep(self.recording.folder)
        if self.kept is not None:
            return self.kept
        if self.steps[0].arguments != ("recorded",):
            raise FarmError("only in a scenario that begins with the state `recorded`, or records each change")
        return states.make(self.board, "recorded", self.accelerator, self.say).folder

    def keep(self, recording: Path) -> None:
        """Other runs of the scenario begin where this one has ended."""
        assert self.kept is not None
        if self.kept.is_dir():
            return
        new = Path(tempfile.mkdtemp(prefix="recording.", dir=self.kept.parent))
        for name in (recorded.BEFORE, recorded.CHANGES):
            machines.copy(recording / name, new / name)
        try:
            new.rename(self.kept)
        except OSError:
            # Another run was faster.
            shutil.rmtree(new)

    def judge_cuts(self) -> None:
        folder = self.recorded()
        of_board = states.Images.of(self.board.name)
        signed = of_board.signed
        before, changes = folder / recorded.BEFORE, folder / recorded.CHANGES
        if self.recording is None and self.kept is None:
            verdict = judge.judge(before, changes, signed / "base" / secure.KEYS, recorded.first_change(recorder.load(changes)))
        else:
            verdict = unlocking.judge(before, changes, [unlocking.release(signed, name, name in images.UNLOCKED_BY_SCRIPTS) for name in of_board.versions])
            self.shell, self.locked = frozenset(verdict.shell), frozenset(verdict.locked)
        self.say(f"    {verdict}")
        if sum(verdict.cuts.values()) < ENOUGH_CUTS:
            raise FarmError(f"there are {ENOUGH_CUTS} changes and more")

    def restore_cut(self) -> None:
        changes = self.changes()
        first = recorded.first_change(changes)
        # Each kind of change alike, though there are many more of some.
        kind = self.random.choice((recorder.DISK, recorder.VARIABLES, recorder.TPM))
        self.restore([n for n, change in enumerate(changes) if n >= first and change.store == kind and n not in self.locked])

    def restore_between(self) -> None:
        self.restore(sorted(self.shell - self.locked))

    def start_after_cuts(self, count: str, *words: str | None) -> None:
        for number in range(int(count)):
            if number % 2 and self.shell - self.locked:
                self.restore_between()
            else:
                self.restore_cut()
            self.power_on()
            self.boots(*words, None)
            self.the_machine().must('[ "$(ls /dev/mapper | grep -c luks-)" = 5 ]')
            self.take_power()

    def changes(self) -> list[recorder.Change]:
        self.without_power()
        return recorder.load(self.recorded() / recorded.CHANGES)

    def restore(self, numbers: list[int]) -> None:
        """What one of these changes leaves when the power goes after it."""
        changes = self.changes()
        if not numbers:
            raise FarmError("there is no such change in the recording")
        number = self.random.choice(numbers)
        after = recorded.Cut(number + 1, self.random.randrange(1 << 32))
        assert self.hardware is not None
        counts = recorded.restore(self.recorded(), self.hardware.folder, after)
        self.cuts += 1
        self.say(
            f"    power cut after change {number} of {len(changes)} (copal's begin at {recorded.first_change(changes)}), of "
            f"{changes[number].store}: {counts['kept']} of {counts['kept'] + counts['lost']} sectors kept of what was not flushed; --seed {self.seed}"
        )

    # --- the world around ---------------------------------------------------------------------------------------------

    def registry(self, release: str, spoilt: str | None = None) -> None:
        if self.registry_at is None:
            assert self.hardware is not None
            self.registry_at = self.stack.enter_context(Registry(self.hardware.folder / "registry"))
        archives = states.Images.of(self.board.name).archives
        if release not in archives:
            raise FarmError(f"no release {release!r} among {', '.join(archives)}")
        changes = secure.spoilt(states.Images.of(self.board.name).signed / release, spoilt) if spoilt else None
        self.registry_at.push(Path(archives[release]), release, changes=changes)

    def registry_ends(self) -> None:
        if self.registry_at is None:
            raise FarmError("no registry has been started")
        self.registry_at.stop()

    def hold_lock(self) -> None:
        path = "/tmp/balena-supervisor/services/1/main"
        self.the_machine().must(
            f"mkdir -p {path} && {{ setsid flock {path}/updates.lock sleep infinity </dev/null >/dev/null 2>&1 & "
            "echo $! >/run/farm.lock; }"
        )
        self.wait_until(f"! flock -n {path}/updates.lock true")

    def release_lock(self) -> None:
        self.the_machine().must('kill -- "-$(cat /run/farm.lock)"')


def checked() -> None:
    """Every step has its method."""
    for _, method, _ in scenarios.STEPS:
        if not hasattr(Run, method):
            raise FarmError(f"no method {method} for a step")


