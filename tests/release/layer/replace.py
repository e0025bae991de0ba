"""Runs what the Yocto layer does in the place of a recipe's scripts, without bitbake: the looks at what a board changes, and the exchange.

Reads a list of cases as JSON from standard input. Prints a list: for each case what stopped the build, or the scripts as they are
installed, each `copal` or with the recipe's or the board's text. For the initramfs also the changes of its module's dependencies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from standin import Data, Stop, bb, functions

TOP = Path(__file__).resolve().parents[3]
CLASSES = [TOP / f"recipes/classes/{name}.bbclass" for name in ("copal_contents", "copal_upstream", "copal_replace", "copal_secureboot")]
# Where the recipe of the flasher installs meta-balena's plug-ins for UEFI and TPM 2.
PLUGINS = {
    "balena-init-flasher-efi": "/usr/libexec/balena-init-flasher-secureboot",
    "balena-init-flasher-tpm": "/usr/libexec/balena-init-flasher-diskenc",
}
# What meta-balena appends to a recipe of the core layer, and where that installs it.
MODULES = {"cryptsetup-efi-tpm": "/init.d/72-cryptsetup"}
APPENDS = TOP / "recipes/dynamic-layers/balena-common"


def decodeurl(url: str) -> tuple[str, str, str, str, str, dict[str, str]]:
    """The parts of a URL of SRC_URI."""
    kind, _, path = url.partition(";")[0].partition("://")
    return kind, "", path, "", "", {}


def load(append: str, found: dict[str, str], patches: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The Python functions of the classes and of an append, and the flags that the classes set."""
    fetch = SimpleNamespace(decodeurl=decodeurl, localpath=lambda url, d: found[decodeurl(url)[2]])
    utils = SimpleNamespace(
        mkdirhier=lambda folder: os.makedirs(folder, exist_ok=True),
        sha256_file=lambda path: hashlib.sha256(Path(path).read_bytes()).hexdigest(),
    )
    known = bb([])
    known.fetch = known.fetch2 = fetch
    known.utils = utils
    sys.modules["oe"], sys.modules["oe.patch"] = ModuleType("oe"), ModuleType("oe.patch")
    sys.modules["oe"].patch = sys.modules["oe.patch"]  # type: ignore[attr-defined]
    sys.modules["oe.patch"].src_patches = lambda d: patches  # type: ignore[attr-defined]
    text = "".join(file.read_text(encoding="utf-8") for file in CLASSES) + append
    made = functions(text, {"bb": known, "os": os})
    flags: dict[str, dict[str, str]] = {}
    for name, flag, value in re.findall(r'^(COPAL_\w+)\[([^]]+)\] = "(.*)"$', text, re.MULTILINE):
        flags.setdefault(name, {})[flag] = value
    return made, flags


