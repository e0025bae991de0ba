"""What a row depends on, as a digest: a later change of it makes the record of the row stale. A comment changes nothing."""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from table import Row

#: For everything that is compiled.
TOOLCHAIN = ("Cargo.toml", "Cargo.lock", "rust-toolchain.toml")
#: For every virtual board.
BOARDS = ("qemu/farm/*.py", "qemu/os/**/*", "qemu/prepare.sh", "qemu/choose-kernel.sh")
#: Inputs of commands that are not the whole program, by their first word.
COMMANDS = {
    "dependencies": ("Cargo.lock", "deny.toml"),
    "advisories": ("Cargo.lock", "deny.toml"),
    "coverage": (*TOOLCHAIN, "tests/**/*"),
    "older-rust": TOOLCHAIN,
    "load": TOOLCHAIN,
    "u-boot-decisions": (*BOARDS, "qemu/farm/tests/*.py"),
    "fuzz-targets": (*TOOLCHAIN, "fuzz/**/*.rs", "fuzz/Cargo.toml", "fuzz/Cargo.lock"),
    "fuzz": (*TOOLCHAIN, "fuzz/Cargo.toml", "fuzz/Cargo.lock", "scripts/fuzz.sh"),
}
#: Those of them that do not depend on the program.
WITHOUT_PROGRAM = ("dependencies", "advisories", "u-boot-decisions")

STRING = r'"(?:[^"\\]|\\.)*"'
COMMENTS = {
    ".rs": re.compile(rf"({STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL),
    ".py": re.compile(rf"({STRING})|^\s*#[^\n]*|(?<=\s)#[^\n]*", re.MULTILINE),
    ".sh": re.compile(rf"({STRING})|^\s*#[^\n]*|(?<=\s)#[^\n]*", re.MULTILINE),
}
MODULE = re.compile(r"\b(?:crate|copal)::(?:(\w+)|\{([^}]*)\})")


@functools.cache
def tokens(path: Path) -> bytes:
    """A file without comments and blanks, where its kind is known."""
    data = path.read_bytes()
    comments = COMMENTS.get(path.suffix)
    if comments is None:
        return data
    bare = comments.sub(lambda found: found[1] or "", data.decode("utf-8", "replace"))
    return " ".join(bare.split()).encode()


def files(top: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """All files of these patterns, each once and in order."""
    for path in sorted({path for pattern in patterns for path in top.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def uses(path: Path) -> set[str]:
    """The modules of the program that a source names."""
    found = set()
    for one, many in MODULE.findall(tokens(path).decode()):
        found |= {one} if one else {word.split("::")[0].strip() for word in many.split(",")}
    return found


@functools.cache
def modules(top: Path) -> dict[str, frozenset[str]]:
    """The modules of src, and what each of them uses."""
    named = {path.stem if path.suffix == ".rs" else path.name for path in (top / "src").iterdir() if path.name not in ("lib.rs", "main.rs")}
    return {name: frozenset(set().union(*(uses(path) for path in files(top, sources(name)))) & named - {name}) for name in named}


def sources(module: str) -> tuple[str, str]:
    """The files of a module."""
    return f"src/{module}.rs", f"src/{module}/**/*"


def closure(top: Path, guards: Iterable[str]) -> list[str]:
    """These modules and all that they use; none: all modules."""
    graph = modules(top)
    wanted, found = set(guards) or set(graph), set()
    while wanted:
        module = wanted.pop()
        if module not in graph:
            raise KeyError(f"src has no module {module}")
        found.add(module)
        wanted |= graph[module] - found
    return sorted(found)


def kit(top: Path, program: str) -> list[str]:
    """The parts of the tests' kit that a test program names, and that these use."""
    main = top / f"tests/{program}/main.rs"
    block = re.search(r"\bmod kit\s*\{([^}]*)\}", tokens(main).decode())
    wanted = set(re.findall(r"\bmod (\w+)", block[1])) if block else set()
    return [f"tests/kit/{name}{end}" for name in sorted(wanted) for end in (".rs", "/**/*")]


def patterns(row: Row, top: Path) -> list[str]:
    """The files on which a row depends."""
    found: list[str] = []
    if not (row.kind == "command" and row.words[0] in WITHOUT_PROGRAM):
        found = ["src/lib.rs", "src/main.rs", *(pattern for module in closure(top, row.guards) for pattern in sources(module))]
    if row.kind == "test":
        program = row.words[0]
        found += [*TOOLCHAIN, f"tests/{program}/**/*", *kit(top, program)]
        # The guests are made of what the farm's are.
        found += ["qemu/prepare.sh", "qemu/choose-kernel.sh"] if program == "guest" else []
    elif row.kind == "scenario":
        found += [*TOOLCHAIN, *BOARDS, f"qemu/scenarios/{row.words[0]}.scenario", f"qemu/boards/{row.words[1]}.ini"]
    else:
        if row.words[0] == "load":
            program = row.words[1]
            found += [f"tests/{program}/**/*", *(kit(top, program) if (top / f"tests/{program}").is_dir() else ())]
        found += COMMANDS.get(row.words[0], (*TOOLCHAIN, *BOARDS, "qemu/boards/*", "qemu/scenarios/*"))
        if row.words[0] == "fuzz":
            found += [f"fuzz/fuzz_targets/{row.words[1]}.rs", f"fuzz/seeds/{row.words[1]}/*"]
    return found


def wants_binaries(row: Row, top: Path) -> bool:
    """Whether a row takes the static binaries from target/dist, as boards and guests do."""
    if row.kind == "test":
        return any(b"COPAL_DIST" in tokens(path) for path in files(top, [f"tests/{row.words[0]}/**/*.rs", *kit(top, row.words[0])]))
    return row.kind == "scenario" or row.words[0] not in ("fuzz", "fuzz-targets", "older-rust", *WITHOUT_PROGRAM)


def digest(row: Row, top: Path) -> str:
    """Of all that a row depends on, in the checkout at `top`."""
    total = hashlib.sha256(f"{row.kind} {row.name} {' '.join(row.guards)}".encode())
    if row.words[0] == "advisories":
        # Others are published meanwhile.
        total.update(f"{datetime.date.today():%G-%V}".encode())
    for path in files(top, patterns(row, top)):
        total.update(b"\0" + path.relative_to(top).as_posix().encode() + b"\0" + tokens(path))
    return total.hexdigest()[:16]
