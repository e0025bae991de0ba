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
# Of the next call; set from outside.
__copal_arguments=()
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
        # Each byte of the value comes as `\xHH`, so that none is interpreted.
        'set '*)
            __copal_request=${__copal_request#set }
            # A variable that may not change would end this shell.
            if (printf -v "${__copal_request%% *}" '%b' "${__copal_request#* }"); then
                printf -v "${__copal_request%% *}" '%b' "${__copal_request#* }"
            else
                __copal_status=1
            fi
            ;;
        # Answers with `=` and the value, line ends escaped; with no such line if the variable is unset. copal reads lines of 8192 bytes.
        'get '*)
            __copal_request=${__copal_request#get }
            if [[ -n ${!__copal_request+set} ]]; then
                __copal_value=${!__copal_request//\\/\\\\}
                __copal_value=${__copal_value//$'\n'/\\n}
                __copal_value=${__copal_value//$'\r'/\\r}
                if (LC_ALL=C && ((${#__copal_value} < 8191))); then
                    printf '=%s\n' "$__copal_value" >&199
                else
                    __copal_status=1
                fi
            fi
            ;;
        # In a condition, so that `set -e` is off in the function.
        'call '*)
            "${__copal_request#call }" ${__copal_arguments[@]+"${__copal_arguments[@]}"} 198<&- 199>&- || __copal_status=$?
            __copal_arguments=()
            ;;
        *) __copal_status=2 ;;
    esac
    printf '%s\n' "$__copal_status" >&199
done
