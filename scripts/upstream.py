"""What has changed in meta-balena since the releases that copal was compared with.

    python3 scripts/upstream.py CHECKOUT [COMMIT]
    python3 scripts/upstream.py --write CHECKOUT

The first one lists what the folders of the recipes that copal changes have gained, lost and changed between the newest of these releases
and the commit (HEAD), with its commits. It ends with 1 if a file that copal replaces is none of a known release, or a recipe is gone.
--write takes all releases of the checkout into the list of the layer: for when copal has everything that changed in them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

TOP = Path(__file__).resolve().parent.parent
LIST = TOP / "recipes/conf/copal_upstream.inc"
APPENDS = TOP / "recipes/dynamic-layers/balena-common"
COMMON = "meta-balena-common"

#: The first release with a layer for kirkstone.
FIRST = "v2.103.0"

#: Names of releases, and of branches of older ones that are maintained.
RELEASE = re.compile(r"v?\d+\.\d+\.(\d+|x)")

#: The packages of scripts/contents.tsv whose files take the place of meta-balena's.
PACKAGES = ("resin-init-flasher", "hostapp-update", "hostapp-update-hooks", "balena-rollback", "optional:uboot", "optional:grub",
            "optional:balena-bootloader", "optional:os-blocks-extensions", "optional:secure-boot", "optional:os-helpers-reboot", "optional:udev")

#: Files that copal takes the place of with nothing of its own under that name: the program does what they did (COPAL_TAKEN of the layer), or
#: copal's file has the name that the recipe installs it under (COPAL_NAME).
TAKEN = ("balena-init-flasher-efi", "balena-init-flasher-tpm", "cryptsetup-efi-tpm")


class Fault(Exception):
    """What ends the program, in words for its user."""


def git(checkout: Path, *words: str, binary: bool = False) -> str | bytes:
    """What git answers."""
    done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, timeout=600)
    if done.returncode != 0:
        raise Fault(f"git {words[0]} in {checkout}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout if binary else done.stdout.decode(errors="replace")


def replaced() -> set[str]:
    """The names of files that copal replaces, or brings beside them."""
    rows = [line.split("\t") for line in (TOP / "scripts/contents.tsv").read_text().splitlines() if not line.startswith("#")]
    return {PurePosixPath(row[3]).name for row in rows if row[0] in PACKAGES and row[1] != "enable" and "/man/" not in row[3]} | set(TAKEN)


def recipes() -> dict[str, list[str]]:
    """The folders of meta-balena that copal's appends change, with their recipes. An append may stand for a recipe of another layer."""
    found: dict[str, list[str]] = {}
    for append in sorted(APPENDS.rglob("*.bbappend")):
        folder = f"{COMMON}/{append.parent.relative_to(APPENDS)}"
        name = f"{append.stem}.bbappend" if "%" in append.stem else f"{append.stem}.bb"
        found.setdefault(folder, []).append(f"{folder}/{name}")
    return found


def files(checkout: Path, commit: str) -> dict[str, str]:
    """The files that copal replaces in a commit, with git's names of their contents."""
    names, found = replaced(), {}
    for line in str(git(checkout, "ls-tree", "-r", commit, *recipes())).splitlines():
        blob, _, path = line.partition("\t")
        if PurePosixPath(path).name in names:
            found[path] = blob.split()[2]
    return found


def digest(checkout: Path, blob: str) -> str:
    """The SHA-256 digest of a content."""
    content = git(checkout, "cat-file", "blob", blob, binary=True)
    assert isinstance(content, bytes)
    return hashlib.sha256(content).hexdigest()


