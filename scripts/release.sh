# shellcheck shell=sh
# Release archives, for ./dev release. Sourced after lib.sh and checks.sh. docs/releasing.md says what is in them.

ARCHIVES=target/release-archives

# release: an archive for each target, one with the sources, and their digests.
release() {
    # Of the binaries and of the archive of the sources.
    COPAL_COMMIT=${COPAL_COMMIT:-$(git describe --always --exclude='*' --abbrev=40 --dirty=-modified)} || fail "git names no commit"
    export COPAL_COMMIT
    build_static || fail "the build failed"
    say "release archives"
    [ -z "$(git status --porcelain 2>/dev/null)" ] || echo "dev: not all of these sources are committed: this is no release to publish" >&2
    rm -rf "$ARCHIVES"
    for target in $BUILD_TARGETS; do
        run 300 python3 -B scripts/pack.py --target "$target" --binary "$DIST/copal-${target%%-*}" --out "$ARCHIVES" >/dev/null ||
            fail "cannot pack the archive for $target"
    done
    run 300 python3 -B scripts/pack.py --source --out "$ARCHIVES" >/dev/null || fail "cannot pack the sources"
    (cd "$ARCHIVES" && sha256sum -- *.tar.zst >SHA256SUMS && cat SHA256SUMS)
}

# release_check: makes everything once more, in another folder and with crates unpacked to another place; the same has to come out.
release_check() {
    say "the same once more, in another folder"
    other=$TMP/made/elsewhere
    mkdir -p "$other" "$TMP/home/registry"
    for part in registry/index registry/cache config.toml; do
        [ ! -e "$CARGO_HOME/$part" ] || ln -s "$CARGO_HOME/$part" "$TMP/home/$part"
    done
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf - | tar -xf - -C "$other"
    # The sources of a release are those that git knows.
    { git init --quiet "$other" && git ls-files -z | git -C "$other" add --force --pathspec-from-file=- --pathspec-file-nul; } ||
        fail "cannot make a checkout in $other"
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    (cd "$other" && run 5400 env CARGO_HOME="$TMP/home" SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" COPAL_COMMIT="$COPAL_COMMIT" COPAL_UNPROVED=1 ./dev release) ||
        fail "cannot make the release in $other"
    for archive in "$ARCHIVES"/*; do
        check "${archive##*/} is reproducible" cmp "$archive" "$other/$archive"
    done
}
