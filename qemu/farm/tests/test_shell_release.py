"""What is taken out of a checkout of meta-balena."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bootchain  # noqa: E402
import shell_initramfs  # noqa: E402
import shell_release  # noqa: E402
from place import FarmError  # noqa: E402
from shell_release import Checkouts  # noqa: E402
from tree import Tree  # noqa: E402

RECIPE = 'SRC_URI = "x"\nHOSTAPP_HOOKS = " \\\n    1-first \\\n    5-folder/5-second \\\n    "\nBALENA_BOOTFILES_BLACKLIST = "\\\n\t/config.json \\\n\t/${GRUB_INSTALL_DIR}/own \\\n\t"\n'


class Taking(unittest.TestCase):
    """From files that are made here."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)

    def test_hooks_and_skip_list_are_those_of_the_recipe(self) -> None:
        self.assertEqual(shell_release.hooks(RECIPE), ["1-first", "5-folder/5-second", *shell_release.BOARD_HOOKS])
        self.assertEqual(shell_release.skip_list(RECIPE).split(), ["/config.json", "//EFI/BOOT/own"])
        with_hooks = RECIPE + 'SECUREBOOT_HOOKS = " \\\n    0-secure \\\n    "\n'
        self.assertEqual(shell_release.hooks(with_hooks), shell_release.hooks(RECIPE))
        self.assertIn("0-secure", shell_release.hooks(with_hooks, with_secure_boot=True))
        with self.assertRaises(FarmError):
            shell_release.hooks("")

    def put(self, text: str, path: str = "usr/bin/program") -> str:
        """A file as it is installed."""
        (self.at / "source").write_text(text)
        tree = Tree()
        shell_release.put(tree, self.at, {path: "source"}, shell_release.VALUES)
        return tree.text(path)

    def test_a_file_is_unchanged_but_for_its_recipes_words(self) -> None:
        self.assertEqual(self.put("#!/bin/sh\necho @BINDIR@ @@BALENA_BOOT_MOUNT@@ me@x.org\n"), "#!/bin/sh\necho /usr/bin /mnt/boot me@x.org\n")
        with self.assertRaises(FarmError) as caught:
            self.put("echo @@SOMETHING_NEW@@\n")
        self.assertIn("@@SOMETHING_NEW@@", str(caught.exception))

    def test_the_length_of_a_trial_is_changed_or_the_file_refused(self) -> None:
        self.assertEqual(self.put("TIMEOUT=60\nCOUNT=15\n", "usr/bin/rollback-health"), "TIMEOUT=2\nCOUNT=3\n")
        with self.assertRaises(FarmError):
            self.put("TIMEOUT=61\nCOUNT=15\n", "usr/bin/rollback-health")

    def test_a_folder_that_is_no_checkout_is_refused(self) -> None:
        with self.assertRaises(FarmError) as caught:
            Checkouts(self.at, self.at).check()
        self.assertIn("name a checkout of balena-os/meta-balena", str(caught.exception))

    def test_a_program_that_is_built_has_to_be_at_the_commit_of_its_recipe(self) -> None:
        checkouts = Checkouts(self.at, self.at / "fatrw", self.at / "tcgtool")
        for name in (*checkouts.files().values(), f"{shell_release.HOOKS}/hostapp-update-hooks.bb", "fatrw/Cargo.lock", "tcgtool/tcgtool.c"):
            (self.at / name).parent.mkdir(parents=True, exist_ok=True)
            (self.at / name).touch()
        for name, path in shell_release.RECIPES.items():
            (self.at / path).mkdir(parents=True)
            (self.at / path / f"{name}_git.bb").write_text(f'SRCREV = "{"ab" * 20}"\n')
        at = {"fatrw": "ab" * 20, "tcgtool": "cd" * 20}
        with mock.patch.object(shell_release, "git", lambda path, *_: at[path.name]):
            with self.assertRaisesRegex(FarmError, "tcgtool is at cdcd.* builds abab"):
                checkouts.check()
            at["tcgtool"] = "ab" * 20
            checkouts.check()
            # The plain board does without.
            Checkouts(self.at, self.at / "fatrw").check()

    def test_programs_come_with_the_libraries_that_a_board_lacks(self) -> None:
        unpacked, board, to = (self.at / name for name in ("unpacked", "board", "to"))
        for path in (unpacked / "bin/tool", unpacked / "usr/lib/x86_64-linux-gnu/libown.so.1", unpacked / "usr/lib/x86_64-linux-gnu/libc.so.6",
                     board / "usr/lib/x86_64-linux-gnu/libc.so.6"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        linked = sorted((unpacked / "usr/lib/x86_64-linux-gnu").iterdir())
        with mock.patch.object(bootchain, "libraries", return_value=linked):
            shell_release.take(unpacked, "bin/tool", [board], to)
            with self.assertRaisesRegex(FarmError, "no bin/other in Debian's packages"):
                shell_release.take(unpacked, "bin/other", [board], to)
        self.assertEqual(sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()), ["usr/bin/tool", "usr/lib/x86_64-linux-gnu/libown.so.1"])

    def test_a_library_of_this_machine_is_an_error(self) -> None:
        said = f"\tlibc.so.6 => {self.at}/usr/lib/x86_64-linux-gnu/libc.so.6 (0x1)\n\t/lib64/ld-linux-x86-64.so.2 => /lib64/ld-linux-x86-64.so.2 (0x2)\n"
        for more, fails in (("", False), ("\tlibx.so => /usr/lib/x86_64-linux-gnu/libx.so (0x3)\n", True), ("\tlibx.so => not found\n", True)):
            with mock.patch.object(bootchain.subprocess, "run", return_value=mock.Mock(stdout=said + more)):
                if fails:
                    with self.assertRaisesRegex(ValueError, "which is not in"):
                        bootchain.libraries(self.at, self.at / "tool")
                else:
                    self.assertEqual([path.name for path in bootchain.libraries(self.at, self.at / "tool")], ["libc.so.6"])

    def test_the_initramfs_has_a_file_once(self) -> None:
        root = self.at / "root"
        for path in (root / "usr/sbin/blkid", root / "usr/sbin/kexec"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("Debian's")
        (root / "usr/sbin/link").symlink_to("kexec")
        tree = Tree()
        tree.file("sbin/blkid", "the small userland's")
        for path in sorted(root.rglob("*")):
            shell_initramfs.add(tree, root, path)
        self.assertNotIn("usr/sbin/blkid", tree.nodes)
        self.assertEqual((tree.text("usr/sbin/kexec"), tree.nodes["usr/sbin/link"].target), ("Debian's", "kexec"))

    def test_grub_gets_the_command_line_of_the_board(self) -> None:
        at = self.at / shell_release.GRUB_CONFIG
        at.parent.mkdir(parents=True)
        at.write_text("timeout=@@TIMEOUT@@\nlinux /@@KERNEL_IMAGETYPE@@ balena_stage2 @@KERNEL_CMDLINE@@\n")
        said = shell_initramfs.config(Checkouts(self.at, self.at, self.at))
        self.assertTrue(said.startswith("timeout=0\nlinux /bzImage balena_stage2 rootwait "), said)
        self.assertIn("lockdown=integrity", said)

    def test_fatrw_is_the_commit_that_the_recipe_names(self) -> None:
        recipes = self.at / shell_release.CORE / "fatrw"
        recipes.mkdir(parents=True)
        with self.assertRaises(FarmError):
            Checkouts(self.at, self.at).revision("fatrw")
        (recipes / "fatrw_1.0.bb").write_text(f'SRCREV = "{"ab" * 20}"\n')
        self.assertEqual(Checkouts(self.at, self.at).revision("fatrw"), "ab" * 20)


if __name__ == "__main__":
    unittest.main()
