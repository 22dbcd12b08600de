#!/usr/bin/env bash
# kill -9 of the daemon, 20 times: while sqlite3 (WAL and DELETE, synchronous=FULL) and two recording writers
# keep a PM of 32 MiB demoting. Half of the kills come under load, half while the daemon recovers; each half goes
# through the points where TERRACE_TEST_PAUSE stops the daemon (crates/runtime/src/pause.rs), so that every run
# kills inside demotion, checkpoint and recovery, and now and then any moment. Nothing that was
# acknowledged is lost, the databases are whole, `terrace check` finds nothing.
. "$(dirname "$0")/suites.sh"
. "$(dirname "$0")/sqlite.sh"
build_helper
need sqlite3 sqlite3
need stdbuf coreutils
kills=${KILLS:-20}
pm_mib=32
under_load=(any demotion:flushed checkpoint:copy demotion:copied checkpoint:settled)
recovering=(recovery:read recovery:replay recovery:replayed checkpoint:copy recovery:raised any)
# What was acknowledged is kept in memory: the machine goes on.
log=$SHM.log
mkdir "$log"

RANDOM=${SEED:-$$}
say "SEED=${SEED:-$$}"

start_writer() { # NUMBER
    mkdir -p "mnt/writer-$1"
    "$helper" writer "mnt/writer-$1" "$log/writer-$1" "$RANDOM" >>"$log/writer-$1.out" 2>"$log/writer-$1.error" &
    writers+=($!)
}
start_all() {
    users=() writers=()
    start_sqlite wal
    start_sqlite delete
    start_writer 1
    start_writer 2
}
# All end by themselves when the daemon has gone.
wait_all() {
    local pid
    for pid in "${writers[@]}"; do
        wait "$pid" || fail "a writer: $(cat "$log"/writer-*.error)"
    done
    for pid in "${users[@]}"; do wait "$pid" || true; done
    # They end with an I/O error; a full disk or a damaged database is no consequence of a kill.
    ! grep -hE "full|malformed|corrupt|constraint|not a database" "$log/wal.error" "$log/delete.error" >&2 ||
        fail "sqlite3: see above"
}
# The daemon by its own word; during a mount, the process that holds the pool.
kill_daemon() {
    kill -KILL "$1"
    while [ -e "/proc/$1/exe" ]; do sleep 0.01; done
}

# With lazy writes a write under way at the kill may be torn.
may_tear=
[[ ${MOUNT_OPTIONS:-} != *lazy=on* ]] || may_tear=lazy
verify_all() {
    local number
    verify_database wal
    verify_database delete
    for number in 1 2; do
        # shellcheck disable=SC2086 # a word or none
        "$helper" verify "mnt/writer-$number" "$log/writer-$number" $may_tear || fail "writer $number: see above"
    done
}

# The daemon has come to the point where it is to be killed.
paused() { grep -q "paused at" daemon.log 2>/dev/null; }
wait_paused() { # POINT
    for _ in $(seq 3000); do
        ! paused || return 0
        sleep 0.02
    done
    fail "kill $killed: the daemon did not come to $1"
}
# mount_to_pause POINT: the next mount stops at the point once the file `now` exists.
mount_to_pause() {
    rm -f now
    local point=$1
    [ "$point" != any ] || point=
    TERRACE_TEST_PAUSE=${point:+$point@$WORK/now} mount_pool -o cache=16M
    : >daemon.log
    pid=$(daemon_pid)
}
# kill_recovering POINT: mounts and kills the daemon there.
kill_recovering() {
    local point=$1 daemon
    : >daemon.log
    [ "$point" != any ] || point=
    "$TERRACE" umount mnt >/dev/null 2>&1 || true
    TERRACE_TEST_PAUSE=$point "$TERRACE" mount --foreground "$pool" mnt -o "cache=16M,log=$WORK/daemon.log" \
        >foreground.out 2>&1 &
    daemon=$!
    if [ -n "$point" ]; then
        wait_paused "$point"
    else
        sleep "0.0$((RANDOM % 5))$((RANDOM % 10))"
    fi
    kill_daemon "$daemon" 2>/dev/null
    wait "$daemon" 2>/dev/null || true
    killed=$((killed + 1)) during_mount=$((during_mount + 1))
    say "kill $killed: while it recovered, at ${point:-any moment}"
    check_pool
}

make_pool ${pm_mib}M 3G
mount_to_pause "${under_load[0]}"
start_all

# At least 4 x PM before the first kill.
while [ "$(demoted_bytes)" -lt $((4 * pm_mib << 20)) ] ||
    [ "$(du -s --block-size=1M --apparent-size mnt 2>/dev/null | cut -f1)" -lt $((4 * pm_mib)) ]; do
    sleep 0.2
    [ $((SECONDS - started)) -lt 240 ] || fail "no $((4 * pm_mib)) MiB in four minutes"
done
step "$((4 * pm_mib)) MiB written, $(($(demoted_bytes) >> 20)) MiB demoted"

killed=0 during_mount=0 replayed=0 remounted=0
while [ "$killed" -lt "$kills" ]; do
    point=${under_load[$((remounted % ${#under_load[@]}))]}
    # Under load: demotion and checkpoints go on all the time; every fourth time a sync to tier 1 as well.
    [ $((remounted % 4)) != 3 ] || "$TERRACE" sync mnt --to 1 >/dev/null 2>&1 &
    sleep "0.$((RANDOM % 900 + 100))"
    for _ in $(seq 100); do
        moved=$(demoted_bytes)
        [ "${moved:-0}" = 0 ] || break
        sleep 0.1
    done
    [ "${moved:-0}" -gt 0 ] || fail "kill $killed: nothing demoted in this mount"
    if [ "$point" != any ]; then
        touch now
        wait_paused "$point"
        # The others go on as far as they get without the one that stopped.
        sleep "0.0$((RANDOM % 10))"
    fi
    kill_daemon "$pid"
    killed=$((killed + 1))
    say "kill $killed: under load, at ${point/any/any moment}, $((moved >> 20)) MiB demoted before"
    wait_all
    check_pool
    # Recovery killed too, and the one that follows.
    if [ $((remounted % 2)) = 1 ]; then
        for _ in 1 2; do
            [ "$killed" -lt "$kills" ] || break
            kill_recovering "${recovering[$((during_mount % ${#recovering[@]}))]}"
        done
    fi
    remounted=$((remounted + 1))
    mount_to_pause "${under_load[$((remounted % ${#under_load[@]}))]}"
    replayed=$((replayed + $(status_number records_replayed recovery)))
    [ "$(status_number used_bytes tiers)" -gt 0 ] || fail "tier 1 is empty"
    verify_all
    say "after it: $(grep -c ^A "$log/writer-1") and $(grep -c ^A "$log/writer-2") operations, $(acknowledged wal) and $(acknowledged delete) transactions are there"
    start_all
done
kill_daemon "$pid"
wait_all
check_pool --data
mount_pool
verify_all
umount_pool
check_pool --data
grep -q clean <("$TERRACE" status "$pool") || fail "not clean after umount"
pass "$killed kills ($during_mount while mounting), $replayed records replayed, $(cat "$log"/writer-[12] | grep -c ^A) operations and $(($(acknowledged wal) + $(acknowledged delete))) transactions acknowledged"
