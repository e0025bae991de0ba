"""Judges what power cuts in an update of an encrypted disk leave, by a reading of its own of the partition that the firmware reads, the firmware's variables
and the commands of the TPM. After each change, and whatever the disk has kept of what was not flushed:

- The firmware starts the loader, the loader takes the stage-2 kernel and its configuration with their signatures.
- The TPM gives the passphrase to this start: one of its indices, through one of the lists of policies.
- At the end, the spare index is gone: with it, an attacker could redefine one index and read the other.

The initramfs of a shell release knows one index and one list. Where it would not get the passphrase, the cut is counted.

`judge` fails at the first cut that locks the device out. `starts` says what each cut leaves: it is for updates that may lock it out, too.
"""

from __future__ import annotations

import hashlib
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cut
import look
import recorder
import secure
from cut import Request
from fat import Fat
from place import FarmError
from recorder import Change

SECTOR = 512
#: The index that all releases know, and copal's spare one.
INDEX, SPARE = 0x1500000, 0x1500001
LOADER, KERNEL, CONFIG = "efi/boot/bootx64.efi", "bzimage", "efi/boot/grub.cfg"
#: The folder of a list starts with that; the second list's name.
LIST, SECOND = "policies.", ".policies.new"
#: A file that copal was writing.
TEMPORARY = re.compile(r"/cpl[0-9a-f]{5}\.tmp$")
#: How many choices of what the disk keeps are tried, besides all and nothing.
CHOICES = 6
#: TPM2_PCR_Read and TPM2_NV_ReadPublic, and of policies TPM2_PolicyPCR and TPM2_PolicyOR (TCG, TPM 2.0 Library, part 2: TPM_CC).
PCR_READ, READ_PUBLIC, POLICY_PCR, POLICY_OR = 0x17E, 0x169, 0x17F, 0x171
#: What keeps a device from its disk.
NO_LOADER, FORBIDDEN = "the loader is damaged", "the firmware does not start the loader or the stage-2 kernel"
NO_KERNEL, OTHER_SIGNATURE = "the stage-2 kernel is damaged", "the stage-2 kernel has another's signature"
OTHER_CONFIG, LISTS = "the configuration has another's signature", "there are several folders with policies"
LOCKED = "the TPM does not give the passphrase to this start"
#: A selection of PCRs in the bank of SHA-256, and of these.
PCRS = (0, 2, 3, 7)
ONE_BANK = struct.pack(">IHB", 1, 0x000B, 3)
SELECTION = ONE_BANK + sum(1 << pcr for pcr in PCRS).to_bytes(3, "little")


@dataclass(frozen=True)
class Release:
    """The programs of a release: digests of their contents, and the entries of db that allow them."""

    loader: bytes
    kernel: bytes
    signature: bytes
    loader_entry: bytes
    kernel_entry: bytes
    #: Whether the initramfs in its stage-2 kernel is that of a shell release.
    scripts: bool = False


def release(signed: Path, name: str, scripts: bool = False) -> Release:
    """Of a folder with signed parts."""
    own = signed / name / "loader.efi"
    loader = own if own.exists() else signed / "loader.efi"
    keys = signed / name / secure.KEYS
    of = [hashlib.sha256(path.read_bytes()).digest() for path in (loader, signed / name / secure.STAGE2, signed / name / f"{secure.STAGE2}.sig")]
    entries = [secure.hashes((keys / f"db-{what}.esl").read_bytes())[0] for what in ("loader", "kernel")]
    return Release(*of, *entries, scripts)


@dataclass
class Verdict:
    """How many power cuts were judged, by what came before them; after which of them the scripts of a shell initramfs would not unlock, and after
    which of these such a one is in place."""

    cuts: dict[str, int] = field(default_factory=lambda: {recorder.TPM: 0, recorder.VARIABLES: 0, recorder.DISK: 0})
    pairs: set[tuple[int, int]] = field(default_factory=set)
    shell: list[int] = field(default_factory=list)
    locked: list[int] = field(default_factory=list)
    #: After which the TPM has the spare index: the next start removes it.
    spare: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        said = ", ".join(f"{count} after a change of {store}" for store, count in self.cuts.items())
        return (f"{sum(self.cuts.values())} power cuts judged: {said}; all unlock, with {len(self.pairs)} pairs of loader and kernel; "
                f"after {len(self.shell)} of them not with a shell initramfs, which is in place at {len(self.locked)}; "
                f"{len(self.spare)} leave a spare index to the next start, and the end leaves none")


# --- the TPM ----------------------------------------------------------------------------------------------------------


