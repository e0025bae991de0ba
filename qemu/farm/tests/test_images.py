"""Trees, layers, archives and disks: what they hold, and that the same input gives the same bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

import bootchain
import disk
import hostapp
import images
import look
import place
from tree import Fault, Tree


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        """Makes the folder."""
        self.at = Path(tempfile.mkdtemp(prefix="copal-images-"))
        self.addCleanup(shutil.rmtree, self.at)


class Trees(Case):
    """Trees and the tars made of them."""

    def some(self) -> Tree:
        """A tree with one of each kind."""
        tree = Tree()
        tree.file("usr/bin/program", "#!/bin/sh\n")
        tree.file("etc/conf", "a")
        tree.link("bin", "usr/bin")
        tree.folder("tmp", 0o1777)
        return tree

    def test_a_tar_is_the_same_whenever_it_is_made(self) -> None:
        """Order, owners and times come from nowhere else."""
        turned = Tree()
        for path, node in reversed(self.some().nodes.items()):
            turned.nodes[path] = node
        self.assertEqual(self.some().tar(self.at / "one"), turned.tar(self.at / "two"))
        self.assertEqual((self.at / "one").read_bytes(), (self.at / "two").read_bytes())
        with tarfile.open(self.at / "one") as tar:
            found = {m.name: (m.type, m.mode, m.uid, m.linkname) for m in tar}
        self.assertEqual(found["usr/bin/program"], (tarfile.REGTYPE, 0o755, 0, ""))
        self.assertEqual(found["etc/conf"], (tarfile.REGTYPE, 0o644, 0, ""))
        self.assertEqual(found["bin"], (tarfile.SYMTYPE, 0o777, 0, "usr/bin"))
        self.assertEqual(found["tmp"], (tarfile.DIRTYPE, 0o1777, 0, ""))
        self.assertEqual(found["usr"][0], tarfile.DIRTYPE)

    def test_what_is_put_later_counts(self) -> None:
        """Files replace files and links, but never hide a folder."""
        tree = self.some()
        tree.link("etc/conf", "/dev/null")
        self.assertEqual(tree.nodes["etc/conf"].target, "/dev/null")
        with self.assertRaisesRegex(Fault, "usr/bin is a folder"):
            tree.file("usr/bin", "")
        with self.assertRaisesRegex(Fault, "bin is no folder"):
            tree.file("bin/other", "")
        tree.remove("usr/bin")
        self.assertNotIn("usr/bin/program", tree.nodes)

    def test_what_is_taken_is_a_tree_of_its_own(self) -> None:
        """With the folders above it, and gone from where it was."""
        tree = self.some()
        taken = tree.take(("usr/bin/program",))
        self.assertEqual(sorted(taken.nodes), ["usr", "usr/bin", "usr/bin/program"])
        self.assertIn("usr/bin", tree.nodes)
        self.assertNotIn("usr/bin/program", tree.nodes)

    def test_written_and_read_again(self) -> None:
        """A tree in a folder is the tree."""
        self.some().write(self.at / "files")
        again = Tree()
        again.copy(self.at / "files")
        self.assertEqual(again.text("usr/bin/program"), "#!/bin/sh\n")
        self.assertEqual(again.nodes["bin"].target, "usr/bin")
        self.assertEqual((self.at / "files/tmp").stat().st_mode & 0o7777, 0o1777)
        self.assertEqual(again.nodes["usr/bin/program"].mode, 0o755)

    def test_units_are_enabled_by_what_they_say(self) -> None:
        """A link for each unit that one is wanted by."""
        tree = Tree()
        tree.file("usr/lib/systemd/system/a.service", "[Install]\nWantedBy=one.target two.target\n")
        images.enable(tree, "a.service")
        for target in ("one", "two"):
            link = tree.nodes[f"etc/systemd/system/{target}.target.wants/a.service"]
            self.assertEqual(link.target, "/usr/lib/systemd/system/a.service")


class Archives(Case):
    """Archives as `docker save` writes them."""

    def test_an_archive_names_its_layers_by_their_digests(self) -> None:
        """The engine checks them when it loads it."""
        layers = []
        for name in ("one", "two"):
            tree = Tree()
            tree.file(name, name)
            layers.append(hostapp.Layer(self.at / name, tree.tar(self.at / name)))
        hostapp.archive(self.at / "tar", "arm64", "board/x:1", layers)
        with tarfile.open(self.at / "tar") as tar:
            read = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        (manifest,) = json.loads(read["manifest.json"])
        config = json.loads(read[manifest["Config"]])
        self.assertEqual(manifest["RepoTags"], ["board/x:1"])
        self.assertEqual(config["architecture"], "arm64")
        digests = [f"sha256:{hashlib.sha256(read[layer]).hexdigest()}" for layer in manifest["Layers"]]
        self.assertEqual(config["rootfs"]["diff_ids"], digests)
        self.assertEqual(len(digests), 2)


    def test_the_engine_is_a_layer_only_where_it_is_not_apart(self) -> None:
        for name in ("base", "engine"):
            (self.at / f"{name}.sha256").write_text(name)
        (self.at / "good.layer.sha256").write_text("good")
        board = images.BOARDS["amd64"]
        for apart, layers in ((True, ["base", "good"]), (False, ["base", "engine", "good"])):
            found = images.layers_of(dataclasses.replace(board, engine_apart=apart), self.at, self.at, "good")
            self.assertEqual([layer.digest for layer in found], layers)


class Engine(Case):
    """Where a release has the engine's programs."""

    def test_a_release_that_fails_has_no_link_to_the_engine(self) -> None:
        board = images.BOARDS["amd64"]
        boot = self.at / "boot"
        boot.mkdir()
        for name in (board.kernel, bootchain.INITRAMFS, "initramfs.panic", bootchain.INIT, "grub.efi"):
            (boot / Path(name).name).touch()
        (self.at / "programs").mkdir()
        for name, linked in (("good", True), ("next", True), ("light", True), ("broken-engine", False), ("vpn-down", False)):
            tree = images.release(board, name, boot, self.at / "programs")
            links = [tree.nodes[path].target if path in tree.nodes else None for path in images.ENGINE_PROGRAMS]
            self.assertEqual(links, [f"/releases/engine/{path}" if linked else None for path in images.ENGINE_PROGRAMS], name)


