"""Packs a release archive: the program, everything that is installed with it, and what has to come along. Or the sources.

    python3 scripts/pack.py --target TARGET --binary FILE [--pages FOLDER | --without-pages] --out FOLDER
    python3 scripts/pack.py --source [--pages FOLDER] --out FOLDER

Manual pages and completions are those that `./dev build` has made in target/dist, or those below --pages. --without-pages leaves them
out, of the list of contents too.
The same sources and program give the same bytes, wherever and by whomever they are packed. SOURCE_DATE_EPOCH is the time of everything
in it, and without that the time of the last commit. COPAL_COMMIT is the commit that the archive of the sources names.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import third_party
from third_party import Fault

TOP = Path(__file__).resolve().parent.parent
CONTENTS = "scripts/contents.tsv"

#: The sources are the same for all; their version is read with one of the targets.
SOURCE_TARGET = "x86_64-unknown-linux-musl"

#: Where `./dev build` makes manual pages and completions, and the folders that it makes there.
DIST = TOP / "target/dist"
PAGES = ("man", "completions")

#: What the header of a program says of its machine, by the first word of the target (ELF's e_machine).
MACHINES = {"x86_64": 62, "aarch64": 183, "armv7": 40}

#: The mode of a link, whose bytes are where it leads.
LINK = 0

#: Besides what the list of contents names: name in the archive, and file of the repository.
ALONG = {"contents": CONTENTS, "rootfs-install.sh": "scripts/rootfs-install.sh", "LICENSE": "LICENSE", "CHANGELOG.md": "CHANGELOG.md"}

README = """\
copal {version} for {target}: flasher and host OS updates for balenaOS.

`contents` says what goes where on a device, one row a line, separated by tabs:
  PACKAGE KIND MODE PATH SOURCE-OR-TARGET
KIND is `file` (SOURCE is a file here), `link` (to TARGET) or `enable` (a link as
`systemctl enable` makes it). `optional:` packages are what only some boards have.
Into a root file system without a build system, as root:
  sh rootfs-install.sh . ROOT [PACKAGE...]
licenses/THIRD-PARTY names everything that is linked in, sbom.cdx.json likewise.
`sha256sum --check` with SHA256SUMS, which lies beside this archive, checks it.
"""


@dataclass(frozen=True)
class Row:
    """A row of the list of contents."""

    package: str
    kind: str
    mode: str
    path: str
    source: str


def contents(top: Path = TOP) -> list[Row]:
    """The list of contents."""
    rows = []
    for number, line in enumerate((top / CONTENTS).read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        words = line.split("\t")
        if len(words) != 5 or "" in words:
            raise Fault(f"{CONTENTS}:{number}: five words are wanted, separated by tabs")
        rows.append(Row(*words))
    return rows


def commit_time(top: Path) -> int:
    """When these sources were made: SOURCE_DATE_EPOCH, or the time of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=top, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Fault(f"{top} is no git checkout: set SOURCE_DATE_EPOCH to the time of these sources")
    return int(done.stdout)


def pages(made: Path) -> dict[str, tuple[bytes, int]]:
    """Manual pages and completions, by name: bytes and mode."""
    found = {}
    for name in PAGES:
        if not (made / name).is_dir():
            raise Fault(f"there is no {made / name}: run ./dev build")
        found |= {f"{name}/{file.name}": (file.read_bytes(), 0o644) for file in (made / name).iterdir()}
    return found


def is_page(row: Row) -> bool:
    """Whether it is a manual page or a completion, or a link to one."""
    return row.source.startswith(tuple(f"{name}/" for name in PAGES)) or row.path.startswith("/usr/share/man/")


def without_pages(top: Path) -> bytes:
    """The list of contents without them."""
    dropped = {"\t".join(vars(row).values()) for row in contents(top) if is_page(row)}
    return "".join(f"{line}\n" for line in (top / CONTENTS).read_text().splitlines() if line not in dropped).encode()


def check_machine(binary: Path, program: bytes, target: str) -> None:
    """Refuses a program of another machine than the archive's: no device would start it."""
    wanted = MACHINES.get(target.partition("-")[0])
    if wanted is None:
        raise Fault(f"{target} is no target of copal: {', '.join(MACHINES)}")
    if program[:4] != b"\x7fELF" or len(program) < 20:
        raise Fault(f"{binary} is no program for Linux")
    # All of these machines are little-endian.
    found = int.from_bytes(program[18:20], "little")
    if found != wanted:
        names = {number: name for name, number in MACHINES.items()}
        raise Fault(f"{binary} is a program for {names.get(found, f'another machine ({found})')}, and not for {target}")


