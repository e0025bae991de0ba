"""What a board starts with: initramfs, init of the container, GRUB for UEFI; made without root from the guests' parts."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import place

QEMU = Path(__file__).resolve().parent.parent
OS = QEMU / "os"

# Names below a slot's /boot; grub.cfg and boot.cmd have them as well.
KERNEL = {"x86_64": "bzImage", "aarch64": "Image"}
INITRAMFS = "initramfs.cpio"
#: Of a secure board, one that unlocks the disk with the scripts of a shell release.
INITRAMFS_OF_SCRIPTS = "initramfs.scripts.cpio"
INIT = "init"

# Names below the boot partition.
GRUB_IMAGE = "EFI/BOOT/bootx64.efi"
GRUB_CONFIG = "EFI/BOOT/grub.cfg"
GRUB_ENVIRONMENT = "EFI/BOOT/grubenv"

GRUB_MODULES = (
    "normal part_gpt fat ext2 search search_label configfile loadenv test regexp echo linux serial terminal "
    "reboot sleep true minicmd"
).split()


def _need(path: Path) -> Path:
    """The path itself, once it is sure that it is there."""
    if not path.exists():
        raise place.NotRun(f"no {path}: qemu/prepare.sh FOLDER makes it")
    return path


# --- kernel -----------------------------------------------------------------------------------------------------------


def kernel_part(guests: Path, arch: str) -> Path:
    """The folder of an architecture's kernel."""
    return _need(guests / {"x86_64": "kernel", "aarch64": "kernel_arm64"}[arch])


def kernel_image(guests: Path, arch: str) -> Path:
    """The kernel itself."""
    return _need(kernel_part(guests, arch) / "vmlinuz")


def _busybox(guests: Path, arch: str) -> Path:
    """A static busybox for it."""
    return _need({"x86_64": guests / "small/bin/busybox", "aarch64": guests / "kernel_arm64/busybox"}[arch])


def _modinfo(module: Path) -> dict[str, str]:
    """What a kernel module says of itself: the `.modinfo` section of a 64-bit ELF file."""
    data = module.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{module}: not a kernel module that is ready to load")
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, sections + n * size) for n in range(count)]
    for name, _, _, _, offset, length in headers:
        at = headers[names][4] + name
        if data[at : data.index(b"\0", at)] == b".modinfo":
            fields = data[offset : offset + length].split(b"\0")
            return dict(field.decode().split("=", 1) for field in fields if b"=" in field)
    raise ValueError(f"{module}: has no .modinfo")


class Modules:
    """The modules of a kernel."""

    def __init__(self, part: Path) -> None:
        """Those below this part's lib/modules."""
        top = _need(part / "lib/modules" / (part / "release").read_text().strip())
        self.top = top
        self.files = {self._name(path.name): path for path in sorted(top.rglob("*.ko"))}
        self.builtin = {self._name(Path(line).name) for line in (top / "modules.builtin").read_text().splitlines()}

    @staticmethod
    def _name(file: str) -> str:
        """A module's name: dashes and underscores are the same."""
        return file.removesuffix(".ko").replace("-", "_")

    def with_dependencies(self, name: str) -> list[Path]:
        """The module and all that it needs, in the order of loading; nothing where the kernel has it built in."""
        name = self._name(name)
        if name not in self.files:
            if name in self.builtin:
                return []
            raise ValueError(f"{self.top}: no module {name}, neither as a file nor built in")
        needed = [other for other in _modinfo(self.files[name]).get("depends", "").split(",") if other]
        paths = [path for other in needed for path in self.with_dependencies(other)]
        return list(dict.fromkeys([*paths, self.files[name]]))


# --- initramfs --------------------------------------------------------------------------------------------------------


