# safe_reboot is copal; everything else in here is sourced by programs of boards, and stays.
inherit copal_replace

RDEPENDS:${PN}-reboot:append:class-target = " copal"

COPAL_CONTENTS = "optional:os-helpers-reboot"
