"""Images for balenaOS's own test suites: two releases with the names and programs that the suites use, the disk with the first of them, and `alpine`.

This is a second set of images. Its disks are larger, and an update takes longer, because each release has an engine with its client. The installed release may have
the shell scripts of meta-balena (shell_release.py) in the place of copal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path

import bootchain
import hostapp
import images
import shell_initramfs
import shell_release
from hostapp import Layer
from tree import Fault, Tree, file_digest

#: The installed release, and the one that the suites install.
OLD, NEW = "base", "good"
#: With the scripts, one more release that has them.
BACK = "next"
#: The suites keep an archive and its compressed copy on the data partition. A slot holds two images while it is updated.
SIZES = (64, 576, 24, 1500)
BOARDS = {kind: dataclasses.replace(board, sizes=SIZES, releases=(OLD, NEW, BACK), engine_apart=False, signer_in_db=False)
          for kind, board in images.BOARDS.items() if board.sector == 512}

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
#: What a suite installs in it from a network that a board does not have: it is there already.
APK = "#!/bin/sh\nexit 0\n"
#: Files of the checkout that copal leaves alone, and that the suites source.
HELPERS = ("usr/libexec/os-helpers-fs", "usr/libexec/os-helpers-logging")

OWN = [*images.OWN, Path(__file__).resolve()]


@dataclasses.dataclass(frozen=True)
class Images:
    """Files in the cache, to be copied and not to be written."""

    disk: Path
    #: The new release, and `alpine`, as archives.
    hostapp: Path
    alpine: Path
    #: Secure board only: the medium that installs the disk, and the directory of the signed programs.
    flasher: Path | None = None
    signed: Path | None = None
    #: Where the installed release has the scripts, the archive of one more that has them.
    back: Path | None = None


def changed(tree: Tree, scripts: bool = False) -> None:
    """Adapts a release, with copal or with the scripts, to the suites."""
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


def alpine(guests: Path, arch: str, to: Path) -> None:
    """The archive of an image named alpine: a busybox; on amd64 with Debian's `strip`."""
    tree, of = Tree(), guests / f"suite_{arch}"
    tree.file("bin/busybox", of / "root/usr/bin/busybox", 0o755)
    for name in APPLETS:
        tree.link(f"bin/{name}", "busybox")
    tree.file("sbin/apk", APK)
    if (of / "strip").is_dir():
        board = guests / f"board_{arch}/root"
        tree.file("usr/bin/strip", of / "strip/strip", 0o755)
        tree.file("lib64/ld-linux-x86-64.so.2", board / "lib64/ld-linux-x86-64.so.2", 0o755)
        for library in bootchain.libraries(board, of / "strip/strip", of / "strip"):
            tree.file(f"lib/x86_64-linux-gnu/{library.name}", library, 0o755)
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        tar = Path(scratch) / "layer.tar"
        hostapp.archive(to, arch, "alpine:latest", [Layer(tar, tree.tar(tar))])


def scripts_release(board: images.Board, name: str, boot: Path, root: Path, signed: Path | None) -> Tree:
    """A release with the scripts in `root`."""
    tree = shell_release.release(board, name, boot, root, signed)
    # The suites' engine comes with its client.
    tree.remove("usr/bin/docker")
    changed(tree, scripts=True)
    return tree


