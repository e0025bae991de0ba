# shellcheck shell=sh
# Lint and tests, for ./dev. Sourced after lib.sh.

# check NAME COMMAND…: one check of the summary, with its time.
check() {
    name=$1
    shift
    began=$(date +%s)
    if "$@"; then
        result passed "$name"
    else
        case $? in 124) result failed "$name" "it met its time limit" ;; *) result failed "$name" ;; esac
        echo "dev: failed: $name" >&2
    fi
    took=$(($(date +%s) - began))
    [ "$took" -lt 2 ] || result step "$took" "$name"
}

# builds_with RUST: whether the program compiles with an older Rust than the pinned one; nothing is linked.
builds_with() {
    rustup toolchain list | grep -q "^$1-" ||
        run 900 rustup toolchain install "$1" --profile minimal --no-self-update || {
        echo "dev: cannot install Rust $1" >&2
        return 1
    }
    run 900 env RUSTUP_TOOLCHAIN="$1" CARGO_TARGET_DIR=target/older-rust cargo check --locked --bin copal
}

# older_rusts: the one that Cargo.toml asks for, and that of wrynose.
older_rusts() {
    asked=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    case $asked in *.*.*) ;; *) asked=$asked.0 ;; esac
    for rust in "$asked" "$WRYNOSE_RUST"; do
        check "cargo check with Rust $rust" builds_with "$rust"
    done
}

# dependencies: their licences, bans and sources.
dependencies() {
    need_cargo_tool cargo-deny "$CARGO_DENY"
    check "cargo deny" run 300 cargo-deny --locked check --hide-inclusion-graph bans licenses sources
}

