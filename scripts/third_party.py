"""What the program is linked from: texts of licences, and a bill of materials (CycloneDX 1.5).

Everything comes from cargo and the crates' own sources, and is the same for the same Cargo.lock, Rust, target and program: its time is
what the caller says, its number follows from the program. That the licences may be used, and that the texts are those of the licences, is for `cargo deny` to say.

    python3 scripts/third_party.py TARGET...     writes scripts/licenses/TEXTS: each text of each crate of these targets
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

TEXT = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?$", re.IGNORECASE)

#: Each text of each crate, in git: the layer's recipes have its checksum. The same for all targets.
TEXTS = "scripts/licenses/TEXTS"

#: A crate of a registry, as cargo itself writes it into Cargo.lock.
LOCKED = re.compile(r'^name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "([0-9a-f]{64})"$', re.MULTILINE)

#: Of the library that comes with Rust's musl targets, which no crate stands for.
MUSL = "1.2.5"


class Fault(Exception):
    """A mistake to report to the caller, with the remedy."""


@dataclass(frozen=True)
class Crate:
    """A crate that is in the program, or that wrote code of it."""

    name: str
    version: str
    licence: str
    repository: str
    folder: Path
    sha256: str
    needs: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Its name in a bill of materials."""
        return f"pkg:cargo/{self.name}@{self.version}"

    def texts(self) -> list[Path]:
        """The files with the texts of its licences."""
        return sorted(f for f in self.folder.iterdir() if f.is_file() and TEXT.match(f.name))


def cargo(top: Path, *words: str) -> str:
    """What cargo prints."""
    try:
        done = subprocess.run(["cargo", *words, "--locked"], cwd=top, capture_output=True, text=True, timeout=300)
    except OSError as error:
        raise Fault(f"cannot run cargo: {error}; install Rust, or run ./dev build once") from None
    if done.returncode != 0:
        raise Fault(f"cargo {words[0]} fails in {top}: {done.stderr.strip()[-500:]}")
    return done.stdout


@functools.cache
def crates(top: Path, target: str) -> tuple[Crate, list[Crate]]:
    """The program, and everything it is made of: no crates of tests or build scripts, none of other targets."""
    tree = cargo(top, "tree", "--edges", "normal", "--target", target, "--prefix", "none")
    used = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    known = json.loads(cargo(top, "metadata", "--format-version", "1", "--filter-platform", target))
    sums = {(name, version): digest for name, version, digest in LOCKED.findall((top / "Cargo.lock").read_text())}
    packages = {p["id"]: p for p in known["packages"] if (p["name"], "v" + p["version"]) in used}
    if len(packages) != len(used):
        raise Fault(f"cargo tree names {len(used)} crates, and cargo metadata {len(packages)} of them")
    found = {}
    for node in known["resolve"]["nodes"]:
        if (package := packages.get(node["id"])) is None:
            continue
        needs = [packages[d["pkg"]] for d in node["deps"]
                 if d["pkg"] in packages and any(k["kind"] is None for k in d["dep_kinds"])]
        name, version = package["name"], package["version"]
        # What crates wrote before there were expressions.
        licence = (package["license"] or "").replace("/", " OR ")
        if not licence:
            raise Fault(f"{name} {version} names no licence: see its Cargo.toml")
        found[node["id"]] = Crate(name, version, licence, package["repository"] or "",
                                  Path(package["manifest_path"]).parent, sums.get((name, version), ""),
                                  tuple(sorted(f"pkg:cargo/{n['name']}@{n['version']}" for n in needs)))
    own = found.pop(known["resolve"]["root"])
    return own, sorted(found.values(), key=lambda c: (c.name, c.version))


