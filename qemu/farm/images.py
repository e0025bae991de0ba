"""Images of the boards: releases of a host OS, a disk with one of them installed, an installation medium.

    python3 qemu/farm/images.py amd64|arm64 [--guests FOLDER] [--cache FOLDER] [--copal FILE]

Every part is kept below the cache under a digest of all it is made of, and is made in full or not at all. Layers, archives,
partition tables and identifiers are the same whenever they are made. File systems have the time of their making in folders
and inodes; and slot A, which a container engine fills, its identifiers and the order of its blocks. Filling it needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import bootchain
import disk
import hostapp
import place
import secure
from disk import MIB, Partition
from hostapp import Layer
from tree import Fault, Tree, file_digest

QEMU = Path(__file__).resolve().parent.parent
TOP = QEMU.parent
OS = QEMU / "os"

#: Name of each release, and its version.
RELEASES = {
    "base": "5.0.0",
    "good": "5.1.0",
    "broken-engine": "5.1.1",
    "vpn-down": "5.1.2",
    "no-init": "5.1.3",
    "panic": "5.1.4",
    "failing-hook": "5.1.5",
    "light": "5.1.6",
    "before-copal": "5.1.7",
    "next": "5.2.0",
}

#: Those of one bootloader only: their hooks are written for it.
ONLY = {"before-copal": "u-boot"}

#: Those whose archive stays on this machine as well, for a registry.
ON_HOST = ("good", "next")

#: MiB of boot partition, slot, state and data of a board without an encrypted disk. An update unpacks the archive of its release on the data partition.
SIZES = (64, 240, 24, 224)

#: Of a secure board: an emulated processor encrypts and decrypts every byte of it.
SECURE_SIZES = (48, 240, 16, 32)

#: Where the engine's programs are on the disk with the releases.
ENGINE_AT = "releases/engine"

#: Those that come with a loader of their own: its modules of GRUB besides those of all. A commit forbids the loader of the release before.
OTHER_LOADERS = {"good": ("date",), "next": ("halt",)}

#: Folders that mounts and programs want; the packages have no reason to bring them.
FOLDERS = ("boot", "dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var/lib", "var/log",
           "var/tmp", "var/lib/systemd", "var/cache", "usr/lib/modules")

#: Of udev's rules, those that a board's devices need: each event goes through all of them.
UDEV_RULES = ("50-udev-default.rules", "60-block.rules", "60-persistent-storage.rules", "80-drivers.rules", "99-systemd.rules")

#: Releases without the engine's programs: they never come up, or are there to have a broken engine.
NO_ENGINE = ("broken-engine", "vpn-down", "no-init", "panic", "failing-hook")

#: Releases whose engine check always succeeds.
CONTENT = ("vpn-down", "light")

#: Of the packages, what the system of a medium and those releases have no use for.
ENGINE_PROGRAMS = ("usr/sbin/dockerd", "usr/sbin/runc", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2")
ENGINE = (*ENGINE_PROGRAMS, "usr/lib/systemd/system/docker.service", "usr/lib/systemd/system/docker.socket",
          "usr/lib/systemd/system/containerd.service")

#: Modules of a secure board's host OS, besides those of all.
SECURE_MODULES = ("dm_crypt", "xts", "aesni_intel", "algif_skcipher")

#: Packages of a release of copal on a host OS, besides the board's bootloader hook.
HOST_OS = ("copal", "hostapp-update", "hostapp-update-hooks", "balena-rollback", "optional:fatrw", "optional:os-helpers-reboot",
           "optional:udev")

#: Optional packages with the hook that selects a root.
SELECTION = {"grub": "optional:grub", "u-boot": "optional:uboot"}

#: And on an installation medium.
MEDIUM = ("copal", "resin-init-flasher")

#: What is installed with the program, and how.
SHIPPED = [TOP / name for name in ("hooks", "systemd", "examples/pages.rs", "scripts/contents.tsv", "scripts/rootfs-install.sh",
                                   "scripts/pack.py")]

#: What takes the place of copal's programs in a release of before copal.
STAND_INS = {
    "hostapp-update": TOP / "tests/update/stand-in-update.sh",
    "hostapp-update-hooks": TOP / "tests/hooks/stand-in.sh",
    "hostapp-update-hooks-v2": TOP / "tests/hooks/stand-in.sh",
}

#: What is not used for so long goes from the cache: each binary of copal makes gigabytes, and no run takes longer.
KEEP_SECONDS = 2 * 3600

#: For another builder to end: a complete build of a busy machine.
LOCK_SECONDS = 3600


@dataclasses.dataclass(frozen=True)
class Board:
    """What differs between images. Boards with the same processor and bootloader share them."""

    name: str
    arch: str
    machine: str
    #: As in the files below qemu/boards.
    backend: str
    console: str
    #: Whether its releases are for encrypted installations with secure boot.
    secure: bool = False
    #: The names of its releases; empty: all that are not of another bootloader only.
    releases: tuple[str, ...] = ()
    #: Whether the engine's programs are on the disk with the releases instead of in each release, two thirds of which they would be.
    engine_apart: bool = True
    #: Whether `db` also has the certificate of the image signer, so that a medium still installs after the keys are enrolled.
    signer_in_db: bool = False
    #: Releases whose initramfs unlocks with scripts, not with copal.
    unlocked_by_scripts: tuple[str, ...] = ()
    #: The size of the internal disk's sectors, in bytes.
    sector: int = 512
    #: MiB of boot partition, slot, state and data.
    sizes: tuple[int, int, int, int] = SIZES

    @property
    def kernel(self) -> str:
        """Below /boot, the kernel that starts a plain installation, and a root."""
        return secure.KERNEL if self.secure else bootchain.KERNEL[self.machine]


SECURE = Board("qemu-amd64-secure", "amd64", "x86_64", "grub", "ttyS0", secure=True, releases=("base", "good", "light"), signer_in_db=True,
               unlocked_by_scripts=("light",), sizes=SECURE_SIZES)
BOARDS = {
    "amd64": Board("qemu-amd64", "amd64", "x86_64", "grub", "ttyS0"),
    "amd64-secure": SECURE,
    "amd64-secure-4096": dataclasses.replace(SECURE, name=f"{SECURE.name}-4096", sector=4096),
    "arm64": Board("qemu-aarch64", "arm64", "aarch64", "u-boot", "ttyAMA0"),
}


@dataclasses.dataclass(frozen=True)
class Images:
    """What a board can start from; files in the cache, to be copied and not to be written."""

    board: str
    arch: str
    #: The whole disk, with the release `base` in slot A.
    disk: Path
    #: The file system with every release but `base` as NAME.tar, label `releases`.
    releases: Path
    #: Some of the same archives on this machine.
    archives: dict[str, Path]
    #: Name of each release, and its version.
    versions: dict[str, str]
    #: The installation medium with that disk in it.
    flasher: Path
    #: A folder with the bootloaders that the medium writes besides the disk.
    files: Path
    #: Folders with the unsigned programs that a board starts with, and, of a secure board, the signed ones and the private keys.
    boot: Path
    signed: Path | None = None
    keys: Path | None = None


def note(text: str) -> None:
    """Prints a line."""
    print(f"{time.strftime('%T')} images: {text}", file=sys.stderr, flush=True)


def default_cache() -> Path:
    """Where images are kept."""
    own = os.environ.get("COPAL_FARM")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "copal" / "farm"


class Cache:
    """Finished parts of one board, each in a folder of its own. Who builds holds its lock."""

    def __init__(self, top: Path) -> None:
        """Takes the lock, and waits while another process has it."""
        self.top = top
        top.mkdir(parents=True, exist_ok=True)
        self.lock = (top / "lock").open("w")
        began, waiting = time.monotonic(), False
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began > LOCK_SECONDS:
                    raise Fault(f"{top}/lock has been held for an hour: end the builder that has it") from None
            if not waiting:
                note(f"waiting for another builder of {top}")
                waiting = True
            time.sleep(0.5)
        for left in top.glob("*.new"):
            shutil.rmtree(left)
        self.used: set[Path] = set()

    def make(self, name: str, inputs: list[str], build: Callable[[Path], None]) -> Path:
        """The folder with that part: the one that was made of the same inputs, or a new one."""
        key = hashlib.sha256(json.dumps([name, *inputs]).encode()).hexdigest()[:16]
        at, new = self.top / f"{name}-{key}", self.top / f"{name}-{key}.new"
        self.used.add(at)
        if at.is_dir():
            os.utime(at)
            return at
        began = time.monotonic()
        note(f"{self.top.name}: making {name}")
        new.mkdir()
        try:
            build(new)
            for file in new.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    disk.sync(file)
        except BaseException:
            shutil.rmtree(new)
            raise
        new.rename(at)
        note(f"{self.top.name}: {name} made in {time.monotonic() - began:.0f} s")
        return at

    def close(self) -> None:
        """Removes what is not used any more, and lets others build."""
        for at in self.top.glob("*-*"):
            if at not in self.used and at.is_dir() and time.time() - at.stat().st_mtime > KEEP_SECONDS:
                shutil.rmtree(at)
        self.lock.close()


# --- inputs -----------------------------------------------------------------------------------------------------------


def part(guests: Path, name: str) -> str:
    """What a part of the preparation was made of."""
    at = place.part(name, guests)
    packages = at / "packages"
    return (at / "stamp").read_text() + (packages.read_text() if packages.is_file() else "")


def sources(*paths: Path) -> str:
    """Digest of files and folders of this repository, without what a build leaves there."""
    total = hashlib.sha256()
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file() or p.is_symlink()) if path.is_dir() else [path]
        for file in files:
            if {"target", "__pycache__"} & set(file.relative_to(TOP).parts):
                continue
            what = os.readlink(file) if file.is_symlink() else f"{file.stat().st_mode & 0o111} {file_digest(file)}"
            total.update(f"{file.relative_to(TOP)}\0{what}\0".encode())
    return total.hexdigest()


#: What stands in for the loader of an eMMC: bytes that are nowhere else, and no whole number of sectors.
EMMC_LOADER, EMMC_LOADER_SIZE = "emmc-loader.img", 200_001
U_BOOT = "u-boot.bin"

#: Name of the internal disk's grub.cfg on the medium.
INTERNAL_CONFIG = "grub.cfg_internal"

#: One white dot.
LOGO = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000"
                     "000a49444154789c63f80f0001010100b138f6140000000049454e44ae426082")

OWN = [QEMU / "farm" / name for name in ("images.py", "hostapp.py", "disk.py", "tree.py", "secure.py")]
BOOT_SOURCES = [path for path in (QEMU / "farm/bootchain.py", QEMU / "farm/uboot.py", OS / "initramfs", OS / "initramfs-secure", OS / "grub",
                                  OS / "u-boot", QEMU / "init") if path.exists()]


# --- the system -------------------------------------------------------------------------------------------------------


def enable(tree: Tree, unit: str) -> None:
    """What `systemctl enable` does: the links that a unit's [Install] asks for."""
    text = tree.text(f"usr/lib/systemd/system/{unit}")
    for kind, folder in (("WantedBy", "wants"), ("RequiredBy", "requires")):
        for names in re.findall(rf"^{kind}=(.+)$", text, re.MULTILINE):
            for name in names.split():
                tree.link(f"etc/systemd/system/{name}.{folder}/{unit}", f"/usr/lib/systemd/system/{unit}")


