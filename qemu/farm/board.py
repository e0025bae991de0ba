"""A board: what one file in qemu/boards says, and QEMU's command line for it."""

from __future__ import annotations

import configparser
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import place
from place import FarmError

MIB = 1 << 20
DISK_KINDS = ("virtio", "nvme", "virtio-4096")
BACKENDS = ("grub", "u-boot")
# Every key a board's file may have; a word that is misspelt must not mean a default.
KEYS = {
    "board": {"arch", "qemu", "machine", "cpu", "memory", "console", "boot-seconds"},
    "firmware": {"code", "other-code", "code-offset", "variables", "size", "writable", "protected"},
    "tpm": {"program", "device"},
    "bootloader": {"backend", "environment", "count"},
    "disk": {"kind"},
    "medium": {"controller"},
    "nor": {"device"},
    "emmc": {"size", "boot-size"},
}


@dataclass(frozen=True)
class Board:
    """One kind of virtual machine."""

    name: str
    arch: str
    qemu: str
    machine: str
    cpu: str
    memory: int
    console: str
    boot_seconds: int
    code: str
    # Another build of the firmware, which measures itself as another one; none where there is none.
    other_code: str
    variables: str
    flash_size: int
    code_writable: bool
    # Only code in system management mode can write the flash.
    protected: bool
    # The program that emulates a TPM, and QEMU's device; none without a TPM.
    tpm: str
    tpm_device: str
    backend: str
    environment: str
    count: str
    disk: str
    medium: str
    nor: str
    emmc: int
    emmc_boot: int
    text: str = field(repr=False, compare=False, default="")

    @property
    def sector(self) -> int:
        """The size of a sector of the internal disk, in bytes."""
        return 4096 if self.disk.endswith("-4096") else 512

    @property
    def secure(self) -> bool:
        """Whether the firmware checks what it starts, and a TPM can hold the key of the disk."""
        return bool(self.tpm)

    def with_disk(self, kind: str) -> "Board":
        """The same board with another kind of internal disk, of sectors of the same size: its images are for those."""
        other = dataclasses.replace(self, disk=kind)
        if other.sector != self.sector:
            raise FarmError(f"{self.name} has a disk with sectors of {self.sector} bytes, and {kind} has {other.sector}")
        return other


def load(name: str, folder: Path | None = None) -> Board:
    """Reads qemu/boards/NAME.ini."""
    path = (folder or place.BOARDS) / f"{name}.ini"
    try:
        text = path.read_text()
    except OSError as error:
        raise FarmError(f"no board {name}: {path}: {error.strerror}; `python3 qemu/farm list` shows the boards") from None
    return parse(name, text, str(path))


def parse(name: str, text: str, where: str) -> Board:
    """A board from the text of its file."""
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read_string(text, where)
    except configparser.Error as error:
        raise FarmError(str(error).replace("\n", " ")) from None
    for section in config.sections():
        if section not in KEYS:
            raise FarmError(f"{where}: unknown section [{section}]")
        for key in config[section]:
            if key not in KEYS[section]:
                raise FarmError(f"{where}: unknown key {key!r} in [{section}]")

    def get(section: str, key: str, default: str | None = None) -> str:
        value = config.get(section, key, fallback=default)
        if value is None:
            raise FarmError(f"{where}: no {key!r} in [{section}]")
        return value

    def number(section: str, key: str, default: str | None = None) -> int:
        value = get(section, key, default)
        try:
            return size(value)
        except ValueError:
            raise FarmError(f"{where}: {key!r} in [{section}] is no number: {value!r}") from None

    def choice(section: str, key: str, choices: tuple[str, ...]) -> str:
        value = get(section, key)
        if value not in choices:
            raise FarmError(f"{where}: {key!r} in [{section}] is {value!r}, not one of {', '.join(choices)}")
        return value

    return Board(
        name=name,
        arch=get("board", "arch"),
        qemu=get("board", "qemu"),
        machine=get("board", "machine"),
        cpu=get("board", "cpu"),
        memory=number("board", "memory"),
        console=get("board", "console"),
        boot_seconds=number("board", "boot-seconds"),
        code=get("firmware", "code"),
        other_code=get("firmware", "other-code", ""),
        variables=get("firmware", "variables", ""),
        flash_size=number("firmware", "size", "0"),
        code_writable=get("firmware", "writable", "no") == "yes",
        protected=get("firmware", "protected", "no") == "yes",
        tpm=get("tpm", "program", ""),
        tpm_device=get("tpm", "device", ""),
        backend=choice("bootloader", "backend", BACKENDS),
        environment=get("bootloader", "environment"),
        count=get("bootloader", "count", ""),
        disk=choice("disk", "kind", DISK_KINDS),
        medium=get("medium", "controller"),
        nor=get("nor", "device", ""),
        emmc=number("emmc", "size", "0"),
        emmc_boot=number("emmc", "boot-size", "0"),
        text=text,
    )