class Releases(unittest.TestCase):
    """What is in which."""

    def test_a_release_of_before_copal_updates_without_it(self) -> None:
        """Its updater, the runner and all hooks are scripts; and only the board that they are written for has it."""
        tree = Tree()
        for name in ("hostapp-update", "hostapp-update-hooks", "hostapp-update-hooks-v2", "rollback-health"):
            tree.link(f"usr/bin/{name}", "copal")
        tree.file("etc/hostapp-update-hooks.d/60-data-breadcrumb", "copal's")
        images.before_copal(tree)
        self.assertEqual([path for path, node in tree.nodes.items() if node.target], ["usr/bin/rollback-health"])
        hooks = [path.split("/")[-1] for path, _ in tree.files() if path.startswith("etc/")]
        self.assertEqual(hooks, ["1-bootfiles", "99-resin-uboot"])
        self.assertTrue(all(node.mode == 0o755 for node in tree.nodes.values() if node.data))
        self.assertIn("before-copal", images.releases_of(images.BOARDS["arm64"]))
        self.assertNotIn("before-copal", images.releases_of(images.BOARDS["amd64"]))


class Parts(Case):
    """What qemu/prepare.sh has made."""

    def test_without_one_nothing_is_run(self) -> None:
        """Which is no failure of a scenario: states.py distinguishes the two by this."""
        with self.assertRaisesRegex(place.NotRun, "no .*/kernel: run qemu/prepare.sh"):
            images.part(self.at, "kernel")