def answer(case: dict[str, Any], folder: Path) -> str | dict[str, str]:
    """What stopped the build, or what each script is in the end."""
    recipe = case["recipe"]
    core = recipe in ("systemd", "initramfs-framework")
    append = next(APPENDS.glob(f"recipes-*/*/{recipe}{'_%' if core else ''}.bbappend")).read_text(encoding="utf-8")
    contents = re.search(r'^COPAL_CONTENTS = "([^"]*)"', append, re.MULTILINE)
    archive, unpacked = folder / "archive", folder / "unpacked"
    shutil.copytree(TOP / "hooks", archive / "hooks")
    shutil.copy(TOP / "scripts/contents.tsv", archive / "contents")
    found, patches, texts = {}, [], case.get("texts", {})
    layer = folder / "meta-balena-common"
    own = layer / "recipes-support/own"
    for name, owner in case["sources"].items():
        source = (own / "files" if owner == "own" else folder / "board") / name
        found[name] = str(source)
        for place in (source, unpacked / name):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(texts.get(name, owner))
    for name, text in case.get("patches", {}).items():
        (folder / name).write_text(text)
        patches.append(f"file://{folder / name};patchdir=.")
    made, flags = load(append, found, patches)
    # All of the recipe's own are known versions, but for those of another text.
    digests = {Path(name).name: hashlib.sha256(texts.get(name, "own").encode()).hexdigest() for name in case["sources"]}
    flags["COPAL_UPSTREAM"] = digests | {name: hashlib.sha256(text.encode()).hexdigest() for name, text in case.get("known", {}).items()}
    d = Data(
        {
            "BPN": recipe,
            "PN": recipe,
            "PACKAGES": case.get("packages", f"{recipe} {recipe}-reboot"),
            "FILE": str((folder / "core/recipes-core/core" if core else own) / f"{recipe}.bb"),
            "BBFILE_PATTERN_balena-common": f"^{layer}/",
            "SRC_URI": " ".join([f"file://{name}" for name in found] + patches),
            "COPAL_ARCHIVE": str(archive),
            "COPAL_CONTENTS": contents[1].replace("\\", " ") if contents else recipe,
            "COPAL_UNPACKED": str(unpacked),
            "COPAL_HOOK_FOLDER": "/etc/hostapp-update-hooks.d/",
            "COPAL_UPSTREAM_RELEASES": "v1.0.0 to v2.0.0",
            "COPAL_ACCEPT_UPSTREAM": case.get("accept", ""),
            "COPAL_KEEP_HOOKS": case.get("keep", ""),
            "COPAL_HOOKS": case.get("hooks", ""),
            "COPAL_BOOTLOADERS_CONF": case.get("bootloaders", ""),
            "COPAL_ROOT_HOOK": case.get("root", ""),
            "COPAL_ROOT_HOOKS": (re.search(r'^COPAL_ROOT_HOOKS = "(.*)"$', append, re.MULTILINE) or ["", ""])[1],
            "HOSTAPP_HOOKS": " ".join(name for name in found if name != case.get("bootloaders")),
            "BALENA_BOOT_FINGERPRINT": "balenaos.fingerprint",
            "BALENA_BOOTFILES_BLACKLIST": " /config.json /board.txt ",
            "D": str(folder / "image"),
            "SIGN_API": case.get("signing", ""),
            "MACHINE_FEATURES": case.get("features", ""),
            "KERNEL_IMAGETYPE": "bzImage",
            "COPAL_KEEP_SECUREBOOT": case.get("keep secure boot", "0"),
            "COPAL_KEEP_UNLOCK": case.get("keep unlock", "0"),
            **dict(re.findall(r'^(COPAL_\w+_NEEDS) = "(.*)"$', CLASSES[-1].read_text(), re.MULTILINE)),
            "libexecdir": "/usr/libexec",
            "sysconfdir": "/etc",
            "bindir": "/usr/bin",
            "systemd_unitdir": "/usr/lib/systemd",
        },
        flags,
    )
    if "copal_secureboot(d)" in append:
        d.setVar("COPAL_TAKEN", made["copal_secureboot"](d))
    chosen: dict[str, str] = {}
    if "copal_unlock(d)" in append:
        values = re.findall(r"""^(COPAL_CONTENTS|RDEPENDS:[\w-]+:\w+) = " ?\$\{@(.*)\}"$""", append, re.MULTILINE)
        chosen = {name: eval(value, {"copal_unlock": made["copal_unlock"], "d": d}) for name, value in values}
        d.setVar("COPAL_CONTENTS", chosen.pop("COPAL_CONTENTS"))
    try:
        if recipe == "systemd":
            made["copal_check_update_state"](d)
            return "goes on"
        if "copal_check_kept" in made:
            made["copal_check_kept"](d)
        made["copal_check_sources"](d)
        install(made["copal_replaced"](d), case, d, unpacked)
        made["copal_check_installed"](d)
        made["copal_delete_taken"](d)
        if "copal_mark_unlock" in made:
            made["copal_mark_unlock"](d)
        if "copal_put_hooks" in made:
            made["copal_put_hooks"](d)
        if {"hooks", "bootloaders", "root"} & set(case):
            made["copal_add_hooks"](d)
        if "root" in case:
            made["copal_check_root_hook"](d)
            return "goes on"
        if "hooks" in case or "bootloaders" in case:
            added = [file for file in (folder / "image/etc").rglob("*") if file.is_file()]
            return {f"/{file.relative_to(folder / 'image')}": f"{file.stat().st_mode & 0o777:o} {file.read_text()}" for file in added}
    except Stop as stop:
        return str(stop)
    ours = {made["copal_filled"](d, file.read_text(encoding="utf-8")) for file in (TOP / "hooks").iterdir()}
    top = folder / "image"
    if core:
        made["copal_install_contents"](d)
    made_of = {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}
    made_of = {name.removeprefix("etc/hostapp-update-hooks.d/"): "copal" if text in ours else text for name, text in made_of.items()}
    return made_of | chosen


def install(rows: list[tuple[str, str, str]], case: dict[str, Any], d: Data, unpacked: Path) -> None:
    """The recipe's do_install, with what a board edits before and after it, and what it installs besides."""
    for name, text in case.get("edits before", {}).items():
        (unpacked / name).write_text((unpacked / name).read_text() + text)
    hooks = d.getVar("HOSTAPP_HOOKS").split() if case["recipe"] == "hostapp-update-hooks" else []
    places = {name: f"/etc/hostapp-update-hooks.d/{name}" for name in [*hooks, *case.get("copies", {})]} | {name: path for name, path, _ in rows}
    places |= {name: path for name, path in PLUGINS.items() if case.get("signing")}
    places |= MODULES if case["recipe"] == "initramfs-framework" else {}
    for name, path in places.items():
        source = unpacked / case.get("copies", {}).get(name, name)
        if source.is_file():
            place = Path(d.getVar("D") + path)
            place.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            for word in ("@KERNEL_IMAGETYPE@", "BALENA_BOOT_FINGERPRINT", "BALENA_BOOTFILES_BLACKLIST", "bindir"):
                text = text.replace(f"@{word.upper()}@", d.getVar(word.strip("@")) or "")
            place.write_text(text + case.get("edits", {}).get(name, ""))


def main() -> int:
    """Answers for all cases."""
    answers = []
    for case in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            answers.append(answer(case, Path(folder)))
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
