# shellcheck shell=bash
# The bash that runs shell functions of the board for copal. At its start, standard input has the requests, a line each,
# and standard output takes the answers, a status each. Both are moved out of the way: what is run here finds an empty
# input, and whatever it prints goes to the log.
exec 198<&0 199>&1 197>/dev/null </dev/null 1>&2
# A trace (`set -x`) would put passphrases into the log.
BASH_XTRACEFD=197
# Known to plug-ins, but not exported.
# shellcheck disable=SC2034
CRYPT=0
# The function by which the script that used to source these files let them report their progress.
report_progress() { printf 'Percentage %s, status %s\n' "$1" "$2"; }
# As in that script: a top-level command that fails ends it all.
set -e

while IFS= read -r -u 198 __copal_request; do
    __copal_status=0
    case $__copal_request in
        'source '*)
            # shellcheck source=/dev/null
            . "${__copal_request#source }" 198<&- 199>&-
            ;;
        'has '*) declare -F "${__copal_request#has }" >/dev/null || __copal_status=1 ;;
        # In a condition, so that `set -e` is off in the function.
        'call '*) "${__copal_request#call }" 198<&- 199>&- || __copal_status=$? ;;
        *) __copal_status=2 ;;
    esac
    printf '%s\n' "$__copal_status" >&199
done
