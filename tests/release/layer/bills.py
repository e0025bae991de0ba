"""Runs what the Yocto layer does with the bill of materials of a release, without bitbake.

Reads a list of cases as JSON from standard input, each the components of a bill. Prints a list: for each case the documents of the package
as create-spdx of both versions writes them, afterwards, and of four builds, one after another, what images and the summary take of the
report of the recipe, its text, the errors, and the files in the folder of reports. In the second the task finds nothing to report of the
recipe itself, in the third nothing at all; in the fourth the recipe is not to be checked.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from standin import LAYER, Data, Stop, bb, functions, read

SPDX2 = {"packages": [{"name": "copal-bin", "SPDXID": "SPDXRef-Package-copal-bin"}], "relationships": []}
SPDX3 = {
    "@context": "x",
    "@graph": [
        {"type": "CreationInfo", "@id": "_:CreationInfo0"},
        {
            "type": "software_Package",
            "name": "copal-bin",
            "spdxId": "http://spdx/hash/package/copal-bin",
            "creationInfo": "_:CreationInfo0",
            "extension": [{"type": "https://rdf/alias-type", "https://rdf/alias": "http://alias/UNIHASH/package/copal-bin"}],
        },
    ],
}


def answer(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What is made of a bill."""
    bill, deploy, reports = folder / "sbom.cdx.json", folder / "spdx", folder / "cve"
    bill.write_text(json.dumps({"components": case["components"]}))
    documents = {"spdx2": deploy / "x/packages/copal-bin.spdx.json", "spdx3": deploy / "x/packages-staging/package-copal-bin.spdx.json"}

    silent: list[str] = []
    said: list[str] = []

    def report(task: str, d: Data) -> None:
        """As the tasks of oe-core: a report in the files of the package that it is for, with an issue of the first product, and one that
        CVE_STATUS has."""
        assert task == "do_cve_check"
        name = str(d.getVar("PN"))
        if name in silent or "all" in silent:
            return
        assert name == "copal" or not d.getVar("SRC_URI")
        products = (d.getVar("CVE_PRODUCT") or "").split()
        package = {
            "name": name,
            "layer": "recipes",
            "version": d.getVar("PV"),
            "products": [{"product": product.rpartition(":")[2], "cvesInRecord": "No" if number else "Yes"} for number, product in enumerate(products)],
            "cpes": [f"cpe:{product}:{d.getVar('CVE_VERSION')}" for product in products],
            "issue": [{"id": "CVE-known", "status": "Ignored"}, {"id": f"CVE-{products[0]}", "summary": "Overflow", "status": "Unpatched"}],
        }
        fragment = Path(str(d.getVar("CVE_CHECK_SUMMARY_DIR"))) / f"{name}_cve.json"
        for path in (Path(str(d.getVar("CVE_CHECK_RECIPE_FILE_JSON"))), Path(str(d.getVar("CVE_CHECK_LOG_JSON"))), fragment):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"version": "1", "package": [package]}))
        with Path(str(d.getVar("CVE_CHECK_SUMMARY_INDEX_PATH"))).open("a") as index:
            index.write(f"{fragment}\n")
        Path(str(d.getVar("CVE_CHECK_RECIPE_FILE"))).write_text(f"{name}\n")

    def build(d: Data) -> dict[str, Any]:
        """One build: the task, what the layer does before and after it, and what the image and the summary take."""
        index, text, log = (Path(str(d.getVar(f"CVE_CHECK_{name}"))) for name in ("SUMMARY_INDEX_PATH", "RECIPE_FILE", "LOG_JSON"))
        # As at the end of each build.
        index.unlink(missing_ok=True)
        del said[:]
        for name in layer.flags["do_cve_check"].get("prefuncs", "").split():
            made[name](d)
        report("do_cve_check", d)
        for name in layer.flags["do_cve_check"]["postfuncs"].split():
            made[name](d)
        return {
            "image": merged(sorted(reports.glob("*_cve.json")), said),
            "summary": merged([Path(line) for line in index.read_text().splitlines()] if index.exists() else [], said),
            "log": merged([log] if log.exists() else [], said),
            "text": text.read_text() if text.exists() else "",
            "errors": list(said),
            "files": sorted(path.name for path in reports.glob("*")),
        }

    known = bb(said)
    known.build = SimpleNamespace(exec_func=report, deltask=lambda name, d: None)
    known.utils = SimpleNamespace(mkdirhier=lambda path: os.makedirs(path, exist_ok=True), remove=remove)
    text = (LAYER / "classes/copal_sbom.bbclass").read_text(encoding="utf-8")
    made, layer = functions(text, {"bb": known, "os": os}), Data({})
    read(text, layer)
    d = Data(
        {
            "PN": "copal",
            "PV": "0.1.0",
            "T": str(folder / "temp"),
            "SRC_URI": "file:///archive",
            "CVE_PRODUCT": "copal",
            "CVE_VERSION": "0.1.0",
            "COPAL_SBOM": str(bill),
            "SPDXDEPLOY": str(deploy),
            "CVE_CHECK_RECIPE_FILE_JSON": str(reports) + "/${PN}_cve.json",
            "CVE_CHECK_RECIPE_FILE": str(reports) + "/${PN}",
            "CVE_CHECK_LOG": "${T}/cve.log",
            "CVE_CHECK_LOG_JSON": "${T}/cve.json",
            "CVE_CHECK_SUMMARY_DIR": str(folder / "log/cve"),
            "CVE_CHECK_SUMMARY_INDEX_PATH": "${CVE_CHECK_SUMMARY_DIR}/cve-summary-index.txt",
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
    answers["builds"] = [build(d)]
    silent[:] = ["copal"]
    answers["builds"].append(build(d))
    silent[:] = ["all"]
    answers["builds"].append(build(d))
    silent[:] = ["copal"]
    d.setVar("CVE_CHECK_SKIP_RECIPE", "other copal")
    answers["builds"].append(build(d))
    for function in made["anonymous"]:
        function(d)
    answers["depends"] = {name: of["depends"] for name, of in d.flags.items() if "depends" in of}
    return answers


def merged(files: list[Path], errors: list[str]) -> list[Any]:
    """As `oe.cve_check.cve_check_merge_jsons`, by which images and summaries take reports: of each the first package, and none twice."""
    output: list[Any] = []
    for file in files:
        package = json.loads(file.read_text())["package"][0]
        if any(one["name"] == package["name"] for one in output):
            errors.append(f"Error adding the same package {package['name']} twice")
        else:
            output.append(package)
    return output


def remove(path: str, recurse: bool = False) -> None:
    """As `bb.utils.remove`: what is not there is no error."""
    if recurse:
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)


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
