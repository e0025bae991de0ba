# What follows a trial. rollback-health stays a shell file, which is edited in the field, and rollback-parse-bootloader is sourced.
inherit copal_replace

RDEPENDS:${PN}:append:class-target = " copal"

# Two more than the scripts had: for what a cut has left of an update, and for commit hooks that were not finished.
SYSTEMD_SERVICE:${PN}:append:class-target = " copal-boot-check.service copal-commit-hooks.service"
