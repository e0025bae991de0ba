"""Runs what the Yocto layer makes /etc/resin-init-flasher.conf with, without bitbake.

Reads a list of sets of variables as JSON from standard input. Prints a list: for each set the text of the file, or a list of what is wrong.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

CLASS = Path(__file__).resolve().parents[3] / "recipes/classes/copal_flasher_conf.bbclass"


class Variables:
    """Bitbake's variables, as far as the layer asks for them."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values

    def getVar(self, name: str) -> str | None:  # noqa: N802 (bitbake's name)
        """The value of a variable, for the machine where there is one."""
        for override in reversed((self.values.get("OVERRIDES") or "").split(":")):
            if (value := self.values.get(f"{name}:{override}")) is not None:
                return value
        return self.values.get(name)


def functions(text: str) -> dict[str, Any]:
    """The Python functions of a class."""
    found: dict[str, Any] = {}
    for body in re.findall(r"^def .*\n(?:(?:[ ].*)?\n)+", text, re.MULTILINE):
        exec(compile(body, str(CLASS), "exec"), found)
    return found


def made_of(text: str, values: dict[str, str]) -> str | list[str]:
    """The file for a set of variables, or what is wrong with them."""
    names = re.search(r'^COPAL_FLASHER_VARIABLES = "([^"]*)"', text, re.MULTILINE)
    assert names, f"{CLASS}: no COPAL_FLASHER_VARIABLES"
    keys = names[1].replace("\\", " ").split()
    d = Variables({**values, "COPAL_FLASHER_VARIABLES": " ".join(keys)})
    made = functions(text)
    for name, (_, value) in made["copal_old_overrides"](d).items():
        d.values[name] = value
    conf, wrong = made["copal_flasher_conf"](d.getVar, keys)
    return wrong or conf


def main() -> int:
    """Answers for all sets."""
    text = CLASS.read_text(encoding="utf-8")
    json.dump([made_of(text, values) for values in json.load(sys.stdin)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
