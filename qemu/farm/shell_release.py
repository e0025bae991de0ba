"""A host OS and a medium for `qemu-amd64` and `qemu-amd64-secure` with the shell scripts of meta-balena in the place of copal.

The scripts are of a checkout that the user brings, and nothing of it is kept but in the farm's cache. Files are unchanged but for what their recipes
substitute, and for two numbers: `CHANGES`. Programs that they call and a board lacks are Debian's. `fatrw` is built from a checkout of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bootchain
import hostapp
import images
import place
import secure
from place import FarmError, NotRun
from tree import Tree, file_digest

#: The releases, by their names in images.py.
RELEASES = ("base", "good", "broken-engine")
#: In a checkout of meta-balena.
SUPPORT = "meta-balena-common/recipes-support"
CORE = "meta-balena-common/recipes-core"
HOOKS = f"{SUPPORT}/hostapp-update-hooks"
HELPERS = f"{SUPPORT}/os-helpers/os-helpers"
ROLLBACK = f"{CORE}/balena-rollback/files"
INIT = f"{SUPPORT}/resin-init"
#: The hook of boards with GRUB, which their layers add to the recipe's list.
BOARD_HOOKS = ("99-resin-grub",)
#: Of both systems: what is where, without substitutions.
COMMON = {
    "usr/sbin/balena-config-vars": f"{SUPPORT}/balena-config-vars/balena-config-vars/balena-config-vars",
    "usr/sbin/balena-config-defaults": f"{SUPPORT}/balena-config-vars/balena-config-vars/balena-config-defaults",
    "usr/libexec/os-helpers-fs": f"{HELPERS}/os-helpers-fs",
    "usr/libexec/os-helpers-logging": f"{HELPERS}/os-helpers-logging",
}
HOST_OS = {
    "usr/libexec/os-helpers-bootenv": f"{HELPERS}/os-helpers-bootenv",
    "usr/libexec/os-helpers-time": f"{HELPERS}/os-helpers-time",
    "usr/libexec/safe_reboot": f"{HELPERS}/safe_reboot",
    "usr/bin/hostapp-update": "meta-balena-common/recipes-containers/hostapp-update/files/hostapp-update",
    "usr/bin/hostapp-update-hooks-v2": f"{HOOKS}/files/hostapp-update-hooks",
    **{f"usr/bin/{name}": f"{ROLLBACK}/{name}" for name in (
        "rollback-altboot", "rollback-check-version", "rollback-clear-bootcount", "rollback-health", "rollback-stop", "rollback-tests",
        "rollback-parse-bootloader", "rollback-board-healthcheck")},
    **{f"usr/lib/systemd/system/{name}": f"{ROLLBACK}/{name}" for name in (
        "rollback-altboot.service", "rollback-clear-bootcount.service", "rollback-health.service")},
}
MEDIUM = {
    "usr/bin/resin-init-flasher": f"{INIT}/resin-init-flasher/resin-init-flasher",
    "usr/bin/resin-init-flasher-board": f"{INIT}/resin-init-flasher-board/resin-init-flasher-board",
    "usr/bin/resin-init-board": f"{INIT}/resin-init-board/resin-init-board",
    "usr/lib/systemd/system/resin-init-flasher.service": f"{INIT}/resin-init-flasher/resin-init-flasher.service",
}
#: What recipes and classes substitute, on a board with UEFI and without `SIGN_API`. Labels are those of the farm's images.
VALUES = {
    "@@BALENA_NONENC_BOOT_MOUNT@@": "/mnt/boot", "@@BALENA_NONENC_BOOT_LABEL@@": "resin-boot", "@@BALENA_BOOT_MOUNT@@": "/mnt/boot",
    "@@BALENA_BOOT_LABEL@@": "resin-boot", "@@BALENA_FINGERPRINT_FILENAME@@": "balenaos", "@@BALENA_FINGERPRINT_EXT@@": "fingerprint",
    "@BALENA_BOOT_FINGERPRINT@": "balenaos.fingerprint", "@BASE_BINDIR@": "/bin", "@BASE_SBINDIR@": "/sbin", "@SBINDIR@": "/usr/sbin",
    "@BINDIR@": "/usr/bin", "@SYS_CONFDIR@": "/etc",
}
#: Instead of these, on a board with secure boot.
SECURE_VALUES = {"@@BALENA_NONENC_BOOT_MOUNT@@": "/mnt/efi", "@@BALENA_NONENC_BOOT_LABEL@@": "balena-efi", "@@KERNEL_IMAGETYPE@@": secure.STAGE2}
#: The length of a trial, as balenaOS's own test suite changes it, and as `qemu/os/hostapp/etc/copal/rollback.conf` has it.
CHANGES = {"usr/bin/rollback-health": (("TIMEOUT=60\n", "TIMEOUT=2\n"), ("COUNT=15\n", "COUNT=3\n"))}
#: Lines of the flasher's configuration that are the same for each board.
CONF = ("BALENA_SPLASH_CONFIG=splash", "BALENA_BOOTLOADER_CONFIG=resinOS_uEnv.txt", "BALENA_NM_CONFIG=system-connections",
        "BALENA_NM_DISPATCHER=dispatcher.d", "BALENA_PROXY_CONFIG=system-proxy")
#: Programs of Debian that scripts call, with the libraries that a board lacks. balenaOS's engine has its client in the same program.
SUITE, MIRROR = "bookworm", "http://deb.debian.org"
PACKAGES = {
    "docker.io": ("bin/docker",), "jq": ("bin/jq",), "parted": ("sbin/parted", "sbin/partprobe"), "fdisk": ("sbin/fdisk",),
}
SECURE_PACKAGES = {
    "efitools": ("bin/efi-updatevar", "bin/sig-list-to-certs", "bin/hash-to-efi-sig-list"), "efivar": ("bin/efivar",), "efibootmgr": ("bin/efibootmgr",),
    "rsync": ("bin/rsync",), "xxd": ("bin/xxd",), "openssl": ("bin/openssl",),
}
#: Of a board with secure boot: what the recipes install where MACHINE_FEATURES has `efi` and `tpm`, and SIGN_API is set.
SECURE = {f"usr/libexec/os-helpers-{name}": f"{HELPERS}/os-helpers-{name}" for name in ("efi", "sb", "tpm2")}
SECURE_MEDIUM = {
    "usr/libexec/balena-init-flasher-secureboot": f"{INIT}/resin-init-flasher/balena-init-flasher-efi",
    "usr/libexec/balena-init-flasher-diskenc": f"{INIT}/resin-init-flasher/balena-init-flasher-tpm",
}
#: The rules that make /dev/disk/by-state, and what they call.
STATE_RULES = {
    "usr/lib/udev/rules.d/65-resin-update-state.rules": f"{CORE}/systemd/systemd/65-resin-update-state.rules",
    "usr/lib/udev/resin_update_state_probe": f"{CORE}/systemd/systemd/resin_update_state_probe",
}
#: The modules of the initramfs that concern copal, under the names that the recipe gives them; and GRUB's configuration of an encrypted disk.
INITRAMFS = {
    **{f"init.d/{number}-{name}": f"{CORE}/initrdscripts/files/{source}" for number, name, source in (
        (70, "prepare", "prepare"), (72, "cryptsetup", "cryptsetup-efi-tpm"), (75, "fsuuidsinit", "fsuuidsinit"), (87, "fsck", "fsck"),
        (90, "rootfs", "rootfs"), (91, "machineid", "machineid"), (92, "kexec", "kexec"), (98, "udevcleanup", "udevcleanup"), (99, "finish", "finish"))},
    **STATE_RULES,
    "usr/lib/udev/rules.d/11-dm.rules": f"{SUPPORT}/lvm2/lvm2/11-dm.rules",
}
GRUB_CONFIG = "meta-balena-common/recipes-bsp/grub/grub-conf/grub.cfg_internal_luks_template"
#: The recipe directories of the programs that are built.
RECIPES = {"fatrw": f"{CORE}/fatrw", "tcgtool": f"{SUPPORT}/tcgtool"}
ENGINE_NAMES = ("balena", "balena-engine")
SECONDS = 900.0
ARCH = "amd64"
#: Of each disk that was built, the folders with the layers of its packages and of its releases.
LAYERS: dict[Path, tuple[Path, Path]] = {}
OWN = [*images.OWN, Path(__file__).resolve()]


@dataclass(frozen=True)
class Checkouts:
    """Of meta-balena; of fatrw, which writes the files of a boot partition for the scripts; and of tcgtool, which hashes for a TPM as the firmware does."""

    meta_balena: Path
    fatrw: Path
    #: Only of a secure board.
    tcgtool: Path | None = None

    def check(self) -> None:
        """They have what is used of them."""
        for name in (*self.files().values(), f"{HOOKS}/hostapp-update-hooks.bb"):
            if not (self.meta_balena / name).is_file():
                raise FarmError(f"there is no {self.meta_balena / name}: name a checkout of balena-os/meta-balena")
        for name, path, file in self.built():
            if not (path / file).is_file():
                raise FarmError(f"there is no {path}/{file}: clone balena-os/{name} there, or name it with --{name}")
            wanted, found = self.revision(name), git(path, "rev-parse", "HEAD")
            if found != wanted:
                raise FarmError(f"{path} is at {found or 'no commit'}, and this meta-balena builds {wanted}: check that out")

    def files(self) -> dict[str, str]:
        """What is taken of meta-balena besides hooks: where it is installed, and where it lies."""
        of_secure = {**SECURE, **SECURE_MEDIUM, **INITRAMFS, "grub.cfg": GRUB_CONFIG} if self.tcgtool else {}
        return {**COMMON, **HOST_OS, **MEDIUM, **of_secure}

    def built(self) -> list[tuple[str, Path, str]]:
        """The programs that are built: name, checkout, and a file that it has."""
        return [("fatrw", self.fatrw, "Cargo.lock"), *([("tcgtool", self.tcgtool, "tcgtool.c")] if self.tcgtool else [])]

    def revision(self, name: str) -> str:
        """The commit of such a program that this meta-balena builds."""
        recipes = sorted((self.meta_balena / RECIPES[name]).glob(f"{name}_*.bb"))
        found = re.search(r'^SRCREV = "([0-9a-f]{40})"', recipes[-1].read_text(), re.MULTILINE) if recipes else None
        if found is None:
            raise FarmError(f"{self.meta_balena} has no recipe of {name} with a SRCREV")
        return found[1]

    def versions(self) -> str:
        """As git calls them."""
        paths = [self.meta_balena, *(path for _, path, _ in self.built())]
        return ", ".join(f"{path.name} {git(path, 'describe', '--tags', '--always', '--dirty') or 'of no version'}" for path in paths)

    def digest(self) -> str:
        """Of all that is used of meta-balena, and the commits of the programs that are built."""
        recipe = (self.meta_balena / f"{HOOKS}/hostapp-update-hooks.bb")
        files = [*self.files().values(), *(f"{HOOKS}/files/{name}" for name in hooks(recipe.read_text(), self.tcgtool is not None))]
        text = "".join(f"{name} {file_digest(self.meta_balena / name)}\n" for name in files)
        return hashlib.sha256(f"{text}{file_digest(recipe)}{[self.revision(name) for name, _, _ in self.built()]}".encode()).hexdigest()


def git(path: Path, *words: str) -> str:
    """What git says; nothing where it fails."""
    # A clone of another user is read, too.
    done = subprocess.run(["git", "-c", f"safe.directory={path}", "-C", path, *words], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def value(recipe: str, name: str) -> str:
    """What a recipe assigns to a name; a backslash at the end of a line joins it with the next one."""
    found = re.search(rf'^{name} = "([^"]*)"', recipe, re.MULTILINE)
    if found is None:
        raise FarmError(f"the recipe of the hooks has no {name}")
    return found[1].replace("\\\n", "")


def hooks(recipe: str, with_secure_boot: bool = False) -> list[str]:
    """The hooks of a board with GRUB; without those of secure boot, which do nothing on a board without it."""
    return [*value(recipe, "HOSTAPP_HOOKS").split(), *(value(recipe, "SECUREBOOT_HOOKS").split() if with_secure_boot else ()), *BOARD_HOOKS]


def skip_list(recipe: str) -> str:
    """Boot files that `1-bootfiles` does not deploy."""
    return value(recipe, "BALENA_BOOTFILES_BLACKLIST").replace("${GRUB_INSTALL_DIR}", "/EFI/BOOT")


def programs(checkouts: Checkouts) -> Path:
    """The directory of Debian's programs and of those that are built, laid out as on a board; kept."""
    revisions = [checkouts.revision(name) for name, _, _ in checkouts.built()]
    packages, on_board = (PACKAGES | SECURE_PACKAGES, ["board_amd64", "unlock"]) if checkouts.tcgtool else (PACKAGES, ["board_amd64"])
    has = [images.part(place.guests(), name) for name in on_board]
    key = hashlib.sha256(f"{SUITE} {sorted(packages.items())} {revisions} {has} 3".encode()).hexdigest()[:16]
    at = place.farm() / f"shell-{key}"
    with place.locked(place.farm() / "shell.lock", SECONDS, "the programs for the scripts"):
        if not at.is_dir():
            if shutil.which("mmdebstrap") is None:
                raise NotRun("no mmdebstrap here, which fetches what the scripts use")
            new = at.with_name(f"{at.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=at.parent) as folder:
                unpacked = Path(folder) / "debian"
                mirror = os.environ.get("COPAL_DEBIAN_MIRROR", MIRROR) + "/debian"
                run(["mmdebstrap", "--quiet", "--variant=extract", "--mode=root", '--aptopt=APT::Install-Recommends "false"',
                     '--aptopt=Acquire::Retries "3"', f"--include={','.join(packages)}", SUITE, str(unpacked), mirror], "fetch what the scripts use")
                for path in sorted(path for paths in packages.values() for path in paths):
                    take(unpacked, path, [place.part(name) / "root" for name in on_board], new)
                # Rust's musl no longer has the second name that this old crate calls.
                run(["cargo", "build", "--quiet", "--release", "--locked", "--target", "x86_64-unknown-linux-musl", "--target-dir", folder],
                    "build fatrw", checkouts.fatrw, {"RUSTFLAGS": "-C link-arg=-Wl,--defsym=open64=open"})
                shutil.copy(Path(folder) / "x86_64-unknown-linux-musl/release/fatrw", new / "usr/bin/fatrw")
                if checkouts.tcgtool:
                    build_tcgtool(checkouts.tcgtool, new / "usr/bin/tcgtool")
            new.rename(at)
    return at


def build_tcgtool(checkout: Path, to: Path) -> None:
    """Builds the program that predicts measurements for the scripts; static, because a board may have an older C library than this machine."""
    run(["cc", "-O2", "-static", "-w", "-o", str(to), *map(str, sorted(checkout.glob("*.c")))], "build tcgtool")


#: A wrapper of lsblk. poky builds it without udev, and it reads the disks: the scripts call it before udev has seen a partition, and from udev's rules.
LSBLK = "#!/bin/sh\nLD_PRELOAD=/usr/libexec/no-udev.so exec /usr/libexec/lsblk \"$@\"\n"


def lsblk(tree: Tree, path: str) -> None:
    """Puts an lsblk that does without udev, at a path."""
    code = "void *udev_new(void) { return 0; }\n"
    at = place.farm() / f"no-udev-{hashlib.sha256(code.encode()).hexdigest()[:16]}.so"
    if not at.is_file():
        with tempfile.TemporaryDirectory(dir=at.parent) as folder:
            source, made = Path(folder) / "no-udev.c", Path(folder) / "no-udev.so"
            source.write_text(code)
            run(["cc", "-shared", "-nostdlib", "-o", str(made), str(source)], "build no-udev.so")
            made.rename(at)
    tree.file("usr/libexec/no-udev.so", at.read_bytes(), 0o644)
    tree.file("usr/libexec/lsblk", place.part("board_amd64") / "root/usr/bin/lsblk", 0o755)
    if path in tree.nodes:
        tree.remove(path)
    tree.file(path, LSBLK)


def take(unpacked: Path, path: str, board: list[Path], to: Path) -> None:
    """A program below /usr of an unpacked tree, and the libraries that are not in the trees of a board."""
    source = next((at for at in (unpacked / "usr" / path, unpacked / path) if at.is_file()), None)
    if source is None:
        raise FarmError(f"no {path} in Debian's packages")
    for file, target in ((source, f"usr/{path}"), *((file, f"{bootchain.LIBRARIES[1]}/{file.name}") for file in bootchain.libraries(unpacked, source))):
        if any((has / target).exists() for has in board):
            continue
        (to / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to / target)
        (to / target).chmod(0o755)


def run(words: list[str], what: str, at: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Runs a program of this machine. Cargo takes its settings from the folder that it runs in."""
    try:
        subprocess.run(words, check=True, timeout=SECONDS, cwd=at, env={**os.environ, **(env or {})})
    except (subprocess.SubprocessError, OSError) as error:
        raise FarmError(f"cannot {what}: {error}") from None


def put(tree: Tree, checkout: Path, files: dict[str, str], values: dict[str, str]) -> None:
    """Files of a checkout as their recipes install them."""
    for path, name in files.items():
        text = (checkout / name).read_text()
        for word, replaced in values.items():
            text = text.replace(word, replaced)
        for old, new in CHANGES.get(path, ()):
            if old not in text:
                raise FarmError(f"{name} has no {old.strip()!r} any more")
            text = text.replace(old, new)
        if left := re.search(r"@@?[A-Z_]{4,}@@?", text):
            raise FarmError(f"{name}: nothing is known for {left[0]}")
        tree.file(path, text, 0o644 if path.endswith((".service", ".rules")) else 0o755)


def values(with_secure_boot: bool) -> dict[str, str]:
    """What recipes substitute."""
    return VALUES | SECURE_VALUES if with_secure_boot else VALUES


def host_os(checkouts: Checkouts, to: Path) -> Path:
    """A folder with what a release has of the scripts, in the place of what images.installed makes."""
    tree = Tree()
    tree.copy(programs(checkouts))
    # Of the medium only.
    for name in ("parted", "partprobe"):
        tree.remove(f"usr/sbin/{name}")
    with_secure_boot = checkouts.tcgtool is not None
    put(tree, checkouts.meta_balena, {**COMMON, **HOST_OS, **({**SECURE, **STATE_RULES} if with_secure_boot else {})}, values(with_secure_boot))
    recipe = (checkouts.meta_balena / f"{HOOKS}/hostapp-update-hooks.bb").read_text()
    files = {f"etc/hostapp-update-hooks.d/{name}": f"{HOOKS}/files/{name}" for name in hooks(recipe, with_secure_boot)}
    put(tree, checkouts.meta_balena, files, {**values(with_secure_boot), "@BALENA_BOOTFILES_BLACKLIST@": skip_list(recipe)})
    tree.link("usr/bin/hostapp-update-hooks", "hostapp-update-hooks-v2")
    for name in ENGINE_NAMES:
        tree.link(f"usr/bin/{name}", "docker")
    shell(tree)
    enable(tree, HOST_OS)
    images.overlay(tree, images.OS / "shell")
    if with_secure_boot:
        images.overlay(tree, images.OS / "shell-secure")
        # STATE_RULES replace this rule of the board.
        tree.remove("usr/lib/udev/rules.d/65-board-state.rules")
        lsblk(tree, "usr/bin/lsblk")
    to.mkdir()
    tree.write(to)
    return to


def medium(checkouts: Checkouts, to: Path) -> Path:
    """The same of an installation medium."""
    tree = Tree()
    tree.copy(programs(checkouts))
    tree.remove("usr/bin/docker")
    with_secure_boot = checkouts.tcgtool is not None
    put(tree, checkouts.meta_balena, {**COMMON, **MEDIUM, **({**SECURE, **SECURE_MEDIUM} if with_secure_boot else {})}, values(with_secure_boot))
    shell(tree)
    enable(tree, MEDIUM)
    images.overlay(tree, images.OS / "shell-flasher")
    if with_secure_boot:
        images.overlay(tree, images.OS / "shell-flasher-secure")
        # GNU find rejects a word between `{}` and `+`, which the script uses.
        tree.file("usr/bin/busybox", place.part("small") / "bin/busybox", 0o755)
        tree.link("usr/local/sbin/find", "/usr/bin/busybox")
        lsblk(tree, "usr/bin/lsblk")
    to.mkdir()
    tree.write(to)
    return to


def shell(tree: Tree) -> None:
    """On a balenaOS `sh` is bash, and some of the scripts need it."""
    tree.link("usr/bin/sh", "bash")


def enable(tree: Tree, files: dict[str, str]) -> None:
    """The units among these files."""
    for path in files:
        if path.startswith("usr/lib/systemd/system/"):
            images.enable(tree, Path(path).name)


def release(board: images.Board, name: str, boot: Path, root: Path, signed: Path | None = None) -> Tree:
    """A release of images.py with the scripts in `root`."""
    tree = images.release(board, name, boot, root, signed)
    tree.remove("etc/copal")
    return tree


def build(checkouts: Checkouts | None, guests: Path, cache: Path, copal: Path) -> images.Images:
    """The images of `qemu-amd64` with the scripts; without checkouts, with copal. Both media have the image as it is, which is what the scripts can read,
    and write no loader to an eMMC."""
    board = images.BOARDS[ARCH]
    of_copal = images.build(ARCH, guests, cache, copal)
    store = images.Cache(cache / (f"{ARCH}-shell" if checkouts else f"{ARCH}-lifecycle"))
    try:
        boot = of_copal.boot
        base, layers = store_of(of_copal, "base"), store_of(of_copal, "layers")
        own = [images.sources(*OWN), boot.name, base.name, layers.name]
        disk_image, releases = of_copal.disk, of_copal.releases
        if checkouts:
            of_scripts = checkouts
            own += [of_scripts.digest(), images.sources(images.OS / "shell", images.OS / "hostapp")]

            def make_layers(to: Path) -> None:
                with tempfile.TemporaryDirectory(dir=to) as folder:
                    root = host_os(of_scripts, Path(folder) / "root")
                    for name in RELEASES:
                        images.make_layer(release(board, name, boot, root), to / f"{name}.layer.tar")

            layers = store.make("layers", own, make_layers)
            own = [*own, layers.name]
            made = layers
            disk_image = store.make("disk", [*own, images.part(guests, "board_amd64")],
                                    lambda to: images.make_disk(guests, board, boot, base, made, copal, to)) / "disk.img"
            releases = store.make("releases", own, lambda to: make_releases(board, base, made, of_copal, to)) / "releases.img"
        inputs = [*own, images.sources(images.OS / "flasher", images.OS / "shell-flasher", images.OS / "rootfs", *images.SHIPPED), file_digest(copal)]

        def make_medium(to: Path) -> None:
            with tempfile.TemporaryDirectory(dir=to) as folder:
                root = (medium(checkouts, Path(folder) / "root") if checkouts else images.installed(board, copal, images.MEDIUM, Path(folder)))
                images.make_flasher(guests, board, boot, of_copal.files, disk_image, copal, to, plain=root, more=CONF)

        flasher = store.make("flasher", inputs, make_medium) / "flasher.img"
        # Those that the slots were filled from.
        LAYERS[disk_image] = (base, layers)
        return dataclasses.replace(of_copal, disk=disk_image, releases=releases, flasher=flasher, versions={name: images.RELEASES[name] for name in RELEASES})
    finally:
        store.close()


def parts(built: images.Images) -> tuple[Path, Path]:
    """The folders with the layers of the packages, and of the releases."""
    return LAYERS[built.disk]


def store_of(built: images.Images, name: str) -> Path:
    """A part that the images of the board were made of: the newest."""
    return max(built.disk.parent.parent.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)


def make_releases(board: images.Board, base: Path, layers: Path, of_copal: images.Images, to: Path) -> None:
    """The file system with the releases that have the scripts, and with one that has copal."""
    names = [name for name in RELEASES if name != "base"]
    archive: Callable[[Path, str], None] = lambda files, name: hostapp.archive(
        files / f"{name}.tar", board.arch, images.image_name(board, name), images.layers_of(board, base, layers, name))
    with tempfile.TemporaryDirectory(dir=to) as folder:
        files = Path(folder)
        for name in names:
            archive(files, name)
        shutil.copy(of_copal.archives["next"], files / "copal.tar")
        images.pack_releases(files, to / "releases.img")
