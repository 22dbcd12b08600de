#!/usr/bin/env bash
# The way of requests: mounts that ask for a transport get it or are told why not, and suites run once more by io_uring,
# one of them with so few entries that queues run dry.
. "$(dirname "$0")/suites.sh"
parameter=/sys/module/fuse/parameters/enable_uring
need fusermount3 fuse3
[ -w "$parameter" ] || pass "skipped: this kernel has no FUSE over io_uring"
# The parameter is one for the machine: tests that set it take turns.
exec 8>/tmp/terrace-enable-uring.lock
flock 8
before=$(cat "$parameter")
forbidden=/proc/sys/kernel/io_uring_disabled
allowed=$(cat "$forbidden" 2>/dev/null || true)
grouped=
leave() {
    echo "$before" >"$parameter"
    [ -z "$grouped" ] || echo 1 >/proc/sys/kernel/sched_autogroup_enabled
    [ -z "$allowed" ] || echo "$allowed" >"$forbidden" 2>/dev/null || true
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
step "switched off: requests come by the device"

# In this mount namespace alone ordinary users may open the device.
mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse

# Not root: the parameter cannot be switched on.
user=65534
mkdir -m 777 theirs theirs/mnt
chown $user theirs/mnt
chmod 755 "$WORK"
theirs=$WORK/theirs/pool.pm
cp "$TERRACE" theirs/terrace
as_user() {
    HOME=$WORK/theirs setpriv --reuid $user --regid $user --clear-groups env -u XDG_RUNTIME_DIR "$WORK/theirs/terrace" "$@"
}
as_user mkfs --pm "$theirs" --pm-size 16M >theirs.out 2>&1 || fail "$(cat theirs.out)"
if as_user mount "$theirs" theirs/mnt -o transport=uring >theirs.out 2>&1; then fail "mounted without io_uring"; fi
grep -q "cannot be switched on" theirs.out || fail "no reason: $(cat theirs.out)"
if mountpoint -q theirs/mnt; then fail "a refused mount is left behind"; fi

mount_pool -o transport=uring
grep -q "switched on FUSE over io_uring" mount.out || fail "not said: $(cat mount.out)"
[ "$(cat "$parameter")" = Y ] || fail "it is not switched on"
expect_transport uring
umount_pool
mount_pool -o transport=classic
expect_transport classic
umount_pool
mount_pool
expect_transport uring
"$TERRACE" status "$mnt" | grep -Eq "requests by io_uring: [0-9]+ entries, 0 away" || fail "status does not tell of io_uring"
# Threads of rings do not push a program to the other processor, where no program can push them back (decision 0034).
policies() {
    local thread
    for thread in "/proc/$1"/task/*; do
        ! grep -qs ring "$thread/comm" || chrt -p "${thread##*/}" | sed -n 's/.*policy: //p'
    done | sort -u | tr '\n' ' '
}
autogroup=/proc/sys/kernel/sched_autogroup_enabled
is_of_root() { grep -q '^[0-9]*:cpu:/$' /proc/self/cgroup && [ -e /sys/fs/cgroup/cpu/release_agent ]; }
if [ "$(cat $autogroup 2>/dev/null)" = 1 ] && is_of_root; then
    # The policy is taken back for each piece of background work, so it is looked at again and again beside requests.
    looks_until_idle() { # MOST: the number of looks, MOST when none finds all threads SCHED_IDLE
        local look daemon asking=()
        daemon=$(daemon_pid)
        for processor in $(seq 0 $(($(nproc) - 1))); do
            (
                # Also ends when the test was killed and its directory is gone.
                while [ ! -e asked ] && [ -d "$mnt" ]; do
                    taskset -c "$processor" dd if=/dev/zero of="$mnt/asking-$processor" bs=512 count=2000 conv=notrunc status=none
                done
            ) &
            asking+=($!)
        done
        for look in $(seq "$1"); do
            [ "$(policies "$daemon")" != "SCHED_IDLE " ] || break
            sleep 0.05
        done
        touch asked
        wait "${asking[@]}"
        rm -f asked "$mnt"/asking-*
        echo "$look"
    }
    # Not where other programs keep the processors busy: background work then takes its time, and so long rings stay as they are.
    looks=$(looks_until_idle 100)
    say "threads of rings were SCHED_IDLE at look $looks of 100"
    if echo 0 >$autogroup 2>/dev/null; then
        grouped=1
        sleep 6 # the daemon looks every 5 s
        [ "$(looks_until_idle 40)" = 40 ] || fail "threads of rings are SCHED_IDLE in a group with other programs"
        echo 1 >$autogroup
        grouped=
    fi
    step "threads of rings are SCHED_IDLE in a scheduling group of their own alone"
