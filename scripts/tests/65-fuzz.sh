#!/usr/bin/env bash
# Fuzzes every decoder and whole damaged pools (fuzz/) for FUZZ_SECONDS each, 3 unless told otherwise.
# FUZZ_TARGETS="page pool": these alone. What makes a target fail is kept in fuzz/artifacts.
. "$(dirname "$0")/suites.sh"
need g++ g++
seconds=${FUZZ_SECONDS:-3}
targets=${FUZZ_TARGETS:-"superblock checkpoint record lanes page keys device words extents cuckoo clustered request check pool journal_anchor journal_batch"}
# The flags of `cargo fuzz build -s none`, which would have to be installed first. They need no nightly toolchain, only
# its switch.
export RUSTC_BOOTSTRAP=1
unset CARGO_TARGET_DIR
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
triple=x86_64-unknown-linux-gnu
build() {
    (cd "$root/fuzz" && RUSTFLAGS="$(echo $coverage) --cfg fuzzing -Cdebug-assertions" \
        cargo build --locked --release --target "$triple" --target-dir "$target/fuzz")
}
# Inputs that reached something new are kept between runs, outside of the sources.
corpus=$target/fuzz-corpus
mkdir -p "$corpus"
build >build.out 2>&1 || fail "build: $(tail -n 20 build.out)"
step "built"
fuzz() { # name: runs it, and leaves its number of runs
    local name=$1 program=$target/fuzz/$triple/release/$1
    mkdir -p "$corpus/$name" "$root/fuzz/artifacts/$name"
    [ -x "$program" ] || fail "no target $name"
    "$program" "$corpus/$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -max_len=2000 \
        -print_final_stats=1 -artifact_prefix="$root/fuzz/artifacts/$name/" >"$name.out" 2>&1 || {
        grep -aE 'panicked|ERROR|SUMMARY|Test unit' -A2 "$name.out" | head -n 20 >&2
        fail "$name; repeat with: $program fuzz/artifacts/$name/<file>"
    }
    awk '/number_of_executed_units/ { print $2 }' "$name.out" >"$name.runs"
    say "$name: $(cat "$name.runs") runs"
}
# A target is one thread: two at a time.
halves=()
for half in 0 1; do
    (
        count=0
        for name in $targets; do
            [ $((count++ % 2)) != $half ] || fuzz "$name"
        done
    ) &
    halves+=($!)
done
# Both end before the test does.
failed=0
for half in "${halves[@]}"; do
    wait "$half" || failed=1
done
[ $failed = 0 ] || fail "a target failed"
total=0
for name in $targets; do
    total=$((total + $(cat "$name.runs")))
done
rmdir "$root"/fuzz/artifacts/* "$root/fuzz/artifacts" 2>/dev/null || true
pass "$total runs of $(wc -w <<<"$targets") targets"
