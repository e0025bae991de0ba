# What is linked into the program, out of the release's bill of materials (CycloneDX), for what a build knows of bills and vulnerabilities:
# - the file itself, beside the images;
# - meta-cyclonedx, whose bill of the image takes it in;
# - create-spdx, 2.2 and 3.0: in the document of the package, and so of the image;
# - cve-check and vex: in the report of the recipe, and so of the image.
# A recipe that compiles the program does without: its crates are in SRC_URI.
inherit deploy

COPAL_SBOM = "${S}/sbom.cdx.json"
CYCLONEDX_EXTRA_BOM_FILES:append = " ${COPAL_SBOM}"

do_deploy() {
    install -m 0644 ${COPAL_SBOM} ${DEPLOYDIR}/copal-${PV}-${COPAL_ARCHIVE_KIND}.cdx.json
}
addtask deploy after do_unpack before do_build

do_create_spdx[postfuncs] += "copal_spdx"
do_cve_check[postfuncs] += "copal_cve_check"
do_generate_vex[postfuncs] += "copal_vex"

python () {
    if bb.data.inherits_class("native", d):
        bb.build.deltask("do_deploy", d)
    # They read the unpacked archive also where everything before them comes out of a cache.
    for task in ("do_create_spdx", "do_cve_check", "do_generate_vex", "do_populate_cyclonedx"):
        if d.getVarFlag(task, "task"):
            d.appendVarFlag(task, "depends", " %s:do_unpack" % d.getVar("PN"))
}

def copal_parts(d):
    """What is linked in: name, version, package URL, licence, digest, and the names that a database of vulnerabilities may have for it."""
    import json

    with open(d.getVar("COPAL_SBOM"), encoding="utf-8") as file:
        bill = json.load(file)
    parts = []
    for part in bill["components"]:
        name, links = part["name"], [link["url"] for link in part.get("externalReferences", [])]
        # The database of NIST has a vendor and a product. For crates the vendor is mostly the crate's name, with or without "_project",
        # or the owner of its repository. The product alone would also be GNU's tar.
        if "cpe" in part:
            vendors = {part["cpe"].split(":")[3]}
        else:
            vendors = {name, name + "_project", "rust-lang"}
            vendors.update(link.split("/")[3] for link in links if link.count("/") > 3)
        sums = {known["alg"]: known["content"] for known in part.get("hashes", [])}
        parts.append({
            "name": name, "version": part["version"], "purl": part["purl"], "licence": part["licenses"][0]["expression"],
            "sha256": sums.get("SHA-256"), "products": ["%s:%s" % (vendor.lower(), name) for vendor in sorted(vendors)],
        })
    return parts

def copal_cpes(part):
    """The same names as CPE 2.3."""
    return ["cpe:2.3:a:%s:%s:*:*:*:*:*:*:*" % (product, part["version"].replace("+", "\\+")) for product in part["products"]]

def copal_add_spdx2(document, package, parts):
    """Adds what is linked in to a package's document of SPDX 2.2."""
    for part in parts:
        ident = "SPDXRef-Linked-%s-%s" % (part["name"].replace("_", "-"), part["version"].replace("+", "-"))
        refs = [("PACKAGE_MANAGER", "purl", part["purl"])]
        refs += [("SECURITY", "http://spdx.org/rdf/references/cpe23Type", cpe) for cpe in copal_cpes(part)]
        document["packages"].append({
            "SPDXID": ident, "name": part["name"], "versionInfo": part["version"],
            "licenseDeclared": part["licence"], "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "checksums": [{"algorithm": "SHA256", "checksumValue": part["sha256"]}] if part["sha256"] else [],
            "externalRefs": [{"referenceCategory": category, "referenceType": kind, "referenceLocator": locator}
                             for category, kind, locator in refs],
        })
        document["relationships"].append({
            "spdxElementId": package["SPDXID"], "relationshipType": "STATIC_LINK", "relatedSpdxElement": ident})

