# The module that unlocks the partitions of a machine with UEFI and TPM 2 is copal. All other modules stay.
inherit copal_replace copal_secureboot

COPAL_CONTENTS = "${@'optional:initramfs' if copal_unlock(d) else ''}"

# Without the scripts' tools for the TPM. What another package of the initramfs depends on stays in it.
RDEPENDS:initramfs-module-cryptsetup:append = " ${@'copal-bin' if copal_unlock(d) else ''}"
RDEPENDS:initramfs-module-cryptsetup:remove = "${@'os-helpers-tpm2 os-helpers-efi' if copal_unlock(d) else ''}"