class Indices:
    """The policies of both indices, as far as they are written."""

    def __init__(self) -> None:
        self.policies: dict[int, bytes] = {}
        self.written: set[int] = set()

    def readable(self) -> dict[int, bytes]:
        """Those that have a passphrase."""
        return {index: policy for index, policy in self.policies.items() if index in self.written}

    def see(self, change: Change) -> None:
        """After a command."""
        code = recorder.code(change)
        if code == recorder.NV_DEFINE:
            (sessions,) = struct.unpack_from(">I", change.command, 14)
            (length,) = struct.unpack_from(">H", change.command, 18 + sessions)
            index, policy = public(change.command, 18 + sessions + 2 + length + 2)
            self.policies[index] = policy
            self.written.discard(index)
        elif code in (recorder.NV_UNDEFINE, recorder.NV_WRITE):
            (index,) = struct.unpack_from(">I", change.command, 14)
            if code == recorder.NV_WRITE:
                self.written.add(index)
            else:
                self.policies.pop(index, None)
        elif code == READ_PUBLIC:
            index, policy = public(change.answer, 12)
            if index not in self.policies:
                # From before the recording.
                self.policies[index] = policy
                self.written.add(index)


def public(data: bytes, at: int) -> tuple[int, bytes]:
    """Index and policy of a TPMS_NV_PUBLIC: index, algorithm, attributes, then the policy with its length."""
    index, _, _, length = struct.unpack_from(">IHIH", data, at)
    return index, data[at + 12 : at + 12 + length]


def first_pcrs(changes: list[Change]) -> list[bytes] | None:
    """PCRs 0, 2, 3 and 7 of the first start, from what its kernel and its programs have read, one by one or together."""
    found: dict[int, bytes] = {}
    for change in changes:
        if recorder.code(change) != PCR_READ or change.command[10:17] != ONE_BANK:
            continue
        # The answer has its own selection: a TPM may give fewer than were asked for.
        at = 14 + len(SELECTION)
        bits = int.from_bytes(change.answer[at - 3 : at], "little")
        (count,) = struct.unpack_from(">I", change.answer, at)
        for n, pcr in enumerate([pcr for pcr in range(24) if bits >> pcr & 1][:count]):
            found.setdefault(pcr, change.answer[at + 4 + 34 * n + 2 : at + 4 + 34 * (n + 1)])
        if all(pcr in found for pcr in PCRS):
            return [found[pcr] for pcr in PCRS]
    return None


def policy_of(values: list[bytes]) -> bytes:
    """The digest of a policy that wants these PCRs."""
    return hashlib.sha256(bytes(32) + struct.pack(">I", POLICY_PCR) + SELECTION + hashlib.sha256(b"".join(values)).digest()).digest()


def any_of(branches: list[bytes]) -> bytes:
    """The digest of a policy that wants one of these, as the initramfs joins them."""
    return branches[0] if len(branches) == 1 else hashlib.sha256(bytes(32) + struct.pack(">I", POLICY_OR) + b"".join(branches)).digest()


def pcr7(variables: dict[tuple[str, str], bytes], entries: list[bytes]) -> bytes:
    """After a start that these entries of db have allowed."""
    value = bytes(32)
    for vendor, name in ((secure.GLOBAL, "SecureBoot"), (secure.GLOBAL, "PK"), (secure.GLOBAL, "KEK"), (secure.DATABASE, "db"), (secure.DATABASE, "dbx")):
        # The firmware makes this one from others at each start.
        data = b"\x01" if name == "SecureBoot" else variables.get((vendor, name), b"")
        value = secure.extended(value, secure.variable_event(vendor, name, data))
    value = secure.extended(value, secure.SEPARATOR)
    for entry in entries:
        value = secure.extended(value, secure.variable_event(secure.DATABASE, "db", entry))
    return value


# --- the partition that the firmware reads ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """What counts of it: digests of files, and the two lists."""

    loader: bytes
    kernel: bytes
    signature: bytes
    config: bytes
    config_signature: bytes
    current: tuple[bytes, ...]
    second: tuple[bytes, ...]
    #: What the initramfs of a shell release takes for the first one.
    shell: tuple[bytes, ...]
    #: So many have the name of the first one; more than one, and neither is taken.
    lists: int


