# shellcheck shell=sh
# What the commands of ./dev share: bounded steps, packages, Rust, the static build. Sourced in the checkout's root.

# Newest releases that build with the pinned Rust. Used in ./dev.
# shellcheck disable=SC2034
CARGO_LLVM_COV=0.9.1 CARGO_DENY=0.20.2
OELINT=9.11.2
# The Rust of wrynose, whose recipe compiles copal with it. It is not older than the one that Cargo.toml asks for.
WRYNOSE_RUST=1.94.1
RUST=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
TOP=$(pwd)
DIST=target/dist
CACHE=${XDG_CACHE_HOME:-${HOME:-$TOP/.cache}/.cache}/copal

# Not every user has the administrators' folders in the path, and rustup may have been installed a moment ago.
export CARGO_HOME="${CARGO_HOME:-${HOME:?}/.cargo}"
PATH=$CARGO_HOME/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin
# Tests read what tools print, and have file names that are not ASCII.
export LC_ALL=C.UTF-8
export PATH CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"
export RUSTUP_TOOLCHAIN="$RUST"

START=$(date +%s)
# say WHAT: the heading of a step, with the time since the start.
say() {
    elapsed=$(($(date +%s) - START))
    printf '\n== %d:%02d  %s\n' $((elapsed / 60)) $((elapsed % 60)) "$*" | fold -s -w 79
}
verdict() { printf '\n%s\n' "$*"; }
fail() {
    printf '\n%s\n' "dev: $*" >&2
    exit 1
}

# --- bounded steps ----------------------------------------------------------------------------------------------------

# deadline MINUTES: for the whole command. Every step ends by then, however long it may take by itself.
deadline() { DEADLINE=$(($(date +%s) + $1 * 60)); }

# run SECONDS COMMAND…: fails when the command fails, or after that time. Whatever the command has started ends with it.
run() {
    limit=$1
    shift
    left=$((DEADLINE - $(date +%s)))
    [ "$left" -gt 0 ] || { echo "dev: no time left for: $*" >&2; return 124; }
    [ "$limit" -le "$left" ] || limit=$left
    if command -v python3 >/dev/null; then
        python3 -B "$TOP/scripts/prove/step.py" "$limit" "$@"
    else
        # Until the packages are installed.
        timeout --foreground -k 20 "$limit" "$@"
    fi
}

# quietly SECONDS COMMAND…: as run; what it says is shown where it fails, and before that the last line every 15 s.
quietly() {
    : >"$TMP/said"
    (
        looks=0
        while kill -0 $$ 2>/dev/null; do
            sleep 0.2
            looks=$((looks + 1))
            [ $((looks % 75)) -ne 0 ] || echo "   … $(tail -n 1 "$TMP/said" | cut -c 1-74)"
        done
    ) &
    teller=$! ended=0
    run "$@" >"$TMP/said" 2>&1 || ended=$?
    kill "$teller" 2>/dev/null || true
    wait "$teller" 2>/dev/null || true
    [ "$ended" -eq 0 ] || cat "$TMP/said" >&2
    return "$ended"
}

# How Rust is installed and copal compiled: run, or quietly.
RUN=run

# alone SECONDS: waits so long for other tests and for a row of ./dev prove (scripts/prove/run.py), on the whole machine: they share loop devices,
# ports and memory.
TESTS_RUN_HERE=
alone() {
    mkdir -p "$CACHE"
    exec 9>"$CACHE/tests.lock"
    if ! flock -n 9; then
        echo "waiting for another ./dev test, or for a row of ./dev prove"
        flock -w "$1" 9 || fail "another ./dev test or prove runs on this machine: wait for its end"
    fi
    TESTS_RUN_HERE=yes
}

