# What follows a trial. rollback-health stays a shell file, which is edited in the field, and rollback-parse-bootloader is sourced.
inherit copal_replace

RDEPENDS:${PN}:append:class-target = " copal"
