"""Runs what the Yocto layer makes /etc/resin-init-flasher.conf with, without bitbake.

Reads a list of sets of variables as JSON from standard input. Prints a list: for each set the text of the file, what is wrong with the
values, what the build reports, whether the next build takes the recipe out of the parse cache, and reports nothing, and the packages with
the tools of the flasher.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from standin import LAYER, Data, bb, functions, read

FILES = [
    "classes/copal_replace.bbclass",
    "classes/copal_flasher_conf.bbclass",
    "dynamic-layers/balena-common/recipes-support/resin-init/resin-init-flasher.bbappend",
]


def made_of(values: dict[str, str]) -> dict[str, Any]:
    """What is made of a set of variables."""
    said: list[str] = []
    d = Data({"PN": "resin-init-flasher", **values})
    text = "".join((LAYER / name).read_text(encoding="utf-8") for name in FILES)
    read(text, d)
    d.setVar("COPAL_TAKEN", values.get("COPAL_TAKEN", ""))
    made = functions(text, {"bb": bb(said), "os": os})
    for function in made["anonymous"]:
        function(d)
    conf, wrong = made["copal_flasher_conf"](d.getVar, d.getVar("COPAL_FLASHER_VARIABLES").split())
    tools = (d.getVar("COPAL_FLASHER_TOOLS") or "").split()
    return {"conf": conf, "wrong": wrong, "said": said, "cached": not d.getVar("BB_DONT_CACHE"), "tools": tools}


def main() -> int:
    """Answers for all sets."""
    json.dump([made_of(values) for values in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
