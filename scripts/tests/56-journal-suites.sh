#!/usr/bin/env bash
# A share of the suites 30-fsx and 70-stress on pools whose fast tier has a journal. Whole suites: JOURNAL=1 scripts/tests/NAME.sh,
# also for 20-pjdfstest and 40-programs.
. "$(dirname "$0")/suites.sh"
export JOURNAL=1
run() { # SUITE
    "$here/$1.sh" >"$1.out" 2>&1 || {
        cat "$1.out" >&2
        fail "$1: $(tail -n 1 "$1.out")"
    }
    tail -n 1 "$1.out"
}
OPERATIONS=5000 SEEDS=${SEEDS:-$RANDOM$RANDOM} run 30-fsx
STRESS_SECONDS=8 run 70-stress
pass "fsx and stress"
