SUMMARY = "On-device flasher and host OS update agent for balenaOS"
DESCRIPTION = "Writes balenaOS to the internal disk of a device, proves that it is there, and updates it so that at every instant a complete system is selected"
HOMEPAGE = "https://github.com/balena-os/meta-balena"
BUGTRACKER = "https://github.com/balena-os/meta-balena/issues"
SECTION = "console/utils"
CVE_PRODUCT = "copal"
# Its own, and those of what is linked into it.
LICENSE = "Apache-2.0 & MIT & Zlib"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

# Installed as it was released: the Rust of these branches is years older than the one it is written for. Not pinned: nothing of it
# is built here. COPAL_ARCHIVES is a folder (file:///...) or a server (https://...) with archives.
COPAL_ARCHIVE_NAME = "copal-${PV}-${@copal_target(d)}"
SRC_URI = "${COPAL_ARCHIVES}/${COPAL_ARCHIVE_NAME}.tar.zst;name=archive"
SRC_URI[archive.sha256sum] = "${@d.getVarFlag('COPAL_SHA256', copal_target(d)) or ''}"

S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${COPAL_ARCHIVE_NAME}"

inherit copal_contents systemd

# The digests of the release, COPAL_SHA256[TARGET]; they may be set in a configuration instead.
# Not in git: `recipes/pin` writes it.
# nooelint: oelint.file.requireinclude
include copal-sha256.inc

COMPATIBLE_HOST = "(x86_64|aarch64|arm).*-linux.*"

COPAL_CONTENTS = "copal optional:udev optional:fatrw"
COPAL_CONTENTS:class-native = "copal"

# The one unit of this package is started by the bus: there is none to enable.
SYSTEMD_PACKAGES = ""

# No compiler, no C library: a static program comes as it is, stripped already.
INHIBIT_DEFAULT_DEPS = "1"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
INHIBIT_SYSROOT_STRIP = "1"
# nooelint: oelint.vars.insaneskip
INSANE_SKIP:${PN} = "already-stripped"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_fetch[prefuncs] += "copal_check_archive"
do_unpack[prefuncs] += "copal_check_sum"
do_install[postfuncs] += "copal_install_contents"

def copal_target(d):
    """The release's name for the machine that the package is for; HOST_ARCH of a native recipe is that of the build host."""
    return {
        "x86_64": "x86_64-unknown-linux-musl",
        "aarch64": "aarch64-unknown-linux-musl",
        "arm": "armv7-unknown-linux-musleabihf",
    }.get(d.getVar("HOST_ARCH"), "none")

python () {
    old = [feature for feature in (d.getVar("TUNE_FEATURES") or "").split() if feature.startswith(("armv4", "armv5", "armv6"))]
    if d.getVar("HOST_ARCH") == "arm" and old:
        raise bb.parse.SkipRecipe("copal is released for ARMv7 and later, and this machine is %s" % old[0])
}

python copal_check_archive() {
    url = d.getVar("SRC_URI").split()[0]
    path = bb.fetch.decodeurl(url)[2]
    if url.startswith("file:") and not os.path.exists(path):
        bb.fatal("there is no %s: make it with `./dev release` in copal's checkout, or set COPAL_ARCHIVES to the folder or server "
                 "that has it" % path)
}

# The fetcher compares digests of what it downloads, and not those of files that are there.
python copal_check_sum() {
    target, path = copal_target(d), bb.fetch2.localpath(d.getVar("SRC_URI").split()[0], d)
    wanted, found = d.getVarFlag("COPAL_SHA256", target) or "", bb.utils.sha256_file(path)
    if not wanted:
        bb.fatal("no digest is known for %s: take it from the release's SHA256SUMS with `recipes/pin`, or set "
                 "COPAL_SHA256[%s]" % (path, target))
    if wanted.lower() != found:
        bb.fatal("%s has the SHA-256 digest %s, and COPAL_SHA256[%s] is %s: it is not the archive of this release"
                 % (path, found, target, wanted))
}

do_install() {
    install -d ${D}${bindir}
}

# What other recipes install from.
do_install:append:class-native() {
    install -d ${D}${datadir}/copal
    cp -R --no-preserve=ownership ${S}/contents ${S}/hooks ${S}/systemd ${S}/man ${D}${datadir}/copal
}

PACKAGES =+ "${PN}-completions"
FILES:${PN} += "\
    ${nonarch_libdir}/udev \
    ${nonarch_libdir}/systemd/catalog \
    ${systemd_unitdir} \
    ${datadir}/dbus-1 \
"
FILES:${PN}-completions += "\
    ${datadir}/bash-completion \
    ${datadir}/fish \
    ${datadir}/zsh \
"

# fatrw and udev's rule for the roots are no packages of their own with copal.
RPROVIDES:${PN} += "fatrw"
RREPLACES:${PN} += "fatrw"
RCONFLICTS:${PN} += "fatrw"

# For what runs on the device, and for the machine that builds: images are made with the same program.
BBCLASSEXTEND = "native"