def overlay(tree: Tree, source: Path) -> None:
    """Puts a folder of qemu/os over a tree, and enables its units."""
    tree.copy(source)
    for unit in sorted((source / "usr/lib/systemd/system").glob("*.*")):
        if unit.is_file() and not unit.is_symlink():
            enable(tree, unit.name)


def modules(tree: Tree, guests: Path, board: Board, scratch: Path) -> None:
    """The kernel's modules, and the lists by which modprobe finds them."""
    kernel = bootchain.kernel_part(guests, board.machine)
    release = (kernel / "release").read_text().strip()
    known = bootchain.Modules(kernel)
    at = scratch / "modules"
    for line in [*(OS / "modules").read_text().splitlines(), *(SECURE_MODULES if board.secure else ())]:
        name, *only = line.split("#")[0].split() or [""]
        if not name or (only and board.arch not in only):
            continue
        for file in known.with_dependencies(name):
            to = at / "lib/modules" / release / file.relative_to(known.top)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copyfile(known.top / name, at / "lib/modules" / release / name)
    small = guests / "small"
    disk.run([small / "lib64/ld-linux-x86-64.so.2", "--argv0", "depmod", "--library-path", small / "lib/x86_64-linux-gnu",
              small / "bin/kmod", "-b", at, release], "list the kernel's modules")
    for name in ("modules.alias", "modules.dep", "modules.symbols", "modules.builtin.alias.bin"):
        (at / "lib/modules" / release / name).unlink(missing_ok=True)
    loaded = Tree()
    loaded.copy(at / "lib")
    # What is in a temporary folder has to be in memory when that goes.
    for path, data in list(loaded.files()):
        loaded.file(path, data, 0o644)
    tree.put(loaded, "usr/lib")
    shutil.rmtree(at)