# tidy: undoes what a test that was killed has left: loop devices over files of this checkout, and mounts in it.
tidy() {
    [ -n "$TESTS_RUN_HERE" ] && [ "$(id -u)" -eq 0 ] || return 0
    for file in /sys/block/loop*/loop/backing_file; do
        case $(cat "$file" 2>/dev/null) in
            "$TOP"/target/* | "$TMP"/*)
                device=${file%/loop/backing_file}
                losetup -d "/dev/${device##*/}" && echo "dev: detached /dev/${device##*/}, which a test had left" >&2
                ;;
        esac
    done
    # The last one first: it may be below another.
    sed -n 's/^[0-9]* [0-9]* [^ ]* [^ ]* \([^ ]*\) .*/\1/p' /proc/self/mountinfo | tac | while read -r point; do
        case $point in
            "$TOP"/target/* | "$TMP"/*)
                umount "$point" && echo "dev: unmounted $point, which a test had left" >&2
                ;;
        esac
    done
    return 0
}

# result WORD…: a line for the summary; scripts/prove/results.py says which there are.
result() { (IFS=$(printf '\t') && printf '%s\n' "$*") >>"$COPAL_RESULTS"; }

# --- Debian packages --------------------------------------------------------------------------------------------------

# there NAME: whether a command (by its name) or a file (by its path) is there.
there() { case $1 in /*) [ -e "$1" ] ;; *) command -v "$1" >/dev/null ;; esac; }

# tools_of GROUP: `command:package` for each command the group needs.
tools_of() {
    case $1 in
        rust) echo curl:curl /etc/ssl/certs/ca-certificates.crt:ca-certificates cc:gcc /usr/include/stdio.h:libc6-dev ;;
        lint) echo shellcheck:shellcheck grub-script-check:grub-common python3:python3 git:git ;;
        venv) python3 -c 'import ensurepip, venv' 2>/dev/null || echo /usr/share/doc/python3-venv:python3-venv ;;
        test)
            echo mkfs.vfat:dosfstools mcopy:mtools sgdisk:gdisk sfdisk:fdisk mke2fs:e2fsprogs losetup:mount \
                mkswap:util-linux unshare:util-linux flock:util-linux setpriv:util-linux script:bsdutils \
                pkill:procps cmp:diffutils xxd:xxd strace:strace dbus-daemon:dbus-daemon grub-editenv:grub-common \
                dtc:device-tree-compiler openssl:openssl dash:dash /bin/busybox:busybox-static \
                gzip:gzip bzip2:bzip2 lz4:lz4 zip:zip xz:xz-utils zstd:zstd bmaptool:bmap-tools python3:python3 git:git \
                /usr/lib/python3/dist-packages/jsonschema:python3-jsonschema
            ;;
        # Each for a few tests, which say `not run:` without them.
        test-more)
            echo qemu-aarch64-static:qemu-user-static mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs zsh:zsh fish:fish \
                journalctl:systemd systemd-analyze:systemd busctl:systemd gdbus:libglib2.0-bin node:nodejs
            ;;
        # What qemu/prepare.sh runs; everything else the virtual machines need is fetched without being installed.
        guest)
            echo mmdebstrap:mmdebstrap /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring \
                setpriv:util-linux flock:util-linux xz:xz-utils
            ;;
        # One virtual board of qemu/farm: its parts, its images, and what looks into them.
        board)
            echo /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring flock:util-linux xz:xz-utils \
                mkfs.vfat:dosfstools mcopy:mtools sfdisk:fdisk mke2fs:e2fsprogs debugfs:e2fsprogs losetup:mount \
                unshare:util-linux setpriv:util-linux python3:python3 zstd:zstd
            ;;
        leviathan) echo node:nodejs python3:python3 git:git cc:gcc /usr/lib/x86_64-linux-gnu/libc.a:libc6-dev ;;
        demo) echo mkfs.vfat:dosfstools mcopy:mtools sgdisk:gdisk mke2fs:e2fsprogs losetup:mount cmp:diffutils ;;
        # A disk that fails or is slow. The daemon moved from one package to the other after Debian 12.
        storage-daemon) echo qemu-storage-daemon:qemu-system-common qemu-storage-daemon:qemu-utils fusermount3:fuse3 ;;
        engine) echo dockerd:docker.io runc:runc docker-registry:docker-registry ;;
        # The engine's client, which has a package of its own since Debian 13.
        engine-client) echo docker:docker-cli ;;
        rustup) echo rustup:rustup ;;
        fuzz) echo c++:g++ ;;
        release) echo python3:python3 zstd:zstd git:git cmp:diffutils ;;
        bench)
            echo python3:python3 bmaptool:bmap-tools xz:xz-utils zstd:zstd gzip:gzip sgdisk:gdisk partx:util-linux \
                unshare:util-linux setpriv:util-linux strace:strace /bin/busybox:busybox-static dbus-daemon:dbus-daemon \
                openssl:openssl cpio:cpio
            ;;
    esac
}

# missing_of GROUP…: sets packages and commands to what is missing of these groups.
missing_of() {
    packages='' commands=''
    for group in "$@"; do
        for pair in $(tools_of "$group"); do
            command=${pair%%:*} package=${pair#*:}
            ! there "$command" || continue
            case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
            case " $commands " in *" $command "*) ;; *) commands="$commands $command" ;; esac
        done
    done
}

# apt_get WORD…: Debian's own, without a question.
apt_get() {
    # shellcheck disable=SC2086 # a word or none
    quietly 900 $SUDO env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 \
        -o Acquire::Retries=3 "$@"
}

# new_lists: of the packages there are.
new_lists() { apt_get update || echo "dev: apt-get update failed; trying with the lists there are" >&2; }

# may_install: whether this user may; sets SUDO.
may_install() {
    SUDO=
    [ "$(id -u)" -ne 0 ] || return 0
    SUDO=sudo
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }
}

# Packages with a unit that would be enabled, or with what changes how programs start: they are unpacked in the cache. What they depend on
# is installed.
UNPACKED='docker.io docker-cli containerd docker-registry grub-common xfsprogs fish man-db qemu-user-static qemu-user qemu-user-binfmt'

# unpacked PACKAGE: whether it is one of them.
unpacked() { case " $UNPACKED " in *" $1 "*) ;; *) return 1 ;; esac; }

# find_unpacked: puts their programs into the path, after those of this machine.
find_unpacked() {
    for folder in "$CACHE"/unpacked/*/usr/sbin "$CACHE"/unpacked/*/usr/bin "$CACHE"/unpacked/*/sbin "$CACHE"/unpacked/*/bin; do
        case ":$PATH:" in *":$folder:"*) ;; *) [ ! -d "$folder" ] || PATH=$PATH:$folder ;; esac
    done
    hash -r
}
find_unpacked

# extract FOLDER DEB…
extract() {
    into=$1
    shift
    for deb in "$@"; do dpkg-deb -x "$deb" "$into" || return 1; done
}

# unpack PACKAGE…: fetched and unpacked below $CACHE/unpacked, in one tree; nothing is installed.
unpack() {
    mkdir -p "$CACHE/unpacked"
    new=$(mktemp -d "$CACHE/unpacked.XXXXXX")
    mkdir "$new/debs"
    to=$CACHE/unpacked/$1
    if run 600 env -C "$new/debs" apt-get -q -q -o Acquire::Retries=3 -o APT::Sandbox::User=root download "$@" &&
        extract "$new" "$new/debs"/*.deb; then
        rm -rf "$new/debs" "$to"
        chmod 755 "$new"
        mv "$new" "$to"
    else
        rm -rf "$new"
        return 1
    fi
}

# split_packages: of packages, and of what those of UNPACKED depend on, sets what to install and what to unpack.
split_packages() {
    installed='' to_unpack='' named=''
    for package in $packages; do
        if unpacked "$package"; then named="$named $package"; else installed="$installed $package"; fi
    done
    [ -n "$named" ] || return 0
    # shellcheck disable=SC2086 # a list of words
    planned=$(apt-get -s -q install --no-install-recommends --no-upgrade $named) || return 1
    for package in $(echo "$planned" | sed -n 's/^Inst \([^ ]*\) .*/\1/p'); do
        if unpacked "$package"; then to_unpack="$to_unpack $package"; else installed="$installed $package"; fi
    done
}

