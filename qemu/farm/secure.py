"""Secure boot: keys, signature lists, signatures, the loader with its key, the kernel with its initramfs; and what the firmware will measure.

Names of files, and what signs what, are those of meta-balena: the lists allow loader and kernel by their hashes (recipe balena-db-hashes),
GRUB checks its configuration and the kernel by OpenPGP (sign-gpg.bbclass), the image's signature is over a bare SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import time
import uuid
from pathlib import Path

import place
from tree import MADE, Fault, file_digest

#: The release's kernel with an initramfs in it, and its signature for GRUB: they stand in /boot of each root, and beside EFI on an encrypted disk.
STAGE2 = "bzImage"
#: What the stage-2 kernel starts.
KERNEL = "vmlinuz"
#: GRUB with a key; started by the firmware once its keys are enrolled.
LOADER = "EFI/BOOT/bootx64.efi.secureboot"
#: Its configuration, on the boot partition of an image and on a medium.
CONFIG_OF_IMAGE = "EFI/BOOT/grub-luks.cfg"
CONFIG_OF_MEDIUM = "grub.cfg_internal_luks"
KEYS = "balena-keys"
#: What is in that folder.
KEY_FILES = ("PK.auth", "KEK.auth", "db-loader.esl", "db-kernel.esl", "db.auth", "db.esl", "dbx.auth", "PK.esl", "KEK.esl", "kmod.crt", "grub.gpg")

#: Those who sign, and their certificates' names. `kmod` signs images; the running kernel has to know it by a name with `balenaOS`.
SIGNERS = {"PK": "farm platform key", "KEK": "farm key exchange key", "kmod": "balenaOS farm kernel modules"}
OWNER = "5d0f6b3c-0a0e-4f8e-9d0b-6c1f5a7c2e11"

GRUB_MODULES = (
    "normal part_gpt fat ext2 configfile loadenv test regexp echo linux serial terminal reboot sleep true gzio probe "
    "pgp gcry_rsa gcry_sha256 gcry_sha512"
).split()

#: Of UEFI.
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
DATABASE = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
LIST_SHA256 = "c1c41626-504c-4092-aca9-41f936934328"


class Tools:
    """Programs of the part `secure`, with their own libraries."""

    def __init__(self, guests: Path, scratch: Path) -> None:
        """`scratch` is a folder for files that are not kept."""
        self.part = place.part("secure", guests)
        self.scratch = scratch
        # Of openssl: each request says all by itself.
        self.config = scratch / "openssl.cnf"
        self.config.write_text(
            "[req]\ndistinguished_name = name\n[name]\n[made]\nbasicConstraints = CA:FALSE\nkeyUsage = digitalSignature\nsubjectKeyIdentifier = hash\n"
        )

    def run(self, program: str, *words: str | Path, feed: bytes | None = None) -> bytes:
        """Runs one; gives what it prints."""
        libraries = f"{self.part}/lib/x86_64-linux-gnu:{self.part}/usr/lib/x86_64-linux-gnu"
        argv = [str(self.part / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, str(self.part / "usr/bin" / program)]
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC", "OPENSSL_CONF": str(self.config),
                       "OPENSSL_MODULES": str(self.part / "usr/lib/x86_64-linux-gnu/ossl-modules")}
        try:
            done = subprocess.run([*argv, *map(str, words)], input=feed, capture_output=True, timeout=120, check=False, env=environment)
        except subprocess.TimeoutExpired:
            raise Fault(f"{program} has not ended in 120 s; is this machine overloaded?") from None
        if done.returncode != 0:
            raise Fault(f"{program} ended with {done.returncode}: {(done.stderr + done.stdout).decode(errors='replace').strip()[-2000:]}")
        return done.stdout


# --- keys -------------------------------------------------------------------------------------------------------------


def stamp() -> str:
    """When lists were signed, as the tools want it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(MADE))


def make_keys(tools: Tools, to: Path) -> None:
    """NAME.key and NAME.crt of each signer, `grub.key` and `grub.gpg`, the lists and signed lists of PK and KEK, and the owner's `recovery.key` and
    `recovery.pem`."""
    for name, title in SIGNERS.items():
        tools.run("openssl", "req", "-config", tools.config, "-extensions", "made", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256",
                  "-days", "36500", "-subj", f"/CN={title}", "-keyout", to / f"{name}.key", "-out", to / f"{name}.crt")
    for name, signer in (("PK", "PK"), ("KEK", "PK")):
        tools.run("cert-to-efi-sig-list", "-g", OWNER, to / f"{name}.crt", to / f"{name}.esl")
        tools.run("sign-efi-sig-list", "-t", stamp(), "-g", OWNER, "-k", to / f"{signer}.key", "-c", to / f"{signer}.crt", name,
                  to / f"{name}.esl", to / f"{name}.auth")
    tools.run("openssl", "genrsa", "-out", to / "grub.key", "2048")
    (to / "grub.gpg").write_bytes(OpenPgp(tools, to / "grub.key").public("farm GRUB key <farm@example.org>"))
    tools.run("openssl", "genrsa", "-out", to / "recovery.key", "2048")
    tools.run("openssl", "rsa", "-in", to / "recovery.key", "-pubout", "-out", to / "recovery.pem")