def system(guests: Path, board: Board, scratch: Path) -> Tree:
    """Debian's packages as a system that systemd can start; what host OS and installation medium have in common."""
    tree = Tree()
    tree.copy(guests / f"board_{board.arch}" / "root")
    for path in FOLDERS:
        tree.folder(path)
    tree.folder("tmp", 0o1777)
    tree.folder("var/tmp", 0o1777)
    tree.folder("root", 0o700)
    for path, target in (("var/run", "../run"), ("var/lock", "../run/lock"), ("etc/mtab", "../proc/self/mounts"),
                         ("etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")):
        tree.remove(path)
        tree.link(path, target)
    for name in ("usr/lib/os-release", "etc/os-release"):
        tree.remove(name)
    # Programs that look at every start for what a board never has: encrypted disks, scripts of another init.
    tree.remove("usr/lib/systemd/system-generators")
    for path in [p for p in tree.nodes if p.startswith("usr/lib/udev/rules.d/") and p.split("/")[-1] not in UDEV_RULES]:
        tree.remove(path)
    for unit in [*(QEMU / "system.masked").read_text().split(), *(OS / "masked").read_text().split()]:
        tree.link(f"etc/systemd/system/{unit}", "/dev/null")
    tree.file("etc/fstab", "")
    modules(tree, guests, board, scratch)
    overlay(tree, OS / "rootfs")
    if board.secure:
        tree.put(unlocking(guests))
        overlay(tree, OS / "rootfs-secure")
    return tree


def unlocking(guests: Path) -> Tree:
    """Programs that unlock an encrypted disk, without what each system has; and udev's rules for what they open."""
    tree, top, has = Tree(), guests / "unlock" / "root", guests / "board_amd64/root"
    for path in sorted((top / "usr").rglob("*")):
        name = str(path.relative_to(top))
        # The rules were taken away with all that other boards do not need.
        if not name.endswith(".rules") and ((has / name).exists() or (has / name).is_symlink()):
            continue
        if path.is_symlink():
            tree.link(name, os.readlink(path))
        elif path.is_file():
            tree.file(name, path, 0o755 if "bin/" in name else 0o644)
    return tree


def os_release(board: Board, version: str) -> str:
    """The file by which releases know each other."""
    return (f'ID="balena-os"\nNAME="balenaOS"\nVERSION="{version}"\nVERSION_ID="{version}"\nMETA_BALENA_VERSION="{version}"\n'
            f'PRETTY_NAME="board {board.name} {version}"\nMACHINE="{board.name}"\nSLUG="{board.name}"\n')


def has_pages(copal: Path) -> bool:
    """Whether manual pages were made beside that binary: ./dev build makes them there, ./dev demo makes none."""
    return (copal.parent / "man").is_dir()


