# For appends to recipes of meta-balena: everything the recipe does stays, its variables, checks, dependencies and appends of boards;
# afterwards links to copal, units and shell files take the place of the scripts. All from copal-native, which has them out of the
# release archive: the package itself stays one for all architectures.
inherit copal_contents copal_upstream

COPAL_ARCHIVE = "${STAGING_DATADIR_NATIVE}/copal"
COPAL_UNPACKED = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"

DEPENDS:append = " copal-native"

do_install[prefuncs] += "copal_check_sources"
do_install[postfuncs] += "copal_check_installed"
do_install[postfuncs] += "copal_delete_taken"
do_install[postfuncs] += "copal_install_contents"

# In whose place what is done today, for boards that changed a script.
COPAL_INSTEAD[resin-init-flasher] = "to power off or reboot in a way of its own, the board installs /usr/libexec/os-helpers-power with the functions os_helpers_shutdown and os_helpers_reboot; everything else belongs into /usr/bin/resin-init-board or /usr/bin/resin-init-flasher-board (docs/board-programs.md)"
COPAL_INSTEAD[hostapp-update] = "what is to happen in an update is a hook in /etc/hostapp-update-hooks.d, added by HOSTAPP_HOOKS (docs/hooks.md)"
COPAL_INSTEAD[hostapp-update-hooks] = "what is to happen before or after other hooks is a hook of its own, added by HOSTAPP_HOOKS (docs/hooks.md)"
COPAL_INSTEAD[1-bootfiles] = "files that are not to be deployed are named by BALENA_BOOTFILES_BLACKLIST, or by a shell function do_skip in /usr/sbin/balena-config-vars (docs/hooks-bootfiles.md)"
COPAL_INSTEAD[99-resin-uboot] = "copal writes the boot selection without help of other programs, on kernels back to 4.4; what else the bootloader needs is a hook of its own, added by HOSTAPP_HOOKS (docs/boot-selection.md)"
COPAL_INSTEAD[rollback-health] = "rounds and their distance are set in /etc/copal/rollback.conf, checks of the board are executables in /etc/copal/health.d (docs/health-checks.md)"
COPAL_INSTEAD[rollback-tests] = "checks of the board are executables in /etc/copal/health.d (docs/health-checks.md)"
COPAL_INSTEAD[safe_reboot] = "to reboot in a way of its own, the board installs /usr/libexec/os-helpers-power with the function os_helpers_reboot (docs/board-programs.md)"
COPAL_INSTEAD[service] = "settings of a unit are changed by a file in /etc/systemd/system/UNIT.d"
COPAL_INSTEAD[balena-init-flasher-efi] = "COPAL_KEEP_SECUREBOOT set to 1 leaves secure boot to both plug-ins, as the board changes them (docs/secure-boot.md)"
COPAL_INSTEAD[balena-init-flasher-tpm] = "COPAL_KEEP_SECUREBOOT set to 1 leaves secure boot to both plug-ins, as the board changes them (docs/secure-boot.md)"
COPAL_INSTEAD[cryptsetup-efi-tpm] = "COPAL_KEEP_UNLOCK set to 1 leaves unlocking to the script, as the board changes it (docs/secure-boot.md)"
COPAL_INSTEAD[hook] = "what else is to be done is a hook of its own, added by HOSTAPP_HOOKS (docs/hooks.md)"
COPAL_INSTEAD[other] = "docs/yocto.md says how the package works now"

# What the recipe, or a board, installs under another name than its source has.
COPAL_ORIGIN[hostapp-update-hooks-v2] = "hostapp-update-hooks"
COPAL_ORIGIN[2-rpifiles] = "1-bootfiles"
COPAL_ORIGIN[2-imxfiles] = "1-bootfiles"

# Sources that the recipe installs under another name, and copal under the same as the recipe.
COPAL_NAME[72-cryptsetup] = "cryptsetup-efi-tpm"

# Files of the recipe for which copal installs nothing: the program does what they did. NAME:PATH, as of the source and on the device.
COPAL_TAKEN ?= ""

def copal_taken(d):
    """Their names and paths."""
    return [row.partition(":")[::2] for row in (d.getVar("COPAL_TAKEN") or "").split()]

def copal_name(d, path):
    """Under which name the recipe's sources have what is at a path of the device: hooks with their folder."""
    folder, base = d.getVar("COPAL_HOOK_FOLDER"), os.path.basename(path)
    return path[len(folder):] if path.startswith(folder) else d.getVarFlag("COPAL_NAME", base) or base

def copal_replaced(d):
    """The sources of this recipe that copal replaces: name, path on the device, source in the archive, if there is one."""
    rows = [(copal_name(d, path), path, source) for kind, mode, path, source in copal_rows(d) if kind != "enable"]
    return rows + [(name, path, None) for name, path in copal_taken(d)]

