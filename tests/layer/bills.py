"""Runs what the Yocto layer does with the bill of materials of a release, without bitbake.

Reads a list of cases as JSON from standard input, each the components of a bill. Prints a list: for each case the documents of the package
as create-spdx of both versions writes them, afterwards, and the report of the recipe.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from standin import LAYER, Data, Stop, bb, functions

SPDX2 = {"packages": [{"name": "copal", "SPDXID": "SPDXRef-Package-copal"}], "relationships": []}
SPDX3 = {
    "@context": "x",
    "@graph": [
        {"type": "CreationInfo", "@id": "_:CreationInfo0"},
        {
            "type": "software_Package",
            "name": "copal",
            "spdxId": "http://spdx/hash/package/copal",
            "creationInfo": "_:CreationInfo0",
            "extension": [{"type": "https://rdf/alias-type", "https://rdf/alias": "http://alias/UNIHASH/package/copal"}],
        },
    ],
}


def answer(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What is made of a bill."""
    bill, deploy, reports = folder / "sbom.cdx.json", folder / "spdx", folder / "cve"
    bill.write_text(json.dumps({"components": case["components"]}))
    documents = {"spdx2": deploy / "x/packages/copal.spdx.json", "spdx3": deploy / "x/packages-staging/package-copal.spdx.json"}

    def report(task: str, d: Data) -> None:
        """As the tasks of oe-core: a report in the file of this recipe, one of the package that it is for."""
        assert task == "do_cve_check" and not d.getVar("SRC_URI")
        made = {"name": d.getVar("PN"), "version": d.getVar("CVE_VERSION"), "products": (d.getVar("CVE_PRODUCT") or "").split()}
        (reports / f"{d.getVar('PN')}_cve.json").write_text(json.dumps({"package": [made]}))
        (reports / str(d.getVar("PN"))).write_text(f"{d.getVar('PN')}\n")

    oe = ModuleType("oe")
    check = ModuleType("oe.cve_check")
    check.cve_check_merge_jsons = lambda one, other: one["package"].extend(other["package"])  # type: ignore[attr-defined]
    oe.cve_check = check  # type: ignore[attr-defined]
    sys.modules["oe"], sys.modules["oe.cve_check"] = oe, check
    said: list[str] = []
    known = bb(said)
    known.build = SimpleNamespace(exec_func=report, deltask=lambda name, d: None)
    known.utils = SimpleNamespace(mkdirhier=lambda path: os.makedirs(path, exist_ok=True))
    made = functions((LAYER / "classes/copal_sbom.bbclass").read_text(encoding="utf-8"), {"bb": known, "os": os})
    d = Data(
        {
            "PN": "copal",
            "SRC_URI": "file:///archive",
            "COPAL_SBOM": str(bill),
            "SPDXDEPLOY": str(deploy),
            "CVE_CHECK_RECIPE_FILE_JSON": str(reports) + "/${PN}_cve.json",
            "CVE_CHECK_RECIPE_FILE": str(reports) + "/${PN}",
        },
        {"do_create_spdx": {"task": "1"}},
    )
    answers: dict[str, Any] = {}
    for name, document in (("spdx2", SPDX2), ("spdx3", SPDX3)):
        documents[name].parent.mkdir(parents=True)
        documents[name].write_text(json.dumps(document))
        made["copal_spdx"](d)
        answers[name] = json.loads(documents[name].read_text())
        documents[name].unlink()
    try:
        made["copal_spdx"](d)
    except Stop as stop:
        answers["elsewhere"] = str(stop)
    reports.mkdir()
    report("do_cve_check", Data({"PN": "copal", "CVE_VERSION": "0.1.0", "CVE_PRODUCT": "copal"}))
    made["copal_cve_check"](d)
    answers["report"] = json.loads((reports / "copal_cve.json").read_text())["package"]
    answers["text"] = (reports / "copal").read_text()
    for function in made["anonymous"]:
        function(d)
    answers["depends"] = {name: of["depends"] for name, of in d.flags.items() if "depends" in of}
    return answers


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