def size(text: str) -> int:
    """`768`, `64M`, `1K`, `0x100`."""
    units = {"K": 1 << 10, "M": MIB, "G": 1 << 30}
    if text[-1:] in units:
        return int(text[:-1], 0) * units[text[-1]]
    return int(text, 0)


def names(folder: Path | None = None) -> list[str]:
    """Every board there is."""
    return sorted(path.stem for path in (folder or place.BOARDS).glob("*.ini"))


@dataclass(frozen=True)
class Hardware:
    """What is plugged into a board for one run. Every path is one that this run may write, except `releases`."""

    folder: Path
    # Of a short path: a socket's address takes at most 107 bytes.
    sockets: Path
    disk: Path
    flash: tuple[Path, ...] = ()
    emmc: Path | None = None
    medium: Path | None = None
    # The folder in which the TPM keeps its state.
    tpm: Path | None = None
    releases: Path | None = None
    # Kernel, initramfs and command line that the firmware starts instead of a loader.
    kernel: tuple[Path, Path, str] | None = None
    disk_log: Path | None = None
    # Where an NBD server has the disk, instead of the file.
    disk_server: Path | None = None
    # The same for the variables of the firmware, and for the medium.
    variables_server: Path | None = None
    medium_server: Path | None = None
    # The socket of a process that stands before the TPM.
    tpm_socket: Path | None = None
    incoming: bool = False


def prepared(path: str) -> Path:
    """A file of the prepared guests: the name of its part, then its path below it."""
    name, _, rest = path.partition("/")
    at = place.part(name) / rest
    if not at.is_file():
        raise FarmError(f"no {at}: run qemu/prepare.sh {place.guests()}")
    return at