def installed(board: Board, copal: Path, packages: tuple[str, ...], scratch: Path) -> Path:
    """A folder with copal installed in it: packed as a release is, and unpacked as a board without Yocto does."""
    root = Path(tempfile.mkdtemp(dir=scratch))
    archives = scratch / "archives"
    pages = ["--pages", copal.parent] if has_pages(copal) else ["--without-pages"]
    disk.run([sys.executable, "-B", TOP / "scripts/pack.py", "--target", f"{board.machine}-unknown-linux-musl", "--binary", copal,
              *pages, "--out", archives], "pack a release of copal")
    (archive,) = archives.glob("*.tar.zst")
    disk.run(["sh", TOP / "scripts/rootfs-install.sh", archive, root, *packages], f"install {archive.name}")
    shutil.rmtree(archives)
    return root


def host_os(board: Board) -> tuple[str, ...]:
    """The packages of copal in a release."""
    return (*HOST_OS, SELECTION[board.backend], *(("optional:secure-boot",) if board.secure else ()))


# --- what a board starts with -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OfScripts:
    """Boot files of meta-balena for the releases that scripts unlock; without them, the farm's own."""

    #: Writes the initramfs to a file.
    initramfs: Callable[[Path], None]
    #: GRUB's configuration of an encrypted disk.
    config: str
    #: Of the inputs of both.
    digest: str


def boot_parts(guests: Path, board: Board, copal: Path, to: Path, of_scripts: OfScripts | None = None) -> None:
    """Kernel, initramfs, init and the bootloader's files, as files of the cache."""
    shutil.copyfile(bootchain.kernel_image(guests, board.machine), to / board.kernel)
    unlocks = {bootchain.INITRAMFS: copal, bootchain.INITRAMFS_OF_SCRIPTS: None} if board.secure else {bootchain.INITRAMFS: None}
    for name, program in unlocks.items():
        if of_scripts and program is None:
            of_scripts.initramfs(to / name)
        else:
            bootchain.initramfs(guests, board.machine, to / name, secure=board.secure, copal=program)
        if board.secure:
            bootchain.compress(to / name)
    bootchain.initramfs(guests, board.machine, to / "initramfs.panic", panic=True)
    shutil.copyfile(bootchain.init_binary(board.machine), to / bootchain.INIT)
    if board.arch == "amd64":
        bootchain.grub_image(guests, to / "grub.efi")
    else:
        import uboot

        uboot.boot_script(guests, to / "boot.scr")


def make_keys(guests: Path, to: Path) -> None:
    """The private keys of a secure board, and what is made of them alone."""
    with tempfile.TemporaryDirectory(dir=to) as scratch:
        secure.make_keys(secure.Tools(guests, Path(scratch)), to)


def signed_parts(guests: Path, board: Board, boot: Path, keys: Path, to: Path, of_scripts: OfScripts | None = None) -> None:
    """What a secure board starts with: the loader, GRUB's configuration, and for each release a stage-2 kernel and its folder of keys."""
    with tempfile.TemporaryDirectory(dir=to) as scratch:
        tools = secure.Tools(guests, Path(scratch))
        signer = secure.OpenPgp(tools, keys / "grub.key")
        secure.make_loader(tools, keys, to / "loader.efi")
        secure.make_factory_lists(tools, keys, boot / board.kernel, to)
        for name in ("grub-luks.cfg", "flasher-secure.cfg"):
            shutil.copyfile(OS / "grub" / name, to / name)
            signer.sign(to / name)
        for name in releases_of(board):
            of = to / name
            (of / secure.KEYS).mkdir(parents=True)
            if of_scripts and name in board.unlocked_by_scripts:
                (of / "grub-luks.cfg").write_text(of_scripts.config)
                signer.sign(of / "grub-luks.cfg")
            secure.make_stage2(tools, boot / board.kernel, boot / initramfs_of(board, name), os_release(board, RELEASES[name]), of / secure.STAGE2)
            signer.sign(of / secure.STAGE2)
            if name in OTHER_LOADERS:
                secure.make_loader(tools, keys, of / "loader.efi", OTHER_LOADERS[name])
            secure.make_lists(tools, keys, loader_of(to, name), of / secure.STAGE2, of / secure.KEYS, board.signer_in_db)


def initramfs_of(board: Board, name: str) -> str:
    """The initramfs of a release."""
    if name == "panic":
        return "initramfs.panic"
    return bootchain.INITRAMFS_OF_SCRIPTS if name in board.unlocked_by_scripts else bootchain.INITRAMFS


def loader_of(signed: Path, name: str) -> Path:
    """The loader of a release of a secure board."""
    return signed / (f"{name}/loader.efi" if name in OTHER_LOADERS else "loader.efi")


def luks_config(signed: Path, name: str) -> Path:
    """GRUB's configuration of an encrypted disk, of a release of a secure board."""
    own = signed / name / "grub-luks.cfg"
    return own if own.is_file() else signed / "grub-luks.cfg"


def plain_config(board: Board, name: str) -> str:
    """A configuration of GRUB that is not signed. On a secure board `bzImage` is the stage-2 kernel, which GRUB 2.06 does not start."""
    text = (OS / "grub" / name).read_text()
    return text.replace(f"/{bootchain.KERNEL[board.machine]} ", f"/{board.kernel} ")