# advisories: the RustSec database against Cargo.lock. An outdated database can fail the check, but not pass it.
advisories() {
    from=${COPAL_ADVISORY_DB:-https://github.com/RustSec/advisory-db}
    # Where cargo-deny looks for this database, below db-path of deny.toml. cargo-deny does not clone from a file.
    db=target/advisory-dbs/advisory-db-3157b0e258782691
    rm -rf "$db"
    run 300 env GIT_TERMINAL_PROMPT=0 git clone --quiet --branch main -- "$from" "$db" || {
        result not-run "advisories: cannot clone $from: set COPAL_ADVISORY_DB to a clone or a bundle of the database (docs/releasing.md)"
        return 0
    }
    count=$(find "$db/crates" -type f -name 'RUSTSEC-[1-9]*.md' 2>/dev/null | wc -l)
    [ "$count" -gt 0 ] || {
        result not-run "advisories: $from contains no advisories: set COPAL_ADVISORY_DB to a clone or a bundle of the database (docs/releasing.md)"
        return 0
    }
    need_cargo_tool cargo-deny "$CARGO_DENY"
    day=$(git -C "$db" log -1 --format=%cs)
    age=$((($(date +%s) - $(git -C "$db" log -1 --format=%ct)) / 86400))
    result record advisories "database of $day with $count advisories"
    if ! { run 600 cargo fetch --locked && run 300 cargo-deny --locked --offline check --hide-inclusion-graph advisories; }; then
        result failed "cargo deny: advisories" "docs/releasing.md describes what to do"
    elif [ "$age" -gt 30 ]; then
        result not-run "advisories: the database of $day is $age days old, and 30 are allowed: update it (docs/releasing.md)"
    else
        result passed "cargo deny: advisories"
    fi
}

# lint_texts: all that a commit may break and that needs no compiler.
lint_texts() {
    say "words, shell scripts, recipes"
    check "words of the glossary" run 60 python3 scripts/words.py
    check "shellcheck" run 120 shellcheck -x dev .ci/run scripts/*.sh scripts/prove/part.sh src/install/*.sh hooks/* tests/hooks/*.sh tests/update/*.sh tests/kit/plugins/trace.sh \
        tests/kit/plugins/rpi/* tests/kit/plugins/imx/* tests/kit/plugins/helpers/* tests/kit/plugins/tools/* \
        qemu/*.sh qemu/*-init qemu/system/usr/local/sbin/* qemu/os/rootfs/usr/lib/board-agent/* qemu/os/initramfs/init* qemu/os/initramfs/load-modules \
        qemu/os/initramfs-secure/[eku]* qemu/os/initramfs-secure/migrate qemu/os/initramfs-balena/init qemu/os/initramfs-balena/sbin/* qemu/os/shell-flasher-secure/usr/local/sbin/* \
        qemu/os/hostapp-secure/usr/libexec/* qemu/os/scripts/* qemu/os/suite/usr/bin/* qemu/os/suite/usr/lib/balena/* qemu/os/shell/usr/bin/* qemu/os/flasher-secure/usr/sbin/* qemu/os/before-copal/* recipes/pin recipes/check-layer
    check "the tests of ./dev itself" unit_tests scripts/tests scripts
    check "tests of the board farm" unit_tests qemu/farm/tests qemu/farm
    check "the boards' grub.cfg" check_grub
    layer
}

# lint_sources: what the compiler says of the sources.
lint_sources() {
    say "format and clippy"
    check "cargo fmt" run 120 cargo fmt --check
    check "cargo clippy" run 1500 cargo clippy --locked --all-targets -- -D warnings
    at="--manifest-path qemu/init/Cargo.toml --target-dir target/boards-init"
    check "format of the boards' init" run 60 cargo fmt --manifest-path qemu/init/Cargo.toml --check
    # shellcheck disable=SC2086 # a list of words
    check "clippy of the boards' init" run 300 cargo clippy $at --locked --all-targets -- -D warnings
    # shellcheck disable=SC2086
    check "tests of the boards' init" run 300 cargo test $at --locked --quiet
}

# lint_fuzz: the same of the fuzz targets, whose crates are compiled once more. The library that is not there is for the linker, and nothing is linked.
lint_fuzz() {
    check "clippy of the fuzz targets" run 600 env CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a \
        cargo clippy --manifest-path fuzz/Cargo.toml --target-dir target --locked --bins -- -D warnings
}

# GRUB's own parser takes each of the boards' files.
check_grub() {
    for file in qemu/os/grub/*.cfg; do
        grub-script-check "$file" || {
            echo "dev: $file is no script that GRUB takes" >&2
            return 1
        }
    done
}

# layer: recipes of the Yocto layer. Its configuration says which rules are left out, and why.
layer() {
    need_oelint
    recipes=$(find recipes -name layer.conf -o -name '*.bb' -o -name '*.bbappend' -o -name '*.bbclass' | sort)
    # shellcheck disable=SC2086 # a list of words
    check "oelint-adv" run 300 env OELINT_CONFIG="$TOP/recipes/.oelint.cfg" "$OELINT_ADV" --release wrynose --quiet --relpaths $recipes
}

# reported NAME STATUS: a failure that no result names: a time limit, a mistake in the script itself. 3 is REPORTED of scripts/prove/results.py.
reported() {
    case $2 in
        0 | 3) ;;
        *) result failed "$1" "it ended with $2" ;;
    esac
}

# test_programs: where a test draws a sample of its cases, the commit says which.
test_programs() {
    # Folder of the binaries that tests/release/static_build.rs looks at; absolute, for any working directory.
    export COPAL_DIST="$TOP/$DIST"
    COPAL_SEED=$(python3 -B scripts/prove seed)
    export COPAL_SEED
    # It ends by itself, with what is cut off, before its time is over.
    run 3600 python3 -B scripts/prove/suite.py --limit "$((DEADLINE - $(date +%s) - 90))"
}

# tests: all test programs, each with its own results.
tests() {
    say "tests (samples are drawn with COPAL_SEED=$(python3 -B scripts/prove seed))"
    test_programs || status_of_tests=$?
    reported "run of the tests" "${status_of_tests:-0}"
    # Documentation's examples are built only where there are any.
    if grep -rqE '^ *//[/!] *```' src; then
        say "examples in the documentation"
        check "examples in the documentation" run 900 cargo test --doc --locked
    fi
}

# coverage: the tests once more, with the lines of the program that they run counted.
coverage() {
    need_cargo_tool cargo-llvm-cov "$CARGO_LLVM_COV"
    export COPAL_DIST="$TOP/$DIST"
    check "tests with their coverage" run 3300 env RUSTC_WORKSPACE_WRAPPER="$TOP/scripts/measured-rustc.sh" \
        cargo llvm-cov --no-report --no-cfg-coverage --locked --no-fail-fast
    run 300 cargo llvm-cov report --summary-only --ignore-filename-regex '(^|/)(tests|benches)/' >"$TMP/coverage" || true
    cat "$TMP/coverage"
    covered=$(awk '$1 == "TOTAL" { print $10 }' "$TMP/coverage")
    check "coverage report" [ -n "$covered" ]
    result note "line coverage: $covered"
}

# unit_tests DIRECTORY TOP: tests in Python of the farm, or of ./dev itself; what they skip is not run, or left to a part of ./dev prove.
unit_tests() {
    status=0
    run 600 python3 -B -m unittest discover -v -s "$1" -t "$2" >"$TMP/unit-tests" 2>&1 || status=$?
    sed -n "s/^.* skipped [\"']not run: \(.*\)[\"']$/\1/p" "$TMP/unit-tests" | while read -r why; do result not-run "$why"; done
    sed -n "s/^.* skipped [\"']left to prove: \([a-z0-9-]*\): \(.*\)[\"']$/left\t\1\t\2/p" "$TMP/unit-tests" >>"$COPAL_RESULTS"
    [ "$status" -eq 0 ] || cat "$TMP/unit-tests"
    return "$status"
}

# begin LOG SECONDS COMMAND…: a step beside what follows, which reports its own results; `joined` shows what it has printed.
begin() {
    log=target/$1.log seconds=$2
    shift 2
    say "beside what follows, in $log: $*"
    mkdir -p target
    python3 -B scripts/prove/step.py "$seconds" "$@" >"$log" 2>&1 &
    BACKGROUND="$BACKGROUND $!"
    LOGS="$LOGS $log"
}
LOGS=

# joined: waits for these steps, and shows them.
joined() {
    for one in $BACKGROUND; do
        # shellcheck disable=SC2086 # a list of words
        set -- $LOGS
        log=$1
        shift
        LOGS=$*
        say "$log"
        tail -n +1 -f --pid="$one" "$log"
        ended=0
        wait "$one" || ended=$?
        [ "$ended" -eq 0 ] || result failed "$log" "it ended with $ended"
    done
    BACKGROUND=
}

# summary COMMAND: the counts and the verdict; ends the script.
summary() {
    say "summary"
    python3 -B scripts/prove/results.py summary || fail "$1 failed"
    verdict "$1: ok"
}
