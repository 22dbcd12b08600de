#!/usr/bin/env bash
# 16 threads on a pool of 64 MiB PM over 1 GiB: create, write, append, rename, unlink, truncate, map, sync and read of
# files whose every block says what it is, while migration moves them; then remount, compare all, check.
# STRESS_SECONDS: other than 20. SEED: this seed instead of a random one.
. "$(dirname "$0")/suites.sh"
build_helper
seconds=${STRESS_SECONDS:-20}
seed=${SEED:-$RANDOM$RANDOM}
make_pool 64M 1G
mount_pool -o cache=8M
say "seed $seed"
"$helper" stress mnt model "$seconds" "$seed" >stress.out || fail "seed $seed: see above"
say "$(cat stress.out)"
promoted_bytes() { status_number promoted_bytes migration; }
expect_demotion
[ "$(promoted_bytes)" -gt 0 ] || fail "nothing was promoted"
figures="$(cat stress.out); $(($(demoted_bytes) >> 20)) MiB demoted, $(($(promoted_bytes) >> 20)) MiB promoted"
umount_pool
check_pool --data
mount_pool -o cache=8M
"$helper" stress-check mnt model >again.out || fail "seed $seed, after another mount: see above"
umount_pool
check_pool --data
pass "seed $seed, $figures; again: $(cat again.out)"