def copal_add_spdx3(graph, package, parts):
    """Adds what is linked in to a package's document of SPDX 3.0."""
    def add(kind, suffix, **values):
        """An element beside the package, whose name and aliases begin with those of the package."""
        extensions = [{key: value if key == "type" else value + suffix for key, value in extension.items()}
                      for extension in package.get("extension", [])]
        graph.append({"type": kind, "spdxId": package["spdxId"] + suffix, "creationInfo": package["creationInfo"],
                      **({"extension": extensions} if extensions else {}), **values})
        return package["spdxId"] + suffix

    licences = {}
    linked = []
    for part in parts:
        identifiers = [("packageUrl", part["purl"])] + [("cpe23", cpe) for cpe in copal_cpes(part)]
        if part["sha256"]:
            sums = {"verifiedUsing": [{"type": "Hash", "algorithm": "sha256", "hashValue": part["sha256"]}]}
        else:
            sums = {}
        suffix = "/linked/%s/%s" % (part["name"], part["version"])
        ident = add(
            "software_Package", suffix, name=part["name"], software_packageVersion=part["version"], software_packageUrl=part["purl"],
            # What is checked for vulnerabilities is packages to be installed, which it is not, and specifications, as recipes are.
            software_primaryPurpose="specification", software_additionalPurpose=["library"], **sums,
            externalIdentifier=[{"type": "ExternalIdentifier", "externalIdentifierType": kind, "identifier": text}
                                for kind, text in identifiers])
        linked.append(ident)
        licences.setdefault(part["licence"], []).append((suffix, ident))
    relation = {"from": package["spdxId"], "relationshipType": "hasStaticLink", "to": linked}
    add("Relationship", "/linked/relationship", **relation)
    for number, (licence, under) in enumerate(sorted(licences.items())):
        text = add("simplelicensing_LicenseExpression", "/linked/license/%d" % number, simplelicensing_licenseExpression=licence)
        for suffix, ident in under:
            relation = {"from": ident, "relationshipType": "hasDeclaredLicense", "to": [text]}
            add("Relationship", suffix + "/license", **relation)

# Adds to the document of the package, as the task has just written it. Documents that name it by its digest are written later.
python copal_spdx() {
    import json

    if bb.data.inherits_class("native", d):
        return
    # The package that has the program.
    name, done = d.getVar("PN") + "-bin", 0
    for folder, folders, files in os.walk(d.getVar("SPDXDEPLOY")):
        for file in files:
            path = os.path.join(folder, file)
            if (os.path.basename(folder), file) not in (("packages", name + ".spdx.json"), ("packages-staging", "package-%s.spdx.json" % name)):
                continue
            with open(path, encoding="utf-8") as opened:
                document = json.load(opened)
            if "@graph" in document:
                package = next(part for part in document["@graph"] if part.get("type") == "software_Package" and part["name"] == name)
                copal_add_spdx3(document["@graph"], package, copal_parts(d))
            else:
                package = next(part for part in document["packages"] if part["name"] == name)
                copal_add_spdx2(document, package, copal_parts(d))
            with open(path, "w", encoding="utf-8") as opened:
                json.dump(document, opened, sort_keys=True)
            done += 1
    if done != 1:
        bb.fatal("%d SPDX documents of the package %s below %s, and not one: they are kept in another way by this create-spdx"
                 % (done, name, d.getVar("SPDXDEPLOY")))
}

def copal_reports(d):
    """The files with the report of this recipe: the text, and each copy of the JSON."""
    copies = [d.getVar("CVE_CHECK_LOG_JSON")]
    if d.getVar("CVE_CHECK_COPY_FILES") != "0":
        copies.append(d.getVar("CVE_CHECK_RECIPE_FILE_JSON"))
    if d.getVar("CVE_CHECK_CREATE_MANIFEST") != "0":
        copies.append(os.path.join(d.getVar("CVE_CHECK_SUMMARY_DIR"), os.path.basename(d.getVar("CVE_CHECK_RECIPE_FILE_JSON"))))
    return d.getVar("CVE_CHECK_RECIPE_FILE"), [copy for copy in copies if copy]

# A task that finds nothing to report leaves what the last build wrote.
python copal_forget_report() {
    text, copies = copal_reports(d)
    for path in [text, d.getVar("CVE_CHECK_RECIPE_FILE_JSON"), d.getVar("CVE_CHECK_LOG"), *copies]:
        if path:
            bb.utils.remove(path)
    bb.utils.remove(d.expand("${T}/copal-parts"), recurse=True)
}
do_cve_check[prefuncs] += "copal_forget_report"
do_generate_vex[prefuncs] += "copal_forget_report"

