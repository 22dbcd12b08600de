#!/usr/bin/env bash
# Requests by io_uring: suites run once more with the kernel's parameter on, and mounts that ask for a transport get it or
# are told why not.
. "$(dirname "$0")/suites.sh"
parameter=/sys/module/fuse/parameters/enable_uring
[ -w "$parameter" ] || pass "skipped: this kernel has no FUSE over io_uring"
before=$(cat "$parameter")
leave() {
    echo "$before" >"$parameter"
    [ -n "$verdict" ] || say "FAIL $suite: a command failed, see above"
}
trap leave EXIT
transport() { "$TERRACE" status "$mnt" --json | sed -n 's/.*"transport": "\(.*\)".*/\1/p'; }
expect_transport() { [ "$(transport)" = "$1" ] || fail "requests come by $(transport), not by $1"; }

make_pool 64M 256M
echo N >"$parameter"
mount_pool
expect_transport classic
umount_pool
if "$TERRACE" mount "$pool" "$mnt" -o transport=uring >mount.out 2>&1; then fail "mounted without io_uring"; fi
grep -q "does not offer io_uring" mount.out || fail "no reason: $(cat mount.out)"
if mountpoint -q "$mnt"; then fail "a refused mount is left behind"; fi
echo Y >"$parameter"
mount_pool -o transport=classic
expect_transport classic
umount_pool
mount_pool
expect_transport uring
"$TERRACE" status "$mnt" | grep -q "requests by io_uring" || fail "status does not tell of io_uring"
# Half of the requests come from a processor that the daemon may not use.
for processor in $(seq 0 $(($(nproc) - 1))); do
    taskset -c "$processor" sh -c 'for i in $(seq 100); do echo $$ >"$1/$$-$i" && cat "$1/$$-$i" >>seen; done' sh "$mnt"
done
[ "$(wc -l <seen)" = $((100 * $(nproc))) ] || fail "$(wc -l <seen) files were read"
umount_pool
taskset -c 0 "$TERRACE" mount "$pool" "$mnt" -o "log=$WORK/daemon.log"
expect_transport uring
find "$mnt" -type f -exec cat {} + | wc -l >count
[ "$(cat count)" = $((100 * $(nproc))) ] || fail "$(cat count) lines are there"
umount_pool
step "mounts"
for other in 20-pjdfstest 30-fsx 50-kill; do
    WORK='' "$here/$other.sh" >"$other.out" 2>&1 || fail "$other: $(tail -n 5 "$other.out")"
    step "$(tail -n 1 "$other.out")"
done
pass "mounts and three suites by io_uring"
