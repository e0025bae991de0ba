#!/bin/sh
# part.sh NAME: a step of ./dev that runs by itself: rows of ./dev prove that are no test and no scenario, and what ./dev test does beside the rest. In the checkout's root; COPAL_RESULTS gets its results.
set -eu
. scripts/lib.sh
. scripts/checks.sh
deadline 60
case $1 in
    texts) lint_texts ;;
    older-rust) older_rusts ;;
    dependencies) dependencies ;;
    advisories) advisories ;;
    coverage) coverage ;;
    u-boot-decisions)
        export COPAL_PROVE=qemu-aarch64
        check "what U-Boot decides" unit_tests qemu/farm/tests qemu/farm
        ;;
    # Five runs of a test program, while other work takes the processors: nothing fails by chance.
    load)
        for _ in 1 2 3 4 5 6 7 8; do
            (while :; do :; done) &
            BACKGROUND="$BACKGROUND $!"
        done
        seed=$(python3 -B scripts/prove seed)
        for round in 1 2 3 4 5; do
            check "$2 beside eight busy loops, run $round" run 3400 env COPAL_SEED="$((seed + round))" python3 -B scripts/prove/suite.py "$2"
        done
        ;;
    tamper) check "the farm notices a copal without $2" run 3500 python3 -B qemu/farm tamper "$2" ;;
    # Ten restarts after a power cut in an encrypted installation; each number has others.
    secure-cuts) check "the medium installs again after a power cut, $2" run 3500 python3 -B qemu/farm run secure-cuts --repeat 10 --seed "${2}000" ;;
    # Twelve restarts after a power cut in an update of an encrypted disk; as many in a rollback.
    secure-update-cuts | secure-rollback-cuts) check "the disk is unlocked after a power cut, $1 $2" run 3500 python3 -B qemu/farm run "$1" --seed "${2}000" ;;
    fuzz-targets) lint_fuzz ;;
    fuzz) . scripts/fuzz.sh && fuzz "$2" ;;
    *) fail "no part $1" ;;
esac
! grep -q '^failed' "$COPAL_RESULTS"
