"""The guests' preparation: the choice of a kernel by what an archive has, and parts that cannot be made."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

QEMU = Path(__file__).resolve().parents[2] / "qemu"


def packages(*stanzas: str) -> str:
    """A Packages file: `NAME VERSION ARCHITECTURE` each."""
    fields = [stanza.split() for stanza in stanzas]
    return "\n".join(f"Package: {name}\nSource: x\nVersion: {version}\nDepends: y (= {version})\nArchitecture: {arch}\n" for name, version, arch in fields)


def kernel(number: int, version: str, arch: str) -> list[str]:
    """A kernel, as Debian signs it, with its headers."""
    return [f"linux-image-6.1.0-{number}-{arch} {version} {arch}", f"linux-headers-6.1.0-{number}-{arch} {version} {arch}",
            f"linux-headers-6.1.0-{number}-common {version} all"]


def tools(version: str, arch: str = "amd64") -> list[str]:
    """What builds modules."""
    return [f"linux-kbuild-6.1 {version} {arch}"]


def source(*versions: str) -> list[str]:
    """The kernel's source in these versions."""
    return [f"linux-source-6.1 {version} all" for version in versions]


# A point release: everything in one version.
POINT = [*kernel(50, "6.1.176-1", "amd64"), *kernel(50, "6.1.176-1", "arm64"), *tools("6.1.176-1"), *source("6.1.176-1")]