# install_missing: the packages of missing_of; what is installed keeps its version. False where a command is missing after that.
install_missing() {
    say "installing$packages (missing:$commands)"
    ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1 || new_lists
    split_packages 2>/dev/null || { new_lists && split_packages; } || return 1
    [ -z "$to_unpack" ] || echo "   not installed but unpacked in $CACHE/unpacked:$to_unpack"
    if [ -n "$installed" ]; then
        set -- install --no-install-recommends --no-upgrade
        # shellcheck disable=SC2086 # a list of words
        apt_get "$@" $installed || { new_lists && apt_get "$@" $installed; } || return 1
    fi
    # shellcheck disable=SC2086
    [ -z "$to_unpack" ] || unpack $to_unpack || return 1
    find_unpacked
    for command in $commands; do
        there "$command" || { echo "dev: $command is still missing after installing$packages" >&2 && return 1; }
    done
}

# need_tools GROUP… [-- GROUP…]: installs the packages of missing commands, and leaves whatever is there as it is. It goes on without
# those of the groups after `--`. For who may not install it names all packages at once.
need_tools() {
    needed=
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        needed="$needed $1"
        shift
    done
    [ $# -eq 0 ] || shift
    # shellcheck disable=SC2086 # a list of words
    missing_of $needed "$@"
    [ -n "$packages" ] || return 0
    command -v apt-get >/dev/null || fail "no apt-get here: install what provides$commands, then run this again"
    if ! may_install; then
        split_packages 2>/dev/null || fail "packages are missing, and there are no lists of them: as root, run: apt-get update"
        if [ -n "$installed" ]; then
            all=$installed
            # shellcheck disable=SC2086
            missing_of $needed
            [ -z "$packages" ] || fail "packages are missing: as root, run: apt-get install --no-install-recommends$all"
            echo "dev: some tests will say that they are not run; for them, as root, run: apt-get install --no-install-recommends$all" >&2
            return 0
        fi
    fi
    # shellcheck disable=SC2086
    missing_of $needed
    [ -z "$packages" ] || install_missing || fail "cannot install$packages"
    for group in "$@"; do
        missing_of "$group"
        [ -z "$packages" ] || install_missing || echo "dev: going on without$commands: some tests will say so" >&2
    done
}

# want_guests PART…: what virtual machines need, or these parts of it, in the cache. Tests that need a part that cannot be made say so.
want_guests() {
    say "guest preparation"
    export COPAL_GUESTS="$CACHE/guests"
    run 900 qemu/prepare.sh "$COPAL_GUESTS" "$@" || echo "dev: not every part of the guests is there (see above): tests that need it will say so" >&2
}

# --- Rust -------------------------------------------------------------------------------------------------------------

TARGETS='x86_64-unknown-linux-musl aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf'

# Targets without which there is no release. The others are built where rustup has them.
REQUIRED='x86_64-unknown-linux-musl aarch64-unknown-linux-musl'

# What rustup adds to the toolchain.
COMPONENTS='clippy rustfmt llvm-tools'

install_rustup() {
    host=$(uname -m)-unknown-linux-gnu
    base=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/$host
    say "installing rustup from $base"
    mkdir -p "$CACHE"
    # The file that the script at https://sh.rustup.rs fetches and starts, checked against its published digest.
    if run 300 curl -fsSL --proto '=https' --retry 3 -o "$CACHE/rustup-init" "$base/rustup-init" &&
        sum=$(run 60 curl -fsSL --proto '=https' --retry 3 "$base/rustup-init.sha256") &&
        echo "${sum%% *}  $CACHE/rustup-init" | sha256sum -c - >/dev/null; then
        chmod +x "$CACHE/rustup-init"
        $RUN 300 env RUSTUP_INIT_SKIP_PATH_CHECK=yes "$CACHE/rustup-init" -y -q --no-modify-path \
            --default-toolchain none --profile minimal && hash -r && return 0
    fi
    echo "dev: that did not work; trying Debian's package" >&2
    need_tools rustup
}

# need_rust: the toolchain with COMPONENTS and TARGETS. The tools of the group `rust` have to be there.
need_rust() {
    command -v rustup >/dev/null || install_rustup
    # RUSTUP_AUTO_INSTALL=0 may be set: nothing is left to be installed on the side.
    if ! rustup toolchain list | grep -q "^$RUST-"; then
        say "installing Rust $RUST"
        $RUN 900 rustup toolchain install "$RUST" --profile minimal --no-self-update || fail "cannot install Rust $RUST"
    fi
    for component in $COMPONENTS; do
        rustup component list --toolchain "$RUST" --installed | grep -q "^$component" ||
            run 600 rustup component add --toolchain "$RUST" "$component" || fail "cannot install $component"
    done
    BUILD_TARGETS='' NOT_BUILT=''
    for target in $TARGETS; do
        if rustup target list --toolchain "$RUST" --installed | grep -qx "$target" ||
            run 600 rustup target add --toolchain "$RUST" "$target" >"$TMP/target" 2>&1; then
            BUILD_TARGETS="$BUILD_TARGETS $target"
        else
            case " $REQUIRED " in *" $target "*)
                cat "$TMP/target" >&2
                fail "cannot install Rust's target $target"
                ;;
            esac
            NOT_BUILT="${target%%-*}: not built: rustup has no such target here"
        fi
    done
}