def build(kind: str, checkout: Path, guests: Path, cache: Path, copal: Path, native: Path, scripts: shell_release.Checkouts | None = None) -> Images:
    """Makes what is not in the cache. `checkout` has the suites; `copal` is the static binary for that board, and `native` the binary for this machine.
    `scripts`: where those of the installed release are from, if it has scripts."""
    board = BOARDS[kind]
    # Without secure boot nothing is unlocked.
    board = dataclasses.replace(board, unlocked_by_scripts=(OLD, BACK) if scripts and board.secure else ())
    programs_of = f"suite_{board.arch}"
    own, its_kernel, its_programs = images.sources(*OWN), images.part(guests, images.kernel_of(board)), images.part(guests, programs_of)
    packages = images.part(guests, f"board_{board.arch}")
    store = images.Cache(cache / f"{kind}-suite{'-scripts' if scripts else ''}")
    try:
        starts = None
        if board.secure and scripts:
            starts = images.OfScripts(lambda to: shell_initramfs.make(scripts, guests, to), shell_initramfs.config(scripts),
                                      f"{scripts.digest()} {images.sources(*shell_initramfs.OWN)}")
        boot, signed, keys = images.make_start(store, guests, board, copal, starts)
        secure = [images.part(guests, "unlock"), signed.name] if signed else []

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

        base_inputs = [own, images.sources(images.OS / "rootfs", images.OS / "rootfs-secure", images.OS / "modules", images.OS / "masked",
                                           images.QEMU / "system.masked"), its_kernel, packages, images.part(guests, "small"), its_programs, *secure[:1]]
        base = store.make("base", base_inputs, make_base)

        def make_layers(to: Path) -> None:
            with tempfile.TemporaryDirectory(dir=to) as scratch:
                installed = images.installed(board, copal, images.host_os(board), Path(scratch))
                root = shell_release.host_os(scripts, Path(scratch) / "scripts") if scripts else None
                for name in (OLD, NEW, *([BACK] if root else ())):
                    if root and name != NEW:
                        tree = scripts_release(board, name, boot, root, signed)
                    else:
                        tree = images.release(board, name, boot, installed, signed)
                        shell_release.put(tree, checkout, {path: shell_release.COMMON[path] for path in HELPERS}, shell_release.VALUES)
                        changed(tree)
                    images.make_layer(tree, to / f"{name}.layer.tar")

        helpers = [file_digest(checkout / shell_release.COMMON[path]) for path in HELPERS]
        of_scripts = [scripts.digest(), images.sources(images.OS / "shell", images.OS / "shell-secure", *shell_release.OWN)] if scripts else []
        layers = store.make("layers", [own, boot.name, images.sources(images.OS / "hostapp", images.OS / "hostapp-secure", OVERLAY, *images.SHIPPED), file_digest(copal),
                                       str(images.has_pages(copal)), *secure, *helpers, images.sources(*shell_release.OWN), *of_scripts], make_layers)
        whole = store.make("disk", [own, base.name, layers.name, images.part(guests, "board_amd64")],
                           lambda to: images.make_disk(guests, board, boot, base, layers, native, to, signed))

        def make_archives(to: Path) -> None:
            for name, file in ((NEW, "hostapp"), *([(BACK, BACK)] if scripts else ())):
                hostapp.archive(to / f"{file}.tar", board.arch, images.image_name(board, name), images.layers_of(board, base, layers, name))
            alpine(guests, board.arch, to / "alpine.tar")

        archives = store.make("archives", [own, images.sources(bootchain.SOURCE), base.name, layers.name, its_programs, packages], make_archives)
        flasher = None
        if signed:
            files = store.make("files", [own, images.sources(*images.BOOT_SOURCES)], lambda to: images.loaders(guests, board, to))
            inputs = [*base_inputs, boot.name, files.name, whole.name, signed.name, *of_scripts,
                      images.sources(images.OS / "flasher", images.OS / "flasher-secure", images.OS / "shell-flasher", images.OS / "shell-flasher-secure",
                                     *images.SHIPPED)]

            def make_flasher(to: Path) -> None:
                with tempfile.TemporaryDirectory(dir=to) as scratch:
                    root = shell_release.medium(scripts, Path(scratch) / "scripts") if scripts else None
                    images.make_flasher(guests, board, boot, files, whole / "disk.img", copal, to, signed, keys, root, shell_release.CONF if root else ())

            flasher = store.make("flasher", inputs, make_flasher) / "flasher.img"
        return Images(whole / "disk.img", archives / "hostapp.tar", archives / "alpine.tar", flasher, signed, archives / f"{BACK}.tar" if scripts else None)
    finally:
        store.close()
