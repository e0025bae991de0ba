# The module that unlocks the partitions of a machine with UEFI and TPM 2 is copal. All other modules stay.
inherit copal_replace copal_secureboot

COPAL_CONTENTS = "${@'optional:initramfs' if copal_unlock(d) else ''}"

# Installed beside the stage-2 kernel of a release if both initramfs, of the stage-2 kernel and of the release, have copal's module. A commit narrows the policy of the TPM only
# if this file is there.
SUMMARY:copal-unlock-mark = "Says that the initramfs of this release runs copal unlock"
PACKAGES =+ "copal-unlock-mark"
ALLOW_EMPTY:copal-unlock-mark = "1"
# The package is new here: no other line gives it files.
# nooelint: oelint.var.filesoverride
FILES:copal-unlock-mark = "/boot/copal-unlock"

# Without the scripts' tools for the TPM. What another package of the initramfs depends on stays in it.
RDEPENDS:initramfs-module-cryptsetup:append = " ${@'copal-bin' if copal_unlock(d) else ''}"
RDEPENDS:initramfs-module-cryptsetup:remove = "${@'os-helpers-tpm2 os-helpers-efi' if copal_unlock(d) else ''}"

do_install[postfuncs] += "copal_mark_unlock"

python copal_mark_unlock() {
    if copal_unlock(d):
        place = d.expand("${D}/boot/copal-unlock")
        bb.utils.mkdirhier(os.path.dirname(place))
        with open(place, "w", encoding="utf-8"):
            pass
        os.chmod(place, 0o644)
}
