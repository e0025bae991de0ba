# The same program, compiled by the distribution's own Rust: wrynose has one that is new enough. Chosen by
# PREFERRED_VERSION_copal = "0.1.0+source"; docs/yocto.md says what differs.

# In Cargo.toml of what is compiled.
COPAL_RUST = "1.92"

python () {
    # Where the archive for a machine is missing, bitbake would take this recipe, as the only one that is left, and say nothing.
    from bb.providers import versionVariableMatch

    name = d.getVar("PN")
    if "+" not in (versionVariableMatch(d, "REQUIRED", name) or versionVariableMatch(d, "PREFERRED", name) or ""):
        raise bb.parse.SkipRecipe('it compiles copal only where the configuration has PREFERRED_VERSION_%s = "%s"' % (name, d.getVar("PV")))
    # "1.94.1%" or "1.94.1"; a distribution with a Rust of its own sets it too.
    have = (d.getVar("RUSTVERSION") or "0").rstrip("%.")
    if bb.utils.vercmp_string_op(have, d.getVar("COPAL_RUST"), "<"):
        raise bb.parse.SkipRecipe("copal needs Rust %s to be compiled, and this is %s" % (d.getVar("COPAL_RUST"), have))
}

require copal.inc

# The program is static (see below), so that the C library is a part of it.
LICENSE:append:libc-glibc = " & LGPL-2.1-or-later"
DEFAULT_PREFERENCE = "-1"
CVE_VERSION = "${COPAL_VERSION}"

COPAL_VERSION = "${@d.getVar('PV').partition('+')[0]}"
COPAL_ARCHIVE_KIND = "source"
COPAL_LICENSES = "scripts/licenses"

SRC_URI = "${COPAL_SOURCES}"
# Written from Cargo.lock, and compared with it, by tests/release/recipe.rs.
require copal-crates.inc

S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/copal-${COPAL_VERSION}"

inherit cargo

# A system that updates starts this program in the new root, before that root's own C library is in its place: it has to be static.
RUSTFLAGS:append = " -C target-feature=+crt-static -C relocation-model=static"

# Symbols are for the package of debug symbols; what the device gets is stripped by the build system.
export CARGO_PROFILE_RELEASE_STRIP = "false"

# Targets of Yocto's own names are taken to have no static C library, unless they say so.
python copal_static_target() {
    import json

    path = os.path.join(d.getVar("RUST_TARGETS_DIR"), d.getVar("RUST_HOST_SYS") + ".json")
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    spec["crt-static-respected"] = True
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file, indent=4)
}
do_rust_gen_targets[postfuncs] += "copal_static_target"

# From here on S looks like an unpacked release.
do_compile:append() {
    install -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/copal ${S}/copal
    cp ${S}/scripts/contents.tsv ${S}/contents
}

python copal_check_static() {
    import oe.qa

    program = oe.qa.ELFFile(d.expand("${S}/copal"))
    program.open()
    # It names a dynamic loader.
    if program.isDynamic():
        bb.fatal("copal was linked to a shared C library, and would not start in a system that has another one: the C library of this "
                 "distribution has to bring libc.a")
}
do_compile[postfuncs] += "copal_check_static"
