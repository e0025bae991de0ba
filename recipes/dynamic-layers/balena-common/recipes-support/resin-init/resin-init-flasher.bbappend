# /usr/bin/resin-init-flasher is copal. resin-init-board and resin-init-flasher-board, the board's own programs, stay what they are
# and need no append: copal runs them where the script did.
inherit copal_replace copal_flasher_conf copal_secureboot

# An encrypted installation runs cryptsetup and mkfs.ext4. Releases of meta-balena differ in what they name.
COPAL_FLASHER_TOOLS = "${@'cryptsetup e2fsprogs-mke2fs' if d.getVar('SIGN_API') else ''}"
RDEPENDS:${PN}:append:class-target = " copal ${COPAL_FLASHER_TOOLS}"

COPAL_TAKEN = "${@copal_secureboot(d)}"

do_install[prefuncs] =+ "copal_check_flasher"
do_install[postfuncs] += "copal_write_flasher_conf"
