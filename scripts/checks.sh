# shellcheck shell=sh
# Lint and tests, for ./dev. Sourced after lib.sh.

LOG=target/test.log
FARM_LOG=target/farm.log
PASSED=0
FAILED=0
FAILURES=

# check NAME COMMAND…: one check of the summary.
check() {
    name=$1
    shift
    if "$@"; then
        PASSED=$((PASSED + 1))
    else
        FAILED=$((FAILED + 1))
        FAILURES="$FAILURES
  $name"
        echo "dev: failed: $name" >&2
    fi
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
    say "older Rust"
    asked=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    case $asked in *.*.*) ;; *) asked=$asked.0 ;; esac
    for rust in "$asked" "$WRYNOSE_RUST"; do
        check "cargo check with Rust $rust" builds_with "$rust"
    done
}

# lint [FOLDER]: with cargo's files in that folder.
lint() {
    say "format"
    check "cargo fmt" run 120 cargo fmt --check
    say "clippy"
    check "cargo clippy" run 1500 env CARGO_TARGET_DIR="${1:-target}" cargo clippy --locked --all-targets -- -D warnings
    older_rusts
    say "words"
    check "words of the glossary" run 60 python3 scripts/words.py
    say "licences, bans and sources of dependencies"
    check "cargo deny" run 300 cargo-deny --locked check --hide-inclusion-graph bans licenses sources
    say "shell scripts"
    check "shellcheck" run 120 shellcheck -x dev .ci/run scripts/*.sh src/install/*.sh hooks/* tests/hooks/*.sh tests/update/*.sh \
        qemu/*.sh qemu/*-init qemu/system/usr/local/sbin/* qemu/os/rootfs/usr/lib/board-agent/* qemu/os/initramfs/init* recipes/pin recipes/check-layer
    say "what virtual boards start with"
    check "the boards' grub.cfg" check_grub
    at="--manifest-path qemu/init/Cargo.toml --target-dir target/boards-init"
    check "format of the boards' init" run 60 cargo fmt --manifest-path qemu/init/Cargo.toml --check
    # shellcheck disable=SC2086 # a list of words
    check "clippy of the boards' init" run 300 cargo clippy $at --locked --all-targets -- -D warnings
    # shellcheck disable=SC2086
    check "tests of the boards' init" run 300 cargo test $at --locked --quiet
    layer
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
    say "recipes"
    recipes=$(find recipes -name '*.bb' -o -name '*.bbappend' -o -name '*.bbclass' | sort)
    # shellcheck disable=SC2086 # a list of words
    check "oelint-adv" run 300 env OELINT_CONFIG="$TOP/recipes/.oelint.cfg" "$OELINT_ADV" --release wrynose --quiet --relpaths $recipes
}

# shortened: of the output of the tests, what is compiled, a line for each test program, and failures in full. A log that is cut off
# somewhere still has the failures in it. $LOG has everything.
shortened() {
    sed -u -e '/^successes:$/,/^\(failures:\|test result:.*\)$/{/^\(failures:\|test result:.*\)$/!d}' \
        -e '/^test .* \.\.\. \(ok\|ignored\)$/d' -e '/^running [0-9]* tests\{0,1\}$/d' -e '/^$/d'
}

# One run of all tests, with the coverage measured in it.
tests() {
    say "tests"
    mkdir -p target
    # Folder of the binaries that tests/release/static_build.rs looks at; absolute, for any working directory.
    export COPAL_DIST="$TOP/$DIST"
    echo 101 >"$TMP/status"
    # `--show-output`: what a passing test prints, `not run:` lines above all, is to be seen.
    {
        status=0
        # A shell ignores SIGINT for what it starts in the background, and so would all that the tests start.
        signals=--default-signal=INT,QUIT
        env "$signals" true 2>/dev/null || signals=-u_ # coreutils before 8.31
        run 3000 env "$signals" RUSTC_WORKSPACE_WRAPPER="$TOP/scripts/measured-rustc.sh" cargo llvm-cov --no-report --no-cfg-coverage --locked --no-fail-fast -- --show-output || status=$?
        echo "$status" >"$TMP/status"
    } 2>&1 | tee "$LOG" | shortened
    count_tests
    # llvm-cov leaves documentation's examples out; they are built only where there are any.
    if grep -rqE '^ *//[/!] *```' src; then
        say "examples in the documentation"
        check "examples in the documentation" run 900 cargo test --doc --locked
    fi
    say "coverage"
    run 300 cargo llvm-cov report --summary-only --ignore-filename-regex '(^|/)(tests|benches)/' >"$TMP/coverage" 2>"$TMP/coverage.err" ||
        cat "$TMP/coverage.err"
    cat "$TMP/coverage"
    COVERAGE=$(awk '$1 == "TOTAL" { print $10 }' "$TMP/coverage")
    check "coverage report" [ -n "$COVERAGE" ]
}

# The farm's own tests.
farm_tests() {
    say "tests of the board farm"
    check "tests of the board farm" farm_unit_tests
    NOT_RUN=$(printf '%s\n' "${NOT_RUN:-}" "$(sed -n "s/^.* skipped [\"']\(not run: .*\)[\"']$/\1/p" "$TMP/farm-tests")" | sed '/^$/d' | sort -u)
}

farm_unit_tests() {
    status=0
    run 600 env PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -v -s qemu/farm/tests -t qemu/farm >"$TMP/farm-tests" 2>&1 ||
        status=$?
    cat "$TMP/farm-tests"
    return "$status"
}

# farm_begins WHAT…: the farm's own tests, then scenarios on virtual boards (`NAME@BOARD`, `@BOARD` for all of them), in the
# background. Until farm_ends it takes one processor: other work goes on.
farm_begins() {
    export COPAL_DIST="$TOP/$DIST"
    farm_tests
    say "scenarios on virtual boards, beside what follows: $FARM_LOG"
    mkdir -p target
    BESIDE=$TMP/beside
    : >"$BESIDE"
    # It ends by itself, with its table, before its time is over.
    left=$((DEADLINE - $(date +%s) - 60))
    # shellcheck disable=SC2086 # one word or none
    timeout $FOREGROUND -k 20 "$((left + 45))" python3 qemu/farm run --deadline "$left" --beside "$BESIDE" "$@" >"$FARM_LOG" 2>&1 &
    FARM=$!
}

# Shows what the farm has done and does, and counts its scenarios.
farm_ends() {
    say "scenarios on virtual boards"
    rm "$BESIDE"
    tail -n +1 -f --pid="$FARM" "$FARM_LOG"
    farm_status=0
    wait "$FARM" || farm_status=$?
    FARM=
    count_scenarios
}

# All that ./dev test runs: every scenario on one board; on the other, some in which its firmware and bootloader have a part.
farm_for_test() {
    set -- @qemu-amd64
    for name in flash bootloader-writes update-healthy rollback-engine altboot-no-init; do
        set -- "$@" "$name@qemu-aarch64"
    done
    farm_begins "$@"
}

# Adds up the farm's table.
count_scenarios() {
    passed=$(grep -c '^farm: .* passed$' "$FARM_LOG") || true
    failed=$(grep -c '^farm: .* failed' "$FARM_LOG") || true
    PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed))
    FARM_TABLE=$(sed -n 's/^farm: /  /p; s/^farm times: /  /p' "$FARM_LOG")
    names=$(sed -n 's/^farm: \([^ ]* *[^ ]*\) .* failed.*$/  \1/p' "$FARM_LOG")
    [ -z "$names" ] || FAILURES="$FAILURES
$names"
    if ! grep -q '^farm result: ' "$FARM_LOG" || { [ "$farm_status" -ne 0 ] && [ "$failed" -eq 0 ]; }; then
        check "run of the board farm (see $FARM_LOG)" false
    fi
    NOT_RUN=$(printf '%s\n' "${NOT_RUN:-}" "$(sed -n '/^not run: /p' "$FARM_LOG")" | sed '/^$/d' | sort -u)
}

# total passed|failed: over all test programs.
total() { sed -n "s/^test result:.* \([0-9]*\) $1;.*/\1/p" "$LOG" | awk '{ n += $1 } END { print n + 0 }'; }

# Adds up cargo's `test result:` lines. A run that broke off (a crash, the time limit, code that does not compile)
# has fewer failures counted than there are.
count_tests() {
    passed=$(total passed) failed=$(total failed)
    PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed))
    names=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/  \1/p' "$LOG")
    [ -z "$names" ] || FAILURES="$FAILURES
$names"
    if [ "$passed" -eq 0 ] || { [ "$(cat "$TMP/status")" -ne 0 ] && [ "$failed" -eq 0 ]; }; then
        check "test run (see $LOG)" false
    fi
    NOT_RUN=$({
        sed -n 's/^\(test .* \.\.\. \)\{0,1\}\(not run: .*\)/\2/p' "$LOG"
        # One that is ignored for a reason is a part of another test.
        sed -n 's/^test \(.*\) \.\.\. ignored$/not run: \1: ignored/p' "$LOG"
    } | sort -u)
}

# summary COMMAND: the counts and the verdict; ends the script.
summary() {
    say "summary"
    [ -z "${NOT_BUILT:-}" ] || echo "$NOT_BUILT"
    [ -z "${FARM_TABLE:-}" ] || printf 'scenarios on virtual boards:\n%s\n' "$FARM_TABLE"
    [ -z "${COVERAGE:-}" ] || echo "line coverage: $COVERAGE"
    [ -z "$FAILURES" ] || printf 'failed:%s\n' "$FAILURES"
    if [ -n "${NOT_RUN:-}" ]; then
        echo "$NOT_RUN"
        # A machine that is meant to test everything must not become one that tests less.
        if [ "${CI:-}" = true ]; then
            echo "not run tests count as failed where CI=true"
            FAILED=$((FAILED + $(echo "$NOT_RUN" | wc -l)))
        fi
    fi
    echo "$PASSED passed, $FAILED failed"
    [ "$FAILED" -eq 0 ] || fail "$1 failed"
    verdict "$1: ok"
}