class Cpio:
    """An archive in the format that the kernel unpacks (`newc`); everything in it belongs to root."""

    def __init__(self) -> None:
        """An empty one."""
        self.data = bytearray()
        self.count = 0

    def _entry(self, name: str, mode: int, contents: bytes, device: tuple[int, int] = (0, 0)) -> None:
        """One entry, padded to four bytes twice."""
        self.count += 1
        fields = (self.count, mode, 0, 0, 1, 0, len(contents), 0, 0, *device, len(name) + 1, 0)
        self.data += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        self.data += bytes(-len(self.data) % 4) + contents
        self.data += bytes(-len(self.data) % 4)

    def folder(self, name: str) -> None:
        """A folder; its parents come before it."""
        self._entry(name, 0o040755, b"")

    def file(self, name: str, contents: bytes, mode: int = 0o644) -> None:
        """A regular file."""
        self._entry(name, 0o100000 | mode, contents)

    def link(self, name: str, target: str) -> None:
        """A symbolic link."""
        self._entry(name, 0o120777, target.encode())

    def console(self) -> None:
        """The node that the kernel opens for its first program."""
        self._entry("dev/console", 0o020600, b"", (5, 1))

    def end(self) -> bytes:
        """The whole archive."""
        self.count = -1
        self._entry("TRAILER!!!", 0, b"")
        return bytes(self.data)


APPLETS = "echo findfs grep insmod mount sed sh sleep switch_root".split()
# Those that unlocking needs besides.
SECURE_APPLETS = "basename cat cp find ln mkdir od readlink rm sort sync tail tr umount".split()
SECURE = OS / "initramfs-secure"
#: This file, for what is made with it.
SOURCE = Path(__file__).resolve()
#: Where libraries lie in a tree of Debian.
LIBRARIES = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/systemd")


def libraries(root: Path, program: Path, *more: Path) -> list[Path]:
    """The libraries that a program is linked to, of an unpacked tree and of more directories; an error where one is of this machine, or nowhere."""
    at = [*(root / name for name in LIBRARIES), *more]
    words = [root / "lib64/ld-linux-x86-64.so.2", "--inhibit-cache", "--library-path", ":".join(map(str, at)), "--list", program]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    # But for the loader itself, which has no name before the arrow.
    found = [Path(path) for path in re.findall(r"^\s*[^/\s]+ => (\S+)", said, re.MULTILINE)]
    for library in found:
        if library.parent not in at:
            raise ValueError(f"{program} needs {library}, which is not in {root}")
    return found


def unlocking(archive: Cpio, guests: Path, copal: Path | None) -> None:
    """Adds what unlocks an encrypted disk, and starts its kernel: copal, or scripts."""
    archive.file("unlock", (SECURE / ("unlock" if copal else "unlock.scripts")).read_bytes())
    archive.file("kexec", (SECURE / "kexec").read_bytes())
    has: set[str] = set()
    if copal:
        archive.file("bin/copal", copal.read_bytes(), 0o755)
        archive.file("migrate", (SECURE / "migrate").read_bytes())
    for applet in SECURE_APPLETS:
        archive.link(f"bin/{applet}", "busybox")
    top = _need(guests / "unlock/root")
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        # The scripts' programs for the TPM.
        of_scripts = path.name.startswith(("tpm2", "libtss2"))
        if name.startswith("usr/lib/udev") or (copal and of_scripts):
            continue
        if path.is_symlink():
            archive.link(name, os.readlink(path))
        elif path.is_dir():
            archive.folder(name)
        else:
            archive.file(name, path.read_bytes(), 0o755)
        has.add(path.name)
    if copal:
        # What a flasher that runs from memory makes the boot partition with.
        board = guests / "board_amd64/root"
        archive.file("usr/sbin/mkfs.ext4", (board / "usr/sbin/mke2fs").read_bytes(), 0o755)
        for library in libraries(board, board / "usr/sbin/mke2fs"):
            if library.name not in has:
                archive.file(f"usr/lib/x86_64-linux-gnu/{library.name}", library.read_bytes(), 0o755)


def compress(path: Path) -> None:
    """Compresses an initramfs in place: the kernel recognizes how."""
    subprocess.run(["zstd", "-q", "-19", "-T0", "--rm", str(path), "-o", f"{path}.zst"], check=True, timeout=300)
    path.with_name(path.name + ".zst").rename(path)