@functools.cache
def rust(top: Path) -> tuple[str, str, Path]:
    """Rust's version, its commit, and the file with the licences of its library."""
    def ask(*words: str) -> str:
        done = subprocess.run(["rustc", *words], cwd=top, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Fault(f"rustc {' '.join(words)} fails: {done.stderr.strip()[-500:]}")
        return done.stdout
    said = dict(line.split(": ", 1) for line in ask("-vV").splitlines() if ": " in line)
    text = Path(ask("--print", "sysroot").strip()) / "share/doc/rust/COPYRIGHT-library.html"
    if not text.is_file():
        raise Fault(f"{text} is missing: install Rust {said['release']} with rustup, which brings it")
    return said["release"], said["commit-hash"], text


def texts(top: Path, target: str) -> dict[str, bytes]:
    """Files below licenses/, by name; THIRD-PARTY says whose they are."""
    own, all_of_them = crates(top, target)
    version, _, library = rust(top)
    files = {"rust/COPYRIGHT-library.html": library.read_bytes(), "musl/COPYRIGHT": (top / "scripts/licenses/musl").read_bytes(),
             "TEXTS": (top / TEXTS).read_bytes()}
    lines = [f"copal {own.version} for {target} is linked from these, under these licences. Texts are in the folders.", ""]
    lines += [f"rust {version}: the standard library and what it has in it: MIT OR Apache-2.0 and others, see rust/",
              f"musl {MUSL}: MIT, see musl/"]
    for crate in all_of_them:
        folder = f"{crate.name}-{crate.version}"
        found = crate.texts()
        for file in found:
            files[f"{folder}/{file.name}"] = file.read_bytes()
        where = f"{folder}/"
        if not found:
            if "Apache-2.0" not in crate.licence.split(" OR "):
                raise Fault(f"{folder} brings no text of its licence ({crate.licence}): put one into scripts/licenses")
            where = "../LICENSE"
        lines.append(f"{crate.name} {crate.version}: {crate.licence}, see {where}" + (f" ({crate.repository})" if crate.repository else ""))
    files["THIRD-PARTY"] = ("\n".join(lines) + "\n").encode()
    return files


def all_texts(top: Path, targets: list[str]) -> bytes:
    """Each text of what is linked in for one of the targets, once, below the names of those that it is of."""
    owners: dict[str, list[str]] = {(top / "scripts/licenses/musl").read_text(): [f"musl {MUSL}"]}
    for crate in sorted({crate for target in targets for crate in crates(top, target)[1]}, key=lambda c: (c.name, c.version)):
        for file in crate.texts():
            text = file.read_bytes().decode(errors="replace").replace("\r\n", "\n").strip("\n") + "\n"
            owners.setdefault(text, []).append(f"{crate.name} {crate.version}: {file.name}")
    line = "=" * 79 + "\n"
    head = "The texts of the licences of what copal is linked from. Those of Rust's own library come with Rust.\n"
    return "".join([head, *(f"\n{line}{chr(10).join(names)}\n{line}\n{text}" for text, names in owners.items())]).encode()


def bill(top: Path, target: str, binary_sha256: str, epoch: int) -> bytes:
    """The bill of materials."""
    own, all_of_them = crates(top, target)
    version, commit, _ = rust(top)
    main = f"pkg:cargo/{own.name}@{own.version}"
    # With the vendors that they have in the database of NIST. For crates there is no rule.
    libraries = [("rust-lang", "rust", version, "MIT OR Apache-2.0", f"pkg:github/rust-lang/rust@{commit}"),
                 ("musl-libc", "musl", MUSL, "MIT", f"pkg:generic/musl@{MUSL}")]
    components = [{"type": "library", "bom-ref": purl, "name": name, "version": number, "licenses": [{"expression": licence}],
                   "cpe": f"cpe:2.3:a:{vendor}:{name}:{number}:*:*:*:*:*:*:*", "purl": purl}
                  for vendor, name, number, licence, purl in libraries]
    for crate in all_of_them:
        component = {"type": "library", "bom-ref": crate.purl, "name": crate.name, "version": crate.version, "scope": "required",
                     "licenses": [{"expression": crate.licence}], "purl": crate.purl}
        if crate.sha256:
            component["hashes"] = [{"alg": "SHA-256", "content": crate.sha256}]
        if crate.repository:
            component["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
        components.append(component)
    time = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        # Of the program's digest: another program has another number, the same one the same.
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{main}?target={target}&sha256={binary_sha256}").urn,
        "metadata": {
            "timestamp": time,
            "component": {"type": "application", "bom-ref": main, "name": own.name, "version": own.version, "purl": main,
                          "licenses": [{"expression": own.licence}], "hashes": [{"alg": "SHA-256", "content": binary_sha256}]},
            "properties": [{"name": "copal:target", "value": target}],
        },
        "components": components,
        "dependencies": [{"ref": main, "dependsOn": sorted([*own.needs, *(purl for *_, purl in libraries)])},
                         *({"ref": c.purl, "dependsOn": list(c.needs)} for c in all_of_them)],
    }
    return (json.dumps(body, indent=1) + "\n").encode()


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    (here / TEXTS).write_bytes(all_texts(here, sys.argv[1:]))