def decrypted(tools: Tools, keys: Path, file: bytes) -> str:
    """The recovery passphrase, as its owner reads it."""
    return tools.run("openssl", "pkeyutl", "-decrypt", "-inkey", keys / "recovery.key", "-pkeyopt", "rsa_padding_mode:oaep",
                     "-pkeyopt", "rsa_oaep_md:sha256", feed=file).decode()


class OpenPgp:
    """Signatures of RFC 4880 by an RSA key: what GRUB knows of OpenPGP."""

    #: Numbers of the RFC: version, RSA, SHA-512; of signatures: of a file, of a user's name.
    VERSION, RSA, SHA512, OF_FILE, OF_NAME = 4, 1, 10, 0x00, 0x13

    def __init__(self, tools: Tools, key: Path) -> None:
        """`key` is a PEM file."""
        self.tools = tools
        self.key = key
        modulus = int(tools.run("openssl", "rsa", "-in", key, "-noout", "-modulus").decode().strip().partition("=")[2], 16)
        self.body = struct.pack(">BIB", self.VERSION, MADE, self.RSA) + self.number(modulus) + self.number(65537)

    @staticmethod
    def number(value: int) -> bytes:
        """A number with its length in bits."""
        return struct.pack(">H", value.bit_length()) + value.to_bytes((value.bit_length() + 7) // 8, "big")

    @staticmethod
    def packet(tag: int, body: bytes) -> bytes:
        """A packet in the old format, with a length of two bytes."""
        return struct.pack(">BH", 0x80 | tag << 2 | 1, len(body)) + body

    def hashed_key(self) -> bytes:
        """The key as fingerprints and signatures of names have it."""
        return b"\x99" + struct.pack(">H", len(self.body)) + self.body

    def signature(self, kind: int, data: bytes) -> bytes:
        """The packet of a signature over these bytes."""
        fingerprint = hashlib.sha1(self.hashed_key()).digest()
        hashed = struct.pack(">BBI", 5, 2, MADE)
        unhashed = struct.pack(">BB", 9, 16) + fingerprint[-8:]
        head = struct.pack(">BBBBH", self.VERSION, kind, self.RSA, self.SHA512, len(hashed)) + hashed
        covered = data + head + struct.pack(">BBI", self.VERSION, 0xFF, len(head))
        made = self.tools.run("openssl", "dgst", "-sha512", "-sign", self.key, feed=covered)
        digest = hashlib.sha512(covered).digest()
        body = head + struct.pack(">H", len(unhashed)) + unhashed + digest[:2] + self.number(int.from_bytes(made, "big"))
        return self.packet(2, body)

    def public(self, name: str) -> bytes:
        """The public key with a name that it has signed."""
        user = name.encode()
        certified = self.hashed_key() + b"\xb4" + struct.pack(">I", len(user)) + user
        return self.packet(6, self.body) + self.packet(13, user) + self.signature(self.OF_NAME, certified)

    def sign(self, file: Path) -> None:
        """Writes FILE.sig."""
        file.with_name(file.name + ".sig").write_bytes(self.signature(self.OF_FILE, file.read_bytes()))


def sign_image(tools: Tools, keys: Path, image: Path, to: Path) -> None:
    """The signature over the bare SHA-256 of an image: PKCS #1 v1.5 without the digest's name."""
    plain = tools.scratch / "digest"
    plain.write_bytes(bytes.fromhex(file_digest(image)))
    tools.run("openssl", "pkeyutl", "-sign", "-inkey", keys / "kmod.key", "-pkeyopt", "rsa_padding_mode:pkcs1", "-in", plain, "-out", to)


# --- programs for the firmware ----------------------------------------------------------------------------------------


def make_loader(tools: Tools, keys: Path, to: Path, more: tuple[str, ...] = ()) -> None:
    """GRUB with its modules and the public key: with one, it checks the signature of every file (`check_signatures=enforce`)."""
    options = ["--format=x86_64-efi", "--prefix=/EFI/BOOT", f"--directory={tools.part}/usr/lib/grub/x86_64-efi", f"--output={to}",
               f"--pubkey={keys / 'grub.gpg'}", "--disable-shim-lock"]
    tools.run("grub-mkimage", *options, *GRUB_MODULES, *more)
    pad(to)


def pad(program: Path) -> None:
    """To a multiple of 8 bytes: some tools hash a program as if it had that length, and the firmware does not."""
    data = program.read_bytes()
    program.write_bytes(data + bytes(-len(data) % 8))


def align(value: int, to: int) -> int:
    """The next multiple."""
    return -(-value // to) * to


def one_program(stub: bytes, sections: list[tuple[str, bytes]]) -> bytes:
    """A program of UEFI with more sections, as systemd's EFI stub takes kernel and initramfs from them. The stub comes without symbols.

    The version of the image says that it takes an initramfs from the firmware's protocols: GRUB starts no other kernel through the firmware.
    """
    (pe,) = struct.unpack_from("<I", stub, 0x3C)
    if stub[pe : pe + 4] != b"PE\0\0":
        raise Fault("the EFI stub is no program of UEFI")
    count, (size_of_optional,) = struct.unpack_from("<H", stub, pe + 6)[0], struct.unpack_from("<H", stub, pe + 20)
    optional = pe + 24
    section_align, file_align = struct.unpack_from("<II", stub, optional + 32)
    (headers,) = struct.unpack_from("<I", stub, optional + 60)
    table = optional + size_of_optional
    ends = []
    for number in range(count):
        size, address, raw_size, raw = struct.unpack_from("<IIII", stub, table + 40 * number + 8)
        ends.append((address + size, raw + raw_size))
    address, end = max(at for at, _ in ends), max(at for _, at in ends)
    made = bytearray(stub[:end])
    # Without symbols.
    struct.pack_into("<II", made, pe + 12, 0, 0)
    if table + 40 * (count + len(sections)) > headers:
        raise Fault("the EFI stub has no free space for more sections")
    page = max(section_align, 0x1000)
    for name, data in sections:
        address = align(address, page)
        made += bytes(-len(made) % file_align)
        # Initialized data that is only read.
        entry = struct.pack("<8sIIIIIIHHI", name.encode(), len(data), address, align(len(data), file_align), len(made), 0, 0, 0, 0, 0x40000040)
        made[table + 40 * count : table + 40 * (count + 1)] = entry
        made += data + bytes(-len(data) % file_align)
        address += len(data)
        count += 1
    struct.pack_into("<H", made, pe + 6, count)
    struct.pack_into("<H", made, optional + 44, 1)
    struct.pack_into("<I", made, optional + 56, align(address, section_align))
    return bytes(made)


def make_stage2(tools: Tools, kernel: Path, initramfs: Path, release: str, to: Path) -> None:
    """Kernel and initramfs as one program, which takes its command line from GRUB. Each release has another, by the text of its os-release."""
    stub = (tools.part / "stub.efi").read_bytes()
    to.write_bytes(one_program(stub, [(".osrel", release.encode()), (".initrd", initramfs.read_bytes()), (".linux", kernel.read_bytes())]))
    pad(to)


# --- lists ------------------------------------------------------------------------------------------------------------


def make_lists(tools: Tools, keys: Path, loader: Path, kernel: Path, to: Path, signer: bool) -> None:
    """The folder balena-keys for a loader and a kernel. `dbx.auth` forbids these two: the next release's commit applies it.

    With `signer`, the certificate of the image signer follows the loader's hash: Debian's kernel is not built with it and takes it from `db`. The lists of
    balenaOS have hashes only, and its scripts cannot predict PCR 7 with anything else.
    """
    for name, program in (("loader", loader), ("kernel", kernel)):
        tools.run("hash-to-efi-sig-list", program, to / f"db-{name}.esl")
    hashes = tools.scratch / "hashes.esl"
    hashes.write_bytes((to / "db-loader.esl").read_bytes() + (to / "db-kernel.esl").read_bytes())
    tools.run("cert-to-efi-sig-list", "-g", OWNER, keys / "kmod.crt", tools.scratch / "images.esl")
    if signer:
        with (to / "db-loader.esl").open("ab") as file:
            file.write((tools.scratch / "images.esl").read_bytes())
    (to / "db.esl").write_bytes((to / "db-loader.esl").read_bytes() + (to / "db-kernel.esl").read_bytes())
    for name, lists in (("db", to / "db.esl"), ("dbx", hashes)):
        tools.run("sign-efi-sig-list", "-a", "-t", stamp(), "-g", OWNER, "-k", keys / "KEK.key", "-c", keys / "KEK.crt", name, lists,
                  to / f"{name}.auth")
    for name in KEY_FILES:
        if (keys / name).is_file():
            (to / name).write_bytes((keys / name).read_bytes())


def guid(text: str) -> bytes:
    """A GUID as UEFI has it in memory."""
    first, second, third, *rest = text.split("-")
    return struct.pack("<IHH", int(first, 16), int(second, 16), int(third, 16)) + bytes.fromhex("".join(rest))


def hashes(lists: bytes) -> list[bytes]:
    """The entries of signature lists of hashes: owner, then hash."""
    found, at = [], 0
    while at < len(lists):
        size, head, each = struct.unpack_from("<III", lists, at + 16)
        if size < 28 + head or at + size > len(lists) or each <= 16 or (size - 28 - head) % each:
            raise Fault("a signature list is not well-formed")
        if lists[at : at + 16] == guid(LIST_SHA256):
            found += [lists[place : place + each] for place in range(at + 28 + head, at + size, each)]
        at += size
    return found


# --- the firmware's variables -----------------------------------------------------------------------------------------

#: Of shim: certificates that a kernel trusts besides its own, as long as secure boot is on. No other program writes it on a board.
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
#: Kept, in both phases.
PLAIN = 0x07


def signer_of(tools: Tools, program: Path, to: Path) -> None:
    """The certificate, in PEM, with which a program of UEFI is signed."""
    data = program.read_bytes()
    (pe,) = struct.unpack_from("<I", data, 0x3C)
    at, size = struct.unpack_from("<II", data, pe + 24 + 112 + 4 * 8)
    if not size:
        raise Fault(f"{program} has no signature")
    (length,) = struct.unpack_from("<I", data, at)
    found = tools.run("openssl", "pkcs7", "-inform", "DER", "-print_certs", feed=data[at + 8 : at + length])
    to.write_bytes(tools.run("openssl", "x509", feed=found))


def make_factory_lists(tools: Tools, keys: Path, kernel: Path, to: Path) -> None:
    """What a new board has, for want of a kernel that is built with these certificates: `db` has who signed the images, until an installation
    replaces it by lists that have them too; with secure boot, shim's list has who signed the releases' kernel."""
    signer_of(tools, kernel, tools.scratch / "signer.crt")
    for name, source in (("MokListRT", tools.scratch / "signer.crt"), ("db", keys / "kmod.crt")):
        tools.run("cert-to-efi-sig-list", "-g", OWNER, source, to / f"factory-{name}.esl")


def with_variables(store: bytes, variables: list[tuple[str, str, int, bytes]]) -> bytes:
    """A flash of EDK2's variables (authenticated ones) with some more: vendor, name, attributes, contents."""
    (length_of_volume,) = struct.unpack_from("<H", store, 48)
    size = struct.unpack_from("<I", store, length_of_volume + 16)[0]
    if store[length_of_volume : length_of_volume + 16] != guid("aaf32c78-947b-439a-a180-2e144ec37792"):
        raise Fault("the firmware's flash has no store of authenticated variables")
    made, at = bytearray(store), length_of_volume + 28
    while store[at : at + 2] == b"\xaa\x55":
        of_name, of_data = struct.unpack_from("<II", store, at + 36)
        at = align(at + 60 + of_name + of_data, 4)
    for vendor, name, attributes, data in variables:
        text = name.encode("utf-16-le") + b"\0\0"
        # Start, state "added", no count, no time, no key.
        head = struct.pack("<HBBIQ16sIII", 0x55AA, 0x3F, 0, attributes, 0, bytes(16), 0, len(text), len(data)) + guid(vendor)
        record = head + text + data
        if at + len(record) > length_of_volume + size:
            raise Fault("the firmware's flash has no free space for more variables")
        made[at : at + len(record)] = record
        at = align(at + len(record), 4)
    return bytes(made)


def variables(store: bytes) -> dict[tuple[str, str], bytes]:
    """The contents of all variables in such a flash, by vendor and name, as the firmware finds them when it starts (EDK2, MdeModulePkg:
    VariableFormat.h). An entry that was not finished does not count; one that was about to be replaced does until the new one is finished."""
    (length_of_volume,) = struct.unpack_from("<H", store, 48)
    size = struct.unpack_from("<I", store, length_of_volume + 16)[0]
    if store[length_of_volume : length_of_volume + 16] != guid("aaf32c78-947b-439a-a180-2e144ec37792"):
        raise Fault("the firmware's flash has no store of authenticated variables")
    found: dict[tuple[str, str], bytes] = {}
    replaced: dict[tuple[str, str], bytes] = {}
    at, end = length_of_volume + 28, length_of_volume + size
    while at + 60 <= end and store[at : at + 2] == b"\xaa\x55":
        state, (of_name, of_data) = store[at + 2], struct.unpack_from("<II", store, at + 36)
        if state == 0xFF or at + 60 + of_name + of_data > end:
            break
        vendor = str(uuid.UUID(bytes_le=store[at + 44 : at + 60]))
        name = store[at + 60 : at + 60 + of_name].decode("utf-16-le", "replace").rstrip("\0")
        data = store[at + 60 + of_name : at + 60 + of_name + of_data]
        if state == 0x3F:
            found[vendor, name] = data
        elif state == 0x3E:
            replaced[vendor, name] = data
        at = align(at + 60 + of_name + of_data, 4)
    return replaced | found


def factory(store: bytes, lists: Path) -> bytes:
    """The flash of a new board: in setup mode."""
    variables = [(DATABASE, "db", 0x27, (lists / "factory-db.esl").read_bytes()), (SHIM, "MokListRT", PLAIN, (lists / "factory-MokListRT.esl").read_bytes())]
    return with_variables(store, variables)


# --- what the firmware will measure -----------------------------------------------------------------------------------


def variable_event(vendor: str, name: str, data: bytes) -> bytes:
    """The digest that the firmware extends for a variable (EFI_VARIABLE_DATA of the TCG's specification for PCs)."""
    text = name.encode("utf-16-le")
    return hashlib.sha256(guid(vendor) + struct.pack("<QQ", len(name), len(data)) + text + data).digest()


def extended(value: bytes, digest: bytes) -> bytes:
    """A PCR after an event."""
    return hashlib.sha256(value + digest).digest()


#: A separator's digest, and a PCR with nothing else: PCR 2 without drivers from outside the firmware.
SEPARATOR = hashlib.sha256(bytes(4)).digest()
ONLY_SEPARATOR = extended(bytes(32), SEPARATOR)


def pcr7(folder: Path, authorities: bool = True) -> bytes:
    """PCR 7 of a start with secure boot and the keys of this folder: the variables, a separator, then the entries of db that allowed loader
    and kernel, which not every firmware measures."""
    database = (folder / "db.esl").read_bytes()
    value = bytes(32)
    for vendor, name, data in (
        (GLOBAL, "SecureBoot", b"\x01"),
        (GLOBAL, "PK", (folder / "PK.esl").read_bytes()),
        (GLOBAL, "KEK", (folder / "KEK.esl").read_bytes()),
        (DATABASE, "db", database),
        (DATABASE, "dbx", b""),
    ):
        value = extended(value, variable_event(vendor, name, data))
    value = extended(value, SEPARATOR)
    for entry in hashes(database) if authorities else ():
        value = extended(value, variable_event(DATABASE, "db", entry))
    return value


#: Of such a variable, in front of what is written to efivarfs: kept, in both phases, signed with a time.
ATTRIBUTES = struct.pack("<I", 0x27)


def unsigned(lists: bytes) -> bytes:
    """What efivarfs takes to set signature lists in setup mode: an authentication header without a signature stands in front of them."""
    when = time.gmtime(MADE)
    at = struct.pack("<HBBBBBBIhBB", when.tm_year, when.tm_mon, when.tm_mday, when.tm_hour, when.tm_min, when.tm_sec, 0, 0, 0, 0, 0)
    certificate = struct.pack("<IHH", 24, 0x0200, 0x0EF1) + guid("4aafd29d-68df-49ee-8aa9-347d375665a7")
    return ATTRIBUTES + at + certificate + lists


def spoilt(release: Path, fault: str) -> dict[str, bytes | None]:
    """Files of a release that a locked device does not start. `release`: the folder with its signed parts."""
    kernel, signature = f"boot/{STAGE2}", f"boot/{STAGE2}.sig"
    if fault == "unsigned":
        return {signature: None}
    if fault == "signed by another":
        # It is the signature of another file.
        return {signature: (release.parent / "grub-luks.cfg.sig").read_bytes()}
    if fault == "not in db":
        return {kernel: (release / STAGE2).read_bytes() + bytes(8)}
    # One more entry than those that the key exchange key has signed: the firmware does not append them.
    entries, signed = ((release / KEYS / name).read_bytes() for name in ("db.esl", "db.auth"))
    more = entries + entries[:44] + bytes(32)
    at = f"resin-boot/{KEYS}"
    return {f"{at}/db.esl": more, f"{at}/db.auth": signed[: len(signed) - len(entries)] + more}
