"""Tells what the Yocto layer makes of machines, without bitbake.

Reads a list of machines as JSON from standard input: bitbake's variables, in COPAL_SHA256 the targets that the release has digests for,
in PN the name of the recipes, where it is not copal. Prints a list: for each machine, whether the appends are among the files of the build,
who provides fatrw, the recipes' own text of a licence, which recipes are left out and why, and what the build reports.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType
from typing import Any

from standin import LAYER, Data, Skip, bb, functions, read, version_variable_match

RECIPES = {"archive": "copal_%s.bb", "source": "copal_%s+source.bb"}


def answer(machine: dict[str, Any]) -> dict[str, Any]:
    """What the layer makes of a machine."""
    classes = ("native",) if machine.get("PN", "").endswith("-native") else ()
    given = {name: value for name, value in machine.items() if name != "COPAL_SHA256"}
    base = Data({"BBFILE_COLLECTIONS": "core balena-common", **given}, {"COPAL_SHA256": {target: "0" for target in machine.get("COPAL_SHA256", [])}}, classes)
    read((LAYER / "conf/layer.conf").read_text(encoding="utf-8").replace("${LAYERDIR}", "/layer"), base)
    name, said = machine.get("PN", "copal"), []  # type: str, list[str]
    skipped, texts = {}, {}
    sys.modules["bb"], sys.modules["bb.providers"] = ModuleType("bb"), ModuleType("bb.providers")
    sys.modules["bb.providers"].versionVariableMatch = version_variable_match  # type: ignore[attr-defined]
    for kind, pattern in RECIPES.items():
        recipe = next((LAYER / "recipes-support/copal").glob(pattern % "[0-9.]*[0-9]"))
        common = recipe.with_name("copal.inc").read_text(encoding="utf-8")
        shared = (LAYER / "classes/copal_update_conf.bbclass").read_text(encoding="utf-8")
        text = shared + recipe.read_text(encoding="utf-8").replace("require copal.inc\n", common)
        d = base.createCopy()
        # Of the source recipe: what a distribution with a Rust that is new enough has.
        d.values |= {"PN": name, "PV": recipe.stem.partition("_")[2], "RUSTVERSION": machine.get("RUSTVERSION", "1.94.1%")}
        d.values |= {"COPAL_ARCHIVES": machine.get("COPAL_ARCHIVES", "https://archives")}
        read(text, d)
        made = functions(text, {"bb": bb(said), "os": os})
        made["bb"].utils = type("utils", (), {"vercmp_string_op": staticmethod(older)})
        try:
            for function in made["anonymous"]:
                function(d)
        except Skip as skip:
            skipped[kind] = f"{skip}{' (parsed by each build)' if d.getVar('BB_DONT_CACHE') else ''}"
        texts[kind] = [d.getVarFlag("NO_GENERIC_LICENSE", licence) for licence in ("Unicode-3.0", "bzip2-1.0.6")]
    return {
        "texts": texts,
        "appends": any(file.endswith(".bbappend") for file in (base.getVar("BBFILES") or "").split()),
        "fatrw": base.getVar("PREFERRED_RPROVIDER_fatrw"),
        "skipped": skipped,
        "said": said,
    }


def older(one: str, other: str, how: str) -> bool:
    """Whether a version is older than another one."""
    assert how == "<"
    return [int(word) for word in one.split(".")] < [int(word) for word in other.split(".")]


def main() -> int:
    """Answers for all machines."""
    json.dump([answer(machine) for machine in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
