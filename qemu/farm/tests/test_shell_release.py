"""What is taken out of a checkout of meta-balena."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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

    def test_fatrw_is_the_commit_that_the_recipe_names(self) -> None:
        recipes = self.at / shell_release.CORE / "fatrw"
        recipes.mkdir(parents=True)
        with self.assertRaises(FarmError):
            Checkouts(self.at, self.at).revision("fatrw")
        (recipes / "fatrw_1.0.bb").write_text(f'SRCREV = "{"ab" * 20}"\n')
        self.assertEqual(Checkouts(self.at, self.at).revision("fatrw"), "ab" * 20)


if __name__ == "__main__":
    unittest.main()
