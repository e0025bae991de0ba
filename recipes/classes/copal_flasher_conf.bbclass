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
    """Values for this machine in the syntax of before honister, NAME_machine, which bitbake takes for a variable of that name."""
    values = {}
    for name in d.getVar("COPAL_FLASHER_VARIABLES").split():
        for override in reversed((d.getVar("OVERRIDES") or "").split(":")):
            if not override:
                continue
            if d.getVar("%s:%s" % (name, override)) is not None:
                break
            old = d.getVar("%s_%s" % (name, override))
            if old is not None:
                values[name] = ("%s_%s" % (name, override), old)
                break
    return values

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
    lines += ["BALENA_SPLASH_CONFIG=splash", "BALENA_BOOTLOADER_CONFIG=resinOS_uEnv.txt", "BALENA_NM_CONFIG=system-connections",
              "BALENA_NM_DISPATCHER=dispatcher.d", "BALENA_PROXY_CONFIG=system-proxy"]
    return "".join(line + "\n" for line in lines), wrong

# Also for the recipe's own checks: both see the value that the board means.
python () {
    for name, (old, value) in copal_old_overrides(d).items():
        copal_warn(d, "%s is in the syntax of before honister, which bitbake ignores; it is taken for %s here" % (old, name))
        d.setVar(name, value)
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