# need_cargo_tool NAME VERSION: from the path, or built once into the cache.
need_cargo_tool() {
    command -v "$1" >/dev/null && return 0
    root=$CACHE/$1-$2
    PATH=$root/bin:$PATH
    [ -x "$root/bin/$1" ] && return 0
    say "building $1 $2 (some minutes, once)"
    # The copal checkout's configuration is not the tool's.
    mkdir -p "$CACHE"
    (cd "$CACHE" && run 1500 cargo install --quiet --locked --root "$root" "$1@$2") || fail "cannot build $1 $2"
}

# need_oelint: the linter for recipes, from PyPI, once into the cache; sets OELINT_ADV to its path. The tools of the group `venv` have to be there.
need_oelint() {
    root=$CACHE/oelint-adv-$OELINT
    # shellcheck disable=SC2034 # used in checks.sh
    OELINT_ADV=$root/bin/oelint-adv
    [ ! -e "$root/complete" ] || return 0
    say "installing oelint-adv $OELINT (once)"
    rm -rf "$root"
    mkdir -p "$CACHE"
    { run 120 python3 -m venv "$root" &&
        run 300 "$root/bin/pip" --quiet --disable-pip-version-check install --no-deps --requirement scripts/oelint.txt; } ||
        fail "cannot install oelint-adv $OELINT"
    : >"$root/complete"
}

