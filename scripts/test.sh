#!/usr/bin/env bash
# Every check of the project: format, lints, Rust tests, then each executable scripts/tests/*.sh in a mount
# namespace of its own. Cleans up after itself. Ends with the line "N passed, N failed".
# Arguments: names of scripts to run alone (10-cli).
set -uo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ $# -gt 0 ] || say "every check of the project: 40 to 80 minutes on two cores from nothing; \`make check\` takes less than 5"

# Programs that the checks call, and the Debian packages they come in.
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cc gcc
need fusermount3 fuse3
need mkfs.ext4 e2fsprogs
need losetup mount
need unshare util-linux
need python3 python3
need sqlite3 sqlite3
need git git
need make make
need setpriv util-linux
need script bsdutils
install_packages "${missing[@]}"

# Peers and programs of `terrace bench`, which leaves out what is not there.
missing=()
need mkfs.xfs xfsprogs
need mkfs.btrfs btrfs-progs
need mergerfs mergerfs
need fio fio
need db_bench rocksdb-tools
[ -e /usr/lib/python3/dist-packages/plyvel ] || missing+=(python3-plyvel)
[ $# -gt 0 ] && [[ " $* " != *" 80-bench "* ]] || offer_packages "${missing[@]}"

passed=0
failed=0
begin=$SECONDS
# What each took and what was wrong, said once more at the end, also when somebody ends all this: who reads a log
# often has its last lines only.
durations=()
faults=()
ended() { # name: gives its seconds
    seconds=$((SECONDS - begin))
    begin=$SECONDS
    durations+=("$1 $seconds")
}
report() { # status name
    ended "$2"
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        say "ok      $2 ($seconds s)"
    else
        failed=$((failed + 1))
        faults+=("$2: status $1 after $seconds s")
        say "FAILED  $2 ($seconds s)"
    fi
}
finish() {
    trap - INT TERM
    # The simulator runs on where the build of the program failed.
    [ -z "${aside:-}" ] || end_with_children "$aside"
    rm -rf "${logs:-}"
    local list
    printf -v list '%s, ' "${durations[@]}"
    say "seconds: ${list%, }"
    [ ${#faults[@]} = 0 ] || printf 'FAILED  %s\n' "${faults[@]}"
    say "$((SECONDS / 60)) minutes in all"
    say "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

end_with_children() { # process
    local child children
    children=$(pgrep -P "$1")
    # A shell that ends after its child would begin the next program.
    kill "$1" 2>/dev/null
    for child in $children; do
        end_with_children "$child"
    done
}

cut_short() {
    trap - INT TERM
    local running child
    mapfile -t running < <(jobs -p)
    for child in "${running[@]}"; do
        end_with_children "$child"
    done
    wait
    failed=$((failed + 1))
    faults+=("ended from outside, $((SECONDS - begin)) s after the last of these")
    finish
}
trap cut_short INT TERM

# Runs cargo test with its output in a log. A test that hangs is ended after three times its time on a slow machine, so
# that the rest is seen.
run_cargo_test() { # seconds log arguments...
    local limit=$1 log=$2
    shift 2
    # In the background, or a signal would wait for its end.
    timeout --kill-after=10 "$limit" cargo test --locked --no-fail-fast "$@" >"$log" 2>&1 &
    wait $!
    echo $? >"$log.status"
}

# Counts the tests of a log, and shows the log.
judge_cargo_test() { # name log
    local name=$1 log=$2 status counts
    status=$(cat "$log.status" 2>/dev/null || echo 1)
    cat "$log"
    counts=$(awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0, failed + 0 }' "$log")
    mapfile -t -O ${#faults[@]} faults < <(grep -aE '^test .* FAILED$' "$log")
    if [ "$status" = 124 ]; then
        mapfile -t -O ${#faults[@]} faults < <(grep -a 'has been running for over' "$log" | tail -n 5)
    fi
    rm -f "$log" "$log.status"
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    if [ "$status" != 0 ] && [ "${counts#* }" = 0 ]; then report "$status" "$name"; else ended "$name"; fi
    say "$name: $seconds s"
}

# Documentation tests are in media alone: they show what does not compile.
targets=(--lib --bins --tests)
# File maps beside radix: two of five, with each commit others.
all_maps=(extent cuckoo hashfs-linear hashfs clustered)
commits=$(git rev-list --count HEAD 2>/dev/null || echo 0)
maps="${all_maps[$((commits * 2 % 5))]} ${all_maps[$(((commits * 2 + 1) % 5))]}"
# The simulator takes the first of the two: five commits see all maps.
sim_maps=${maps%% *}
# Tests of the simulator with each of them, and their seconds; the variable adds long ones, and takes all maps.
sim_of_map=(--test crash --test faults) sim_of_map_s=1800 samples_of_map=0.05
# Samples of the test `crash` with radix, of every third moment, with each commit others; CONTRIBUTING.md has the long
# run.
samples=${TERRACE_CRASH_SAMPLES:-0.06}
export TERRACE_CRASH_FIRST=${TERRACE_CRASH_FIRST:-$((commits % 6))}
# An eighth of the planted mistakes, with each commit another.
mistakes=$((commits % 8))/8
# Changes of names and attributes meet no map of blocks.
without=(--skip operations_on_names_are_atomic --skip changes_of_attributes_are_atomic)
without+=(--skip names_and_attributes_are_atomic_where_only_persist_makes_durable)
if [ -n "${TERRACE_LONG_MAPS:-}" ]; then
    sim_of_map+=(--test systematic --test model --test necessity) sim_of_map_s=7200 samples_of_map=1 without=()
    mistakes=0/1 maps="${all_maps[*]}" sim_maps=$maps
fi
# Tests of the simulator with radix, in three lists: the longest tests are in two of them.
sim_mistakes=(--test mistakes --test necessity) sim_operations=(--test systematic --test model) sim_rest=(--lib --bins)
for test in crates/sim/tests/*.rs; do
    test=$(basename "$test" .rs)
    [[ " ${sim_mistakes[*]} ${sim_operations[*]} " == *" $test "* ]] || sim_rest+=(--test "$test")
done
# Simulator and models need a processor and nothing else. They begin when they are built: the tests of Rust leave a processor
# idle, the scripts mostly wait, and both go first. The simulator turns on a feature of the engine that no other test and no
# product may have.
simulate() { # process of the build
    renice -n 19 $BASHPID >/dev/null
    tail --pid="$1" -f /dev/null
    # Its tests make and drop pools by the thousand: an allocator that gives memory back spends a quarter of the
    # time in the kernel.
    export MALLOC_TRIM_THRESHOLD_=2147483648 MALLOC_MMAP_THRESHOLD_=33554432
    # Most of them are one thread for most of their time: the lists run side by side, and beside each other map.
    run_cargo_test 1800 "$logs/sim" -p terrace-sim "${targets[@]}" --no-run
    TERRACE_CRASH_SAMPLES=$samples run_cargo_test 3600 "$logs/sim" -p terrace-sim "${sim_rest[@]}" &
    lists=($!)
    TERRACE_PART=$mistakes \
        run_cargo_test 3600 "$logs/sim-mistakes" -p terrace-sim "${sim_mistakes[@]}" &
    lists+=($!)
    run_cargo_test 3600 "$logs/sim-operations" -p terrace-sim "${sim_operations[@]}" &
    lists+=($!)
    for map in $sim_maps; do
        TERRACE_MAP=$map TERRACE_CRASH_SAMPLES=$samples_of_map \
            run_cargo_test "$sim_of_map_s" "$logs/sim-$map" -p terrace-sim "${sim_of_map[@]}" -- "${without[@]}"
    done
    wait "${lists[@]}"
    run_cargo_test 1800 "$logs/models" -p terrace-models --features shuttle "${targets[@]}"
}

logs=$(mktemp -d)
aside=
build=
if [ $# = 0 ]; then
    cargo fmt --all --check
    report $? "cargo fmt --check"
    cargo clippy --locked --workspace --all-targets -- -D warnings
    report $? "cargo clippy"
    # The models turn the engine's locks into a scheduler's: a call of cargo of their own.
    cargo clippy --locked -p terrace-models --features shuttle --all-targets -- -D warnings
    report $? "cargo clippy of the models"
    # As many files as issue 4 asks for over 32 MiB of PM; by itself the test makes fewer.
    export TERRACE_METADATA_FILES=200000
    # The tests run one after another and leave a processor idle: the program and the simulator are built beside them. What is
    # wrong with any is shown by the calls that follow.
    run_cargo_test 1800 "$logs/all" --workspace --exclude terrace-sim "${targets[@]}" --no-run
    ended "build of the tests"
    say "build of the tests: $seconds s"
    {
        scripts/build.sh lab
        cargo test --locked -p terrace-sim "${targets[@]}" --no-run
    } >/dev/null 2>&1 &
    build=$!
    # Its lists ask as root alone, as the scripts.
    if [ "$(id -u)" = 0 ]; then
        simulate "$build" &
        aside=$!
    fi
    run_cargo_test 1800 "$logs/all" --workspace --exclude terrace-sim "${targets[@]}"
    judge_cargo_test "cargo test" "$logs/all"
    # The tests whose pools have the map of the variable, picked from the same build: a build of these crates alone has
    # other features. Golden and damaged images have each a map of their own.
    of_maps=()
    for test in basic content flips memory movements regression stress below random; do
        of_maps+=(--test "$test")
    done
    # Most of their tests are one thread: two maps at a time.
    for half in 0 1; do
        (
            count=0
            for map in $maps; do
                [ $((count++ % 2)) = $half ] || continue
                # Random damage: with radix the tests have taken more than twice as much.
                TERRACE_MAP=$map TERRACE_DAMAGE_ROUNDS=${TERRACE_DAMAGE_ROUNDS:-12} TERRACE_FLIPS=${TERRACE_FLIPS:-120} \
                    run_cargo_test 900 "$logs/$map" --workspace --exclude terrace-sim "${of_maps[@]}"
            done
        ) &
        halves[half]=$!
    done
    wait "${halves[@]}"
    for map in $maps; do
        judge_cargo_test "cargo test with map $map" "$logs/$map"
    done
    run_cargo_test 600 "$logs/doc" --doc -p terrace-media
    judge_cargo_test "cargo test of documentation" "$logs/doc"
fi

[ -z "$build" ] || wait "$build" || true
scripts/build.sh lab || {
    report 1 "cargo build"
    finish
}
ended "cargo build"
say "cargo build: $seconds s"

if [ "$(id -u)" != 0 ]; then
    say "not root: scripts/tests need mount namespaces and loop devices; skipped"
    finish
fi
# What sanitizers need is built, as far as there is time, beside suites that mostly wait.
ahead=
if [ $# = 0 ] || { [ $# -gt 1 ] && [[ " $* " == *" 75-sanitizers "* ]]; }; then
    BUILD_ONLY=1 nice -n 19 scripts/tests/75-sanitizers.sh >/dev/null 2>&1 &
    ahead=$!
fi
await_aside() {
    [ -n "$aside" ] || return 0
    wait "$aside"
    aside=
    judge_cargo_test "cargo test of the simulator" "$logs/sim"
    judge_cargo_test "cargo test of the simulator, mistakes" "$logs/sim-mistakes"
    judge_cargo_test "cargo test of the simulator, operations" "$logs/sim-operations"
    for map in $sim_maps; do
        judge_cargo_test "cargo test of the simulator with map $map" "$logs/sim-$map"
    done
    judge_cargo_test "cargo test of the models" "$logs/models"
}
for script in scripts/tests/*.sh; do
    [ -x "$script" ] || continue
    name=$(basename "$script" .sh)
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    say "== $name"
    # Fuzzing takes all the time it is given, and more would only wait for the lock of the build.
    # Before these, simulator and models end: sanitizers need both processors.
    case $name in
    65-fuzz | 75-sanitizers)
        await_aside
        [ -z "$ahead" ] || wait "$ahead" || true
        ;;
    esac
    TERRACE="$terrace" unshare --mount --propagation private scripts/tests/run-one "$script" &
    wait $!
    report $? "$name"
done
await_aside
finish
