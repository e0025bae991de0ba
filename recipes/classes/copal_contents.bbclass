# Installs what the release archive has for a package, as the archive's own list `contents` says.

# Where the archive's files are, and which packages of its list this recipe takes.
COPAL_ARCHIVE ?= "${S}"
COPAL_CONTENTS ?= "${BPN}"

COPAL_HOOK_FOLDER = "${sysconfdir}/hostapp-update-hooks.d/"

def copal_rows(d):
    """The rows of the list that this recipe takes: kind, mode, path on the device, source or target."""
    name = os.path.join(d.getVar("COPAL_ARCHIVE"), "contents")
    wanted = d.getVar("COPAL_CONTENTS").split()
    rows = []
    if not wanted:
        return rows
    with open(name, encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#") and line.strip():
                package, kind, mode, path, source = line.rstrip("\n").split("\t")
                if package in wanted:
                    rows.append((kind, mode, path, source))
    if not rows:
        bb.fatal("%s has nothing for %s: the archive is of another version than this layer" % (name, " ".join(wanted)))
    return rows

# Paths as the list has them.
# nooelint: oelint.vars.pathhardcode.bindir,oelint.vars.pathhardcode.libdir
def copal_place(d, path):
    """Where a path of the list is in the build: units may be in another folder than on a system with a merged /usr."""
    for folder, variable in (("/usr/lib/systemd/system", "systemd_unitdir"), ("/usr/bin", "bindir")):
        if path.startswith(folder + "/"):
            moved = d.getVar(variable) + ("/system" if variable == "systemd_unitdir" else "")
            path = moved + path[len(folder):]
    return d.getVar("D") + path

# nooelint: oelint.vars.pathhardcode.bindir
python copal_install_contents() {
    import shutil

    native = bb.data.inherits_class("native", d)
    services = []
    for package in (d.getVar("SYSTEMD_PACKAGES") or "").split():
        services += (d.getVar("SYSTEMD_SERVICE:" + package) or "").split()
    for kind, mode, path, source in copal_rows(d):
        # On the build host programs alone. Whole ones: image builds take single files into a container.
        if native and not path.startswith("/usr/bin/"):
            continue
        if kind == "enable":
            # Left to the systemd class, which does it where the image is made.
            if os.path.basename(path) not in services:
                bb.fatal("%s: %s is to be enabled, but SYSTEMD_SERVICE has no such unit" % (d.getVar("PN"), path))
            continue
        # Which hooks there are is for the recipe's HOSTAPP_HOOKS to say.
        if path.startswith(d.getVar("COPAL_HOOK_FOLDER")):
            continue
        place = copal_place(d, path)
        bb.utils.mkdirhier(os.path.dirname(place))
        if os.path.lexists(place):
            os.unlink(place)
        if kind == "link" and native:
            shutil.copyfile(os.path.join(d.getVar("STAGING_BINDIR_NATIVE"), source), place)
            os.chmod(place, 0o755)
        elif kind == "link":
            os.symlink(source, place)
        else:
            shutil.copyfile(os.path.join(d.getVar("COPAL_ARCHIVE"), source), place)
            os.chmod(place, int(mode, 8))
}
