"""What stands in for bitbake where the layer's Python is run without it: variables, flags, and the functions of `bb` that the layer calls."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TOP = Path(__file__).resolve().parents[3]
LAYER = TOP / "recipes"


class Stop(Exception):
    """The build ends."""


class Skip(Exception):
    """The recipe is left out."""


def not_an_operation(name: str) -> str:
    """The name, if bitbake takes it: it ends the parse of everything where a name looks like an operation in the syntax before honister."""
    assert not re.search("_(append|prepend|remove)", name), name
    return name


class Data:
    """Bitbake's variables and flags, as far as the layer asks for them."""

    def __init__(self, values: dict[str, str], flags: dict[str, dict[str, str]] | None = None, classes: tuple[str, ...] = ()) -> None:
        self.values, self.flags, self.classes = dict(values), {name: dict(of) for name, of in (flags or {}).items()}, classes

    def expand(self, text: str) -> str:
        """A text with the values of its variables, and of its Python."""
        text = re.sub(r"\$\{@(.*?)\}(?=$|[\s/\"])", lambda found: str(eval(found[1], {"d": self})), text, flags=re.DOTALL)
        return re.sub(r"\$\{(\w+)\}", lambda found: self.getVar(found[1]) or "", text)

    def getVar(self, name: str) -> str | None:  # noqa: N802 (bitbake's name)
        """The value of a variable, for the machine where there is one."""
        names = (f"{name}:{override}" for override in reversed(self.values.get("OVERRIDES", "").split(":")) if override)
        value = next((self.values[one] for one in names if one in self.values), self.values.get(name))
        return self.expand(value) if value else value

    def keys(self) -> list[str]:
        """The names of all variables."""
        return list(self.values)

    def setVar(self, name: str, value: str) -> None:  # noqa: N802
        """Sets a variable, for this machine too."""
        for override in self.values.get("OVERRIDES", "").split(":"):
            self.values.pop(f"{name}:{override}", None)
        self.values[name] = value

    def getVarFlag(self, name: str, flag: str) -> str | None:  # noqa: N802
        """The value of a flag."""
        return self.flags.get(name, {}).get(flag)

    def setVarFlag(self, name: str, flag: str, value: str) -> None:  # noqa: N802
        """Sets a flag."""
        self.flags.setdefault(name, {})[flag] = value

    def getVarFlags(self, name: str) -> dict[str, str] | None:  # noqa: N802
        """All flags."""
        return self.flags.get(name) or None

    def appendVarFlag(self, name: str, flag: str, value: str) -> None:  # noqa: N802
        """Adds to a flag."""
        of = self.flags.setdefault(name, {})
        of[flag] = of.get(flag, "") + value

    def createCopy(self) -> Data:  # noqa: N802
        """Another one, with the same values."""
        return Data(self.values, self.flags, self.classes)


def read(text: str, data: Data) -> None:
    """Reads the assignments of a configuration into the variables; what a condition or an override says is not among them."""
    text = text.replace("\\\n", " ")
    for name, flag, kind, value in re.findall(r'^(\w[\w-]*)(?:\[([\w-]+)\])? *(\?=|:=|\+=|\.=|=) *"(.*)"$', text, re.MULTILINE):
        not_an_operation(name)
        if flag:
            data.flags.setdefault(name, {})[flag] = value
        elif kind == "+=":
            data.values[name] = f"{data.values.get(name, '')} {value}"
        elif kind == ".=":
            data.values[name] = data.values.get(name, "") + value
        elif kind != "?=" or name not in data.values:
            data.values[name] = value


def bb(said: list[str]) -> SimpleNamespace:
    """The module `bb`: what is reported goes into the list."""

    def fatal(message: str) -> None:
        raise Stop(message)

    def report(kind: str) -> Any:
        return lambda message: said.append(f"{kind}: {message}")

    return SimpleNamespace(
        fatal=fatal,
        warn=report("warning"),
        note=report("note"),
        parse=SimpleNamespace(SkipRecipe=Skip),
        data=SimpleNamespace(inherits_class=lambda name, d: name in d.classes),
    )


def version_variable_match(d: Data, keyword: str, name: str) -> str | None:
    """`bb.providers.versionVariableMatch`: the version of a recipe that the configuration asks for, in the order that bitbake looks for it."""
    names = (f"{keyword}_VERSION:pn-{name}", f"{keyword}_VERSION_{name}", f"{keyword}_VERSION")
    return next(filter(None, map(d.getVar, names)), None)


def functions(text: str, known: dict[str, Any]) -> dict[str, Any]:
    """The Python functions of a recipe, class or append; `anonymous` is the list of those without a name."""
    known["anonymous"] = []
    for body in re.findall(r"^def .*\n(?:(?:[ ].*)?\n)+", text, re.MULTILINE):
        exec(compile(body, "layer", "exec"), known)
    for name in re.findall(r"^(?:def |(?:fakeroot )?(?:python )?)(\w+) ?\(.*[:{]$", text, re.MULTILINE):
        not_an_operation(name)
    for name, body in re.findall(r"^python (\w*) ?\(\) \{\n(.*?)^\}\n", text, re.MULTILINE | re.DOTALL):
        exec(compile(f"def {name or 'unnamed'}(d):\n{body}", "layer", "exec"), known)
        if not name:
            known["anonymous"].append(known.pop("unnamed"))
    return known