class Choice(unittest.TestCase):
    def chosen(self, stanzas: list[str], arch: str = "arm64") -> str:
        """What is chosen, whatever the order of the archive."""
        found = set()
        for text in (packages(*stanzas), packages(*reversed(stanzas))):
            words = [QEMU / "choose-kernel.sh", arch, *(["source"] if arch == "arm64" else [])]
            done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
            self.assertEqual(done.stderr, "")
            found.add(done.stdout.strip() if done.returncode == 0 else f"exit {done.returncode}")
        self.assertEqual(len(found), 1, found)
        return found.pop()

    def test_everything_in_one_version(self) -> None:
        self.assertEqual(self.chosen(POINT), "6.1.0-50-arm64 6.1.176-1 6.1.176-1 6.1.176-1")
        self.assertEqual(self.chosen(POINT, "amd64"), "6.1.0-50-amd64 6.1.176-1 6.1.176-1")

    def test_kbuild_is_newer(self) -> None:
        """As on 29 November 2026: the next kernel's tools are there before it is signed. Headers want their version of it or a newer one."""
        new = [*kernel(56, "6.1.192-2", "arm64"), *tools("6.1.192-3"), *source("6.1.192-2", "6.1.192-3"),
               "linux-image-6.1.0-57-arm64-unsigned 6.1.192-3 arm64", "linux-headers-6.1.0-57-arm64 6.1.192-3 arm64", "linux-headers-6.1.0-57-common 6.1.192-3 all"]
        self.assertEqual(self.chosen([*POINT, *new]), "6.1.0-56-arm64 6.1.192-2 6.1.192-3 6.1.192-2")

    def test_the_nearest_kbuild_of_several(self) -> None:
        new = [*kernel(56, "6.1.192-2", "amd64"), *tools("6.1.192-10"), *tools("6.1.192-3"), *tools("6.1.192-1")]
        self.assertEqual(self.chosen([*POINT, *new], "amd64"), "6.1.0-56-amd64 6.1.192-2 6.1.192-3")

    def test_the_kernel_is_newer_than_kbuild(self) -> None:
        """An older kernel that its packages go with is better than a newer one that they may not go with; without one, the newer one is taken."""
        new = [*kernel(56, "6.1.192-2", "arm64"), *source("6.1.192-2")]
        self.assertEqual(self.chosen([*POINT, *new]), "6.1.0-50-arm64 6.1.176-1 6.1.176-1 6.1.176-1")
        self.assertEqual(self.chosen([*new, *tools("6.1.176-1")]), "6.1.0-56-arm64 6.1.192-2 6.1.176-1 6.1.192-2")

    def test_headers_are_not_there_yet_or_no_longer(self) -> None:
        image, headers, common = kernel(56, "6.1.192-2", "arm64")
        complete = [*tools("6.1.192-2"), *source("6.1.192-2")]
        for lacking in ([image, headers], [image, common], [headers, common], [image]):
            self.assertTrue(self.chosen([*POINT, *lacking, *complete]).startswith("6.1.0-50-arm64 6.1.176-1 6.1.176-1 6.1.176-1"))
        # Of another version they are of no use.
        other = headers.replace("6.1.192-2", "6.1.192-3")
        self.assertTrue(self.chosen([*POINT, image, other, common, *complete]).startswith("6.1.0-50-arm64 6.1.176-1 "))

    def test_one_architecture_is_behind(self) -> None:
        """Modules are built on amd64, for either."""
        ahead = [*kernel(56, "6.1.192-2", "amd64"), *tools("6.1.192-2"), *source("6.1.192-2")]
        self.assertEqual(self.chosen([*POINT, *ahead], "arm64"), "6.1.0-50-arm64 6.1.176-1 6.1.176-1 6.1.176-1")
        self.assertEqual(self.chosen([*POINT, *ahead], "amd64"), "6.1.0-56-amd64 6.1.192-2 6.1.192-2")
        late = [*kernel(56, "6.1.192-2", "arm64"), *tools("6.1.192-2", "arm64"), *source("6.1.192-2")]
        self.assertEqual(self.chosen([*POINT, *late], "arm64"), "6.1.0-50-arm64 6.1.176-1 6.1.176-1 6.1.176-1")

    def test_one_release_in_two_versions(self) -> None:
        """The newer one is taken, with what goes with it."""
        twice = [*kernel(56, "6.1.192-1", "arm64"), *kernel(56, "6.1.192-2", "arm64"), *tools("6.1.192-1"), *tools("6.1.192-2"), *source("6.1.192-1", "6.1.192-2")]
        self.assertEqual(self.chosen([*POINT, *twice]), "6.1.0-56-arm64 6.1.192-2 6.1.192-2 6.1.192-2")

    def test_versions_are_ordered_as_debian_orders_them(self) -> None:
        found = [*kernel(9, "6.1.99-1", "arm64"), *kernel(10, "6.1.112-1~exp1", "arm64"), *kernel(11, "6.1.112-1", "arm64"), *tools("6.1.112-1"),
                 *source("6.1.99-1", "6.1.112-1~exp1", "6.1.112-1")]
        self.assertEqual(self.chosen(found), "6.1.0-11-arm64 6.1.112-1 6.1.112-1 6.1.112-1")

    def test_the_source_is_gone(self) -> None:
        new = [*kernel(56, "6.1.192-2", "arm64"), *tools("6.1.192-2")]
        self.assertEqual(self.chosen([*new, *source("6.1.190-1", "6.1.192-3", "6.1.193-1")]), "6.1.0-56-arm64 6.1.192-2 6.1.192-2 6.1.192-3")
        self.assertEqual(self.chosen([*new, *source("6.1.176-1", "6.1.190-1")]), "6.1.0-56-arm64 6.1.192-2 6.1.192-2 6.1.190-1")

    def test_nothing_builds_modules(self) -> None:
        self.assertEqual(self.chosen(kernel(56, "6.1.192-2", "arm64")), "6.1.0-56-arm64 6.1.192-2")
        self.assertEqual(self.chosen([kernel(56, "6.1.192-2", "amd64")[0], *tools("6.1.192-2")], "amd64"), "6.1.0-56-amd64 6.1.192-2")

    def test_no_other_kernel_is_one(self) -> None:
        """Neither another flavour, series or architecture, nor debugging symbols."""
        others = [f"linux-image-{name} 6.1.192-2 arm64" for name in
                  ("6.1.0-56-rt-arm64", "6.1.0-56-cloud-arm64", "6.1.0-56-arm64-dbg", "6.1.0-56-arm64-unsigned", "6.1-arm64", "arm64", "6.12.95+deb12-arm64", "6.10.0-1-arm64")]
        self.assertEqual(self.chosen([*others, *tools("6.1.192-2"), *source("6.1.192-2")]), "exit 1")
        self.assertEqual(self.chosen([*POINT, *others]), "6.1.0-50-arm64 6.1.176-1 6.1.176-1 6.1.176-1")


