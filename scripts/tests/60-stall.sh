#!/usr/bin/env bash
# The tier's loop device stalled by blkio throttling of the daemon, while a `terrace sync --to 1` and more readers of cold
# blocks wait for it than the daemon has request threads (and waiting threads), and than 256, which the kernel was once let
# send ahead: every write and sync of files in PM, through a mapping too, takes less than a second. Then the stall ends,
# everything finishes, data are compared. At last the mount ends while the tier stalls: nothing is lost, and the daemon does
# not wait for it. STALL_ENDS=1: it ends by `terrace umount` alone, not by SIGTERM too.
. "$(dirname "$0")/suites.sh"
build_helper
seconds=${STALL_SECONDS:-10}
readers=320

# The controller: cgroup v1 where it is mounted or can be mounted, else io.max of v2.
group=
find_group() {
    local root
    root=$(awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ { print $2; exit }' /proc/mounts)
    if [ -z "$root" ]; then
        mkdir -p blkio
        if mount -t cgroup -o blkio none blkio 2>/dev/null; then root=$WORK/blkio; fi
    fi
    if [ -n "$root" ] && [ -e "$root/blkio.throttle.read_bps_device" ]; then
        group=$root/terrace-stall-$$ version=1
    else
        root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
        [ -n "$root" ] && grep -qw io "$root/cgroup.controllers" || return 1
        echo +io >"$root/cgroup.subtree_control" 2>/dev/null || return 1
        group=$root/terrace-stall-$$ version=2
    fi
    mkdir "$group"
}
throttle() { # BYTES_PER_SECOND, or 0 for no limit
    if [ "$version" = 1 ]; then
        echo "$device $1" >"$group/blkio.throttle.read_bps_device"
        echo "$device $1" >"$group/blkio.throttle.write_bps_device"
    else
        local rate=$1
        [ "$rate" != 0 ] || rate=max
        echo "$device rbps=$rate wbps=$rate" >"$group/io.max"
    fi
}
# A daemon must not be left with a stalled device, nor a group with a process.
leave() {
    [ -n "$verdict" ] || say "FAIL $suite: a command failed, see above"
    [ -n "$group" ] && [ -d "$group" ] || return 0
    throttle 0 || true
    [ -z "${daemon:-}" ] || kill -KILL "$daemon" 2>/dev/null || true
    for _ in $(seq 50); do
        rmdir "$group" 2>/dev/null && break
        sleep 0.1
    done
}
trap leave EXIT
find_group || fail "no blkio controller: neither cgroup v1 nor v2 offers one"

truncate -s 1G tier.img
loop=$(losetup --find --show --direct-io=on tier.img 2>/dev/null || losetup --find --show tier.img)
device=$(lsblk -ndo MAJ:MIN "$loop" | tr -d ' ')
"$TERRACE" mkfs --pm "$pool" --pm-size 64M --tier "$loop" >mkfs.out 2>&1 || fail "mkfs: $(cat mkfs.out)"
mount_pool
"$helper" stall-fill mnt
"$TERRACE" sync mnt --to 1 || fail "sync before the stall"
umount_pool
# Mounted again, so that no cold block is cached. Prefetch would let one reader serve others.
mount_pool -o cache=4M,prefetch=4K
daemon=$(daemon_pid)
echo "$daemon" >"$group/cgroup.procs"

mkfifo answers words
"$helper" stall-run mnt "$seconds" "$readers" <answers >words 2>run.error &
runner=$!
exec 3>answers 4<words
word() { # WORD: waits for it, showing what comes before
    local line
    while read -r -t 90 line <&4; do
        [ "$line" != "$1" ] || return 0
        say "  $line"
    done
    wait "$runner" || true
    fail "stall-run ended before '$1': $(cat run.error)"
}
word ready
throttle 1
step "stalled"
echo go >&3
word reading
"$TERRACE" sync mnt --to 1 >sync.out 2>&1 &
syncing=$!
sleep 0.3
echo go >&3
word measured
[ -e "/proc/$syncing/exe" ] || fail "sync --to 1 did not wait for the stalled tier: $(cat sync.out)"
step "measured"
"$TERRACE" status mnt >status.out || fail "status while the tier stalls"
throttle 0
echo go >&3
exec 3>&-
while read -r -t 60 line <&4; do say "  $line"; done
wait "$runner" || fail "$(cat run.error)"
wait "$syncing" || fail "sync --to 1 after the stall: $(cat sync.out)"
step "finished"
health=$("$TERRACE" status mnt | grep -c '\[ok\]') || true
[ "$health" = 2 ] || fail "a device is not healthy after the stall"

# The end of a mount beside a device that hangs: what waits in DRAM for it goes into PM, and the daemon ends.
umount_pool
mount_pool -o sync_blocks=1,large_after=0,large_min=4K,large_pm=0
daemon=$(daemon_pid)
echo "$daemon" >"$group/cgroup.procs"
head -c 40M /dev/urandom >source
throttle 1
dd if=source of=mnt/large bs=1M status=none
waiting=$(status_number dirty_bytes) || waiting=0
[ "${waiting:-0}" -gt $((4 << 20)) ] || fail "only ${waiting:-0} bytes wait in DRAM for the tier"
begin=$SECONDS
if timeout 150 "$TERRACE" umount mnt >umount.out 2>&1; then fail "the unmount beside a stalled tier says that it is clean"; fi
grep -q 'does not answer' umount.out || fail "umount beside a stalled tier: $(cat umount.out)"
ended=$((SECONDS - begin))
throttle 0
for _ in $(seq 300); do
    [ -e "/proc/$daemon/exe" ] || break
    sleep 0.1
done
mount_pool
cmp source mnt/large || fail "what waited for the stalled tier when the mount ended"
daemon=$(daemon_pid)
echo "$daemon" >"$group/cgroup.procs"
step "ended beside a stalled tier in $ended s, $waiting bytes kept"
umount_pool

# The end of the check, after all mounts.
conclude() {
    daemon=
    check_pool --data
    losetup -d "$loop"
    pass "$readers readers and a sync waited $seconds s; no write or sync over a second"
}
[ "${STALL_ENDS:-2}" != 1 ] || conclude

# The same by SIGTERM, with a reader that was killed while its request waits: the kernel ends the connection, the daemon's
# thread still waits for the tier, and dirty pages wait with it. Persistent memory is emptied before: what it has no room
# for is waited for.
mount_pool -o sync_blocks=1,large_after=0,large_min=4K,large_pm=0
"$TERRACE" sync mnt --to 1 || fail "sync before the second stall"
daemon=$(daemon_pid)
echo "$daemon" >"$group/cgroup.procs"
head -c 20M /dev/urandom >source
throttle 1
dd if=source of=mnt/second bs=1M status=none
dd if=mnt/cold of=/dev/null bs=4K count=1 skip=5000 status=none 2>/dev/null &
reader=$!
sleep 1
kill -KILL "$reader"
begin=$SECONDS
kill -TERM "$daemon"
for _ in $(seq 900); do
    [ -e "/proc/$daemon/exe" ] || break
    sleep 0.1
done
[ ! -e "/proc/$daemon/exe" ] || tail -n 5 /run/terrace/*/log >&2 || true
[ ! -e "/proc/$daemon/exe" ] || fail "SIGTERM beside a stalled tier: still there after $((SECONDS - begin)) s"
ended=$((SECONDS - begin))
throttle 0
mount_pool
cmp source mnt/second || fail "what waited for the stalled tier at SIGTERM"
daemon=$(daemon_pid)
echo "$daemon" >"$group/cgroup.procs"
step "ended by SIGTERM beside a stalled tier in $ended s"
umount_pool
conclude