def add_modules(archive: Cpio, guests: Path, arch: str, secure: bool) -> None:
    """Adds the kernel modules and `modules/list`, which says on which hardware each is loaded."""
    modules = Modules(kernel_part(guests, arch))
    files: dict[str, Path] = {}
    lines = []
    wanted = (OS / "initramfs/modules").read_text() + ((SECURE / "modules").read_text() if secure else "")
    for line in wanted.splitlines():
        when, *names = line.split("#")[0].split() or [""]
        paths = list(dict.fromkeys(path for name in names for path in modules.with_dependencies(name)))
        files.update((path.name, path) for path in paths)
        if paths:
            lines.append(" ".join([when, *(path.name for path in paths)]) + "\n")
    for name, path in files.items():
        archive.file(f"modules/{name}", path.read_bytes())
    archive.file("modules/list", "".join(lines).encode())


def initramfs(guests: Path, arch: str, to: Path, panic: bool = False, secure: bool = False, copal: Path | None = None) -> Path:
    """Writes the initramfs for an architecture to a file; with `panic` one whose init ends at once, with `secure` one that unlocks the disk, by scripts
    or with copal."""
    archive = Cpio()
    for folder in ("bin", "dev", "proc", "sys", "run", "root", "modules"):
        archive.folder(folder)
    if secure:
        unlocking(archive, guests, copal)
    archive.console()
    archive.file("bin/busybox", _busybox(guests, arch).read_bytes(), 0o755)
    for applet in APPLETS:
        archive.link(f"bin/{applet}", "busybox")
    source = OS / "initramfs"
    archive.file("init", (source / ("init.panic" if panic else "init")).read_bytes(), 0o755)
    archive.file("load-modules", (source / "load-modules").read_bytes())
    if not panic:
        add_modules(archive, guests, arch, secure)
    to.write_bytes(archive.end())
    return to


# --- init of the container --------------------------------------------------------------------------------------------


def init_binary(arch: str) -> Path:
    """Builds `qemu/init` for an architecture, unless it is built."""
    target = f"{arch}-unknown-linux-musl"
    crate = QEMU / "init"
    # Flags for coverage, or another toolchain, are for copal. The toolchain is named, so that rustup adds nothing that a build does not need.
    kept = ("CARGO_HOME", "RUSTUP_HOME")
    env = {key: value for key, value in os.environ.items() if key in kept or not key.startswith(("CARGO_", "RUST"))}
    channel = re.search(r'^channel *= *"(.*)"', (QEMU.parent / "rust-toolchain.toml").read_text(), re.MULTILINE)
    assert channel
    env["RUSTUP_TOOLCHAIN"] = channel[1]
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target", target]
    subprocess.run(command, cwd=crate, env=env, check=True, timeout=600)
    return crate / "target" / target / "release" / "hostapp-init"


# --- GRUB -------------------------------------------------------------------------------------------------------------


def grub_image(guests: Path, to: Path) -> Path:
    """Writes GRUB for UEFI to a file. It takes grub.cfg and grubenv from the medium that it was loaded from."""
    part = _need(guests / "firmware")
    libraries = f"{part}/lib/x86_64-linux-gnu:{part}/usr/lib/x86_64-linux-gnu"
    loader = [str(_need(part / "lib64/ld-linux-x86-64.so.2")), "--library-path", libraries]
    # A prefix without a device is completed with that of the image.
    options = ["--format=x86_64-efi", "--prefix=/EFI/BOOT", f"--directory={part}/usr/lib/grub/x86_64-efi", f"--output={to}"]
    subprocess.run([*loader, str(part / "usr/bin/grub-mkimage"), *options, *GRUB_MODULES], check=True, timeout=60)
    return to


def grub_environment(**values: str) -> bytes:
    """An environment block with these variables, as `grub-editenv` makes it."""
    text = "# GRUB Environment Block\n" + "".join(f"{key}={value}\n" for key, value in values.items())
    block = text.encode().ljust(1024, b"#")
    if len(block) > 1024:
        raise ValueError(f"{len(block)} bytes do not fit an environment block of 1024")
    return block
