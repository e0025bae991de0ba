"""What power cuts leave where the scripts of meta-balena update an encrypted board, and where copal's hooks do.

The scripts are of a checkout that the user brings, and nothing of it is kept but in the farm's cache. Both kinds of hooks run on the same board, in the
root of the same release, and are judged in the same way: `qemu/scripts.scenario`. Loader, stage-2 kernel and keys are made here: with lists that have
hashes only, as the scripts expect them, and with the initramfs that goes with the hooks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import board as boards
import bootchain
import disk as disks
import encrypted
import images
import machine as machines
import place
import runner
import scenario as scenarios
import secure
import shell_release
import states
import tree
import unlocking
from machine import Machine
from place import FarmError, NotRun
from recorded import BEFORE, CHANGES
from scenario import Scenario, Step

SCENARIO = place.TOP / "qemu/scripts.scenario"
ENTER = place.TOP / "qemu/os/scripts/enter"
BOARD, RECIPE = "qemu-amd64-secure", "amd64-secure"
OLD, NEW = "base", "good"
#: In a checkout of meta-balena.
SUPPORT = "meta-balena-common/recipes-support"
HOOKS = ("0-signed-update", "95-secureboot/1-fwd_commit_apply-dbx", "95-secureboot/2-fwd_commit_update-policy")
HELPERS = ("os-helpers-logging", "os-helpers-tpm2", "os-helpers-efi", "os-helpers-sb")
#: What the scripts use. A balenaOS has these programs as well, of other versions.
SUITE, MIRROR = "bookworm", "http://deb.debian.org"
PACKAGES = ("bash coreutils grep sed mawk findutils diffutils util-linux mount e2fsprogs rsync xxd efitools efivar tpm2-tools libtss2-tcti-device0 "
            "dbus-bin libc-bin")
#: Links that the packages' scripts would make. A restart is the next step of the scenario.
LINKS = {"bin/sh": "bash", "usr/bin/awk": "mawk", "sbin/reboot": "/bin/true"}
SECONDS = 600.0
#: The two kinds of initramfs.
BY_COPAL, BY_SCRIPTS = "copal unlock", "the scripts' initramfs"
#: Cuts that are given to a board, each with what its console says then: in which phase, and what is wrong. It is the list or the passphrase that the TPM
#: does not take or give.
PROOFS = (
    (HOOKS[0], unlocking.LOCKED, "initramfs: the TPM does not "),
    (HOOKS[0], unlocking.NO_LOADER, "Access Denied"),
    (HOOKS[2], unlocking.LOCKED, "initramfs: the TPM does not "),
)


@dataclass(frozen=True)
class Checkouts:
    """Of meta-balena, and of the program that its scripts compute measurements with."""

    meta_balena: Path
    tcgtool: Path

    def check(self) -> None:
        """They have what is used of them."""
        for path in [*(self.hook(name) for name in HOOKS), *(self.helper(name) for name in HELPERS), self.tcgtool / "tcgtool.c"]:
            if not path.is_file():
                raise FarmError(f"there is no {path}: name a checkout of balena-os/meta-balena, then one of balena-os/tcgtool")

    def hook(self, name: str) -> Path:
        """A hook."""
        return self.meta_balena / SUPPORT / "hostapp-update-hooks/files" / name

    def helper(self, name: str) -> Path:
        """A file that hooks source."""
        return self.meta_balena / SUPPORT / "os-helpers/os-helpers" / name

    def versions(self) -> str:
        """As git calls them."""
        said = []
        for path in (self.meta_balena, self.tcgtool):
            done = subprocess.run(["git", "-C", path, "describe", "--tags", "--always", "--dirty"], capture_output=True, text=True, timeout=60, check=False)
            said.append(f"{path.name} {done.stdout.strip() or 'of no version'}")
        return ", ".join(said)


# --- what the board starts from ---------------------------------------------------------------------------------------


def programs() -> Path:
    """A folder with the packages, unpacked; kept."""
    key = hashlib.sha256(f"{SUITE} {MIRROR} {PACKAGES} 2".encode()).hexdigest()[:16]
    at = place.farm() / f"scripts-{key}"
    with place.locked(place.farm() / "scripts.lock", SECONDS, "the packages for the scripts"):
        if not at.is_dir():
            if shutil.which("mmdebstrap") is None:
                raise NotRun("no mmdebstrap here, which fetches what the scripts use")
            new = at.with_name(f"{at.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            mirror = os.environ.get("COPAL_DEBIAN_MIRROR", MIRROR) + "/debian"
            command = ["mmdebstrap", "--quiet", "--variant=extract", "--mode=root", '--aptopt=APT::Install-Recommends "false"',
                       '--aptopt=Acquire::Retries "3"', f"--include={','.join(PACKAGES.split())}", SUITE, str(new), mirror]
            try:
                subprocess.run(command, check=True, timeout=SECONDS)
            except (subprocess.SubprocessError, OSError) as error:
                raise FarmError(f"cannot fetch what the scripts use: {error}") from None
            # The folder of devices has some, and a copy of one has no end.
            for name in ("dev", "usr/share", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base", "var"):
                shutil.rmtree(new / name)
            new.rename(at)
    return at


def signed(of: Any, initramfs: str, to: Path) -> None:
    """Loaders, stage-2 kernels with that initramfs and lists, of two releases."""
    shutil.copytree(of.signed, to)
    recipe = images.BOARDS[RECIPE]
    with tempfile.TemporaryDirectory(dir=to) as folder:
        tools = secure.Tools(place.guests(), Path(folder))
        signer = secure.OpenPgp(tools, of.keys / "grub.key")
        for name in (OLD, NEW):
            own = to / name
            secure.make_stage2(tools, of.boot / recipe.kernel, of.boot / initramfs, images.os_release(recipe, of.versions[name]), own / secure.STAGE2)
            signer.sign(own / secure.STAGE2)
            secure.make_lists(tools, of.keys, images.loader_of(to, name), own / secure.STAGE2, own / secure.KEYS, signer=False)


def releases(of: Any, checkouts: Checkouts | None, to: Path) -> None:
    """The disk with the new release's root, and with the lists of the old one. Without checkouts the hooks are copal's."""
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        top = Path(folder) / "top"
        root = top / "new"
        shutil.copytree(programs(), root, symlinks=True)
        for path, target in LINKS.items():
            (root / path).unlink(missing_ok=True)
            (root / path).symlink_to(target)
        for name in ("dev", "mnt", "proc", "run", "sys", "tmp", "boot"):
            (root / name).mkdir(exist_ok=True)
        (root / ".dockerenv").touch()
        for end in ("", ".sig"):
            shutil.copy(of.signed / NEW / f"{secure.STAGE2}{end}", root / "boot")
        images.boot_files(images.BOARDS[RECIPE], of.boot, of.versions[NEW], of.signed).write(root / "resin-boot")
        for name in HOOKS:
            hook = root / "etc/hostapp-update-hooks.d" / name
            hook.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkouts.hook(name) if checkouts else place.TOP / "hooks/hook", hook)
            hook.chmod(0o755)
        if checkouts:
            for name in HELPERS:
                (root / "usr/libexec").mkdir(exist_ok=True)
                shutil.copy(checkouts.helper(name), root / "usr/libexec" / name)
            shell_release.build_tcgtool(checkouts.tcgtool, root / "usr/bin/tcgtool")
        else:
            shutil.copy(place.binary("x86_64"), root / "usr/bin/copal")
        (top / "old").mkdir()
        for name in ("db.esl", "dbx.auth"):
            shutil.copy(of.signed / OLD / secure.KEYS / name, top / "old")
        shutil.copy(ENTER, top / "enter")
        size = sum(f.stat().st_size for f in top.rglob("*") if f.is_file() and not f.is_symlink())
        disks.ext4(to, "releases", size * 11 // 10 // disks.MIB + 32, top, "-O ^has_journal -m 0 -i 8192")


# --- counting ---------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    """Cuts of a phase: all; those that may lock the device out, and those that do whatever the disk has kept; and for which reasons."""

    cuts: int = 0
    locked: int = 0
    certain: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, wrong: list[str]) -> None:
        """A cut with what is wrong with each start that it may leave."""
        self.cuts += 1
        self.locked += any(wrong)
        self.certain += all(wrong)
        self.reasons.update({why for why in wrong if why})

    def plus(self, other: Count) -> Count:
        """Both."""
        return Count(self.cuts + other.cuts, self.locked + other.locked, self.certain + other.certain, self.reasons + other.reasons)


@dataclass(frozen=True)
class Row:
    """A run of hooks, with the initramfs that reads what they leave; the counts by phase."""

    hooks: str
    initramfs: str
    phases: dict[str, Count]

    def total(self) -> Count:
        """Of all phases."""
        whole = Count()
        for count in self.phases.values():
            whole = whole.plus(count)
        return whole


def phases(marks: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """From which change on a phase lasts, from the numbers of changes before each step: a hook, or the restart after it."""
    found: list[tuple[int, str]] = []
    hook = ""
    for number, text in marks:
        named = [name for name in HOOKS if text.endswith(f" {name}")]
        if named:
            hook = named[0]
            found.append((number, hook))
        elif text == "reboot" and hook:
            found.append((number, f"restart after {hook}"))
    return found


def phase(found: list[tuple[int, str]], number: int) -> str:
    """That of a change."""
    return [name for begin, name in found if begin <= number][-1]


def table(rows: list[Row]) -> str:
    """As the documentation has it."""
    lines = ["| hooks | initramfs | after | cut points | lock the device out | whatever the disk keeps |", "|---|---|---|---|---|---|"]
    for row in rows:
        for name, count in [*row.phases.items(), ("**all**", row.total())]:
            lines.append(f"| {row.hooks} | {row.initramfs} | {name} | {count.cuts:,} | {count.locked:,} | {count.certain:,} |")
    for row in rows:
        for why, number in row.total().reasons.most_common():
            lines.append(f"{row.hooks}, {row.initramfs}: {number:,} cut points: {why}")
    return "\n".join(lines)


# --- the runs ---------------------------------------------------------------------------------------------------------


class Update(runner.Run):
    """The scenario, with one kind of hooks."""

    def __init__(self, scenario: Scenario, checkouts: Checkouts | None, seed: int, say: Callable[[str], None]) -> None:
        super().__init__(scenario, boards.load(BOARD), seed, say)
        self.checkouts = checkouts
        self.marks: list[tuple[int, str]] = []
        self.rows: list[Row] = []
        self.signed = Path()
        self.broken: dict[tuple[str, str], list[int]] = {}
        self.proofs = list(PROOFS)

    def do(self, step: Step) -> None:
        if self.recording is not None and self.recording.servers:
            self.marks.append((len(self.recording.changes.changes), step.text))
        super().do(step)

    def from_state(self, name: str) -> None:
        """Makes the state: its keys and programs are of this run."""
        of = states.Images.of(self.board.name)
        self.stack.enter_context(place.guest_place())
        at, sockets = self.stack.enter_context(states.folder(f"scripts-{self.board.name}"))
        self.signed = at / "signed"
        signed(of, bootchain.INITRAMFS_OF_SCRIPTS if self.checkouts else bootchain.INITRAMFS, self.signed)
        own = replace(of, signed=self.signed)
        releases(own, self.checkouts, at / "releases")
        states.chips(self.board, at)
        hardware = states.hardware(self.board, at, sockets, live=False)
        self.say("making the encrypted installation")
        encrypted.make(self.board, own, hardware, self.accelerator, max(Path(of.disk).stat().st_size, states.DISK))
        self.hardware = replace(hardware, releases=at / "releases")
        self.machine = Machine(self.board, self.hardware, self.accelerator)

    def run_command(self, command: str) -> None:
        if self.checkouts and command.endswith(HOOKS[2]):
            # It ends with 1 where it has done its work: at its end it closes its session with the TPM a second time. The restart shows it.
            command += " || [ $? = 1 ]"
        super().run_command(command)
        if self.last is not None:
            self.say("\n".join(f"    {line}" for line in self.last.output.strip().splitlines()[-40:]))

    def judge_cuts(self) -> None:
        folder = self.recorded()
        of = [unlocking.release(self.signed, name, self.checkouts is not None) for name in (OLD, NEW)]
        begins = phases(self.marks)
        hooks = "the scripts" if self.checkouts else "copal"
        counts: dict[str, dict[str, Count]] = {BY_SCRIPTS: {}} if self.checkouts else {BY_COPAL: {}, BY_SCRIPTS: {}}
        begun = time.monotonic()
        for number, _, found in unlocking.starts(folder / BEFORE, folder / CHANGES, of):
            at = phase(begins, number)
            for name, by_phase in counts.items():
                wrong = [start.by_scripts if name == BY_SCRIPTS else start.wrong for start in found]
                by_phase.setdefault(at, Count()).add(wrong)
            # With the initramfs of the run: of scripts where the hooks are.
            wrong = [start.by_scripts if self.checkouts else start.wrong for start in found]
            if all(wrong) and len(set(wrong)) == 1:
                self.broken.setdefault((at, wrong[0]), []).append(number)
        self.rows = [Row(hooks, name, by_phase) for name, by_phase in counts.items()]
        self.say(f"judged in {time.monotonic() - begun:.0f} s\n{table(self.rows)}")

    def restore_between(self) -> None:
        """The next one of the cuts that have to be proved: the steps after it expect on the console what is wrong."""
        at, why, _ = self.proofs.pop(0)
        self.say(f"    in {at}: {why}")
        self.restore(self.broken.get((at, why), []))


def scenario_of(checkouts: Checkouts | None) -> Scenario:
    """The scenario; where scripts lock the device out, with starts that show it."""
    text = SCENARIO.read_text()
    for _, _, said in PROOFS if checkouts else ():
        text += (f'power goes where scripts would not unlock\npower on\nwithin 600 s expect console contains "{said}"\n'
                 'expect console does not contain "partitions of vda are unlocked"\ntake power\n')
    name = f"update-by-{'scripts' if checkouts else 'copal'}"
    return scenarios.parse(name, text, str(SCENARIO), boards.names())


def compare(checkouts: Checkouts, kinds: list[str], seed: int, say: Callable[[str], None]) -> int:
    """Runs the hooks of both, and prints the table."""
    checkouts.check()
    place.need_space(1)
    if os.geteuid() != 0:
        raise NotRun("only root can make the board's images: run this as root")
    rows: list[Row] = []
    failed = 0
    try:
        for kind in kinds:
            run = Update(scenario_of(checkouts if kind == "scripts" else None), checkouts if kind == "scripts" else None, seed, say)
            result = run.run()
            say(f"{run.scenario.name}: {result.state}, {result.seconds:.0f} s")
            if result.state != "passed":
                say(result.why)
                failed += 1
            rows += run.rows
    except (tree.Fault, OSError, subprocess.SubprocessError) as error:
        raise FarmError(str(error)) from None
    say(f"\n{checkouts.versions()}; --seed {seed}; QEMU with {machines.accelerator('x86_64')}\n\n{table(rows)}")
    return 1 if failed else 0