def boot_files(board: Board, boot: Path, version: str, signed: Path | None = None) -> Tree:
    """The files of a release for the boot partition, its folder /resin-boot."""
    tree = Tree()
    if signed is not None:
        (name,) = [name for name in releases_of(board) if RELEASES[name] == version]
        tree.file(secure.LOADER, loader_of(signed, name), 0o644)
        config = luks_config(signed, name)
        for end in ("", ".sig"):
            tree.file(secure.CONFIG_OF_IMAGE + end, config.with_name(config.name + end), 0o644)
        for file in secure.KEY_FILES:
            tree.file(f"{secure.KEYS}/{file}", signed / name / secure.KEYS / file, 0o644)
    if board.arch == "amd64":
        tree.file(bootchain.GRUB_IMAGE, boot / "grub.efi", 0o644)
        tree.file(bootchain.GRUB_CONFIG, plain_config(board, "grub.cfg"))
        tree.file(bootchain.GRUB_ENVIRONMENT,
                  bootchain.grub_environment(resin_root_part="2", upgrade_available="0", bootcount="0"))
    else:
        tree.file("boot.scr", boot / "boot.scr", 0o644)
    tree.file("release.txt", f"{version}\n")
    return tree


def fingerprint(tree: Tree) -> str:
    """The list of MD5 sums that a boot partition comes with."""
    lines = [f"{hashlib.md5(data).hexdigest()}  ./{path}\n" for path, data in tree.files() if path != "config.json"]
    return "".join(lines)


def config_json(board: Board, installer: dict[str, bool | str] | None = None) -> str:
    """The owner's settings, of a device that belongs to no fleet; of a medium with those of the installation."""
    settings: dict[str, object] = {"deviceType": board.name, "hostname": "board", "persistentLogging": False}
    if installer:
        settings["installer"] = installer
    return json.dumps(settings, indent=2) + "\n"


# --- releases ---------------------------------------------------------------------------------------------------------


def releases_of(board: Board) -> dict[str, str]:
    """The releases of a board, and their versions."""
    if board.releases:
        return {name: RELEASES[name] for name in board.releases}
    return {name: version for name, version in RELEASES.items() if ONLY.get(name, board.backend) == board.backend}


def before_copal(tree: Tree) -> None:
    """Puts an updater, a runner and hooks in the place of copal's."""
    tree.remove("etc/hostapp-update-hooks.d")
    for name in ("1-bootfiles", "99-resin-uboot"):
        tree.file(f"etc/hostapp-update-hooks.d/{name}", OS / "before-copal" / name)
    # The board has the engine, and not its client.
    tree.file("usr/bin/docker", OS / "before-copal/docker")
    for name, stand_in in STAND_INS.items():
        tree.remove(f"usr/bin/{name}")
        tree.file(f"usr/bin/{name}", stand_in, 0o755)


def release(board: Board, name: str, boot: Path, programs: Path, signed: Path | None = None) -> Tree:
    """What a release has over the packages."""
    version = RELEASES[name]
    tree = Tree()
    overlay(tree, OS / "hostapp")
    if signed is not None:
        overlay(tree, OS / "hostapp-secure")
        tree.folder("mnt/efi")
        for end in ("", ".sig"):
            tree.file(f"boot/{secure.STAGE2}{end}", signed / name / f"{secure.STAGE2}{end}", 0o644)
        if name not in board.unlocked_by_scripts:
            # The Yocto layer's mark: both of its initramfs have `copal unlock`.
            tree.file("boot/copal-unlock", "")
    if board.engine_apart:
        overlay(tree, OS / "engine-apart")
        # Not the units: systemd reads them before that disk is mounted.
        for path in ENGINE_PROGRAMS if name not in NO_ENGINE else ():
            tree.link(path, f"/{ENGINE_AT}/{path}")
    for path in ("mnt/boot", "mnt/state", "mnt/data", "mnt/sysroot/active", "mnt/sysroot/inactive", "releases"):
        tree.folder(path)
    tree.copy(programs)
    tree.file("etc/os-release", os_release(board, version))
    tree.file(f"boot/{board.kernel}", boot / board.kernel, 0o644)
    tree.file(f"boot/{bootchain.INITRAMFS}", boot / initramfs_of(board, name), 0o644)
    if name != "no-init":
        tree.file(f"boot/{bootchain.INIT}", boot / bootchain.INIT, 0o755)
    tree.put(boot_files(board, boot, version, signed), "resin-boot")
    if name == "broken-engine":
        tree.file("usr/lib/balena/balena-healthcheck", "#!/bin/sh\necho 'the engine of applications is broken' >&2\nexit 1\n")
    if name in CONTENT:
        tree.file("usr/lib/balena/balena-healthcheck", "#!/bin/sh\n")
    if name == "vpn-down":
        tree.file("usr/libexec/board-vpn", "#!/bin/sh\necho 'the VPN has no server' >&2\nexit 1\n")
    if name == "before-copal":
        before_copal(tree)
    if name == "failing-hook":
        tree.file("etc/hostapp-update-hooks.d/90-fails", "#!/bin/sh\necho 'this board cannot be updated' >&2\nexit 1\n")
    return tree


def layers_of(board: Board, base: Path, releases: Path, name: str) -> list[Layer]:
    """The layers of a release in the cache."""
    engine = [] if board.engine_apart else [base / "engine.tar"]
    tars = [base / "base.tar", *engine, releases / f"{name}.layer.tar"]
    return [Layer(tar, tar.with_suffix(".sha256").read_text()) for tar in tars]


