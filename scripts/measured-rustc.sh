#!/bin/sh
# measured-rustc.sh RUSTC ARGUMENT…: rustc for the coverage. Only copal itself is measured; the tests' own code, whose coverage
# no report shows, is compiled as it is, which takes less time and lets the tests that compute a lot do so in less.
set -eu
case " $* " in
    *' --crate-name copal '* | *' --print '*) exec "$@" ;;
    # The last one counts. What writes the counters is otherwise linked only into what is measured.
    *) exec "$@" -C instrument-coverage=off -C link-arg=-Wl,-u,__llvm_profile_runtime ;;
esac
