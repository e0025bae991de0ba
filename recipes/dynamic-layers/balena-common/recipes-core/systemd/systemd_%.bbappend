# The rule for the two roots, and the program that it asks, come with copal: systemd is not rebuilt for each of its versions.
do_install[postfuncs] += "copal_leave_update_state"

copal_leave_update_state() {
    rm -f ${D}${nonarch_libdir}/udev/resin_update_state_probe ${D}${nonarch_base_libdir}/udev/resin_update_state_probe
    rm -f ${D}${nonarch_libdir}/udev/rules.d/65-resin-update-state.rules
    rm -f ${D}${nonarch_base_libdir}/udev/rules.d/65-resin-update-state.rules
}

RDEPENDS:udev:append = " copal"
