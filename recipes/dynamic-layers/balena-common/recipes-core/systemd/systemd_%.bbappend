# The rule for the two roots, and the program that it asks, come with copal: systemd is not rebuilt for each of its versions.
inherit copal_upstream

do_install[prefuncs] += "copal_check_update_state"
do_install[postfuncs] += "copal_leave_update_state"

python copal_check_update_state() {
    sources = copal_sources(d)
    for name in ("65-resin-update-state.rules", "resin_update_state_probe"):
        copal_check_upstream(d, name, sources.get(name))
}

copal_leave_update_state() {
    rm -f ${D}${nonarch_libdir}/udev/resin_update_state_probe ${D}${nonarch_base_libdir}/udev/resin_update_state_probe
    rm -f ${D}${nonarch_libdir}/udev/rules.d/65-resin-update-state.rules
    rm -f ${D}${nonarch_base_libdir}/udev/rules.d/65-resin-update-state.rules
}

RDEPENDS:udev:append = " copal-udev"