else
    step "left out: no scheduling group of a session"
fi
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
(ulimit -l 0 && mount_pool) || fail "no mount where no memory may be locked"
cat "$mnt"/*-1 >count
umount_pool
step "switched on: requests come by io_uring, from all processors"

# An ordinary user has it too.
as_user mount "$theirs" theirs/mnt >theirs.out 2>&1 || fail "$(cat theirs.out)"
as_user status theirs/mnt | grep -q "requests by io_uring" || fail "an ordinary user has no io_uring"
setpriv --reuid $user --regid $user --clear-groups sh -c 'echo data >theirs/mnt/file && grep -q data theirs/mnt/file' || fail "no file"
as_user umount theirs/mnt >theirs.out 2>&1 || fail "$(cat theirs.out)"

# A kernel that forbids io_uring: the pool itself needs none, as it has no tier below.
if [ -n "$allowed" ] && echo 2 >"$forbidden" 2>/dev/null; then
    as_user mount "$theirs" theirs/mnt >theirs.out 2>&1 || fail "$(cat theirs.out)"
    if as_user status theirs/mnt | grep -q "by io_uring"; then fail "io_uring is forbidden"; fi
    setpriv --reuid $user --regid $user --clear-groups grep -q data theirs/mnt/file || fail "no file"
    as_user umount theirs/mnt >theirs.out 2>&1 || fail "$(cat theirs.out)"
    if as_user mount "$theirs" theirs/mnt -o transport=uring >theirs.out 2>&1; then fail "mounted with forbidden io_uring"; fi
    grep -q "io_uring: .*kernel.io_uring_disabled" theirs.out || fail "no reason: $(cat theirs.out)"
    echo "$allowed" >"$forbidden"
    step "io_uring forbidden: requests come by the device"
fi

# The daemon is killed with requests in its rings: programs are told, and the next mount works.
mount_pool
for _ in $(seq 16); do (while dd if=/dev/zero of="$mnt/killed-$BASHPID" bs=4k count=64 2>/dev/null; do :; done) & done
sleep 1
kill -KILL "$(daemon_pid)"
timeout 60 bash -c wait || fail "programs hang after a kill of the daemon"
wait
umount -l "$mnt" 2>/dev/null || true
mount_pool
umount_pool
step "killed with requests in its rings"

# A stopped daemon: by io_uring a request to it waits and no signal ends the wait, so commands must not send it.
mount_pool -o transport=uring
echo data >"$mnt/file"
pid=$(daemon_pid)
kill -STOP "$pid"
# On a busy machine a thread stops when it runs next. Until then commands see a daemon that works.
while grep -h '^State:' /proc/"$pid"/task/*/status | grep -qv 'T (stopped)'; do sleep 0.02; done
(sleep 90; kill -CONT "$pid" 2>/dev/null) &
guard=$!
for command in "status $mnt" "where $mnt/file" "iostat $mnt" "sync $pool" "status $pool" "umount $mnt" "umount $pool"; do
    began=$SECONDS
    # shellcheck disable=SC2086
    if timeout 30 "$TERRACE" $command >stopped.out 2>&1; then fail "$command beside a stopped daemon says nothing"; fi
    grep -q "($pid) is stopped" stopped.out || fail "$command: $(cat stopped.out)"
    [ $((SECONDS - began)) -lt 25 ] || fail "$command takes $((SECONDS - began)) s beside a stopped daemon"
done
kill -CONT "$pid"
kill "$guard" 2>/dev/null || true
umount_pool
step "commands end beside a stopped daemon"

# 30-fsx runs whole by the way that is the default.
export MOUNT_OPTIONS=transport=uring OPERATIONS=${OPERATIONS:-6000}
for other in ${OTHERS-20-pjdfstest 30-fsx 50-kill}; do
    WORK='' "$here/$other.sh" >"$other.out" 2>&1 || fail "$other: $(tail -n 5 "$other.out")"
    step "$(tail -n 1 "$other.out")"
done
export MOUNT_OPTIONS=transport=uring,entries=2
WORK='' STALL_ENDS=1 "$here/60-stall.sh" >60-stall.out 2>&1 || fail "60-stall: $(tail -n 15 60-stall.out)"
step "$(tail -n 1 60-stall.out)"
pass "mounts and four suites by io_uring"
