"""Runs what the Yocto layer makes /etc/copal/update.conf with, without bitbake.

Reads a list of sets of variables as JSON from standard input; OWN in a set is a file that the board installs itself. Prints a list: for each
set what stopped the build, or the text of the file, and the architecture of the package.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from standin import LAYER, Data, Stop, bb, functions, read

CLASS = (LAYER / "classes/copal_update_conf.bbclass").read_text(encoding="utf-8")
RECIPE = (LAYER / "recipes-support/copal/copal.inc").read_text(encoding="utf-8")


def made_of(values: dict[str, str], folder: Path) -> str | dict[str, str]:
    """What is made of a set of variables."""
    own = {"COPAL_ARCHIVES": "https://archives", "COPAL_SOURCES": "https://archives", "PACKAGE_ARCH": "armv8a", "MACHINE_ARCH": "board"}
    d = Data({"PN": "copal", "D": str(folder), "sysconfdir": "/etc", **own, **values})
    read(CLASS, d)
    d.values |= {"SRC_URI": "https://archives/copal.tar.zst"}
    known = bb([])
    known.utils = SimpleNamespace(mkdirhier=lambda path: os.makedirs(path, exist_ok=True))
    made = functions(CLASS + RECIPE, {"bb": known, "os": os})
    path = folder / "etc/copal/update.conf"
    try:
        for function in made["anonymous"]:
            function(d)
        made["copal_check_update_conf"](d)
        if "OWN" in values:
            path.parent.mkdir(parents=True)
            path.write_text(values["OWN"])
            made["copal_check_own_update_conf"](d)
        made["copal_write_update_conf"](d)
    except Stop as stop:
        return str(stop)
    return {"conf": path.read_text() if path.exists() else "", "arch": d.getVar("PACKAGE_ARCH") or ""}


def main() -> int:
    """Answers for all sets."""
    answers = []
    for values in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            answers.append(made_of(values, Path(folder)))
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
