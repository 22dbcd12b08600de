#!/usr/bin/env bash
# AddressSanitizer over the vector code, the media, the file system on them, and the rings of the way in (all of the
# project's unsafe code);
# ThreadSanitizer over the threads of the file system with migration, of log, allocator and media.
# The standard library is the toolchain's and not instrumented: what its locks and channels order is not seen, but
# parking_lot's, which the engine uses here only, is built with the same flags and is. scripts/tests/tsan.suppressions says
# what is left out for that reason. SANITIZERS="address": that one alone. BUILD_ONLY=1: builds what will run.
. "$(dirname "$0")/suites.sh"
# Suppressions go by the names of functions.
# Not beside others, who may install something, too.
[ -n "${BUILD_ONLY:-}" ] || need llvm-symbolizer llvm
triple=x86_64-unknown-linux-gnu
export RUSTC_BOOTSTRAP=1
# Most of the time is compilation.
export CARGO_PROFILE_TEST_OPT_LEVEL=1
unset CARGO_TARGET_DIR

# tests KIND FLAGS ARGUMENTS…: cargo test, instrumented.
tests() {
    local kind=$1 flags=$2
    shift 2
    (cd "$root" && RUSTFLAGS=$flags cargo test --quiet --locked --target "$triple" \
        --target-dir "$target/sanitize-$kind" ${BUILD_ONLY:+--no-run} "$@") >"$kind.out" 2>&1 || {
        grep -aE 'SUMMARY|WARNING|ERROR|panicked|#[0-9]+ ' "$kind.out" | head -n 40 >&2
        fail "$kind: cargo test $*"
    }
    passed=$((passed + $(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$kind.out")))
}
passed=0
figures=
for kind in ${SANITIZERS:-address thread}; do
    begin=$SECONDS
    case $kind in
    address)
        # SIGBUS is the media crate's own to handle.
        export ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0
        export TERRACE_ROUNDS=300
        tests address -Zsanitizer=address -p terrace-media -p terrace-simd --lib --tests
        tests address -Zsanitizer=address -p terrace-engine --test basic --test stress
        # The rings of the way in. ThreadSanitizer hangs in its own symbolizer beside them.
        # AddressSanitizer keeps memory that was given back.
        tests address -Zsanitizer=address -p terrace-fuse --lib --test rings -- --skip payloads_of_large_requests
        ;;
    thread)
        export TSAN_OPTIONS="suppressions=$root/scripts/tests/tsan.suppressions halt_on_error=1"
        export TERRACE_ROUNDS=400
        # Mutexes of a crate that it instruments (crates/runtime/src/sync.rs).
        flags="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg terrace_sanitized"
        tests thread "$flags" -p terrace-engine --test stress
        tests thread "$flags" -p terrace-wal -p terrace-blocks --lib --tests -- --test-threads=1
        ;;
    *) fail "no sanitizer $kind" ;;
    esac
    step "$kind: $((SECONDS - begin)) s"
    figures="$figures $kind $((SECONDS - begin)) s"
done
pass "$passed tests,$figures"