class Disks(Case):
    """File systems and partition tables, as other tools see them."""

    def make(self, name: str) -> Path:
        """A disk with two partitions."""
        tree = Tree()
        tree.file("folder/file", "text")
        tree.write(self.at / f"{name}.tree")
        disk.fat(self.at / "boot", "resin-boot", 16, tree, self.at)
        disk.ext4(self.at / "root", "resin-rootA", 16, self.at / f"{name}.tree", "-m 0")
        parts = [disk.Partition("resin-boot", self.at / "boot", disk.EFI), disk.Partition("resin-rootA", self.at / "root")]
        disk.whole(self.at / name, "a disk", parts)
        return self.at / name

    def test_a_disk_holds_its_partitions(self) -> None:
        """Where the table says, byte by byte, and with holes."""
        whole = self.make("disk")
        table = json.loads(subprocess.run(["sfdisk", "--json", whole], capture_output=True, check=True).stdout)
        found = [(p["name"], p["start"] * 512, p["size"] * 512) for p in table["partitiontable"]["partitions"]]
        self.assertEqual(found, [("resin-boot", 4 << 20, 16 << 20), ("resin-rootA", 20 << 20, 16 << 20)])
        data = whole.read_bytes()
        for (_, start, size), image in zip(found, ("boot", "root")):
            self.assertTrue(data[start : start + size] == (self.at / image).read_bytes(), image)
        self.assertLess(whole.stat().st_blocks * 512, 8 << 20)
        check = subprocess.run(["e2fsck", "-fn", self.at / "root"], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout)
        text = subprocess.run(["mtype", "-i", self.at / "boot", "::/folder/file"], capture_output=True, check=True).stdout
        self.assertEqual(text, b"text")

    def test_identifiers_are_always_the_same(self) -> None:
        """Partition table and volume numbers; times of folders and inodes are those of the making."""
        one, two = self.make("one").read_bytes(), self.make("two").read_bytes()
        self.assertEqual(one[: 4 << 20], two[: 4 << 20])
        self.assertEqual(one[-(1 << 20) :], two[-(1 << 20) :])
        # Serial number of the FAT, UUID of the ext4.
        for at, size in ((4 << 20) + 0x27, 4), ((20 << 20) + 0x468, 16):
            self.assertEqual(one[at : at + size], two[at : at + size])

    def test_a_disk_of_large_sectors_has_a_table_and_a_file_system_for_them(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("not run: only root has loop devices, from which sfdisk takes the size of sectors")
        tree = Tree()
        tree.file("here.txt", "content")
        disk.fat(self.at / "fat", "resin-boot", 20, tree, self.at, sector=4096)
        disk.whole(self.at / "whole", "a disk", [disk.Partition("resin-boot", self.at / "fat", disk.EFI)], sector=4096)
        with (self.at / "whole").open("rb") as file:
            file.seek(4096)
            self.assertEqual(file.read(8), b"EFI PART")
        (found,) = look.partitions(self.at / "whole")
        self.assertEqual((found.name, found.offset, found.size), ("resin-boot", 4 << 20, 20 << 20))
        self.assertEqual(look.boot_file(self.at / "whole", "here.txt"), b"content")
        self.assertEqual(struct.unpack_from("<H", (self.at / "fat").read_bytes(), 11), (4096,))


class Caches(Case):
    """The cache of finished parts."""

    def test_made_once_in_full_or_not_at_all(self) -> None:
        """A part that failed leaves nothing; one that is there is not made again; other inputs make another one."""
        store = images.Cache(self.at / "amd64")
        self.addCleanup(store.lock.close)

        def fails(to: Path) -> None:
            (to / "half").write_text("half")
            raise Fault("no")

        with self.assertRaises(Fault):
            store.make("part", ["a"], fails)
        self.assertEqual([p.name for p in (self.at / "amd64").iterdir()], ["lock"])
        made = store.make("part", ["a"], lambda to: (to / "file").touch())
        self.assertEqual(store.make("part", ["a"], fails), made)
        self.assertNotEqual(store.make("part", ["b"], lambda to: None), made)


if __name__ == "__main__":
    unittest.main()
