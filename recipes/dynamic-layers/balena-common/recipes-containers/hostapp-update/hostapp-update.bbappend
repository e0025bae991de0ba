# On the device a link. On the build host the program itself, since image builds take this one file into a container.
inherit copal-replace

RDEPENDS:${PN}:append:class-target = " copal"
