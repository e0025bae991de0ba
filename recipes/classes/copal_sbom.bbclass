# What is linked into the program, out of the release's bill of materials (CycloneDX), for what a build knows of bills and vulnerabilities:
# - the file itself, beside the images;
# - meta-cyclonedx: in the bill of the image;
# - create-spdx 2.2 and 3.0: in the document of the package, and so of the image;
# - cve-check and vex: in the reports of the recipe, and so of the image.
# A recipe that compiles the program does not need this: its crates are in SRC_URI.
inherit deploy

COPAL_SBOM = "${S}/sbom.cdx.json"
CYCLONEDX_EXTRA_BOM_FILES:append:class-target = " ${COPAL_SBOM}"

do_deploy() {
    install -m 0644 ${COPAL_SBOM} ${DEPLOYDIR}/copal-${PV}-${COPAL_ARCHIVE_KIND}.cdx.json
}
do_deploy[noexec:class-native] = "1"
addtask deploy after do_unpack before do_build

do_create_spdx[postfuncs] += "copal_spdx"
do_cve_check[postfuncs] += "copal_cve_check"
do_generate_vex[postfuncs] += "copal_vex"

# They may run where everything else comes out of a cache.
python () {
    for task in ("do_create_spdx", "do_cve_check", "do_generate_vex", "do_populate_cyclonedx"):
        if d.getVarFlag(task, "task"):
            d.appendVarFlag(task, "depends", " %s:do_unpack" % d.getVar("PN"))
}