def files(top: Path, target: str, binary: Path, made: Path | None, epoch: int) -> dict[str, tuple[bytes, int]]:
    """What is in the archive, by name: bytes and mode. `made` has the manual pages and completions; without it there are none."""
    program = binary.read_bytes()
    check_machine(binary, program, target)
    version = third_party.crates(top, target)[0].version
    held = {"copal": (program, 0o755)}
    if made:
        held |= pages(made)
    for row in contents(top):
        if row.kind == "file" and row.source not in held and (made or not is_page(row)):
            if is_page(row):
                raise Fault(f"{CONTENTS} names {row.source}, and {made} has none: run ./dev build")
            # Of a checkout's mode only what git knows counts: whether it may be run.
            mode = 0o755 if (top / row.source).stat().st_mode & 0o100 else 0o644
            held[row.source] = ((top / row.source).read_bytes(), mode)
    for name, source in ALONG.items():
        held[name] = ((top / source).read_bytes(), 0o755 if name.endswith(".sh") else 0o644)
    if not made:
        held["contents"] = (without_pages(top), 0o644)
    held["README"] = (README.format(version=version, target=target).encode(), 0o644)
    held["sbom.cdx.json"] = (third_party.bill(top, target, hashlib.sha256(program).hexdigest(), epoch), 0o644)
    for name, text in third_party.texts(top, target).items():
        held[f"licenses/{name}"] = (text, 0o644)
    return {f"copal-{version}-{target}/{name}": what for name, what in held.items()}


def sources(top: Path, made: Path) -> dict[str, tuple[bytes, int]]:
    """The sources: everything that is in git, as it is in this folder; and the pages, which a build for another machine cannot make.

    COMMIT has the commit, for a build without git (build.rs).
    """
    commit = os.environ.get("COPAL_COMMIT")
    if not commit:
        raise Fault("COPAL_COMMIT is not set: it is the commit of these sources")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=top, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Fault(f"{top} is no git checkout: {done.stderr.strip()}")
    version = third_party.crates(top, SOURCE_TARGET)[0].version
    held = {f"copal-{version}/{name}": what for name, what in pages(made).items()}
    for name in filter(None, done.stdout.split("\0")):
        path = top / name
        if path.is_symlink():
            held[f"copal-{version}/{name}"] = (os.readlink(path).encode(), LINK)
        else:
            held[f"copal-{version}/{name}"] = (path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
    held[f"copal-{version}/COMMIT"] = (f"{commit}\n".encode(), 0o644)
    return held


def write(held: dict[str, tuple[bytes, int]], archive: str, out: Path, epoch: int) -> Path:
    """Writes the archive of that name; gives its path."""
    folders = {str(above) for name in held for above in list(Path(name).parents)[:-1]}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted([*folders, *held]):
            info = tarfile.TarInfo(name)
            info.mtime = epoch
            info.uname = info.gname = "root"
            if name in folders:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            elif held[name][1] == LINK:
                info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, held[name][0].decode()
                tar.addfile(info)
            else:
                data, info.mode = held[name]
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    # One thread: with more of them zstd writes other bytes.
    done = subprocess.run(["zstd", "-19", "--single-thread", "-q", "-c"], input=raw.getvalue(), capture_output=True, timeout=600)
    if done.returncode != 0:
        raise Fault(f"zstd fails: {done.stderr.decode().strip()[-500:]}")
    out.mkdir(parents=True, exist_ok=True)
    to = out / f"{archive}.tar.zst"
    new = to.with_name(to.name + ".new")
    new.write_bytes(done.stdout)
    new.rename(to)
    return to


def main(words: list[str]) -> int:
    """Packs one archive, and prints its digest as sha256sum does."""
    parser = argparse.ArgumentParser(prog="pack", description="Pack a release archive")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--target", help="Rust's name of the target")
    what.add_argument("--source", action="store_true", help="pack the sources")
    parser.add_argument("--binary", type=Path, help="the program for the target")
    from_where = parser.add_mutually_exclusive_group()
    from_where.add_argument("--pages", type=Path, default=DIST, help="the folder of man/ and completions/")
    from_where.add_argument("--without-pages", action="store_const", const=None, dest="pages", help="leave both out, of the program's archive")
    parser.add_argument("--out", required=True, type=Path, help="where the archive goes")
    given = parser.parse_args(words)
    if given.target and not given.binary:
        parser.error("--target needs --binary")
    if given.source and not given.pages:
        parser.error("the sources come with pages: a build for another machine cannot make them")
    try:
        epoch = commit_time(TOP)
        if given.source:
            held = sources(TOP, given.pages)
            name = f"{min(held).partition('/')[0]}-source"
        else:
            held = files(TOP, given.target, given.binary, given.pages, epoch)
            name = min(held).partition("/")[0]
        made = write(held, name, given.out, epoch)
    except (Fault, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1
    print(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {made.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