def files(image: bytes | bytearray) -> Files:
    """As firmware, loader and initramfs find them."""
    fat = Fat(image)
    found = {}
    for name in (LOADER, KERNEL, KERNEL + ".sig", CONFIG, CONFIG + ".sig"):
        data = fat.read(name)
        if data is None:
            raise FarmError(f"there is no {name}")
        found[name] = hashlib.sha256(data).digest()
    folders = [path for path in fat.folders() if path.rpartition("/")[2].startswith(LIST)]

    def branches(folder: str, temporary: bool = False) -> tuple[bytes, ...]:
        names = sorted(name for name in fat.below(folder) if temporary or not TEMPORARY.search(name))
        return tuple(data for data in (fat.read(name) for name in names) if data is not None)

    current, shell = (branches(folders[0]), branches(folders[0], temporary=True)) if len(folders) == 1 else ((), ())
    second = branches(SECOND) if SECOND in fat.folders() else ()
    return Files(found[LOADER], found[KERNEL], found[KERNEL + ".sig"], found[CONFIG], found[CONFIG + ".sig"], current, second, shell, len(folders))


class Partition:
    """The partition after any of the disk's requests."""

    def __init__(self, disk: Path, data: Path, requests: list[Request]) -> None:
        at = look.partition(disk, look.NOT_ENCRYPTED)
        self.start, self.size = at.offset, at.size
        self.data, self.requests = data, requests
        with disk.open("rb") as file:
            file.seek(self.start)
            self.safe = bytearray(file.read(self.size))
        self.touching = cut.touching(requests, self.start, self.size)
        self.flushes = [number for number, request in enumerate(requests) if request.flush]
        self.done = 0
        self.after: dict[tuple[int, int], set[Files | str]] = {}

    def sectors(self, number: int) -> list[tuple[int, int, bytes]]:
        """What a request writes there: its sector, the place in the partition, the data."""
        found = []
        with self.data.open("rb") as file:
            for at, piece in cut.pieces(file, self.requests[number]):
                for offset in range(0, len(piece), SECTOR):
                    place = at - self.start + offset
                    if 0 <= place < self.size:
                        found.append(((at - self.requests[number].at + offset) // SECTOR, place, piece[offset : offset + SECTOR]))
        return found

    def possible(self, count: int) -> set[Files | str]:
        """What the disk may have after so many requests, when the power goes then; a text is what is wrong. The counts of the calls grow."""
        before = bisect_left(self.flushes, count)
        flushed = self.flushes[before - 1] if before else 0
        first, last = bisect_left(self.touching, flushed), bisect_left(self.touching, count)
        if (first, last) not in self.after:
            for number in self.touching[self.done : first]:
                for _, place, data in self.sectors(number):
                    self.safe[place : place + SECTOR] = data
            self.done = max(self.done, first)
            lost = [(number, *sector) for number in self.touching[first:last] for sector in self.sectors(number)]
            keeps = [lambda *_: False, lambda *_: True, *map(cut.chance, range(CHOICES))]
            kept = {tuple(n for n, (number, sector, _, _) in enumerate(lost) if keep(number, sector)) for keep in keeps}
            self.after = {(first, last): {self.read(self.with_those(lost, choice)) for choice in kept}}
        return self.after[first, last]

    def with_those(self, lost: list[tuple[int, int, int, bytes]], choice: tuple[int, ...]) -> bytearray:
        """What was flushed, and some of the sectors after that."""
        image = bytearray(self.safe)
        for n in choice:
            _, _, place, data = lost[n]
            image[place : place + SECTOR] = data
        return image

    def read(self, image: bytearray) -> Files | str:
        """As the device finds it."""
        try:
            return files(image)
        except FarmError as error:
            return str(error)


# --- the verdict ------------------------------------------------------------------------------------------------------


class Judge:
    """Knows the releases, and the measurements that are the same at each start."""

    def __init__(self, releases: list[Release], values: list[bytes]) -> None:
        self.loaders = {one.loader: one.loader_entry for one in releases}
        self.kernels = {one.kernel: one.kernel_entry for one in releases}
        self.signatures = {one.kernel: one.signature for one in releases}
        self.of_scripts = {one.kernel for one in releases if one.scripts}
        self.values = values

    def policy(self, found: Files, variables: dict[tuple[str, str], bytes]) -> bytes | str:
        """Of the start; what keeps the firmware from it, as a text."""
        if found.loader not in self.loaders:
            return NO_LOADER
        if found.kernel not in self.kernels:
            return NO_KERNEL
        if self.signatures[found.kernel] != found.signature:
            return OTHER_SIGNATURE
        entries = [self.loaders[found.loader], self.kernels[found.kernel]]
        allowed = secure.hashes(variables.get((secure.DATABASE, "db"), b""))
        forbidden = [entry[16:] for entry in secure.hashes(variables.get((secure.DATABASE, "dbx"), b""))]
        for entry in entries:
            if entry not in allowed or entry[16:] in forbidden:
                return FORBIDDEN
        return policy_of([*self.values[:3], pcr7(variables, entries)])


def unlocks(policy: bytes, lists: list[tuple[bytes, ...]], indices: dict[int, bytes]) -> bool:
    """Whether the passphrase can be read."""
    return any(policy in one and any_of(list(one)) in indices.values() for one in [*lists, (policy,)] if one)


def unlocks_by_scripts(policy: bytes, branches: tuple[bytes, ...], index: bytes | None) -> bool:
    """Whether the initramfs of a shell release can read it: it joins all of the list, and knows one index."""
    return policy in branches and any_of(list(branches)) == index


@dataclass(frozen=True)
class Start:
    """What a start comes to that a cut may leave: what is wrong with it for `copal unlock`, and for the initramfs of a shell release. Nothing:
    the disk is unlocked."""

    wrong: str = ""
    by_scripts: str = ""
    #: Which loader and which kernel, where they start; and whether this kernel has the initramfs of a shell release.
    pair: tuple[int, int] | None = None
    of_scripts: bool = False
    #: Whether it finds the spare index.
    spare: bool = False


def starts(before: Path, folder: Path, releases: list[Release]) -> Iterator[tuple[int, Change, list[Start]]]:
    """What a cut may leave, after each change from the first one of the TPM's memory on. `before` has disks and chips from before, `folder` the changes."""
    changes = recorder.load(folder)
    data = folder / "data"
    first = next((n for n, change in enumerate(changes) if recorder.code(change) in (recorder.NV_DEFINE, recorder.NV_UNDEFINE)), None)
    seen = first_pcrs(changes)
    if first is None or seen is None:
        raise FarmError("the recorded update has not changed a policy of the TPM")
    chip = bytearray((before / "flash1").read_bytes())
    variables = secure.variables(bytes(chip))
    partition = Partition(before / "disk", data, [change.request for change in changes if change.store == recorder.DISK and change.request])
    judging, indices = Judge(releases, seen), Indices()
    begun = [found for found in partition.possible(0) if isinstance(found, Files)]
    if [judging.policy(found, variables) for found in begun] != [policy_of(seen)]:
        raise FarmError("the judge computes other measurements for the start of the recording than the firmware has made")
    configs = {(found.config, found.config_signature) for found in begun}

    def start(found: Files | str) -> Start:
        policy = found if isinstance(found, str) else judging.policy(found, variables)
        if isinstance(found, str) or isinstance(policy, str):
            return Start(str(policy), str(policy))
        pair = (bisect_right(sorted(judging.loaders), found.loader), bisect_right(sorted(judging.kernels), found.kernel))
        wrong = OTHER_CONFIG if (found.config, found.config_signature) not in configs else LISTS if found.lists > 1 else ""
        by_scripts = wrong
        if not wrong:
            readable = indices.readable()
            wrong = "" if unlocks(policy, [found.current, found.second], readable) else LOCKED
            by_scripts = "" if unlocks_by_scripts(policy, found.shell, readable.get(INDEX)) else LOCKED
        return Start(wrong, by_scripts, pair, found.kernel in judging.of_scripts, SPARE in indices.policies)

    count = 0
    with data.open("rb") as file:
        for number, change in enumerate(changes):
            if change.store == recorder.DISK:
                count += 1
            elif change.store == recorder.TPM:
                indices.see(change)
            elif change.request and change.request.length:
                for at, piece in cut.pieces(file, change.request):
                    chip[at : at + len(piece)] = piece
                variables = secure.variables(bytes(chip))
            if number >= first:
                yield number, change, [start(found) for found in partition.possible(count)]


def judge(before: Path, folder: Path, releases: list[Release]) -> Verdict:
    """Judges a cut after each change; one that locks the device out is an error."""
    verdict = Verdict()
    for number, change, found in starts(before, folder, releases):
        verdict.cuts[change.store] += 1
        for start in found:
            if start.wrong:
                raise FarmError(f"a power cut after change {number} ({change.store}): {start.wrong}")
            assert start.pair is not None
            verdict.pairs.add(start.pair)
        if any(start.by_scripts for start in found):
            verdict.shell.append(number)
        if any(start.by_scripts and start.of_scripts for start in found):
            verdict.locked.append(number)
        if any(start.spare for start in found):
            verdict.spare.append(number)
    if verdict.spare and verdict.spare[-1] == number:
        raise FarmError("the spare index is left in the TPM: at rest, an attacker could define one index again and read the other")
    return verdict
