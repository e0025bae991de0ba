"""Scenario files: what they may say. A line that means nothing is an error before anything is started.

Lines are steps and expectations; `#` begins a comment, and the first comment is the scenario's title. Before the first step
may come `boards: …`, `disk: nvme`, `limit: SECONDS`. `on BOARD: STEP` is a step for that board only, `within N s STEP` waits
for an expectation, and gives other steps that time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import board as boards
from look import Selection
from place import FarmError

# Names of states that a scenario may begin with; states.py makes them.
STATES = ("blank", "dirty", "installer", "flashed", "encrypted", "recorded", "running", "pending", "pending-RELEASE")

# Scenarios run on these boards only where they name them.
NAMED_ONLY = ("qemu-amd64-secure", "qemu-amd64-secure-4096")

# Words in capitals stand for what they name, `[…]` may be left out.
WORDS = {
    "TEXT": r'"((?:[^"\\]|\\.)*)"',
    "SELECTION": r"root (A|B|running), upgrade_available ([01]), bootcount (\d+)",
    "SAYS": "(contains|does not contain|is)",
    "VERSION": r"(\d+\.\d+\.\d+\S*)",
    "SLOT": "([AB])",
    "N": r"(\d+(?:\.\d+)?)",
    "COMMAND": "(.+?)",
    "STATE": r"([\w-]+)",
    "PHASE": "([a-z ]+)",
    "RELEASE": r"([\w-]+)",
    "PATH": r"(/\S*)",
    "NAME": r"(\S+)",
    "CHIP": "(NOR|eMMC boot[01])",
    "FAULT": "(unsigned|signed by another|not in db|refused by db)",
    "OFFSET": r"(0x[0-9a-f]+|\d+)",
}

# Each step, the method of runner.Run that does it, and what it is.
STEPS = [
    ("from STATE", "from_state", "begin with the board in this state; the first step of each scenario"),
    ("disk forgets N bytes at OFFSET", "forget", "the internal disk confirms writes there and drops them; before it has power"),
    ("plug medium", "plug", "plug in the installation medium"),
    ("unplug medium", "unplug", "pull it out"),
    ("put NAME as boot file NAME", "put_boot_file", "write a program that a board starts with to the boot partition, while the power is off"),
    ("forget firmware keys", "forget_keys", "reset the variables of the firmware, while the power is off"),
    ("power on", "power_on", "give the board power"),
    ("power off", "power_off", "ask the system to switch off, and wait until it has"),
    ("powers off", "powers_off", "wait until it has switched itself off"),
    ("flashes and powers off", "flashes", "the same for a medium that is at work; its summary says where the time went"),
    ("reboot", "reboot", "ask the system to restart; `reboots` waits for it"),
    ("reboots", "reboots", "wait for one restart"),
    ("boots VERSION in SLOT[ or VERSION in SLOT][ after N more restarts]", "boots", "wait for the system; see its version and slot"),
    ("boots the medium", "boots_medium", "wait for the system on the medium"),
    ("run COMMAND", "run_command", "run what must succeed (or restart the device, where that is expected next)"),
    ("fails: COMMAND", "failing", "run what must fail"),
    ("start COMMAND", "start_command", "run it in the background; what it prints goes to the console, too"),
    ("ends with N", "ends", "wait for the end of the command that was started"),
    ("wait until COMMAND", "wait_until", "run it again and again until it succeeds"),
    ("pause N s", "pause", "do nothing; the guest must not restart meanwhile"),
    ("expect output SAYS TEXT", "expect_output", "what the last command printed"),
    ("expect output of COMMAND SAYS TEXT", "expect_output_of", "what a command prints that must succeed"),
    ("expect journal SAYS TEXT", "expect_journal", "the journal of this boot"),
    ("expect console SAYS TEXT", "expect_console", "the console since the board started last"),
    ("expect boot file NAME SAYS TEXT", "expect_boot_file_text", "a file of the boot partition, as the host sees it"),
    ("expect boot file NAME", "expect_boot_file", "it is there"),
    ("expect no boot file NAME", "expect_no_boot_file", "it is not there"),
    ("expect boot files of the running release", "expect_own_boot_files", "release.txt there names the version that runs"),
    ("expect file PATH", "expect_file", "a file in the guest (of the state partition, where the power is off)"),
    ("expect no file PATH", "expect_no_file", "it is not there"),
    ("expect PATH SAYS TEXT", "expect_text", "the contents of a file, likewise"),
    ("expect phase PHASE", "expect_phase", "what `copal status` says"),
    ("expect bootloader SELECTION", "expect_bootloader", "its environment: in the guest, and on the disk as the host sees it"),
    ("expect disk equals image", "expect_image", "every byte but the boot partition's, as the host sees them"),
    ("expect no partition table", "expect_no_table", "on the disk, as the host sees it; after a cut, what the disk has kept"),
    ("expect no table at the disk's end", "expect_no_backup", "where an older system's backup table was; likewise"),
    ("expect CHIP at OFFSET holds NAME", "expect_flash", "bytes of a chip as the host sees them, and a file of the images"),
    ("mark", "mark", "remember how far the disk's writes are, for the cuts below; else they count from the beginning of the state"),
    ("update firmware", "update_firmware", "put another build of the firmware into its chip, while the power is off"),
    ("enter recovery passphrase N times", "enter_recovery_passphrase", "type it at the console each time it is asked for; `{recovery}` in a command"),
    ("take power", "take_power", "end the board; unlike a cut, whatever it has written is kept"),
    ("cut power", "cut_now", "take the power away now"),
    ("cut power when console says TEXT[, N s later][, up to N s later]", "cut_console", "take the power away then"),
    ("cut power at a random write", "cut_random", "as if it had gone at one of the disk's writes since the mark"),
    ("cut power while the layers load", "cut_layers", "as if it had gone before the first boot file was written"),
    ("cut power while the boot files are written", "cut_boot_files", "as if it had gone between that and the switch"),
    ("cut power around bootloader SELECTION", "cut_around", "as if it had gone a few writes around that change"),
    ("cut power after bootloader SELECTION", "cut_after", "as if it had gone right after that change was flushed"),
    ("record each change", "record_changes", "of disk, variables and TPM, until the power is off again; before it has power"),
    ("record each change, once for all runs", "record_once", "the same; another run of the scenario goes on at the next step about power cuts"),
    ("phase PHASE", "phase", "of a lifecycle, for the counts of its power cuts and for times; only in qemu/lifecycle.scenario and qemu/times.scenario"),
    ("judge a power cut after each change", "judge_cuts", "of a recorded installation: it goes on from each, or is complete; of an update: it unlocks"),
    ("power goes between two changes", "restore_cut", "make disks and chips what they are then, while the power is off; chosen at random"),
    ("power goes where scripts would not unlock", "restore_between", "as the step before, after a change that leaves one index or list of two"),
    ("N starts after power cuts boot VERSION in SLOT[ or VERSION in SLOT]", "start_after_cuts", "both kinds by turns; each has five open partitions"),
    ("registry serves RELEASE[ that is FAULT]", "registry", "a registry on the host has it; {registry} is its address. A fault of secure boot: see secure.spoilt"),
    ("registry ends", "registry_ends", "stop it"),
    ("hold update lock", "hold_lock", "as an application does that must not be interrupted"),
    ("release update lock", "release_lock", "let go of it"),
]


def pattern(words: str) -> re.Pattern[str]:
    """What lines a step has."""
    text = re.escape(words).replace(r"\ ", " ").replace(r"\[", "(?:").replace(r"\]", ")?")
    return re.compile(re.sub(r"\b[A-Z]+\b", lambda found: WORDS[found[0]], text))


PATTERNS = [(pattern(words), method) for words, method, _ in STEPS]


@dataclass(frozen=True)
class Step:
    """One line."""

    number: int
    text: str
    method: str
    arguments: tuple[str | None, ...]
    board: str | None = None
    within: float | None = None


@dataclass(frozen=True)
class Scenario:
    """One file."""

    name: str
    path: str
    title: str
    boards: tuple[str, ...]
    steps: tuple[Step, ...]
    disk: str | None = None
    limit: float = 900

    def of(self, board: str) -> tuple[Step, ...]:
        """The steps for one board."""
        return tuple(step for step in self.steps if step.board in (None, board))

    def work(self, board: str) -> int:
        """Roughly how long it takes there, in starts of a system: an update is three of them."""
        starts = ("reboots", "power_on", "powers_off", "flashes")
        cuts = sum(int(step.arguments[0] or 0) for step in self.of(board) if step.method == "start_after_cuts")
        return cuts + sum(3 * ("hostapp-update " in step.text) + (step.method in starts) for step in self.of(board))


def selection(words: tuple[str | None, ...]) -> Selection:
    """The three words of a selection."""
    root, upgrade, count = words
    return Selection(str(root), int(str(upgrade)), int(str(count)))


def unquoted(text: str) -> str:
    """What stands between quotes."""
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def parse(name: str, text: str, where: str, known: list[str]) -> Scenario:
    """A scenario from the text of its file; `known` are the boards there are."""
    title: list[str] = []
    titled = False
    names: tuple[str, ...] = tuple(one for one in known if one not in NAMED_ONLY)
    disk: str | None = None
    limit = 900.0
    steps: list[Step] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()

        def wrong(why: str) -> FarmError:
            return FarmError(f"{where}:{number}: {why}")

        if line.startswith("#"):
            if not titled:
                title.append(line.lstrip("# "))
            continue
        titled = titled or bool(title)
        if not line:
            continue
        header = re.fullmatch(r"(boards|disk|limit): *(.+)", line)
        if header:
            if steps:
                raise wrong(f"`{header[1]}:` stands before the first step")
            if header[1] == "boards":
                names = tuple(re.split(r"[ ,]+", header[2]))
                for one in names:
                    if one not in known:
                        raise wrong(f"no board {one!r} in qemu/boards")
            elif header[1] == "disk":
                disk = header[2]
                if disk not in boards.DISK_KINDS:
                    raise wrong(f"no such disk: {disk!r}; there are {', '.join(boards.DISK_KINDS)}")
            else:
                if not header[2].isdigit():
                    raise wrong(f"the limit is no number of seconds: {header[2]!r}")
                limit = float(header[2])
            continue
        board = None
        if prefix := re.match(r"on (\S+): *", line):
            board = prefix[1]
            if board not in known:
                raise wrong(f"no board {board!r} in qemu/boards")
            line = line[prefix.end() :]
        within = None
        if prefix := re.match(rf"within {WORDS['N']} s,? *", line):
            within = float(prefix[1])
            line = line[prefix.end() :]
        for words, method in PATTERNS:
            if found := words.fullmatch(line):
                steps.append(Step(number, line, method, found.groups(), board, within))
                break
        else:
            raise wrong(f"this is no step: {line!r}; `python3 qemu/farm steps` lists them")
        if (method == "from_state") != (len(steps) == 1):
            raise wrong("`from STATE` is the first step, and only that")
        if method == "from_state" and re.sub("^pending-.+", "pending-RELEASE", str(steps[0].arguments[0])) not in STATES:
            raise wrong(f"no such state: {steps[0].arguments[0]!r}; there are {', '.join(STATES)}")
    if not steps:
        raise FarmError(f"{where}: no steps")
    if not title:
        raise FarmError(f"{where}: no title: it begins with a comment that says what happens")
    if not any(step.text.startswith(("expect", "boots")) for step in steps):
        raise FarmError(f"{where}: nothing is expected: it cannot fail")
    return Scenario(name, where, " ".join(title), names, tuple(steps), disk, limit)


def load(path: Path, known: list[str]) -> Scenario:
    """Reads a scenario's file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FarmError(f"no scenario {path.stem}: {path}: {error.strerror}; `python3 qemu/farm list` shows them") from None
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return parse(path.stem, text, str(shown), known)


def all_in(folder: Path, known: list[str]) -> list[Scenario]:
    """Every scenario of a folder. All of their mistakes are reported at once."""
    found, errors = [], []
    for path in sorted(folder.glob("*.scenario")):
        try:
            found.append(load(path, known))
        except FarmError as error:
            errors.append(str(error))
    if errors:
        raise FarmError("\n".join(errors))
    return found
