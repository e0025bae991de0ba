# safe_reboot is copal; everything else in here is sourced by programs of boards, and stays.
inherit copal_replace

RDEPENDS:${PN}-reboot:append:class-target = " copal"

# meta-balena has it since 4.1.
COPAL_CONTENTS = "${@'optional:os-helpers-reboot' if 'os-helpers-reboot' in d.getVar('PACKAGES').split() else ''}"
