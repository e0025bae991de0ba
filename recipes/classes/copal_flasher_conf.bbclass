# /etc/resin-init-flasher.conf out of the board's variables, with the checks that make a mistake stop the build and not the installation.

COPAL_FLASHER_CONF = "${D}${sysconfdir}/resin-init-flasher.conf"

# Board layers set them for a machine.
COPAL_FLASHER_VARIABLES = "\
    INTERNAL_DEVICE_KERNEL \
    INTERNAL_DEVICE_BOOTLOADER_CONFIG \
    INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH \
    INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH \
    BALENA_IMAGE \
    BOOTLOADER_FLASH_DEVICE \
    BOOTLOADER_IMAGE \
    BOOTLOADER_BLOCK_SIZE_OFFSET \
    BOOTLOADER_SKIP_OUTPUT_BLOCKS \
    BOOTLOADER_FLASH_DEVICE_1 \
    BOOTLOADER_IMAGE_1 \
    BOOTLOADER_BLOCK_SIZE_OFFSET_1 \
    BOOTLOADER_SKIP_OUTPUT_BLOCKS_1 \
"

def copal_old_overrides(d):
    """Lines in the syntax of before honister, NAME_override, which bitbake takes for variables of that name: those that give a machine
    a value that it has not from bitbake, those that bitbake's own value beats, and those of other machines."""
    import re

    names = sorted(d.getVar("COPAL_FLASHER_VARIABLES").split(), key=len, reverse=True)
    active = [override for override in reversed((d.getVar("OVERRIDES") or "").split(":")) if override]
    taken, beaten = {}, []
    for name in names:
        lines = ["%s_%s" % (name, override) for override in active if (d.getVar("%s_%s" % (name, override)) or "").strip()]
        own = (d.getVar(name) or "").strip()
        if lines and not own:
            taken[name] = lines[0]
        elif lines and d.getVar(lines[0]).strip() != own:
            beaten.append((name, lines[0]))
    # Overrides have no capitals. The longest name comes first, since some begin with another one.
    olds = [(re.fullmatch("(%s)_([^A-Z:]+)" % "|".join(names), key), key) for key in d.keys() if key not in names]
    others = sorted(key for found, key in olds if found and found[2] not in active)
    return taken, beaten, others

def copal_flasher_conf(get, keys):
    """The text of the file, and what is wrong with the values; `get` gives the value of a variable, or None."""
    import re

    values = {name: " ".join((get(name) or "").split()) for name in keys}
    wrong = []
    for name, value in values.items():
        # The file is read as a shell fragment, in which nothing is ever expanded.
        if re.search(r"[$`\"'\\]", value):
            wrong.append("%s = \"%s\" has a character that a shell would act upon" % (name, value))
        elif name != "INTERNAL_DEVICE_KERNEL" and re.search(r"[\s;&|<>()#]", value):
            wrong.append("%s = \"%s\" is not one plain word" % (name, value))
    config, path = "INTERNAL_DEVICE_BOOTLOADER_CONFIG", "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH"
    if values[config] and not values[path]:
        wrong.append("%s needs %s: where on the boot partition the file goes" % (config, path))
    for suffix in ("", "_1"):
        device, image, block, skip = (name + suffix for name in (
            "BOOTLOADER_FLASH_DEVICE", "BOOTLOADER_IMAGE", "BOOTLOADER_BLOCK_SIZE_OFFSET", "BOOTLOADER_SKIP_OUTPUT_BLOCKS"))
        # The recipe has never asked for the second one's blocks to skip, and 0 is what the program takes for none.
        needed = (image, block) if suffix else (image, block, skip)
        missing = [name for name in needed if not values[name]]
        if values[device] and missing:
            wrong.append("%s needs %s" % (device, ", ".join(missing)))
        for name in (block, skip):
            # As for dd: with a unit, or without.
            if values[name] and not re.fullmatch("[0-9]+(c|w|b|[kK]B?|KiB|M|MB|MiB|G|GB|GiB)?", values[name]):
                wrong.append("%s = \"%s\" is not a number" % (name, values[name]))
        if re.fullmatch("0+[a-zA-Z]*", values[block]):
            wrong.append("%s is 0: a block has at least 1 byte" % block)
    lines = ['%s="%s"' % (name, value) if name == "INTERNAL_DEVICE_KERNEL" else "%s=%s" % (name, value)
             for name, value in values.items() if value or name != "INTERNAL_DEVICE_BOOTLOADER_LEGACY_CONFIG_PATH"]
    if get("SIGN_API"):
        lines.append("USE_LUKS=%s" % (get("BALENA_USE_LUKS") or ""))
        if "efi" in (get("MACHINE_FEATURES") or "").split():
            lines.append("INTERNAL_DEVICE_BOOTLOADER_CONFIG_LUKS=grub.cfg_internal_luks")
    if get("COPAL_TAKEN"):
        kernel = get("KERNEL_IMAGETYPE") or ""
        if not re.fullmatch(r"[\w.+-]+", kernel):
            wrong.append("KERNEL_IMAGETYPE = \"%s\" is not the name of a file, and secure boot needs that of the kernel" % kernel)
        lines.append("KERNEL_IMAGETYPE=%s" % kernel)
    lines += ["BALENA_SPLASH_CONFIG=splash", "BALENA_BOOTLOADER_CONFIG=resinOS_uEnv.txt", "BALENA_NM_CONFIG=system-connections",
              "BALENA_NM_DISPATCHER=dispatcher.d", "BALENA_PROXY_CONFIG=system-proxy"]
    return "".join(line + "\n" for line in lines), wrong

# Also for the recipe's own checks: both see the same value. Bitbake's own comes first, or a line that has been dead for years would move
# the target of the installation.
python () {
    def line(name):
        return '%s = "%s"' % (name, d.getVar(name))

    taken, beaten, others = copal_old_overrides(d)
    said = ["%s counts, and %s does not: delete the wrong line" % (line(name), line(old)) for name, old in beaten]
    said += ["%s is taken for %s, which is empty" % (line(old), name) for name, old in taken.items()]
    if others:
        said.append("ignored, since they are for other machines than this one: %s" % ", ".join(others))
    if said:
        copal_warn(d, "NAME_machine is the syntax before honister, and bitbake ignores it. %s." % "; ".join(said))
    for name, old in taken.items():
        d.setVar(name, d.getVar(old))
}

python copal_check_flasher() {
    wrong = copal_flasher_conf(d.getVar, d.getVar("COPAL_FLASHER_VARIABLES").split())[1]
    if wrong:
        bb.fatal("resin-init-flasher: %s. docs/integrating.md has the variables." % "; ".join(wrong))
}

python copal_write_flasher_conf() {
    path = d.getVar("COPAL_FLASHER_CONF")
    text = copal_flasher_conf(d.getVar, d.getVar("COPAL_FLASHER_VARIABLES").split())[0]
    written = text.splitlines()
    # Keys that a board or a newer release adds come last, as they did: the last one counts.
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            text += "".join(line.rstrip("\n") + "\n" for line in file if line.rstrip("\n") not in written)
    bb.utils.mkdirhier(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
}
