# /usr/bin/resin-init-flasher is copal. resin-init-board and resin-init-flasher-board, the board's own programs, stay what they are
# and need no append: copal runs them where the script did.
inherit copal_replace copal_flasher_conf

RDEPENDS:${PN}:append:class-target = " copal"

do_install[prefuncs] =+ "copal_check_flasher"
do_install[postfuncs] += "copal_write_flasher_conf"

python () {
    if d.getVar("SIGN_API"):
        copal_warn(d, "copal does not install encrypted systems yet: where secure boot is asked for, it refuses, with nothing written")
}
