"""What ./dev asks of a machine before it begins, and how it gets packages."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


class Case(unittest.TestCase):
    """A shell with the functions of ./dev, and stand-ins of what they call."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)

    def stand_in(self, name: str, script: str) -> None:
        """A program that takes the place of this machine's."""
        at = self.at / name
        at.write_text(f"#!/bin/sh\n{script}\n")
        at.chmod(0o755)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs it with the stand-ins first in the path, wherever lib.sh puts its own."""
        text = f". scripts/lib.sh\n. scripts/machine.sh\nPATH={self.at}:$PATH\ndeadline 1\n{script}"
        return subprocess.run(["sh", "-euc", text], cwd=TOP, capture_output=True, text=True, timeout=60,
                              env={**os.environ, "XDG_CACHE_HOME": str(self.at)})


class Machine(Case):
    def test_everything_that_is_missing_is_said_at_once(self) -> None:
        self.stand_in("unshare", "echo 'unshare: cannot change root filesystem propagation: Invalid argument' >&2; exit 1")
        self.stand_in("losetup", "echo 'losetup: cannot find an unused loop device' >&2; exit 1")
        self.stand_in("df", "echo Filesystem; echo x 9 9 100 9 /")
        done = self.shell(f"ask_root_rights; ask_memory 99999999; ask_disk {self.at}/no {self.at}/a 60; ask_disk {self.at}/no {self.at}/b 60\n"
                          'ask_disks; fail "lacks:$LACKS"')
        self.assertEqual(done.returncode, 1)
        for word in ("mount point", "loop device", "memory", f"{self.at}/a {self.at}/b", "0.1 GB are free"):
            self.assertIn(word, done.stderr)

    def test_what_is_there_takes_no_space_again_and_other_file_systems_count_for_themselves(self) -> None:
        self.stand_in("df", "echo Filesystem; echo x 9 9 100 9 /")
        self.stand_in("stat", "echo $3")
        done = self.shell(f"ask_disk {self.at} {self.at} 60; ask_disk {self.at}/no {self.at} 60; ask_disk {self.at}/no / 60; ask_disks; echo \"[$LACKS]\"")
        self.assertEqual((done.returncode, done.stdout), (0, "[]\n"), done.stderr)

    def test_what_the_flash_and_the_board_lack_is_said_together(self) -> None:
        self.stand_in("losetup", "echo 'losetup: cannot find an unused loop device' >&2; exit 1")
        self.stand_in("id", "echo 0")
        done = self.shell("ask_disks() { :; }; ask_memory() { lack 'memory: $1 MiB'; }; machine_for_demo; echo after")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("loop device", done.stderr)
        self.assertEqual(done.stderr.count("memory"), 1, done.stderr)

    def test_the_demo_goes_on_without_its_board_and_says_so_first(self) -> None:
        self.stand_in("losetup", "echo 'losetup: cannot find an unused loop device' >&2; exit 1")
        self.stand_in("id", "echo 0")
        done = self.shell('ask_memory() { :; }; ask_disks() { :; }; machine_for_demo; echo "[$BOARD]"')
        self.assertEqual((done.returncode, done.stdout), (0, "[]\n"), done.stderr)
        self.assertIn("the demo will end after the flash", done.stderr)
        self.assertIn("loop device", done.stderr)


GROUPS = """
tools_of() {
    case $1 in
        a) echo no-such-a:package-a sh:package-sh no-such-other:package-a ;;
        b) echo no-such-b:package-b ;;
    esac
}
"""


class Packages(Case):
    def test_who_may_not_install_is_told_of_all_packages_in_one_line(self) -> None:
        self.stand_in("id", "echo 1000")
        self.stand_in("sudo", "exit 1")
        done = self.shell(GROUPS + "need_tools a -- b; echo after")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("apt-get install --no-install-recommends package-a package-b\n", done.stderr)
        # Where only wishes are open it goes on.
        done = self.shell(GROUPS + "need_tools -- b; echo after")
        self.assertEqual((done.returncode, done.stdout), (0, "after\n"))
        self.assertIn("apt-get install --no-install-recommends package-b\n", done.stderr)

    def test_what_is_unpacked_needs_no_rights_and_what_it_depends_on_is_in_that_line(self) -> None:
        self.stand_in("id", "echo 1000")
        self.stand_in("sudo", "exit 1")
        self.stand_in("apt-get", "printf 'Inst lib-x (1 Debian [amd64])\\nInst package-b (1 Debian [amd64])\\n'")
        done = self.shell(GROUPS + "UNPACKED=package-b; need_tools a b; echo after")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(" package-a lib-x\n", done.stderr)

    def test_what_is_missing_is_installed_and_nothing_else(self) -> None:
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", f"echo \"$@\" >>{self.at}/asked; case \"$*\" in *package-b*) exit 1 ;; esac; "
                                 f"for name in no-such-a no-such-other; do printf '#!/bin/sh\\n' >{self.at}/$name; chmod +x {self.at}/$name; done")
        done = self.shell(GROUPS + "need_tools a -- b; need_tools a; echo after")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith("after\n"))
        self.assertIn("going on without no-such-b", done.stderr)
        asked = [line for line in (self.at / "asked").read_text().splitlines() if " install " in line]
        self.assertEqual(len([line for line in asked if line.endswith(" package-a")]), 1, asked)
        self.assertFalse([line for line in asked if "package-sh" in line])

    def test_a_package_with_a_service_is_unpacked_and_what_it_depends_on_installed(self) -> None:
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", f"""echo "$@" >>{self.at}/asked
case "$*" in
    *-s*install*) printf 'Inst lib-x (1 Debian [amd64])\nInst package-b (1 Debian [amd64])\n' ;;
    *download*) touch package-b_1.deb ;;
esac""")
        self.stand_in("dpkg-deb", "mkdir -p $3/usr/bin && printf '#!/bin/sh\necho unpacked\n' >$3/usr/bin/no-such-b && chmod +x $3/usr/bin/no-such-b")
        done = self.shell(GROUPS + "UNPACKED=package-b; need_tools b; no-such-b")
        self.assertTrue(done.stdout.endswith("\nunpacked\n"), done.stdout + done.stderr)
        asked = (self.at / "asked").read_text().splitlines()
        installed = [line.split(" install ")[1] for line in asked if " install " in line and " -s " not in f" {line} "]
        self.assertEqual([line.split()[-1] for line in installed], ["lib-x"], asked)
        # The next command finds it.
        self.assertEqual(self.shell(GROUPS + "UNPACKED=package-b; need_tools b; no-such-b").stdout, "unpacked\n")

    def test_a_package_that_does_not_bring_the_command_is_a_failure(self) -> None:
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", "exit 0")
        done = self.shell(GROUPS + "need_tools a; echo after")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no-such-a is still missing", done.stderr)


if __name__ == "__main__":
    unittest.main()
