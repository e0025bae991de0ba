# On the device a link. On the build host the program itself, since image builds take this one file into a container.
inherit copal_replace

RDEPENDS:${PN}:append:class-target = " copal"
