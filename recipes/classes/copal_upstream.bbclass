# Which versions of meta-balena's files copal takes the place of. A newer one stops the build: what changed in it may be missing in copal.
require conf/copal_upstream.inc

# Versions that the board takes all the same, as NAME:DIGEST.
COPAL_ACCEPT_UPSTREAM ?= ""

def copal_sources(d):
    """The plain files of SRC_URI: name, and the file it was found as."""
    found = {}
    for url in (d.getVar("SRC_URI") or "").split():
        kind, host, path, user, password, options = bb.fetch.decodeurl(url)
        if kind == "file" and not path.endswith((".patch", ".diff")):
            found[path] = bb.fetch2.localpath(url, d)
    return found

def copal_check_upstream(d, name, found):
    """Ends the build where a file that copal replaces is none of those that copal was compared with, or is gone (None)."""
    known = d.getVarFlag("COPAL_UPSTREAM", os.path.basename(name))
    if not known and not found:
        return
    digest = bb.utils.sha256_file(found) if found else "none"
    accepted = "%s:%s" % (name, digest)
    if digest in (known or "").split() or accepted in d.getVar("COPAL_ACCEPT_UPSTREAM").split():
        return
    what = "%s is in none of the releases of meta-balena that copal was compared with" % found if found else \
        "the recipe has no %s, as it had in the releases of meta-balena that copal was compared with" % name
    bb.fatal("%s: %s (%s). copal takes its place, and what changed there may be missing. Take a newer copal. Or look at the change "
             "(./dev upstream CHECKOUT, in copal's checkout); where copal does without it: COPAL_ACCEPT_UPSTREAM += \"%s\"."
             % (d.getVar("PN"), what, d.getVar("COPAL_UPSTREAM_RELEASES"), accepted))

# What is built does not depend on them: a longer list must not build systemd again.
copal_check_upstream[vardepsexclude] += "COPAL_UPSTREAM COPAL_UPSTREAM_RELEASES COPAL_ACCEPT_UPSTREAM"
