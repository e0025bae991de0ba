# The program as it was released: the Rust of kirkstone and scarthgap is years older than the one that it needs. Nothing is compiled here.
require copal.inc

COPAL_VERSION = "${PV}"
COPAL_ARCHIVE_KIND = "${@d.getVarFlag('COPAL_TARGETS', d.getVar('HOST_ARCH')) or 'none'}"
COPAL_LICENSES = "licenses"
# This one, of the two recipes, reports that a machine gets no copal.
COPAL_REPORTS = "1"

SRC_URI = "${COPAL_SOURCES}"
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/copal-${PV}-${COPAL_ARCHIVE_KIND}"

inherit copal_sbom

# No compiler, no C library: a static program comes as it is, stripped already.
INHIBIT_DEFAULT_DEPS = "1"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
INHIBIT_SYSROOT_STRIP = "1"
# nooelint: oelint.vars.insaneskip
INSANE_SKIP:${PN}-bin = "already-stripped"

do_configure[noexec] = "1"
do_compile[noexec] = "1"
