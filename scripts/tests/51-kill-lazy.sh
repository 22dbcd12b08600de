#!/usr/bin/env bash
# kill -9 of the daemon while writes to the fast tier wait in DRAM (lazy=on): the whole of 50-kill, then RocksDB, which
# acknowledges each write after fdatasync. Nothing that was acknowledged is lost, `terrace check` finds nothing.
# KILLS: kills of 50-kill; ROUNDS: kills under RocksDB.
. "$(dirname "$0")/suites.sh"
here=$(cd "$(dirname "$0")" && pwd)
need db_bench rocksdb-tools
need sqlite3 sqlite3
rounds=${ROUNDS:-4}
export MOUNT_OPTIONS=lazy=on

KILLS=${KILLS:-8} WORK='' "$here/50-kill.sh" >50-kill.out 2>&1 || fail "50-kill: $(tail -n 5 50-kill.out)"
step "$(tail -n 1 50-kill.out)"

RANDOM=${SEED:-$$}
say "SEED=${SEED:-$$}"
lazy_pages() { "$TERRACE" status "$mnt" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["dram"]["lazy"]["pages"])'; }
acknowledged() { grep -oE 'thread 0: \([0-9]+,[0-9]+\)' bench.out | tail -n 1 | tr -dc '0-9,' | cut -d, -f2; }

make_pool 64M 512M
waited=0 all=0
for round in $(seq "$rounds"); do
    mount_pool
    pid=$(daemon_pid)
    # Small memtables: logs are removed once their rows are in synced tables.
    db_bench --benchmarks=fillseq --sync=1 --num=1000000 --value_size=400 --write_buffer_size=262144 --compression_type=none \
        --stats_interval=1 --db="$mnt/rocks-$round" >bench.out 2>&1 &
    bench=$!
    # Bytes that nobody syncs, beside it.
    dd if=/dev/urandom of="$mnt/unsynced-$round" bs=64K count=128 status=none
    sleep "1.$((RANDOM % 900 + 100))"
    pages=$(lazy_pages)
    [ "${pages:-0}" = 0 ] || waited=$((waited + 1))
    kill -KILL "$pid"
    wait "$bench" 2>/dev/null || true
    known=$(acknowledged)
    [ "${known:-0}" -gt 0 ] || fail "round $round: RocksDB has written nothing: $(tail -n 3 bench.out)"
    "$TERRACE" umount "$mnt" >/dev/null 2>&1 || true
    check_pool
    mount_pool
    ldb --db="$mnt/rocks-$round" scan --hex >rows 2>ldb.out || fail "round $round: $(tail -n 3 ldb.out)"
    # Keys are numbers without a gap: eight bytes each, and the digit zero eight times.
    found=$(python3 -c 'import sys
count = 0
for row in sys.stdin:
    if int(row[2:18], 16) != count:
        break
    count += 1
print(count)' <rows)
    [ "$found" -ge "$known" ] || fail "round $round: $found of $known acknowledged rows are there"
    [ "$found" = "$(wc -l <rows)" ] || fail "round $round: row $found is missing amid others"
    ldb --db="$mnt/rocks-$round" checkconsistency >ldb.out 2>&1 || fail "round $round: $(tail -n 3 ldb.out)"
    rm -rf "$mnt/rocks-$round"
    umount_pool
    all=$((all + known))
    step "kill $round: $known acknowledged rows are there, $pages lazy pages waited"
done
[ "$waited" -gt 0 ] || fail "no write waited in DRAM at any kill"
check_pool --data
pass "$rounds kills under RocksDB, $all rows acknowledged"