def copal_stop(d, name, what, more=""):
    """Ends the build: nothing that a board wants may be lost in silence."""
    base = os.path.basename(name)
    kinds = [base, base.rpartition(".")[2], "hook" if d.getVar("BPN") == "hostapp-update-hooks" else "other", "other"]
    instead = next(filter(None, (d.getVarFlag("COPAL_INSTEAD", kind) for kind in kinds)))
    keep = ""
    if d.getVar("BPN") == "hostapp-update-hooks" and not base.startswith("hostapp-update-hooks"):
        keep = ' Or the shell hook goes on being used, as the board changes it: COPAL_KEEP_HOOKS += "%s".' % name
    bb.fatal("%s: %s, but %s is a part of copal now, and the change would have no effect. Instead: %s.%s%s"
             % (d.getVar("PN"), what, name, instead, keep, more))

def copal_warn(d, what):
    """A warning in every build: what is not in the parse cache is parsed by each. Tasks, which read the recipe again, do not repeat it."""
    if not d.getVar("BB_WORKERCONTEXT"):
        d.setVar("BB_DONT_CACHE", "1")
        bb.warn("%s: %s" % (d.getVar("PN"), what))

def copal_own(d, found):
    """Whether a file comes out of the layer that the recipe itself is in, or out of meta-balena where that appends to a recipe of the core
    layer; not out of a board's."""
    import re

    layer = d.getVar("FILE").rpartition("/recipes-")[0]
    return found.startswith(layer + "/") or bool(re.match(d.getVar("BBFILE_PATTERN_balena-common"), found))

# Where layers lie makes no difference to what is built.
copal_own[vardepsexclude] += "BBFILE_PATTERN_balena-common"

def copal_kept(d):
    """The hooks that stay as they are."""
    return (d.getVar("COPAL_KEEP_HOOKS") or "").split()

def copal_patched(d):
    """The names that patches in SRC_URI change, with the patch."""
    import re
    import oe.patch

    names = []
    for url in oe.patch.src_patches(d):
        patch = bb.fetch.decodeurl(url)[2]
        with open(patch, encoding="utf-8", errors="replace") as file:
            for name in re.findall(r"^(?:---|\+\+\+) ([^\t\n ]+)", file.read(), re.MULTILINE):
                names.append((name, patch))
    return names

python copal_check_sources() {
    sources, patched = copal_sources(d), copal_patched(d)
    for name, path, source in copal_replaced(d):
        if name in copal_kept(d):
            continue
        for changed, patch in patched:
            if ("/" + changed).endswith("/" + name):
                copal_stop(d, name, "%s changes %s" % (patch, name))
        found, hook = sources.get(name), path.startswith(d.getVar("COPAL_HOOK_FOLDER"))
        if found and copal_own(d, found):
            copal_check_upstream(d, name, found)
        # A hook of the board under one of these names is the board's; its recipe finds it in place of the usual one.
        elif found and not hook:
            copal_stop(d, name, "%s is in place of the recipe's own" % found)
        # Which hooks there are is for HOSTAPP_HOOKS to say.
        elif not hook:
            copal_check_upstream(d, name, None)
}

def copal_text(path):
    """The text of a script, whatever its bytes are."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()

def copal_filled(d, text):
    """A script or unit as the recipe installs it: with a value for each @WORD@ or @@WORD@@ that it has one for. @SYS_CONFDIR@ is sysconfdir."""
    import re

    def value(found):
        small = found[1].lower()
        return next(filter(None, map(d.getVar, (found[1], small, small.replace("_", "")))), found[0])
    return re.sub("@@?([A-Z_]+)@@?", value, text)

# With what is in the recipe's own layer, and not with what was unpacked: sed in do_install:prepend changes both.
python copal_check_installed() {
    sources, kept = copal_sources(d), copal_kept(d)
    for name, path, source in copal_replaced(d):
        origin, installed = d.getVarFlag("COPAL_ORIGIN", name) or name, copal_place(d, path)
        found, hook = sources.get(name) or sources.get(origin), path.startswith(d.getVar("COPAL_HOOK_FOLDER"))
        if name in kept or origin in kept or os.path.islink(installed) or not os.path.isfile(installed):
            continue
        # A hook of the board's own is for the board to fill in.
        if hook and not (found and copal_own(d, found)):
            continue
        if not found or copal_text(installed) != copal_filled(d, copal_text(found)):
            copal_stop(d, name, "do_install changes %s" % path,
                       " If no append changes it any more, it was left by an earlier build: bitbake -c clean %s." % d.getVar("PN"))
}

python copal_delete_taken() {
    for name, path in copal_taken(d):
        place = copal_place(d, path)
        if os.path.lexists(place):
            os.unlink(place)
}