def make_layer(tree: Tree, to: Path) -> None:
    """Writes a layer and its digest."""
    to.with_suffix(".sha256").write_text(tree.tar(to))


def image_name(board: Board, name: str) -> str:
    """Under which name the engine has a release."""
    return f"board/{board.name}:{RELEASES[name]}"


def make_releases(board: Board, base: Path, layers: Path, to: Path) -> None:
    """The file system with the archives, and some of them as files."""
    with tempfile.TemporaryDirectory(dir=to) as scratch:
        files = Path(scratch)
        # No scenario updates to what is installed.
        for name in [name for name in releases_of(board) if name != "base"]:
            hostapp.archive(files / f"{name}.tar", board.arch, image_name(board, name), layers_of(board, base, layers, name))
        if board.engine_apart:
            engine = files / Path(ENGINE_AT).name
            engine.mkdir()
            disk.run(["tar", "-C", engine, "-xf", base / "engine.tar"], "unpack the engine")
        pack_releases(files, to / "releases.img")
        for name in on_host(board):
            (files / f"{name}.tar").rename(to / f"{name}.tar")


def pack_releases(files: Path, to: Path) -> None:
    """The file system with what is in a folder."""
    size = sum(f.stat().st_size for f in files.rglob("*") if f.is_file())
    # Nothing is ever written to it: no journal, no free space.
    disk.ext4(to, "releases", size * 103 // 100 // MIB + 16, files, "-O ^has_journal -m 0 -N 64 -i 1048576")


def on_host(board: Board) -> list[str]:
    """The releases of a board that are files of this machine, too."""
    return [name for name in (*ON_HOST, *(("light",) if board.secure else ())) if name in releases_of(board)]


def need_root(what: str) -> None:
    """Says before it is too late that something is made by root only."""
    if os.geteuid() != 0:
        raise Fault(f"{what} is made by a container engine or holds root's files: run this as root once; what is in the cache "
                    "then serves everybody")


# --- disks ------------------------------------------------------------------------------------------------------------


def make_disk(guests: Path, board: Board, boot: Path, base: Path, layers: Path, copal: Path, to: Path, signed: Path | None = None) -> None:
    """The whole disk."""
    need_root("the disk of a board")
    boot_mib, slot_mib, state_mib, data_mib = board.sizes
    # Blocks are not smaller than sectors; mke2fs makes small ones where a file system is small. A journal has at least 1024 blocks.
    blocks = f" -b {board.sector}" if board.sector != 512 else ""
    with tempfile.TemporaryDirectory(dir=to) as folder:
        scratch = Path(folder)
        archive = scratch / "base.tar"
        hostapp.archive(archive, board.arch, image_name(board, "base"), layers_of(board, base, layers, "base"))
        hostapp.skeleton().write(scratch / "skeleton")
        for slot in ("resin-rootA", "resin-rootB"):
            disk.ext4(scratch / slot, slot, slot_mib, scratch / "skeleton", f"-m 0 -J size=8{blocks}")
        hostapp.fill(scratch / "resin-rootA", guests / "board_amd64", archive, copal, scratch)
        files = boot_files(board, boot, RELEASES["base"], signed)
        files.file("config.json", config_json(board))
        files.file("balena-image", "")
        files.file("balenaos.fingerprint", fingerprint(files))
        disk.fat(scratch / "resin-boot", "resin-boot", boot_mib, files, scratch, board.sector)
        data = Tree()
        data.folder("resin-data")
        data.file("remove_me_to_reset", "")
        data.write(scratch / "data")
        disk.ext4(scratch / "resin-state", "resin-state", state_mib, None, f"-m 0 -J size=4{blocks}")
        disk.ext4(scratch / "resin-data", "resin-data", data_mib, scratch / "data", f"-m 0 -J size={4 if board.secure else 8}{blocks}")
        names = ("resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data")
        parts = [Partition(n, scratch / n, disk.EFI) if n == "resin-boot" else Partition(n, scratch / n) for n in names]
        disk.whole(to / "disk.img", board.name, parts, board.sector)


def loaders(guests: Path, board: Board, to: Path) -> None:
    """The bootloaders that the medium writes."""
    stream = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(EMMC_LOADER_SIZE // 32 + 1))
    (to / EMMC_LOADER).write_bytes(stream[:EMMC_LOADER_SIZE])
    if board.arch == "arm64":
        import uboot

        uboot.other_firmware(guests, to / U_BOOT)


def flasher_conf(board: Board, image: str, loaders: bool = True) -> str:
    """The board's /etc/resin-init-flasher.conf."""
    keys = {
        "INTERNAL_DEVICE_KERNEL": '"md/balena{,_*} nvme?n? vd? mmcblk?"',
        "INTERNAL_DEVICE_BOOTLOADER_CONFIG": "",
        "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH": "",
        "BALENA_IMAGE": image,
    }
    emmc = ("mmcblk0boot0", EMMC_LOADER, "1024", "33")
    if board.arch == "amd64":
        keys["INTERNAL_DEVICE_BOOTLOADER_CONFIG"] = INTERNAL_CONFIG
        keys["INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH"] = f"/{bootchain.GRUB_CONFIG}"
        writes = [] if board.secure else [emmc]
        if board.secure:
            # Of meta-balena's recipe where SIGN_API is set; the last one stands for what copal's recipe adds.
            keys |= {"USE_LUKS": "1", "INTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS": secure.CONFIG_OF_MEDIUM, "KERNEL_IMAGETYPE": secure.STAGE2}
    else:
        writes = [("mtdblock0", U_BOOT, "1024", "0"), emmc]
    for number, values in enumerate(writes if loaders else ()):
        names = ("FLASH_DEVICE", "IMAGE", "BLOCK_SIZE_OFFSET", "SKIP_OUTPUT_BLOCKS")
        keys.update({f"BOOTLOADER_{name}{f'_{number}' if number else ''}": value for name, value in zip(names, values)})
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def make_flasher(guests: Path, board: Board, boot: Path, files: Path, whole: Path, copal: Path, to: Path, signed: Path | None = None,
                 keys: Path | None = None, plain: Path | None = None, more: tuple[str, ...] = ()) -> None:
    """The installation medium: the same packages without a container, and the disk to be written. With `plain` it has what is in that folder instead of
    copal, `more` lines of configuration, the image as it is, and no loader to write."""
    need_root("the installation medium of a board")
    with tempfile.TemporaryDirectory(dir=to) as folder:
        scratch = Path(folder)
        image = f"balena-image-{board.name}.balenaos-img"
        packed = scratch / f"{image}.zst"
        if plain is None:
            # An emulated processor unpacks it twice: what is fastest to unpack, not what is smallest.
            disk.run(["zstd", "-q", "--fast=6", "-T0", whole, "-o", packed], f"compress {whole}")
        tree = system(guests, board, scratch)
        for path in ENGINE:
            tree.remove(path)
        overlay(tree, OS / "flasher")
        for path in ("mnt/boot", "mnt/boottmp"):
            tree.folder(path)
        tree.copy(plain or installed(board, copal, MEDIUM, scratch))
        tree.file("etc/resin-init-flasher.conf", flasher_conf(board, image, plain is None) + "".join(f"{line}\n" for line in more))
        tree.file("etc/os-release", os_release(board, RELEASES["base"]) + 'VARIANT="Flasher"\n')
        tree.file(f"boot/{board.kernel}", boot / board.kernel, 0o644)
        tree.file(f"boot/{bootchain.INITRAMFS}", boot / bootchain.INITRAMFS, 0o644)
        if signed is not None and keys is not None:
            if plain is None:
                overlay(tree, OS / "flasher-secure")
            for end in ("", ".sig"):
                tree.file(f"boot/{secure.STAGE2}{end}", signed / "base" / f"{secure.STAGE2}{end}", 0o644)
            secure.sign_image(secure.Tools(guests, scratch), keys, whole, scratch / "signature")
            tree.file(f"opt/{image}.sig", scratch / "signature", 0o644)
        if plain is None:
            tree.file(f"opt/{packed.name}", packed, 0o644)
        tree.write(scratch / "root")
        if plain is not None:
            # With its holes.
            disk.run(["cp", "--sparse=always", whole, scratch / "root/opt" / image], f"copy {whole}")
        used = sum(f.stat().st_blocks * 512 + 4096 for f in (scratch / "root").rglob("*") if not f.is_symlink())
        disk.ext4(scratch / "flash-rootA", "flash-rootA", used * 11 // 10 // MIB + 32, scratch / "root", "-m 0 -J size=4")
        medium = Tree()
        medium.file("balena-image-flasher", "")
        wishes = {"secureboot": True, "recovery_key": (keys / "recovery.pem").read_text()} if keys is not None else None
        medium.file("config.json", config_json(board, wishes))
        medium.file("splash/balena-logo.png", LOGO)
        for loader in sorted(files.iterdir()):
            medium.file(loader.name, loader, 0o644)
        if signed is not None:
            # It starts with and without the firmware's keys.
            medium.file(bootchain.GRUB_IMAGE, signed / "loader.efi", 0o644)
            for end in ("", ".sig"):
                medium.file(bootchain.GRUB_CONFIG + end, signed / f"flasher-secure.cfg{end}", 0o644)
        elif board.arch == "amd64":
            medium.file(bootchain.GRUB_IMAGE, boot / "grub.efi", 0o644)
            medium.file(bootchain.GRUB_CONFIG, plain_config(board, "flasher.cfg"))
        else:
            medium.file("boot.scr", boot / "boot.scr", 0o644)
        if board.arch == "amd64":
            medium.file(INTERNAL_CONFIG, plain_config(board, "grub.cfg"))
        if signed is not None:
            medium.file(secure.LOADER, signed / "loader.efi", 0o644)
            config = luks_config(signed, "base")
            for end in ("", ".sig"):
                medium.file(secure.CONFIG_OF_MEDIUM + end, config.with_name(config.name + end), 0o644)
            for name in secure.KEY_FILES:
                medium.file(f"{secure.KEYS}/{name}", signed / "base" / secure.KEYS / name, 0o644)
        disk.fat(scratch / "flash-boot", "flash-boot", board.sizes[0], medium, scratch)
        disk.whole(to / "flasher.img", f"{board.name} flasher",
                   [Partition("flash-boot", scratch / "flash-boot", disk.EFI), Partition("flash-rootA", scratch / "flash-rootA")])


def kernel_of(board: Board) -> str:
    """The part of the prepared guests with the board's kernel."""
    return "kernel_arm64" if board.arch == "arm64" else "kernel"


def firmware_of(board: Board) -> str:
    """The part with its firmware."""
    return "firmware_arm64" if board.arch == "arm64" else "firmware"


def make_start(store: Cache, guests: Path, board: Board, copal: Path, of_scripts: OfScripts | None = None) -> tuple[Path, Path | None, Path | None]:
    """What a board starts with, as parts of the cache: the unsigned programs; of a secure board also the signed ones, and the private keys."""
    own, unlocks = sources(*OWN), [repr(board), part(guests, "unlock"), part(guests, "board_amd64"), file_digest(copal)] if board.secure else []
    unlocks += [of_scripts.digest] if of_scripts else []
    boot = store.make("boot", [own, sources(*BOOT_SOURCES), part(guests, kernel_of(board)), part(guests, "small"), part(guests, firmware_of(board)), *unlocks],
                      lambda to: boot_parts(guests, board, copal, to, of_scripts))
    if not board.secure:
        return boot, None, None
    # Made once: nothing that they are made of changes.
    keys = store.make("keys", ["2"], lambda to: make_keys(guests, to))
    signed = store.make("signed", [own, repr(board), boot.name, keys.name, sources(OS / "grub"), part(guests, "secure")],
                        lambda to: signed_parts(guests, board, boot, keys, to, of_scripts))
    return boot, signed, keys


def build(arch: str, guests: Path, cache: Path, copal: Path) -> Images:
    """Makes whatever is not in the cache yet; `copal` is the static binary for that board, beside the one for this machine."""
    board = BOARDS[arch]
    # That of this machine fills the slot, since no program of another processor runs here.
    runs_here = copal if board.machine == os.uname().machine else copal.with_name(f"copal-{os.uname().machine}")
    for binary in (copal, runs_here):
        if not binary.is_file():
            raise Fault(f"no {binary}: run ./dev build")
    store = Cache(cache / arch)
    try:
        own, its_kernel, firmware = sources(*OWN), part(guests, kernel_of(board)), part(guests, firmware_of(board))
        boot, signed, keys = make_start(store, guests, board, copal)
        needs = [part(guests, "unlock"), signed.name] if signed else []

        def make_base(to: Path) -> None:
            with tempfile.TemporaryDirectory(dir=to) as scratch:
                tree = system(guests, board, Path(scratch))
                make_layer(tree.take(ENGINE_PROGRAMS if board.engine_apart else ENGINE), to / "engine.tar")
                make_layer(tree, to / "base.tar")

        base_inputs = [own, sources(OS / "rootfs", OS / "modules", OS / "masked", QEMU / "system.masked"), its_kernel,
                       part(guests, f"board_{board.arch}"), part(guests, "small")]
        if board.secure:
            base_inputs += [part(guests, "unlock"), sources(OS / "rootfs-secure")]
        base = store.make("base", base_inputs, make_base)

        def make_layers(to: Path) -> None:
            with tempfile.TemporaryDirectory(dir=to) as scratch:
                programs = installed(board, copal, host_os(board), Path(scratch))
                for name in releases_of(board):
                    make_layer(release(board, name, boot, programs, signed), to / f"{name}.layer.tar")

        inputs = [own, boot.name, sources(OS / "hostapp", OS / "before-copal", *STAND_INS.values(), *SHIPPED), file_digest(copal), str(has_pages(copal))]
        if board.secure:
            inputs += [*needs, sources(OS / "hostapp-secure", OS / "engine-apart")]
        layers = store.make("layers", inputs, make_layers)
        whole = store.make("disk", [own, base.name, layers.name, part(guests, "board_amd64")],
                           lambda to: make_disk(guests, board, boot, base, layers, runs_here, to, signed))
        releases = store.make("releases", [own, base.name, layers.name],
                              lambda to: make_releases(board, base, layers, to))
        files = store.make("files", [own, sources(*BOOT_SOURCES), firmware],
                           lambda to: loaders(guests, board, to))
        medium_inputs = [*base_inputs, boot.name, files.name, whole.name, sources(OS / "flasher", *SHIPPED)]
        if board.secure:
            medium_inputs += [*needs, sources(OS / "flasher-secure")]
        medium = store.make("flasher", medium_inputs,
                            lambda to: make_flasher(guests, board, boot, files, whole / "disk.img", copal, to, signed, keys))
        return Images(board.name, arch, whole / "disk.img", releases / "releases.img",
                      {name: releases / f"{name}.tar" for name in on_host(board)}, releases_of(board), medium / "flasher.img", files,
                      boot, signed, keys)
    finally:
        store.close()


def main(words: list[str]) -> int:
    """Builds the images of a board, and says where they are."""
    parser = argparse.ArgumentParser(prog="images", description="Build the images of a board")
    parser.add_argument("arch", choices=sorted(BOARDS))
    parser.add_argument("--guests", type=Path, default=place.guests(), help="what qemu/prepare.sh has made")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where images are kept")
    parser.add_argument("--copal", type=Path, help="the static binary for that board")
    given = parser.parse_args(words)
    copal = given.copal or place.binary(BOARDS[given.arch].machine)
    try:
        made = build(given.arch, given.guests.resolve(), given.cache.resolve(), copal.resolve())
    except (Fault, place.FarmError, place.NotRun, ValueError, OSError, subprocess.SubprocessError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    for key, value in dataclasses.asdict(made).items():
        print(f"{key}\t{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
