#!/bin/sh
# Chooses the guests' kernel for one architecture, and the packages that build modules for it.
#
#   usage: choose-kernel.sh ARCHITECTURE [source] <PACKAGES
#
# PACKAGES are Debian's Packages files, in any order: those of ARCHITECTURE, and those of amd64, on which modules are built.
# Prints one line: the kernel's release, its version, the version of linux-kbuild, and with `source` that of the kernel's source. Prints the
# first two only if the archive has nothing to build modules with, and fails if there is no kernel.
#
# Debian publishes these packages in two steps, the signed kernel hours or days after the others, and each architecture when it is built.
# Headers must be the kernel's own: they decide whether a module loads. For linux-kbuild, headers ask for their version or a newer one.
# The drivers' source should be the kernel's own. So the newest kernel is taken for which all that holds; if there is none, the newest kernel
# with headers, and the nearest version of the others.
set -eu

SERIES=6.1
arch=${1:?usage: choose-kernel.sh ARCHITECTURE [source]}
with_source=${2:-}

# `VERSION PACKAGE ARCHITECTURE`, each once, from the oldest version to the newest. GNU's version sort follows Debian's order.
awk '
    /^Package: / { name = $2; next }
    name !~ /^linux-/ { next }
    /^Version: / { version = $2 }
    /^Architecture: / { arch = $2 }
    /^$/ { print version, name, arch; name = "" }
    END { if (name ~ /^linux-/) print version, name, arch }
' | sort -k1,1V -k2,3 -u | awk -v arch="$arch" -v series="$SERIES" -v with_source="$with_source" '
    $1 != last { last = $1; names[++rank] = $1 }
    { has[$2, rank] = 1 }
    $2 == "linux-kbuild-" series && $3 == "amd64" { kbuild[rank] = 1 }
    $2 == "linux-source-" series { sources[rank] = 1 }
    $3 == arch && index($2, "linux-image-" series ".") == 1 {
        release = substr($2, length("linux-image-") + 1)
        # Neither another flavour nor an unsigned kernel.
        if (split(release, words, "-") == 3 && words[2] ~ /^[0-9]+$/ && words[3] == arch) {
            kernels[++count] = release; ranks[count] = rank
        }
    }

    # The rank in `of` nearest to `wanted`: the same, or else a newer one, or else an older one; 0 if there is none.
    function nearest(of, wanted,   at) {
        for (at = wanted; at <= rank; at++) if (at in of) return at
        for (at = wanted; at > 0; at--) if (at in of) return at
        return 0
    }

    END {
        for (exact = 1; exact >= 0; exact--) for (i = count; i > 0; i--) {
            at = ranks[i]
            common = kernels[i]
            sub("-" arch "$", "-common", common)
            if (!(("linux-headers-" kernels[i], at) in has) || !(("linux-headers-" common, at) in has)) continue
            tools = nearest(kbuild, at)
            source = with_source ? nearest(sources, at) : at
            if (!tools || !source || exact && (tools < at || source != at)) continue
            print kernels[i], names[at], names[tools] (with_source ? " " names[source] : "")
            exit
        }
        if (!count) exit 1
        print kernels[count], names[ranks[count]]
    }
'
