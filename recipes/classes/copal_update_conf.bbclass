# /etc/copal/update.conf out of the board's variables, with the checks that make a mistake stop the build and not an update. It comes with
# copal: both the system that is updated and the one of an installation medium have it.

# Board layers set them for a machine.
COPAL_UPDATE_VARIABLES = "\
    COPAL_ALWAYS_READ_SLOT \
    COPAL_DEVICE_TREE_KEYS \
    COPAL_DEVICE_TREE_PLACE \
    COPAL_DEVICE_TREE_REQUIRED \
    COPAL_DEVICE_TREE_DEFAULT \
    COPAL_CARRY_BOOT \
    COPAL_ACCEPT_LOADER_KEY \
"

# Keys of update.conf, by the variable: what each word of the value may be. The program has the same.
COPAL_UPDATE_WORDS[COPAL_ALWAYS_READ_SLOT] = "A B"
COPAL_UPDATE_WORDS[COPAL_DEVICE_TREE_KEYS] = "custom_fdt_file overlay_files fdt_file fdtfile fdtofile uboot_overlay_addr FDT device_tree dtoverlay"
COPAL_UPDATE_WORDS[COPAL_DEVICE_TREE_PLACE] = "root boot-first boot"
COPAL_UPDATE_WORDS[COPAL_DEVICE_TREE_REQUIRED] = "0 1"
COPAL_UPDATE_WORDS[COPAL_ACCEPT_LOADER_KEY] = "0 1"

COPAL_UPDATE_CONF = "${D}${sysconfdir}/copal/update.conf"

def copal_update_values(d):
    """The variables that the board has set. That no setting counts is a value too."""
    values = {name: d.getVar(name) for name in d.getVar("COPAL_UPDATE_VARIABLES").split()}
    values = {name: " ".join(value.split()) for name, value in values.items() if value is not None}
    return {name: value for name, value in values.items() if value or name == "COPAL_DEVICE_TREE_KEYS"}

def copal_update_conf(d):
    """The text of the file, and what is wrong with the values."""
    import re

    lines, wrong = [], []
    for name, value in copal_update_values(d).items():
        words, known = value.split(), (d.getVarFlag("COPAL_UPDATE_WORDS", name) or "").split()
        for word in words:
            # Names of files: nothing that a shell, a bootloader or FAT takes for something else.
            if not known and (not re.fullmatch(r"[\w.+,@=-][\w.+,@=/-]*[\w.+,@=-]|[\w+,@=-]", word, re.ASCII) or ".." in word.split("/")):
                wrong.append("%s: \"%s\" is no plain path below the boot folder" % (name, word))
            elif known and word not in known:
                wrong.append("%s: \"%s\" is none of %s" % (name, word, ", ".join(known)))
        if len(words) > 1 and name not in ("COPAL_DEVICE_TREE_KEYS", "COPAL_CARRY_BOOT"):
            wrong.append("%s = \"%s\" is more than one word" % (name, value))
        lines.append('%s="%s"\n' % (name[len("COPAL_"):], value))
    return "".join(lines), wrong

python copal_check_update_conf() {
    wrong = copal_update_conf(d)[1]
    if wrong:
        bb.fatal("%s: %s. docs/integrating.md has the variables." % (d.getVar("PN"), "; ".join(wrong)))
}

# Without variables there is no file, and the board may install its own.
python copal_write_update_conf() {
    text = copal_update_conf(d)[0]
    if text:
        path = d.getVar("COPAL_UPDATE_CONF")
        bb.utils.mkdirhier(os.path.dirname(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o644)
}
# Bitbake finds the names that a function asks for by itself only where they are written out.
copal_check_update_conf[vardeps] += "${COPAL_UPDATE_VARIABLES}"
copal_write_update_conf[vardeps] += "${COPAL_UPDATE_VARIABLES}"

# For a recipe that a board installs its own file by: two packages with one file end the build of the image, and say nothing of why.
python copal_check_own_update_conf() {
    names = sorted(copal_update_values(d))
    if names and os.path.lexists(d.getVar("COPAL_UPDATE_CONF")):
        bb.fatal("%s installs an update.conf of the board's own, and the board sets %s, too: write these lines into the file, or remove "
                 "the file and set variables for all of its lines (docs/integrating.md)." % (d.getVar("PN"), ", ".join(names)))
}
copal_check_own_update_conf[vardeps] += "${COPAL_UPDATE_VARIABLES}"