def own_program(path: str) -> list[str]:
    """A program of a part, named like the firmware, with its own loader and libraries, which need not be those of this machine. It dies with
    who started it."""
    tree = place.part(path.partition("/")[0])
    libraries = ":".join(str(tree / at) for at in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"))
    argv = ["setpriv", "--pdeathsig", "KILL", "--", str(tree / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries]
    return [*argv, str(prepared(path))]


def tpm_program(board: Board, hardware: Hardware) -> list[str]:
    """The emulator of the TPM. It ends when QEMU closes the connection; the folder keeps the state."""
    assert hardware.tpm is not None
    argv = own_program(board.tpm)
    argv += ["socket", "--tpm2", "--tpmstate", f"dir={hardware.tpm}", "--ctrl", f"type=unixio,path={hardware.sockets}/tpm"]
    return [*argv, "--flags", "not-need-init", "--terminate"]


def program(qemu: str) -> list[str]:
    """QEMU."""
    tree = place.part(qemu.partition("/")[0])
    argv = own_program(qemu)
    for data in ("usr/share/qemu", "usr/share/seabios"):
        argv += ["-L", str(tree / data)]
    return argv


def raw(node: str, path: Path, read_only: bool = False) -> str:
    """A node over a raw file. What the guest flushes is not flushed on this machine: power cuts come from the write log."""
    more = ",read-only=on,file.locking=off" if read_only else ",discard=unmap"
    return f"driver=raw,node-name={node},cache.no-flush=on{more},file.driver=file,file.filename={path}"


def served(node: str, at: Path) -> str:
    """A node of a server of NBD."""
    return f"driver=nbd,node-name={node},server.type=unix,server.path={at}"


def logged(node: str, path: Path, log: Path) -> str:
    """The same, with every write and flush recorded, after those that are recorded there already. The count in the log's
    head is kept up to date: QEMU will be killed."""
    append = ",log-append=on" if log.exists() and log.stat().st_size else ""
    return (
        f"driver=blklogwrites,node-name={node},log-super-update-interval=1{append}"
        f",log.driver=file,log.filename={log},log.cache.no-flush=on"
        f",file.driver=raw,file.discard=unmap,file.cache.no-flush=on,file.file.driver=file,file.file.filename={path}"
    )


def arguments(board: Board, hardware: Hardware, accelerator: str) -> list[str]:
    """QEMU's arguments. Devices come in an order that what is plugged in does not change: saved machines depend on it."""
    argv: list[str] = []

    def add(*words: str) -> None:
        argv.extend(words)

    sockets = hardware.sockets
    machine = board.machine
    for number in range(len(hardware.flash)):
        machine += f",pflash{number}=flash{number}"
    add("-machine", machine, "-accel", accelerator, "-cpu", board.cpu, "-smp", "1", "-m", str(board.memory))
    # Switching off only stops it, so that nothing is missed of its end.
    add("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-no-shutdown", "-rtc", "base=utc")
    if board.protected:
        add("-global", "driver=cfi.pflash01,property=secure,value=on")
    for number, path in enumerate(hardware.flash):
        only_read = number == 0 and not board.code_writable
        if number == 1 and hardware.variables_server is not None:
            add("-blockdev", served("flash1", hardware.variables_server))
        else:
            add("-blockdev", raw(f"flash{number}", path, read_only=only_read))
    add("-chardev", f"socket,id=console,path={sockets}/console,server=on,wait=off,logfile={hardware.folder}/console,logappend=on")
    add("-serial", "chardev:console")
    add("-qmp", f"unix:{sockets}/qmp,server=on,wait=off")
    add("-device", "virtio-serial-pci,id=ports")
    add("-chardev", f"socket,id=agent,path={sockets}/agent,server=on,wait=off")
    add("-device", "virtserialport,bus=ports.0,chardev=agent,name=copal.agent")
    add("-device", "virtio-rng-pci")
    add("-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
    add("-device", f"{board.medium},id=usb")
    if hardware.disk_server is not None:
        add("-blockdev", served("internal", hardware.disk_server))
    elif hardware.disk_log is None:
        add("-blockdev", raw("internal", hardware.disk))
    else:
        add("-blockdev", logged("internal", hardware.disk, hardware.disk_log))
    # The first of its kind: U-Boot looks at no other.
    device = {"virtio": "virtio-blk-pci", "nvme": "nvme"}[board.disk.removesuffix("-4096")]
    sectors = f",logical_block_size={board.sector},physical_block_size={board.sector}" if board.sector != 512 else ""
    add("-device", f"{device},drive=internal,serial=INTERNAL,bootindex=2{sectors}")
    if hardware.releases is not None:
        add("-blockdev", raw("releases", hardware.releases, read_only=True))
        add("-device", "virtio-blk-pci,drive=releases,serial=RELEASES")
    if hardware.emmc is not None:
        add("-blockdev", raw("emmc", hardware.emmc))
        add("-device", "sdhci-pci", "-device", f"emmc,drive=emmc,boot-partition-size={board.emmc_boot}")
    if hardware.medium is not None:
        add("-blockdev", served("medium", hardware.medium_server) if hardware.medium_server else raw("medium", hardware.medium))
        add("-device", medium_device() + ",bootindex=1")
    if hardware.tpm is not None:
        add("-chardev", f"socket,id=tpm,path={hardware.tpm_socket or sockets / 'tpm'}", "-tpmdev", "emulator,id=tpm,chardev=tpm")
        add("-device", f"{board.tpm_device},tpmdev=tpm")
    if hardware.kernel is not None:
        kernel, initramfs, line = hardware.kernel
        add("-kernel", str(kernel), "-initrd", str(initramfs), "-append", line)
    if hardware.incoming:
        add("-incoming", "defer")
    return argv


def medium_device() -> str:
    """The stick."""
    return "usb-storage,id=medium,bus=usb.0,drive=medium,serial=MEDIUM,removable=on"
