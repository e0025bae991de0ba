# HOSTAPP_HOOKS says which hooks there are, as ever. The recipe installs its own; those that are a part of copal then become small shell
# files that run it, also where they were installed under another name. A hook that comes from a board's layer is left alone, whatever its
# name is.
inherit copal_replace copal_update_conf

# Hooks of this recipe that stay the shell files they are, as a board patches them.
COPAL_KEEP_HOOKS ?= ""
# Hooks of copal that the board wants beside those of HOSTAPP_HOOKS.
COPAL_HOOKS ?= ""
# The board's own hook that selects the root for the bootloader, where it is none of COPAL_ROOT_HOOKS; "none" for an image that is never
# updated.
COPAL_ROOT_HOOK ?= ""
COPAL_ROOT_HOOKS = "99-balena-bootloader 99-resin-grub 99-resin-uboot"
# A file in SRC_URI that lists the board's bootloaders: it becomes /etc/copal/bootloaders.conf, and the hook 99-flash-bootloader writes them.
COPAL_BOOTLOADERS_CONF ?= ""

COPAL_CONTENTS = "\
    hostapp-update-hooks \
    optional:uboot \
    optional:grub \
    optional:balena-bootloader \
    optional:flash-bootloader \
    optional:os-blocks-extensions \
    optional:secure-boot \
    optional:rpifiles \
    optional:imxfiles \
"

SRC_URI:append = " ${@'file://' + d.getVar('COPAL_BOOTLOADERS_CONF') if d.getVar('COPAL_BOOTLOADERS_CONF') else ''}"

FILES:${PN} += "${sysconfdir}/copal"

RDEPENDS:${PN}:append:class-target = " copal copal-unlock-mark"

do_install[prefuncs] =+ "copal_check_kept"
do_install[postfuncs] += "copal_put_hooks"
do_install[postfuncs] += "copal_add_hooks"
do_install[postfuncs] += "copal_check_root_hook"
do_install[postfuncs] += "copal_check_own_update_conf"

def copal_hooks(d):
    """The hooks that copal has: path on the device and source in the archive by name."""
    folder = d.getVar("COPAL_HOOK_FOLDER")
    return {name: (path, source) for name, path, source in copal_replaced(d) if path.startswith(folder)}

# A misspelt one would be replaced all the same.
python copal_check_kept() {
    hooks = copal_hooks(d)
    for name in copal_kept(d):
        if name not in hooks:
            bb.fatal("COPAL_KEEP_HOOKS: copal replaces no hook %s; it replaces %s" % (name, ", ".join(sorted(hooks))))
}

def copal_write_hook(d, place, source):
    """A hook of the archive, filled in as the recipe does with its own."""
    with open(place, "w", encoding="utf-8") as file:
        file.write(copal_filled(d, copal_text(os.path.join(d.getVar("COPAL_ARCHIVE"), source))))
    os.chmod(place, 0o755)

# After copal_check_installed, which has looked at what was there.
python copal_put_hooks() {
    top, sources, kept, ours = d.expand("${D}${COPAL_HOOK_FOLDER}"), copal_sources(d), copal_kept(d), {}
    for name, (path, source) in copal_hooks(d).items():
        if name not in kept and copal_own(d, sources.get(name, "")):
            text = copal_text(sources[name])
            ours[text] = ours[copal_filled(d, text)] = source
    for folder, folders, files in os.walk(top):
        for place in (os.path.join(folder, file) for file in files):
            name = os.path.relpath(place, top)
            if name in kept or os.path.islink(place):
                continue
            if name in sources and not copal_own(d, sources[name]):
                bb.note("%s is the board's own: %s" % (name, sources[name]))
            elif copal_text(place) in ours:
                copal_write_hook(d, place, ours[copal_text(place)])
}

python copal_add_hooks() {
    import shutil

    # The first one is for every board: meta-balena has no such hook, and its HOSTAPP_HOOKS does not name it.
    names, conf = ["0-carry-boot"] + d.getVar("COPAL_HOOKS").split(), d.getVar("COPAL_BOOTLOADERS_CONF")
    if conf:
        names.append("99-flash-bootloader")
        place = d.expand("${D}${sysconfdir}/copal/bootloaders.conf")
        bb.utils.mkdirhier(os.path.dirname(place))
        shutil.copyfile(os.path.join(d.getVar("COPAL_UNPACKED"), conf), place)
        os.chmod(place, 0o644)
    known = copal_hooks(d)
    for name in names:
        if name not in known:
            bb.fatal("COPAL_HOOKS: copal has no hook %s; it has %s" % (name, ", ".join(sorted(known))))
        place = d.getVar("D") + known[name][0]
        if name in d.getVar("HOSTAPP_HOOKS").split():
            bb.fatal("%s is wanted from copal, but HOSTAPP_HOOKS has the board's own: remove it there" % name)
        bb.utils.mkdirhier(os.path.dirname(place))
        copal_write_hook(d, place, known[name][1])
}

# Of what is installed, by whatever way. Without such a hook each update is undone; with two, the files of one bootloader hide those of
# the other, and the device may count the attempts of the wrong one.
python copal_check_root_hook() {
    folder, known, own = d.expand("${D}${COPAL_HOOK_FOLDER}"), d.getVar("COPAL_ROOT_HOOKS").split(), d.getVar("COPAL_ROOT_HOOK")
    if own and own != "none" and not os.path.isfile(folder + own):
        bb.fatal("COPAL_ROOT_HOOK: there is no hook %s in %s" % (own, d.getVar("COPAL_HOOK_FOLDER")))
    found = [name for name in known if os.path.isfile(folder + name)]
    if own or len(found) == 1:
        return
    if found:
        bb.fatal("%s select the root for different bootloaders: keep the one of this machine, and take the other away with "
                 "HOSTAPP_HOOKS:remove. Or COPAL_ROOT_HOOK names the one that counts." % " and ".join(found))
    bb.fatal("no hook selects the root for the bootloader, and copal would undo every update: add the one of this machine to "
             "HOSTAPP_HOOKS (%s), or name the board's own hook that does it in COPAL_ROOT_HOOK. COPAL_ROOT_HOOK = \"none\" is for an "
             "image that is never updated." % ", ".join(known))
}
