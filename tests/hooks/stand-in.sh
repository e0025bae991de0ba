#!/bin/sh
# A hook runner as a release without copal has it, for tests of releases that mix: written from what meta-balena
# documents about hooks and from the interface that its callers use. No debugging, no logging helper; each hook once,
# where that ran some of them twice.
set -e

phases=forward
dir=/etc/hostapp-update-hooks.d/

# want PHASE: forward hooks run only where nothing else is asked for.
want() {
    case $phases in
    forward) phases=$1 ;;
    *) phases="$phases $1" ;;
    esac
}

while [ $# -gt 0 ]; do
    case $1 in
    -b | --before) want before ;;
    -a | --after) want after ;;
    -c | --commit) want commit ;;
    -f | --full) phases="before forward after" ;;
    -d | --dir)
        dir=$2
        shift
        ;;
    *) echo "ignored: $1" >&2 ;;
    esac
    shift
done

DURING_UPDATE=${DURING_UPDATE:-0}
HOOKS_DIR=$dir
export DURING_UPDATE HOOKS_DIR

# hooks_of PHASE: one a line. As there, names with blanks are beyond it.
hooks_of() {
    {
        [ "$1" != forward ] || find "$dir" -maxdepth 1 -type f
        find "$dir" -type f | grep "$1" || :
    } | LC_ALL=C sort -u
}

for phase in before forward after commit; do
    case " $phases " in
    *" $phase "*) ;;
    *) continue ;;
    esac
    for hook in $(hooks_of "$phase"); do
        status=0
        "$hook" || status=$?
        [ "$status" -ne 0 ] || continue
        [ "$phase" = forward ] || exit "$status"
        failed=1
        break
    done
done

[ -z "${failed:-}" ] && exit
for hook in $(hooks_of cleanup); do
    "$hook" || :
done
exit 1
