# Shared by the test scripts. Sourced, not run. Counts checks; the script ends with `finish`.
set -uo pipefail
: "${WORK:?run through scripts/tests/run-one}" "${SHM:?}" "${TERRACE:?}"
cd "$WORK" || exit 1
exec 9>&2 # messages reach the user though a check's output is redirected
checks=0
wrong=0

fail() {
    wrong=$((wrong + 1))
    printf 'line %s: %s\n' "${BASH_LINENO[1]}" "$*" >&9
}
# check WHAT COMMAND…: the command succeeds.
check() {
    checks=$((checks + 1))
    "${@:2}" || fail "$1"
}
# expect STATUS PATTERN COMMAND…: exit status, and a message of one or two lines that matches.
expect() {
    checks=$((checks + 1))
    local status=$1 pattern=$2 text got
    shift 2
    text=$("$@" 2>&1 >/dev/null)
    got=$?
    [ "$got" = "$status" ] || fail "exit status $got instead of $status: $* ($text)"
    grep -qE -- "$pattern" <<<"$text" || fail "message does not match '$pattern': $* ($text)"
    [ "$(wc -l <<<"$text")" -le 2 ] || fail "more than two lines: $* ($text)"
    ! grep -qiE 'panick|backtrace|RUST_' <<<"$text" || fail "panic: $* ($text)"
}
# unchanged COMMAND…: the command changes none of $files, makes none and removes none.
# Of large files the beginning, and the time of the last write, which is kept for all but mappings.
sums() {
    local file
    for file in "${files[@]}"; do
        if [ ! -e "$file" ]; then
            echo "absent $file"
        elif [ "$(stat -c %s "$file")" -le $((32 << 20)) ]; then
            sha256sum "$file"
        else
            stat -c '%n %s %y' "$file"
            head -c 8M "$file" | sha256sum
        fi
    done
}
unchanged() {
    local before after
    before=$(sums)
    "$@"
    after=$(sums)
    checks=$((checks + 1))
    [ "$before" = "$after" ] || fail "files changed: $*"
}
daemon_of() { "$TERRACE" status "$1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'; }
is_mounted() { awk -v dir="$1" '$5 == dir { found = 1 } END { exit !found }' /proc/self/mountinfo; }
finish() {
    printf '%s checks, %s wrong\n' "$checks" "$wrong"
    [ "$wrong" = 0 ]
    exit
}