def copal_read(path):
    """The text of a file, empty where there is none."""
    if not path or not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()

def copal_fold(entry, known, part, made):
    """Adds what is reported of a part to the entry of the recipe. Each line says which part it is about, since the version is the recipe's."""
    name = "%s@%s" % (part["name"], part["version"])
    listed = any(product["cvesInRecord"] == "Yes" for product in made["products"])
    entry["products"].append({"product": name, "cvesInRecord": "Yes" if listed else "No"})
    if "cpes" in made:
        entry["cpes"] = entry.get("cpes", []) + made["cpes"]
    for issue in made["issue"]:
        # What the recipe says about an issue, by CVE_STATUS, some tasks report for each product.
        if issue["id"] not in known:
            summary = {"summary": "%s: %s" % (name, issue["summary"])} if "summary" in issue else {}
            entry["issue"].append({**issue, **summary, "product": name})

def copal_report(d, task):
    """Lets a task make its report for each part, and adds them to that of the recipe, as parts of its one package: images, and the summary
    of a build, take the first package of each report."""
    import json

    name = d.getVar("PN")
    if name in (d.getVar("CVE_CHECK_SKIP_RECIPE") or "").split():
        return
    text, copies = copal_reports(d)
    report = next(filter(None, map(copal_read, copies)), None)
    report = json.loads(report) if report else None
    known = {issue["id"] for issue in report["package"][0]["issue"]} if report else set()
    texts = [copal_read(text)]
    for part in copal_parts(d):
        one = d.createCopy()
        for variable in ("T", "WORKDIR", "S", "B"):
            one.setVar(variable, d.getVar(variable))
        # Apart from those of recipes: builds and images take each report that is there.
        folder = d.expand("${T}/copal-parts/") + part["name"]
        bb.utils.mkdirhier(folder)
        for variable, file in (("CVE_CHECK_RECIPE_FILE_JSON", "made.json"), ("CVE_CHECK_RECIPE_FILE", "made"), ("CVE_CHECK_LOG", "cve.log"),
                               ("CVE_CHECK_LOG_JSON", "cve.json"), ("CVE_CHECK_SUMMARY_DIR", "summary"),
                               ("CVE_CHECK_SUMMARY_INDEX_PATH", "summary/index")):
            one.setVar(variable, os.path.join(folder, file))
        one.setVar("CVE_CHECK_COPY_FILES", "1")
        one.setVar("PN", "%s+%s" % (name, part["name"]))
        one.setVar("PV", part["version"])
        one.setVar("CVE_PRODUCT", " ".join(part["products"]))
        one.setVar("CVE_VERSION", part["version"])
        # Whose patches would be searched.
        one.setVar("SRC_URI", "")
        bb.build.exec_func(task, one)
        texts.append(copal_read(os.path.join(folder, "made")))
        made = copal_read(os.path.join(folder, "made.json"))
        if not made:
            continue
        made = json.loads(made)
        if not report:
            # Of the recipe itself there is nothing to report.
            package = {**made["package"][0], "name": name, "version": d.expand("${EXTENDPE}${PV}"), "products": [], "issue": []}
            package.pop("cpes", None)
            report = {**made, "package": [package]}
            if d.getVar("CVE_CHECK_CREATE_MANIFEST") != "0":
                bb.utils.mkdirhier(d.getVar("CVE_CHECK_SUMMARY_DIR"))
                with open(d.getVar("CVE_CHECK_SUMMARY_INDEX_PATH"), "a", encoding="utf-8") as file:
                    file.write(copies[-1] + "\n")
        copal_fold(report["package"][0], known, part, made["package"][0])
    if report:
        for copy in copies:
            bb.utils.mkdirhier(os.path.dirname(copy))
            with open(copy, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=2)
    if any(texts) and d.getVar("CVE_CHECK_COPY_FILES") != "0":
        bb.utils.mkdirhier(os.path.dirname(text))
        with open(text, "w", encoding="utf-8") as file:
            file.write("".join(texts))

python copal_cve_check() {
    copal_report(d, "do_cve_check")
}

python copal_vex() {
    copal_report(d, "do_generate_vex")
}