class Parts(unittest.TestCase):
    """With stand-ins of the archive: single packages can be had, and trees of packages cannot."""

    APT = r"""#!/bin/sh
case " $* " in
    *" download "*)
        mkdir -p tree/DEBIAN tree/usr/bin tree/bin tree/usr/lib/x86_64-linux-gnu
        printf 'Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n' >tree/DEBIAN/control
        for program in usr/bin/docker usr/bin/killall bin/busybox usr/bin/x86_64-linux-gnu-strip usr/lib/x86_64-linux-gnu/libbfd-2.so usr/lib/x86_64-linux-gnu/libsframe.so.0; do echo >tree/$program; done
        dpkg-deb -b tree x.deb >/dev/null && rm -r tree ;;
    *" update "*) echo update >>"$UPDATES" ;;
    *) echo 'E: no such package' >&2; exit 100 ;;
esac
"""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = Path(directory.name)
        self.top = self.at / "guests"
        (self.at / "bin").mkdir()
        (self.at / "bin/apt-get").write_text(self.APT)
        (self.at / "bin/apt-get").chmod(0o755)

    def prepare(self, *parts: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.at}/bin:{os.environ['PATH']}", "UPDATES": str(self.at / "updates")}
        return subprocess.run([QEMU / "prepare.sh", self.top, *parts], env=environment, capture_output=True, text=True, timeout=60, check=False)

    def test_one_that_cannot_be_made_keeps_no_other_from_being_made(self) -> None:
        done = self.prepare("tpm", "unlock", "suite_amd64")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue((self.top / "suite_amd64/stamp").is_file())
        for name, why in (("tpm", "cannot fetch swtpm"), ("unlock", "cannot fetch cryptsetup-bin")):
            self.assertIn(why, (self.top / f"{name}.why").read_text())
            self.assertIn(f"no {name}: {why}", done.stderr)
            self.assertFalse((self.top / name).exists())
        self.assertFalse((self.top / "suite_amd64.why").exists())
        # The lists of both suites were fetched once.
        self.assertEqual((self.at / "updates").read_text().count("update"), 2)

    def test_what_is_made_of_it_says_so(self) -> None:
        done = self.prepare("small")
        self.assertEqual(done.returncode, 1)
        self.assertEqual((self.top / "small.why").read_text(), "it is made of kernel, which is not there\n")

    def test_what_another_recipe_made_is_not_used_where_this_one_fails(self) -> None:
        (self.top / "tpm").mkdir(parents=True)
        (self.top / "tpm/stamp").write_text("another recipe\n")
        self.assertEqual(self.prepare("tpm").returncode, 1)
        self.assertFalse((self.top / "tpm/stamp").exists())

    def test_a_part_that_was_made_at_last_has_no_reason_left(self) -> None:
        self.top.mkdir()
        (self.top / "suite_amd64.why").write_text("the archive was not to be reached\n")
        self.assertEqual(self.prepare("suite_amd64").returncode, 0)
        self.assertFalse((self.top / "suite_amd64.why").exists())
        (self.top / "suite_amd64.why").write_text("an old reason\n")
        self.assertIn("suite_amd64: there", self.prepare("suite_amd64").stdout)
        self.assertFalse((self.top / "suite_amd64.why").exists())


if __name__ == "__main__":
    unittest.main()
