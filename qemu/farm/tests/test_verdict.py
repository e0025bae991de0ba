"""The judge of disks after power cuts: it finds each class, and each way in which a disk is broken."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bootchain  # noqa: E402
import disk as disks  # noqa: E402
import verdict  # noqa: E402
from tree import Tree  # noqa: E402
from verdict import DEAD, ITSELF, NEW, OLD, PERSON, Expected, Judge, Release, Selection  # noqa: E402

STARTED = {"bzImage": b"kernel" * 1000, "initramfs.cpio": b"initramfs" * 1000, "init": b"init"}
VERSIONS = {"old": "1.0.0", "new": "2.0.0", "sick": "3.0.0"}


class Grub(unittest.TestCase):
    """What GRUB starts, without a disk."""

    def test_the_selection_is_read_as_grub_reads_it(self) -> None:
        self.assertEqual(verdict.selection(bootchain.grub_environment(resin_root_part="3", upgrade_available="1", bootcount="0 ")), Selection("3", "1", "0"))
        self.assertEqual(verdict.selection(b"resin_root_part=3\n"), Selection())
        self.assertEqual(verdict.selection(None), Selection())
        self.assertEqual(verdict.selection(verdict.SIGNATURE + b"resin_root_part=x\n#bootcount=1\n"), Selection())

    def test_grub_counts_and_returns(self) -> None:
        now, started = Selection("3", "1", "0"), []
        for _ in range(4):
            slot, now = verdict.start(now)
            started.append(slot)
        self.assertEqual((started, now), (["B", "A", "A", "A"], Selection("3", "1", "2")))
        started = [verdict.start(Selection(part, "0", count))[0] for part, count in (("2", "0"), ("3", "0"), ("2", "2"), ("3", "1"))]
        self.assertEqual(started, ["A", "B", "B", "B"])
        # Without a selection it starts root B.
        self.assertEqual(verdict.start(Selection()), ("B", Selection()))


@unittest.skipUnless(os.geteuid() == 0, "only root can mount a disk")
class Disk(unittest.TestCase):
    """Disks, made whole once, and broken in each test."""

    folder: ClassVar[tempfile.TemporaryDirectory[str]]
    top: ClassVar[Path]
    expected: ClassVar[Expected]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.top = Path(cls.folder.name)
        releases, facts = [], {}
        for name, version in VERSIONS.items():
            layer = Tree()
            layer.file("etc/os-release", f"VERSION={version}\n")
            layer.file("usr/bin/program", name * 5000)
            layer.link("bin", "usr/bin")
            digest = layer.tar(cls.top / f"{name}.tar")
            facts[digest] = verdict.facts_of_layer(cls.top / f"{name}.tar")
            boot = {"efi/boot/bootx64.efi": b"loader" * 999, "efi/boot/grub.cfg": b"menu", "release.txt": version.encode()}
            releases.append(Release(name, version, name != "sick", boot, (digest,)))
        cls.expected = Expected(tuple(releases), facts, STARTED, {"hostname": "board"})

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def slot(self, name: str, to: Path, label: str, without: str = "") -> None:
        """A slot with a release."""
        tree = Tree()
        for folder in ("balena/overlay2/l", "dev", "proc", "sys", "run", "mnt/state", "hostapps", "sbin"):
            tree.folder(folder)
        if name:
            tree.link("current", "hostapps/abc")
            tree.link("boot", "current/boot")
            tree.link("sbin/init", "../current/boot/init")
            tree.link("hostapps/abc/boot", "../../balena/volumes/v/_data")
            for file, data in STARTED.items():
                tree.file(f"balena/volumes/v/_data/{file}", data, 0o755)
            (digest,) = [release.layers[0] for release in self.expected.releases if release.name == name]
            store = "balena/image/overlay2/layerdb"
            tree.file(f"{store}/mounts/abc/parent", "sha256:chain")
            tree.file(f"{store}/sha256/chain/diff", f"sha256:{digest}")
            tree.file(f"{store}/sha256/chain/cache-id", "cache")
            with tarfile.open(self.top / f"{name}.tar") as tar:
                for member in tar:
                    at = f"balena/overlay2/cache/diff/{member.name}"
                    data = tar.extractfile(member)
                    if data is not None:
                        tree.file(at, data.read())
                    elif member.issym():
                        tree.link(at, member.linkname)
        if without:
            tree.remove(without)
        shutil.rmtree(self.top / "slot", ignore_errors=True)
        tree.write(self.top / "slot")
        disks.ext4(to, label, 12, self.top / "slot")

    def make(self, a: str = "old", b: str = "new", boot: str = "old", part: str = "2", pending: str = "0", count: str = "0", crumbs: tuple[str, ...] = (),
             without: str = "", settings: str = '{"hostname": "board"}', files: dict[str, bytes] | None = None) -> Path:
        """A disk. `without` is missing in root A."""
        with tempfile.TemporaryDirectory(dir=self.top) as folder:
            at = Path(folder)
            (release,) = [one for one in self.expected.releases if one.name == boot]
            fat = Tree()
            environment = {verdict.ENVIRONMENT: bootchain.grub_environment(resin_root_part=part, upgrade_available=pending, bootcount=count)}
            for path, data in {**release.boot, **environment, verdict.SETTINGS: settings.encode(), **(files or {})}.items():
                fat.file(path, data)
            disks.fat(at / "resin-boot", "resin-boot", 32, fat, at)
            self.slot(a, at / "resin-rootA", "resin-rootA", without)
            self.slot(b, at / "resin-rootB", "resin-rootB")
            state = Tree()
            for crumb in crumbs:
                state.file(crumb, "")
            (at / "state").mkdir()
            state.write(at / "state")
            disks.ext4(at / "resin-state", "resin-state", 8, at / "state")
            disks.ext4(at / "resin-data", "resin-data", 8)
            names = ("resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data")
            disks.whole(self.top / "disk", "test", [disks.Partition(name, at / name) for name in names])
        return self.top / "disk"

    def judged(self, disk: Path, wanted: str, why: str = "", mixed: bool = False) -> None:
        """The judge finds that class, and says that why."""
        found = Judge(self.expected).judge(disk, VERSIONS["old"], VERSIONS["new"])
        self.assertEqual((found.kind, found.mixed), (wanted, mixed), found.why)
        self.assertIn(why, found.why)

    def test_whole_disks_have_the_old_or_the_new_system(self) -> None:
        self.judged(self.make(), OLD, "1.0.0 starts in A")
        self.judged(self.make(part="3", boot="new"), NEW, "2.0.0 starts in B")
        self.judged(self.make(b=""), OLD)

    def test_boot_files_of_another_release_are_seen(self) -> None:
        self.judged(self.make(boot="new"), OLD, mixed=True)

    def test_trials_end_by_themselves(self) -> None:
        self.judged(self.make(part="3", pending="1", boot="new", crumbs=(verdict.HEALTH, verdict.ALTBOOT)), ITSELF, "2.0.0 starts in B on trial")
        self.judged(self.make(part="3", pending="1", boot="new"), ITSELF, "without a breadcrumb")
        self.judged(self.make(b="sick", part="3", pending="1", boot="sick", crumbs=(verdict.HEALTH,)), ITSELF, "returns to 1.0.0")
        self.judged(self.make(part="3", pending="1", count="2", crumbs=(verdict.HEALTH,)), ITSELF, "1.0.0 starts in A instead of root B")
        self.judged(self.make(b="", part="3", pending="1", boot="new", crumbs=(verdict.HEALTH,)), ITSELF, "1.0.0 starts in A", mixed=True)
        self.judged(self.make(crumbs=(verdict.HEALTH,)), ITSELF, "with a breadcrumb")

    def test_nothing_rolls_an_unhealthy_release_back(self) -> None:
        self.judged(self.make(b="sick", part="3", boot="sick"), PERSON, "for good, and is unhealthy")
        self.judged(self.make(a="", b="sick", part="3", pending="1", boot="sick", crumbs=(verdict.HEALTH,)), PERSON, "is not there to return to")

    def test_a_return_to_an_unhealthy_release_ends_nothing(self) -> None:
        self.judged(self.make(a="sick", part="3", pending="1", boot="new"), PERSON, "which is unhealthy")

    def test_settings_and_partitions_that_a_start_does_not_bring_back(self) -> None:
        self.judged(self.make(settings=""), PERSON, "config.json is missing")
        self.judged(self.make(settings='{"hostname": "bo'), PERSON, "config.json is not the one")
        disk = self.make()
        self.spoil(disk, "resin-state", 1024, 1024)
        self.judged(disk, PERSON, "of resin-state it cannot be mounted")

    def spoil(self, disk: Path, name: str, offset: int, length: int) -> None:
        """Writes over a part of a partition."""
        at, _ = verdict.table(disk)[name]
        with disk.open("r+b") as file:
            file.seek(at + offset)
            file.write(bytes(length))

    def test_nothing_starts_without_table_loader_or_configuration(self) -> None:
        disk = self.make()
        with disk.open("r+b") as file:
            file.seek(512 + 80)
            file.write(b"\x01")
        self.judged(disk, DEAD, "the partition table has no")
        self.judged(self.make(files={"efi/boot/bootx64.efi": b"loader" * 99}), DEAD, "bootx64.efi is not whole")
        self.judged(self.make(files={"efi/boot/grub.cfg": b""}), DEAD, "grub.cfg is missing")
        disk = self.make()
        self.spoil(disk, "resin-boot", 0, 512)
        self.judged(disk, DEAD, "the boot partition cannot be read")

    def test_a_selected_root_that_is_not_whole_is_dead_unless_grub_returns(self) -> None:
        self.judged(self.make(b="", part="3"), DEAD, "root B: ")
        # GRUB takes root B without a selection.
        self.judged(self.make(b="", files={verdict.ENVIRONMENT: b""}), DEAD, "root B: ")
        self.judged(self.make(files={verdict.ENVIRONMENT: b""}, boot="new"), ITSELF, "without a selection")

    def test_each_part_of_a_slot_counts(self) -> None:
        diff, store = "balena/overlay2/cache/diff", "balena/image/overlay2/layerdb"
        for without, why in ((f"{diff}/usr/bin/program", "usr/bin/program"), (f"{diff}/bin", "bin among"), (f"{store}/mounts/abc/parent", "parent"),
                             (f"{store}/sha256/chain/cache-id", "cache-id"), ("balena/volumes/v/_data/bzImage", "its bzImage"),
                             ("balena/volumes/v/_data/initramfs.cpio", "its initramfs"), ("balena/volumes/v/_data/init", "boot/init"), ("current", "bzImage"),
                             ("sbin/init", "sbin/init"), ("mnt/state", "mnt/state")):
            with self.subTest(without):
                self.judged(self.make(without=without), DEAD, why)

    def test_a_changed_byte_of_a_file_is_found(self) -> None:
        disk = self.make()
        data = disk.read_bytes()
        at = data.index(b"old" * 1000)
        with disk.open("r+b") as file:
            file.seek(at + 2000)
            file.write(b"?")
        self.judged(disk, DEAD, "usr/bin/program among them")

    def test_grub_does_not_see_what_only_the_journal_has(self) -> None:
        disk = self.make()
        at, _ = verdict.table(disk)["resin-rootA"]
        # The link that GRUB follows is taken away in the file system, as it is before the journal is replayed.
        subprocess.run(["debugfs", "-w", "-R", "rm /boot", f"{disk}?offset={at}"], capture_output=True, check=True)
        self.judged(disk, DEAD, "GRUB does not see its bzImage")

    def test_grub_does_not_look_at_checksums(self) -> None:
        disk = self.make()
        at, _ = verdict.table(disk)["resin-rootA"]
        said = subprocess.run(["debugfs", "-R", "imap <2>", f"{disk}?offset={at}"], capture_output=True, text=True, check=True).stdout
        block, inside = re.findall(r"block (\d+), offset (0x[0-9a-f]+)", said)[0]
        size = subprocess.run(["debugfs", "-R", "stats -h", f"{disk}?offset={at}"], capture_output=True, text=True, check=True).stdout
        with disk.open("r+b") as file:
            # The checksum of the top folder.
            file.seek(at + int(block) * int(re.findall(r"Block size: +(\d+)", size)[0]) + int(inside, 16) + 0x7C)
            file.write(b"\x12\x34")
        self.assertEqual(verdict.unreplayed(disk, at, "/boot/bzImage"), STARTED["bzImage"])

    def test_a_version_of_another_phase_is_not_complete(self) -> None:
        self.assertEqual(Judge(self.expected).judge(self.make(), "7.0.0", VERSIONS["new"]).kind, PERSON)

    def test_a_slot_that_was_seen_is_not_looked_at_again_unless_it_changes(self) -> None:
        judge = Judge(self.expected)
        self.assertEqual(judge.judge(self.make(), VERSIONS["old"], VERSIONS["new"]).kind, OLD)
        self.assertEqual(len(judge.seen), 1)
        self.assertEqual(judge.judge(self.make(without="current"), VERSIONS["old"], VERSIONS["new"]).kind, DEAD)

    def test_a_medium_is_whole_or_says_what_is_missing(self) -> None:
        tree = Tree()
        tree.file("opt/image", "image" * 1000)
        tree.write(self.top / "medium-root")
        fat = Tree()
        fat.file("efi/boot/bootx64.efi", b"loader")
        disks.ext4(self.top / "flash-rootA", "flash-rootA", 8, self.top / "medium-root")
        disks.fat(self.top / "flash-boot", "flash-boot", 32, fat, self.top)
        medium = self.top / "medium"
        disks.whole(medium, "medium", [disks.Partition(name, self.top / name) for name in ("flash-boot", "flash-rootA")])
        judge = Judge(Expected((), {}, {}, {}, {"opt/image": ("file", verdict.checksum(b"image" * 1000))}, {"efi/boot/bootx64.efi": b"loader"}))
        self.assertEqual(judge.medium(medium), "")
        data = medium.read_bytes()
        with medium.open("r+b") as file:
            file.seek(data.index(b"image" * 100) + 7)
            file.write(b"?")
        self.assertIn("opt/image", judge.medium(medium))

    def test_the_digest_of_a_part_is_of_that_part(self) -> None:
        (self.top / "part").write_bytes(b"abcdef")
        self.assertEqual(verdict.content(self.top / "part", 2, 3), hashlib.blake2b(b"cde", digest_size=16).hexdigest())


if __name__ == "__main__":
    unittest.main()