# --- static binaries --------------------------------------------------------------------------------------------------

# remapped TARGET…: what makes cargo leave this machine's folders out of the binaries, so that they are the same wherever they are
# made: for each target an option with the sources of crates and of Rust's library, under names that hold everywhere.
remapped() {
    sysroot=$(rustc --print sysroot) commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
    flags="'--remap-path-prefix=$TOP=/copal','--remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc/$commit'"
    # The folder of a registry is named after its address, which a mirror may have another one of.
    for sources in "$CARGO_HOME"/registry/src/*/; do
        flags="$flags,'--remap-path-prefix=${sources%/}=/crates'"
    done
    for target in "$@"; do
        echo "target.$target.rustflags=[$flags]"
    done
}

# The profile of static binaries.
PROFILE=release

# static_cargo TARGET…: a build of PROFILE. The flags in .cargo/config.toml count, not those of the caller.
static_cargo() {
    $RUN 600 cargo fetch --locked || return 1
    # shellcheck disable=SC2086 # a list of words
    remapped $BUILD_TARGETS >"$TMP/remapped.$1"
    # For the tests: what they build with it besides finds the crates built.
    export COPAL_STATIC_CONFIG="$TMP/remapped.$1"
    # shellcheck disable=SC2046 # two words for each
    set -- $(for target in "$@"; do echo "--target $target"; done)
    while IFS= read -r option; do
        set -- "$@" --config "$option"
    done <"$COPAL_STATIC_CONFIG"
    $RUN 1500 env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS -u CARGO_BUILD_TARGET \
        -u RUSTC_WRAPPER -u RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_DIR="$TOP/target" \
        cargo build --profile "$PROFILE" --locked --bin copal "$@"
}

# publish TARGET: puts its binary in place, and prints it with its size.
publish() {
    mkdir -p "$DIST"
    to=$DIST/copal-${1%%-*}
    cp "target/$1/$PROFILE/copal" "$to.new" && mv "$to.new" "$to"
    printf '%s  %s bytes\n' "$to" "$(wc -c <"$to")"
}

# pages: the manual pages and completions of a release, made from the program's own definitions, on this machine. The tests are compiled
# from the same crates, in the same folder.
pages() {
    run 1500 env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS -u CARGO_BUILD_TARGET \
        -u RUSTC_WRAPPER -u RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_DIR="$TOP/target" \
        cargo run --quiet --locked --example pages -- "$DIST"
}

build_static() {
    say "static release binaries"
    # shellcheck disable=SC2086 # a list of words
    static_cargo $BUILD_TARGETS || return 1
    for target in $BUILD_TARGETS; do
        publish "$target" || return 1
    done
    pages || return 1
    [ -z "$NOT_BUILT" ] || result note "$NOT_BUILT"
}

# quick_static: the first of BUILD_TARGETS, for the tests.
quick_static() {
    # shellcheck disable=SC2086 # one word
    static_cargo $BUILD_TARGETS && publish "${BUILD_TARGETS# }"
}

# build_native: the static binary for this machine; sets COPAL to its path.
build_native() {
    native=$(uname -m)-unknown-linux-musl
    say "static binary for this machine, profile $PROFILE"
    static_cargo "$native" || fail "the build failed"
    publish "$native"
    # shellcheck disable=SC2034 # used in ./dev
    COPAL=$TOP/$DIST/copal-$(uname -m)
}

TMP=$(mktemp -d "${TMPDIR:-/tmp}/copal-dev.XXXXXX")
# What steps report, for the summary. A part of ./dev prove adds to that of its caller.
export COPAL_RESULTS="${COPAL_RESULTS:-$TMP/results}"
: >>"$COPAL_RESULTS"
# What runs in the background: steps of ./dev test, which end their guests and are killed where they do not; for the demo, the preparation of a
# virtual board.
BACKGROUND=
end_background() {
    for one in $BACKGROUND; do
        kill "$one" 2>/dev/null || true
        wait "$one" || true
    done
}
trap 'end_background; tidy; rm -rf "$TMP"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
