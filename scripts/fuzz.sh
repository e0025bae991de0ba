# shellcheck shell=sh
# Fuzzing, for ./dev prove. Sourced after checks.sh. fuzz/README.md says which targets there are.

# Seconds for each target. zstd decodes each frame twelve times. With the build, which the first target pays for, a row has 15 minutes.
FUZZ=120 FUZZ_ZSTD=300

# fuzz TARGET: builds the targets where they are not built, and runs one. What was found lies in target/fuzz/.
fuzz() {
    need_tools fuzz
    fuzzers=$TOP/target/fuzz
    triple=$(uname -m)-unknown-linux-gnu
    mkdir -p "$fuzzers/corpus/$1" "$fuzzers/artifacts"
    # The flags that cargo-fuzz sets; --target keeps them away from build scripts. The zstd decoder has unsafe code: hence the address sanitizer, an
    # unstable option.
    check "fuzz targets are built" run 1800 env CARGO_TARGET_DIR="$fuzzers" RUSTC_BOOTSTRAP=1 \
        RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
        cargo build --quiet --release --locked --bins --manifest-path fuzz/Cargo.toml --target "$triple"
    seeds='' seconds=$FUZZ
    [ "$1" != zstd ] || seconds=$FUZZ_ZSTD
    [ ! -d "fuzz/seeds/$1" ] || seeds=fuzz/seeds/$1
    # shellcheck disable=SC2086 # one word or none
    check "fuzz $1" run $((seconds + 120)) "$fuzzers/$triple/release/$1" -max_total_time=$seconds -verbosity=0 -print_final_stats=1 \
        -artifact_prefix="$fuzzers/artifacts/$1-" "$fuzzers/corpus/$1" $seeds
}
