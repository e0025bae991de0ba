"""What judges power cuts in an update of an encrypted disk, with updates that are a few changes long; and the reading of FAT file systems."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import disk as disks  # noqa: E402
import recorder  # noqa: E402
import secure  # noqa: E402
import unlocking  # noqa: E402
from fat import Fat  # noqa: E402
from place import FarmError  # noqa: E402
from recorder import DISK, VARIABLES  # noqa: E402
from tests.test_judge import chip, tpm  # noqa: E402
from tree import Tree  # noqa: E402

START, MIB = 1 << 20, 1 << 20
VALUES = [bytes([n]) * 32 for n in (1, 2, 3)]


def entry(number: int) -> bytes:
    """Owner and hash."""
    return bytes(16) + bytes([number]) * 32


def lists(*numbers: int) -> bytes:
    """As db and dbx have them."""
    return b"".join(secure.guid(secure.LIST_SHA256) + struct.pack("<III", 28 + 48, 0, 48) + entry(n) for n in numbers)


def release(number: int) -> unlocking.Release:
    """Its loader and kernel say its number."""
    files = [hashlib.sha256(f"{what} {number}".encode()).digest() for what in ("loader", "kernel", "signature")]
    return unlocking.Release(*files, entry(10 * number), entry(10 * number + 1))


OLD, NEW = (10, 11), (20, 21)


def policy(db: tuple[int, ...], loader: int, kernel: int, dbx: tuple[int, ...] = ()) -> bytes:
    """Of a start with these lists and programs."""
    variables = {(secure.DATABASE, "db"): lists(*db), (secure.DATABASE, "dbx"): lists(*dbx)}
    entries = [entry(10 * loader), entry(10 * kernel + 1)]
    return unlocking.policy_of([*VALUES, unlocking.pcr7(variables, entries)])


PRESENT = policy(OLD, 1, 1)
WIDE = sorted([PRESENT, policy(OLD + NEW, 1, 1), policy(OLD + NEW, 1, 2), policy(OLD + NEW, 2, 2)])


class Reading(unittest.TestCase):
    """File systems that other programs have made."""

    def test_files_are_those_that_mtools_have_written(self) -> None:
        for mib in (16, 600):
            with self.subTest(mib=mib), tempfile.TemporaryDirectory() as folder:
                at, tree = Path(folder), Tree()
                wanted = {"EFI/BOOT/bootx64.efi": b"loader" * 5000, "a long name with Capitals.text": b"long", "empty": b"", "policies.Xa1/policy.pcr": b"p" * 32}
                for name, data in wanted.items():
                    tree.file(name, data)
                disks.fat(at / "image", "label", mib, tree, at)
                fat = Fat((at / "image").read_bytes())
                self.assertEqual(fat.wide, mib == 600)
                for name, data in wanted.items():
                    self.assertEqual(fat.read(name.lower()), data, name)
                self.assertEqual(sorted(fat.folders()), ["efi", "efi/boot", "policies.xa1"])
                self.assertEqual(fat.below("policies.xa1"), ["policies.xa1/policy.pcr"])
                self.assertIsNone(fat.read("efi"))
                self.assertIsNone(fat.read("missing"))

    def test_a_folder_with_other_bytes_in_it_has_an_end(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            at, tree = Path(folder), Tree()
            tree.file("FOLDER/A", b"")
            tree.file("Z", b"z")
            disks.fat(at / "image", "label", 16, tree, at)
            image = bytearray((at / "image").read_bytes())
            # Each of its entries is the folder itself.
            entry = image.index(b"FOLDER     ")
            own = bytearray(image[entry : entry + 32])
            (first,) = struct.unpack_from("<H", own, 26)
            fat = Fat(image)
            place = fat.data + (first - 2) * fat.cluster
            for number in range(fat.cluster // 32):
                own[:11] = f"F{number:<10}".encode()
                image[place + 32 * number : place + 32 * number + 32] = own
            self.assertEqual(Fat(image).read("z"), b"z")

    def test_what_is_no_file_system_is_an_error(self) -> None:
        for image in (bytes(4096), b"\xff" * (1 << 20)):
            with self.assertRaises(FarmError):
                Fat(image)


class Judging(unittest.TestCase):
    """Updates whose steps come in some order."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        (self.at / "before").mkdir()
        tree = Tree()
        for name, text in (("bzImage", "kernel 1"), ("bzImage.sig", "signature 1"), ("EFI/BOOT/bootx64.efi", "loader 1"),
                           ("EFI/BOOT/grub.cfg", "config"), ("EFI/BOOT/grub.cfg.sig", "its signature")):
            tree.file(name, text)
        tree.file("policies.copal/policy.0", PRESENT)
        disks.fat(self.at / "fat", "efi", 16, tree, self.at)
        self.image = (self.at / "fat").read_bytes()
        disk = self.at / "before/disk"
        disk.write_bytes(bytes(START) + self.image + bytes(MIB))
        subprocess.run(["/usr/sbin/sfdisk", "--quiet", disk], input=f"label: gpt\nstart={START // 512}, size={16 * MIB // 512}, name=balena-efi\n",
                       text=True, check=True, stderr=subprocess.DEVNULL)
        (self.at / "before/flash1").write_bytes(chip(db=lists(*OLD)))

    def write(self, to: recorder.Recorder, after: bytes) -> None:
        """All that changes of the file system, as one request."""
        found = [at for at in range(0, len(after), 512) if after[at : at + 512] != self.image[at : at + 512]]
        self.image = after
        to.add_write(DISK, START + found[0], found[-1] + 512 - found[0], after[found[0] : found[-1] + 512])

    def mtools(self, to: recorder.Recorder, *words: str | Path) -> None:
        """What a program changes."""
        (self.at / "fat").write_bytes(self.image)
        subprocess.run([str(word) for word in words], check=True, env={"MTOOLS_SKIP_CHECK": "1", "PATH": "/usr/bin:/bin"})
        self.write(to, (self.at / "fat").read_bytes())

    def replace(self, to: recorder.Recorder, folder: str, **files: str | bytes) -> None:
        """As copal does: temporary files that are flushed, then their entries get the names, in one sector."""
        short = {name: f"{name.partition('_')[0]:8}{name.partition('_')[2]:3}".upper().encode() for name in files}
        for number, data in enumerate(files.values()):
            (self.at / "file").write_bytes(data.encode() if isinstance(data, str) else data)
            self.mtools(to, "mcopy", "-i", self.at / "fat", self.at / "file", f"::{folder}/CPL0000{number}.TMP")
        to.add_flush(DISK)
        after = bytearray(self.image)
        for number, name in enumerate(files):
            temporary = after.index(f"CPL0000{number}TMP".encode())
            there = after.find(short[name])
            if there < 0:
                after[temporary : temporary + 13] = short[name] + bytes((0x20, 0))
                continue
            after[there + 20 : there + 22], after[there + 26 : there + 32] = after[temporary + 20 : temporary + 22], after[temporary + 26 : temporary + 32]
            after[temporary] = 0xE5
        self.write(to, bytes(after))

    def index(self, to: recorder.Recorder, index: int, branches: list[bytes]) -> None:
        """Makes it again and writes it."""
        good = struct.pack(">HII", 0x8002, 10, 0)
        handles = struct.pack(">II", 0x40000001, index)
        public = struct.pack(">IHIH", index, 0x0B, 0, 32) + unlocking.any_of(branches) + struct.pack(">H", 32)
        for code, on, rest in ((recorder.NV_UNDEFINE, handles, b""),
                               (recorder.NV_DEFINE, handles[:4], struct.pack(">HH", 0, len(public)) + public),
                               (recorder.NV_WRITE, handles[4:] * 2, struct.pack(">H", 32) + bytes(34))):
            to.add_command(tpm(code, on, rest), good, b"state")

    def record(self, *steps: str) -> Path:
        """The changes of an update with these steps, in a folder."""
        folder = self.at / "changes"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.image = (self.at / "before/disk").read_bytes()[START:-MIB]
        to, variables = recorder.Recorder(folder), {"db": lists(*OLD)}
        # What copal reads first; a TPM may be asked for one or for several.
        values = [*VALUES, unlocking.pcr7({(secure.DATABASE, "db"): lists(*OLD)}, [entry(10), entry(11)])]
        of = dict(zip(unlocking.PCRS, values))
        for group in ((0,), (2, 3), (7,)):
            selection = unlocking.ONE_BANK + sum(1 << pcr for pcr in group).to_bytes(3, "little")
            answer = struct.pack(">I", 1) + selection + struct.pack(">I", len(group)) + b"".join(struct.pack(">H", 32) + of[pcr] for pcr in group)
            to.add_command(struct.pack(">HII", 0x8001, 10 + len(selection), unlocking.PCR_READ) + selection,
                           struct.pack(">HII", 0x8001, 10 + len(answer), 0) + answer, b"state")
        public = struct.pack(">IHIH", unlocking.INDEX, 0x0B, 0, 32) + PRESENT + struct.pack(">H", 32)
        to.add_command(struct.pack(">HIII", 0x8001, 14, unlocking.READ_PUBLIC, unlocking.INDEX),
                       struct.pack(">HIIH", 0x8001, 12 + len(public), 0, len(public)) + public, b"state")
        fat = self.at / "fat"
        for step in steps:
            if step == "second":
                self.mtools(to, "mmd", "-i", fat, "::/.policies.new")
                for number, branch in enumerate(WIDE):
                    self.replace(to, "/.policies.new", **{f"SECOND{number}": branch})
            elif step in ("spare", "main"):
                self.index(to, unlocking.SPARE if step == "spare" else unlocking.INDEX, WIDE)
            elif step == "unspare":
                to.add_command(tpm(recorder.NV_UNDEFINE, struct.pack(">II", 0x40000001, unlocking.SPARE), b""), struct.pack(">HII", 0x8002, 10, 0), b"state")
            elif step == "current":
                for number, branch in enumerate(WIDE):
                    self.replace(to, "/policies.copal", **{f"POLICY_{number}": branch})
            elif step == "remove":
                self.mtools(to, "mdeltree", "-i", fat, "::/.policies.new")
            elif step in ("append", "forbid"):
                variables |= {"db": lists(*OLD, *NEW)} if step == "append" else {"dbx": lists(*OLD)}
                to.add_write(VARIABLES, 0, 8192, chip(**variables))
            elif step == "flush":
                to.add_flush(DISK)
            elif step == "sealed":
                self.index(to, unlocking.INDEX, [policy(OLD + NEW, 2, 2)])
            elif step == "folder":
                self.mtools(to, "mmd", "-i", fat, "::/policies.Xa1")
                self.replace(to, "/policies.Xa1", policy_pcr=policy(OLD + NEW, 2, 2))
            elif step == "forget":
                self.mtools(to, "mdeltree", "-i", fat, "::/policies.copal")
            elif step == "signature":
                self.replace(to, "/", bzImage_sig="signature 2")
            elif step == "pair":
                self.replace(to, "/", bzImage="kernel 2", bzImage_sig="signature 2")
            elif step == "kernel":
                self.replace(to, "/", bzImage="kernel 2")
            else:
                self.replace(to, "/EFI/BOOT", bootx64_efi="loader 2")
        to.save()
        self.changes = recorder.load(folder)
        return folder

    def cuts(self, *steps: str) -> unlocking.Verdict:
        """Judges the update with these steps."""
        return unlocking.judge(self.at / "before", self.record(*steps), [release(1), release(2)])

    GOOD = "second,flush,spare,main,current,flush,unspare,remove,flush,append,pair,flush,loader,flush,forbid".split(",")

    def order(self, *changes: tuple[str, str]) -> list[str]:
        """The good order, with `changes`: a step is put before another one."""
        steps = list(self.GOOD)
        for step, before in changes:
            steps.remove(step)
            steps.insert(steps.index(before), step)
        return steps

    def assert_wrong(self, words: str, steps: list[str]) -> None:
        """The judge finds a power cut after which the device does not start."""
        with self.assertRaises(FarmError) as caught:
            self.cuts(*steps)
        self.assertRegex(str(caught.exception), f"^a power cut after change [0-9]+ .*{words}")

    def test_the_good_order_is_good_after_each_change(self) -> None:
        steps = self.GOOD[:-1]
        verdict = self.cuts(*steps)
        self.assertEqual(verdict.cuts["tpm"], 7)
        # From its definition to its end; what is before the first one counts as well, since the index is made again.
        self.assertGreater(len(verdict.spare), 4)
        self.assertEqual(verdict.cuts["variables"], 1)
        # Old, old loader with new kernel, new.
        self.assertEqual(len(verdict.pairs), 3)
        # From the first index that is removed to the last file of the list.
        self.assertGreater(len(verdict.shell), 3)
        first = verdict.shell[0]
        self.assertEqual(recorder.code(self.changes[first]), recorder.NV_UNDEFINE)

    def test_a_start_that_the_policy_does_not_have(self) -> None:
        self.assert_wrong("the TPM does not give", self.order(("append", "second")))
        self.assert_wrong("the firmware does not start", self.order(("pair", "append")))

    def test_an_index_that_is_changed_before_its_list_is_written(self) -> None:
        self.assert_wrong("the TPM does not give", self.order(("second", "current")))
        self.assert_wrong("the TPM does not give", self.order(("remove", "current")))
        # Not flushed.
        steps = self.order()
        steps.remove("flush")
        self.assert_wrong("the TPM does not give", steps)

    def test_a_spare_that_is_left(self) -> None:
        steps = self.GOOD[:-1]
        steps.remove("unspare")
        with self.assertRaisesRegex(FarmError, "spare index is left"):
            self.cuts(*steps)

    def test_only_one_index(self) -> None:
        steps = self.order()
        steps.remove("spare")
        self.assert_wrong("the TPM does not give", steps)

    def test_a_kernel_without_its_signature(self) -> None:
        steps = self.order()
        steps[steps.index("pair")] = "kernel"
        self.assert_wrong("another's signature", steps)

    def test_a_program_that_is_in_use_is_forbidden(self) -> None:
        self.assert_wrong("the firmware does not start", self.order(("forbid", "loader")))
        # Nor has the policy the state with it.
        self.assert_wrong("the TPM does not give", self.GOOD)

    def test_what_an_update_leaves_that_seals_for_its_end_only(self) -> None:
        folder = self.record("sealed", "folder", "flush", "forget", "flush", "kernel", "flush", "signature", "flush", "loader", "flush", "append")
        found = list(unlocking.starts(self.at / "before", folder, [release(1), release(2)]))
        self.assertEqual([number for number, _, _ in found], list(range(found[0][0], len(self.changes))))
        wrong = [{start.by_scripts for start in starts} for _, _, starts in found]
        self.assertEqual(wrong, [{start.wrong for start in starts} for _, _, starts in found])
        self.assertEqual(wrong[:3], [{unlocking.LOCKED}] * 3)
        self.assertEqual(wrong[-1], {""})
        self.assertTrue(all("" not in one for one in wrong[:-1]))
        self.assertEqual(set().union(*wrong), {"", unlocking.LOCKED, unlocking.LISTS, unlocking.OTHER_SIGNATURE, unlocking.FORBIDDEN})

    def test_scripts_take_all_of_a_list_and_one_index(self) -> None:
        wide = unlocking.any_of(WIDE)
        for unlocks, branches, index in ((True, WIDE, wide), (True, [PRESENT], PRESENT), (False, WIDE, PRESENT), (False, [PRESENT], wide),
                                         (False, WIDE[:1] + WIDE[2:], wide), (False, [], PRESENT), (False, WIDE, None)):
            self.assertEqual(unlocking.unlocks_by_scripts(PRESENT, tuple(branches), index), unlocks)
        # copal needs no list where the index has one branch only.
        self.assertTrue(unlocking.unlocks(PRESENT, [()], {unlocking.INDEX: PRESENT}))

    def test_an_update_that_seals_nothing(self) -> None:
        with self.assertRaises(FarmError) as caught:
            self.cuts("append")
        self.assertIn("has not changed a policy", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
