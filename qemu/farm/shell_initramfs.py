"""What a secure board with the shell scripts of meta-balena starts with: an initramfs of the scripts' modules, and GRUB's configuration of an encrypted disk.

`qemu/os/initramfs-balena/init` stands in for poky's framework, which calls the modules; programs are Debian's.
"""

from __future__ import annotations

from pathlib import Path

import bootchain
import images
import shell_release
from shell_release import Checkouts
from tree import Tree

SOURCE = images.OS / "initramfs-balena"
#: Of the guests' small userland, what an initramfs does without.
WITHOUT = ("lib/modules", "lib/guest.sh", "host", "init", "system-init")
#: What both kernels of an encrypted disk are given. `no_timer_check`: see qemu/os/grub/grub.cfg.
COMMAND_LINE = "rootwait roottimeout=60 module.sig_enforce lockdown=integrity rw console=ttyS0,115200 panic=5 no_timer_check apparmor=0 selinux=0 quiet"
OWN = [*shell_release.OWN, Path(__file__).resolve(), SOURCE]


def make(checkouts: Checkouts, guests: Path, to: Path) -> None:
    """Writes the initramfs to a file."""
    tree, board = Tree(), guests / "board_amd64/root"
    tree.copy(guests / "small")
    for path in WITHOUT:
        tree.remove(path)
    for file in sorted((guests / "unlock/root/usr").rglob("*")):
        if not file.name.endswith(".rules"):
            add(tree, guests / "unlock/root", file)
    for program in (board / "usr/sbin/tune2fs", board / "usr/bin/mountpoint"):
        for file in (program, *bootchain.libraries(board, program)):
            add(tree, board, file)
    shell_release.lsblk(tree, "bin/lsblk")
    for name in ("rootfs", "tmp", "run", "sys", "proc", "dev"):
        tree.folder(name)
    files = {**shell_release.COMMON, **shell_release.SECURE, **shell_release.INITRAMFS}
    bootenv = "usr/libexec/os-helpers-bootenv"
    files[bootenv] = shell_release.HOST_OS[bootenv]
    # There is no link from /lib to /usr/lib here.
    shell_release.put(tree, checkouts.meta_balena, {path.replace("usr/lib/udev", "lib/udev"): name for path, name in files.items()}, shell_release.values(True))
    tree.copy(SOURCE)
    tree.file("load-modules", images.OS / "initramfs/load-modules")
    archive = bootchain.Cpio()
    for path, node in sorted(tree.nodes.items()):
        if node.target is not None:
            archive.link(path, node.target)
        elif node.data is None:
            archive.folder(path)
        else:
            archive.file(path, node.data.read_bytes() if isinstance(node.data, Path) else node.data, node.mode)
    archive.console()
    archive.folder("modules")
    bootchain.add_modules(archive, guests, "x86_64", secure=True)
    to.write_bytes(archive.end())


def add(tree: Tree, root: Path, file: Path) -> None:
    """Adds a file of an unpacked tree, unless the initramfs has it at this path or at the same path without `usr/`."""
    path = str(file.relative_to(root))
    if file.is_dir() or any(name in tree.nodes for name in (path, path.removeprefix("usr/"))):
        return
    if file.is_symlink():
        tree.link(path, str(file.readlink()))
    else:
        tree.file(path, file, 0o755)


def config(checkouts: Checkouts) -> str:
    """GRUB's configuration of an encrypted disk."""
    tree, values = Tree(), {"@@TIMEOUT@@": "0", "@@KERNEL_CMDLINE@@": COMMAND_LINE, **shell_release.SECURE_VALUES}
    shell_release.put(tree, checkouts.meta_balena, {"grub.cfg": shell_release.GRUB_CONFIG}, values)
    return tree.text("grub.cfg")
