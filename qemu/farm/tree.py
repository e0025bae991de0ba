"""A file system tree that is put together from folders, files and links, and written as a tar or into a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import Iterator

#: When everything in an image was made: the same tree gives the same bytes.
MADE = 1_700_000_000


class Fault(Exception):
    """A mistake to report to the caller, with the remedy."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A file, folder or link of a tree."""

    mode: int
    data: bytes | Path | None = None
    target: str | None = None


class Tree:
    """Paths without a slash in front, and what is there. What is put later takes the place of what was there."""

    def __init__(self) -> None:
        """An empty tree."""
        self.nodes: dict[str, Node] = {}

    def _add(self, path: str, node: Node) -> None:
        """Puts a node, and the folders above it."""
        path = str(PurePosixPath(path.strip("/")))
        for above in list(PurePosixPath(path).parents)[:-1]:
            held = self.nodes.get(str(above))
            if held is None:
                self.nodes[str(above)] = Node(0o755)
            elif held.data is not None or held.target is not None:
                raise Fault(f"{path}: {above} is no folder in this tree; put the file where that leads to")
        old = self.nodes.get(path)
        folder = node.data is None and node.target is None
        if old is not None and old.data is None and old.target is None and not folder:
            raise Fault(f"{path} is a folder in this tree already; remove it first")
        self.nodes[path] = node

    def file(self, path: str, data: bytes | str | Path, mode: int | None = None) -> None:
        """Puts a file: these bytes, this text, or what is in that file; without a mode, executable as that is."""
        if mode is None:
            run = isinstance(data, Path) and data.stat().st_mode & stat.S_IXUSR
            mode = 0o755 if run or isinstance(data, str) and data.startswith("#!") else 0o644
        self._add(path, Node(mode, data.encode() if isinstance(data, str) else data))

    def link(self, path: str, target: str) -> None:
        """Puts a symbolic link."""
        self._add(path, Node(0o777, target=target))

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Puts a folder, or sets the mode of one."""
        self._add(path, Node(mode))

    def remove(self, path: str) -> None:
        """Takes a path and everything below it away."""
        path = path.strip("/")
        self.nodes = {at: n for at, n in self.nodes.items() if at != path and not at.startswith(path + "/")}

    def take(self, paths: tuple[str, ...]) -> Tree:
        """Takes files away, and gives them as a tree of their own."""
        files, taken = Tree(), Tree()
        for path in paths:
            files.nodes[path] = self.nodes.pop(path)
        taken.put(files)
        return taken

    def copy(self, source: Path, to: str = "") -> None:
        """Puts everything below a folder of this machine, links as links; devices and the like are none of ours."""
        if not source.is_dir():
            raise Fault(f"no folder {source}: run qemu/prepare.sh")
        for at, folders, files in os.walk(source):
            inside = PurePosixPath(to, *Path(at).relative_to(source).parts)
            for name in sorted(folders + files):
                path, of = str(inside / name), Path(at, name)
                if of.is_symlink():
                    self.link(path, os.readlink(of))
                elif of.is_dir():
                    if path not in self.nodes:
                        self.folder(path)
                elif of.is_file():
                    self.file(path, of)

    def put(self, other: Tree, to: str = "") -> None:
        """Puts another tree."""
        for path, node in sorted(other.nodes.items()):
            if node.data is None and node.target is None and str(PurePosixPath(to, path)) in self.nodes:
                continue
            self._add(str(PurePosixPath(to, path)), node)

    def text(self, path: str) -> str:
        """What a file says."""
        data = self.nodes[path.strip("/")].data
        return (data.read_bytes() if isinstance(data, Path) else data or b"").decode()

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The regular files with what is in them, in the order of their paths."""
        for path, node in sorted(self.nodes.items()):
            if node.data is not None:
                yield path, node.data.read_bytes() if isinstance(node.data, Path) else node.data

    def digest(self) -> str:
        """SHA-256 over everything that a tar of it would hold."""
        total = hashlib.sha256()
        for path, node in sorted(self.nodes.items()):
            content = b""
            if node.data is not None:
                content = hashlib.sha256(node.data.read_bytes() if isinstance(node.data, Path) else node.data).digest()
            total.update(f"{path}\0{node.mode:o}\0{node.target}\0".encode() + content)
        return total.hexdigest()

    def tar(self, to: Path) -> str:
        """Writes a tar, everything root's, in the order of the paths; gives its SHA-256."""
        with to.open("wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path, node in sorted(self.nodes.items()):
                info = tarfile.TarInfo(path)
                info.mode, info.mtime = node.mode, MADE
                if node.target is not None:
                    info.type, info.linkname = tarfile.SYMTYPE, node.target
                    tar.addfile(info)
                elif isinstance(node.data, Path):
                    info.size = node.data.stat().st_size
                    with node.data.open("rb") as source:
                        tar.addfile(info, source)
                elif node.data is not None:
                    info.size = len(node.data)
                    tar.addfile(info, io.BytesIO(node.data))
                else:
                    info.type = tarfile.DIRTYPE
                    tar.addfile(info)
        return file_digest(to)

    def write(self, to: Path) -> None:
        """Writes it below a folder, with its modes and times; its owner is the calling user."""
        folders = []
        for path, node in sorted(self.nodes.items()):
            at = to / path
            at.parent.mkdir(parents=True, exist_ok=True)
            if node.target is not None:
                at.symlink_to(node.target)
                os.utime(at, (MADE, MADE), follow_symlinks=False)
            elif node.data is None:
                at.mkdir(exist_ok=True)
                folders.append((at, node.mode))
            else:
                at.write_bytes(node.data.read_bytes() if isinstance(node.data, Path) else node.data)
                at.chmod(node.mode)
                os.utime(at, (MADE, MADE))
        for at, mode in reversed([*folders, (to, 0o755)]):
            at.chmod(mode)
            os.utime(at, (MADE, MADE))


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
