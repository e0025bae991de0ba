"""Tells what the Yocto layer reports while resin-init-flasher is parsed, without bitbake.

Reads a list of sets of variables as JSON from standard input. Prints a list: for each set what is reported, and whether the next build
takes the recipe out of the parse cache, and reports nothing.
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


def answer(values: dict[str, str]) -> dict[str, Any]:
    """What is reported with these variables."""
    text = "".join((LAYER / name).read_text(encoding="utf-8") for name in FILES)
    said: list[str] = []
    d = Data({"PN": "resin-init-flasher", **values})
    read(text, d)
    for function in functions(text, {"bb": bb(said), "os": os})["anonymous"]:
        function(d)
    return {"said": said, "cached": not d.getVar("BB_DONT_CACHE")}


def main() -> int:
    """Answers for all sets."""
    json.dump([answer(values) for values in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
