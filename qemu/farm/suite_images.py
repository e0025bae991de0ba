"""Images for balenaOS's own test suites: two releases with the names and programs that the suites use, the disk with the first of them, and `alpine`.

This is a second set of images. Its disks are larger, and an update takes longer, because each release has an engine with its client. The installed release may have
the shell scripts of meta-balena (shell_release.py) in the place of copal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path

import hostapp
import images
import shell_release
from hostapp import Layer
from tree import Fault, Tree, file_digest

#: The installed release, and the one that the suites install.
OLD, NEW = "base", "good"
#: The suites keep an archive and its compressed copy on the data partition. A slot holds two images while it is updated.
SIZES = (64, 576, 24, 1500)
BOARDS = {kind: dataclasses.replace(board, sizes=SIZES) for kind, board in images.BOARDS.items() if not board.secure}

OVERLAY = images.OS / "suite"
#: Names of the engine.
LINKS = ("balena", "balenad", "balena-engine-daemon")
UNITS = "usr/lib/systemd/system"
#: Changes to files of the other boards. The suites break the engine and the VPN by their programs, and edit the two numbers in `rollback-health`, which
#: `rollback.conf` would override.
CHANGES = (
    (f"{UNITS}/balena.service", "/usr/sbin/dockerd ", "/usr/bin/balenad "),
    (f"{UNITS}/balena-host.service", "/usr/sbin/dockerd ", "/usr/bin/balenad "),
    (f"{UNITS}/openvpn.service", "/usr/libexec/board-vpn", "/usr/sbin/openvpn"),
    ("etc/copal/rollback.conf", "TIMEOUT=2\nCOUNT=3\n", ""),
)
#: Of these, the file that the scripts do not have.
OF_COPAL = "etc/copal/rollback.conf"
#: Of the image `alpine`: those that the suites use.
APPLETS = ("sh", "md5sum", "echo", "cat")

OWN = [*images.OWN, Path(__file__).resolve()]


@dataclasses.dataclass(frozen=True)
class Images:
    """Files in the cache, to be copied and not to be written."""

    disk: Path
    #: The new release, and `alpine`, as archives.
    hostapp: Path
    alpine: Path


def changed(tree: Tree, scripts: bool = False) -> None:
    """Makes a release of images.py, or one with the scripts, one for the suites."""
    for path, old, new in CHANGES:
        if scripts and path == OF_COPAL:
            continue
        text = tree.text(path)
        if old not in text:
            raise Fault(f"{path} of the boards has no {old.strip()!r} any more: change CHANGES in {Path(__file__).name}")
        tree.file(path, text.replace(old, new))
    tree.file("usr/sbin/openvpn", tree.text("usr/libexec/board-vpn"), 0o755)
    tree.remove("usr/libexec/board-vpn")
    tree.copy(OVERLAY)
    for name in LINKS:
        tree.link(f"usr/bin/{name}", "balena-engine")
    # It starts with the system, as on a balenaOS.
    tree.link("etc/systemd/system/multi-user.target.wants/balena.service", f"/{UNITS}/balena.service")
    tree.file("balenaos.fingerprint", "".join(f"{hashlib.md5(data).hexdigest()}  /{path}\n" for path, data in tree.files()))


def alpine(busybox: Path, arch: str, to: Path) -> None:
    """The archive of an image named alpine: a busybox."""
    tree = Tree()
    tree.file("bin/busybox", busybox, 0o755)
    for name in APPLETS:
        tree.link(f"bin/{name}", "busybox")
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        tar = Path(scratch) / "layer.tar"
        hostapp.archive(to, arch, "alpine:latest", [Layer(tar, tree.tar(tar))])


def scripts_release(checkouts: shell_release.Checkouts, board: images.Board, boot: Path, scratch: Path) -> Tree:
    """The release to be installed, with the scripts."""
    tree = shell_release.release(board, OLD, boot, shell_release.host_os(checkouts, scratch / "scripts"))
    # The suites' engine comes with its client.
    tree.remove("usr/bin/docker")
    changed(tree, scripts=True)
    return tree


def build(kind: str, guests: Path, cache: Path, copal: Path, native: Path, scripts: shell_release.Checkouts | None = None) -> Images:
    """Makes what is not in the cache. `copal` is the static binary for that board, and `native` the binary for this machine. `scripts`: where those of the
    installed release are from, if it has scripts."""
    board = BOARDS[kind]
    programs_of = f"suite_{board.arch}"
    kernel, firmware = (f"{name}_arm64" if board.arch == "arm64" else name for name in ("kernel", "firmware"))
    own, its_kernel, its_programs = images.sources(*OWN), images.part(guests, kernel), images.part(guests, programs_of)
    packages = images.part(guests, f"board_{board.arch}")
    store = images.Cache(cache / f"{kind}-suite{'-scripts' if scripts else ''}")
    try:
        boot = store.make("boot", [own, images.sources(*images.BOOT_SOURCES), its_kernel, images.part(guests, "small"), images.part(guests, firmware)],
                          lambda to: images.boot_parts(guests, board, copal, to))

        def make_base(to: Path) -> None:
            with tempfile.TemporaryDirectory(dir=to) as scratch:
                tree = images.system(guests, board, Path(scratch))
                programs = Tree()
                programs.copy(guests / programs_of / "root")
                programs.remove("usr/bin/busybox")
                engine = tree.take(images.ENGINE)
                engine.put(programs)
                images.make_layer(engine, to / "engine.tar")
                images.make_layer(tree, to / "base.tar")

        base = store.make("base", [own, images.sources(images.OS / "rootfs", images.OS / "modules", images.OS / "masked", images.QEMU / "system.masked"),
                                   its_kernel, packages, images.part(guests, "small"), its_programs], make_base)

        def make_layers(to: Path) -> None:
            with tempfile.TemporaryDirectory(dir=to) as scratch:
                installed = images.installed(board, copal, (*images.HOST_OS, images.SELECTION[board.backend]), Path(scratch))
                for name in (OLD, NEW):
                    if scripts and name == OLD:
                        tree = scripts_release(scripts, board, boot, Path(scratch))
                    else:
                        tree = images.release(board, name, boot, installed)
                        changed(tree)
                    images.make_layer(tree, to / f"{name}.layer.tar")

        of_scripts = [scripts.digest(), images.sources(images.OS / "shell", *shell_release.OWN)] if scripts else []
        layers = store.make("layers", [own, boot.name, images.sources(images.OS / "hostapp", OVERLAY, *images.SHIPPED), file_digest(copal),
                                       str(images.has_pages(copal)), *of_scripts], make_layers)
        whole = store.make("disk", [own, base.name, layers.name, images.part(guests, "board_amd64")],
                           lambda to: images.make_disk(guests, board, boot, base, layers, native, to))

        def make_archives(to: Path) -> None:
            hostapp.archive(to / "hostapp.tar", board.arch, images.image_name(board, NEW), images.layers_of(board, base, layers, NEW))
            alpine(guests / programs_of / "root/usr/bin/busybox", board.arch, to / "alpine.tar")

        archives = store.make("archives", [own, base.name, layers.name, its_programs], make_archives)
        return Images(whole / "disk.img", archives / "hostapp.tar", archives / "alpine.tar")
    finally:
        store.close()