def known() -> tuple[str, str, dict[str, set[str]]]:
    """The oldest and the newest release of the list, and the digests by name."""
    text = LIST.read_text()
    releases = re.search(r'^COPAL_UPSTREAM_RELEASES = "(\S+) to (\S+)"$', text, re.MULTILINE)
    if not releases:
        raise Fault(f"{LIST} has no COPAL_UPSTREAM_RELEASES")
    rows = re.findall(r'^COPAL_UPSTREAM\[(\S+)\] = "([^"]*)"$', text, re.MULTILINE)
    return releases[1], releases[2], {name: set(digests.replace("\\", " ").split()) for name, digests in rows}


def write(checkout: Path) -> None:
    """Writes the list from all releases of the checkout."""
    tags = [tag for tag in str(git(checkout, "tag", "--contains", FIRST)).split() if RELEASE.fullmatch(tag)]
    blobs: dict[str, dict[str, None]] = {}
    for tag in sorted(tags, key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)]):
        for path, blob in files(checkout, tag).items():
            blobs.setdefault(PurePosixPath(path).name, {})[blob] = None
    newest = max((tag for tag in tags if tag.startswith("v")), key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)])
    lines = [
        "# The files of meta-balena that copal replaces, as SHA-256 digests: those of all releases in the range below, and of its branches of",
        "# older releases. copal takes the place of each. Written by `./dev upstream --write CHECKOUT`.",
        f'COPAL_UPSTREAM_RELEASES = "{FIRST} to {newest}"',
    ]
    for name in sorted(blobs):
        digests = "".join(f"    {digest(checkout, blob)} \\\n" for blob in blobs[name])
        lines.append(f'COPAL_UPSTREAM[{name}] = "\\\n{digests}"')
    LIST.write_text("\n".join(lines) + "\n")
    print(f"{LIST}: {len(tags)} releases, {sum(map(len, blobs.values()))} versions of {len(blobs)} files")


def changes(checkout: Path, commit: str) -> int:
    """Prints what has changed; 1 where copal has to follow."""
    _, pinned, digests = known()
    span, folders, wrong = f"{pinned}..{commit}", recipes(), 0
    print(f"meta-balena {pinned} to {str(git(checkout, 'describe', '--always', '--tags', commit)).strip()}")
    there = set(str(git(checkout, "ls-tree", "-r", "--name-only", commit, *folders)).splitlines())
    for recipe in [recipe for of in folders.values() for recipe in of]:
        if recipe not in there:
            print(f"\nGONE      {recipe}: copal appends to it")
            wrong = 1
    now = files(checkout, commit)
    for line in str(git(checkout, "diff", "--no-renames", "--name-status", pinned, commit, "--", *folders)).splitlines():
        kind, path = line.split("\t")
        name = PurePosixPath(path).name
        # Of systemd's folder copal replaces two files, and nothing else there is near to it.
        if path.startswith(f"{COMMON}/recipes-core/systemd/") and name not in digests:
            continue
        mine = name in digests or path in now
        follow = mine and (path not in now or digest(checkout, now[path]) not in digests.get(name, set()))
        word = {"A": "new", "D": "removed"}.get(kind, "changed")
        print(f"\n{word.upper() if follow else word:9} {path}{': copal replaces it' if follow else ''}")
        print(str(git(checkout, "log", "--no-merges", "--format=  %h %cs %s", span, "--", path)), end="")
        wrong |= follow
    print("\nIn capitals: copal has to follow." if wrong else "\nNothing that copal has to follow.")
    return wrong


def main(words: list[str]) -> int:
    """Lists, or writes."""
    parser = argparse.ArgumentParser(prog="upstream", description="What has changed in meta-balena")
    parser.add_argument("--write", action="store_true", help="take all releases into the layer's list")
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="a clone of meta-balena, with its tags")
    parser.add_argument("commit", nargs="?", default="HEAD", metavar="COMMIT", help="what is compared (HEAD)")
    given = parser.parse_args(words)
    try:
        if given.write:
            write(given.checkout)
            return 0
        return changes(given.checkout, given.commit)
    except (Fault, OSError, subprocess.SubprocessError) as error:
        print(f"upstream: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
