#!/usr/bin/env bash
# Loss of power of a journaled pool: journal and tier 1 lie on devices that keep unflushed writes in memory (`terrace bench
# device --volatile`). Under writers that sync, the daemon is killed with SIGKILL and both devices drop a random subset of their
# unflushed sectors of 512 bytes. Then `terrace check` finds nothing, and after a mount everything acknowledged is there: the
# recording writers, mail delivery by threads, SQLite, RocksDB if it is installed.
# CYCLES: losses of power under writers; each third is followed by a loss while the pool is mounted again. SEED repeats choices.
# KEEP=DIR: images of the last loss are copied there. MKFS_JOURNAL: memory= and log= of the journal. FLUSH_US, TIER_FLUSH_US: the
# time of a flush.
. "$(dirname "$0")/suites.sh"
. "$(dirname "$0")/sqlite.sh"
build_helper
need sqlite3 sqlite3
need stdbuf coreutils
cycles=${CYCLES:-9}
log=$SHM.log
keep=${KEEP:-}
mkdir "$log" journal tier1

RANDOM=${SEED:-$$}
say "SEED=${SEED:-$$}"

# start_device FILE DIR SEED FLUSH_US: exports FILE as a volatile device; sets `device` to its process.
start_device() {
    "$TERRACE" bench device "$1" "$2" --class 20000:20000:2G:2G --volatile --seed "$3" --flush-us "$4" \
        --foreground >"$2.out" 2>&1 &
    device=$!
    for _ in $(seq 500); do
        [ ! -e "$2/device" ] || return 0
        sleep 0.01
    done
    fail "no $2/device: $(cat "$2.out")"
}
start_writers() {
    writers=() users=()
    local number
    for number in 1 2; do
        mkdir -p "$mnt/writer-$number"
        "$helper" writer "$mnt/writer-$number" "$log/writer-$number" "$RANDOM" >>"$log/writer-$number.out" 2>&1 &
        writers+=($!)
    done
    mkdir -p "$mnt/mail"
    "$helper" mail "$mnt/mail" "$log/mail" "$RANDOM" >>"$log/mail.out" 2>&1 &
    writers+=($!)
    start_sqlite wal
    # Not `delete`: SQLite acknowledges a commit after the removal of its journal although it could not open the directory to
    # sync it, which is the case when the daemon is killed between the two.
    start_sqlite truncate
    # Bytes that nobody syncs push others out of the fast tier.
    dd if=/dev/urandom of="$mnt/unsynced" bs=256K count=200 status=none 2>/dev/null &
    users+=($!)
    [ $((cycle % 4)) != 0 ] || start_rocks
}
start_rocks() {
    rocks=
    [ -n "$has_rocks" ] || return 0
    rm -rf "$mnt/rocks"
    db_bench --benchmarks=fillseq --sync=1 --num=1000000 --value_size=400 --write_buffer_size=262144 --compression_type=none \
        --stats_interval=1 --db="$mnt/rocks" >"$log/rocks" 2>&1 &
    users+=($!)
    rocks=started
}
has_rocks=
! command -v db_bench >/dev/null || ! command -v ldb >/dev/null || has_rocks=yes

# verify_rocks: keys are numbers without a gap: eight bytes each, and the digit zero eight times.
verify_rocks() {
    local known found
    [ -n "${rocks:-}" ] || return 0
    rocks=
    known=$(grep -oE 'thread 0: \([0-9]+,[0-9]+\)' "$log/rocks" | tail -n 1 | tr -dc '0-9,' | cut -d, -f2) || true
    # RocksDB had not come to its first row.
    [ "${known:-0}" -gt 0 ] || return 0
    rocks_rows=$((rocks_rows + known))
    ldb --db="$mnt/rocks" scan --hex >rows 2>ldb.out || fail "cycle $cycle: RocksDB: $(tail -n 3 ldb.out)"
    found=$(python3 -c 'import sys
count = 0
for row in sys.stdin:
    if int(row[2:18], 16) != count:
        break
    count += 1
print(count)' <rows)
    [ "$found" -ge "$known" ] || fail "cycle $cycle: $found of $known acknowledged rows of RocksDB are there"
    [ "$found" = "$(wc -l <rows)" ] || fail "cycle $cycle: row $found of RocksDB is missing amid others"
}
verify_all() {
    local number
    for number in 1 2; do
        "$helper" verify "$mnt/writer-$number" "$log/writer-$number" || fail "cycle $cycle: writer $number: see above"
    done
    "$helper" mail-verify "$mnt/mail" "$log/mail" || fail "cycle $cycle: mail: see above"
    verify_database wal
    verify_database truncate
    verify_rocks
}
# The devices lose power at once, before or after the daemon; its last requests may still be with them.
lose_power() { # PROCESS of the daemon
    lost=$((lost + 1))
    if [ $((RANDOM % 3)) = 0 ]; then
        order="devices first"
        kill -USR1 "$journal" "$tier"
        # A daemon that mounts may end by itself, with an error of the device.
        kill -KILL "$1" || true
    else
        order="daemon first"
        kill -KILL "$1"
        kill -USR1 "$journal" "$tier"
    fi
    for _ in $(seq 1000); do
        ! grep -q "^power lost, $lost:" journal.out || ! grep -q "^power lost, $lost:" tier1.out || break
        sleep 0.01
    done
    grep -q "^power lost, $lost:" journal.out || fail "the journal has not lost power: $(tail -n 2 journal.out)"
    grep -q "^power lost, $lost:" tier1.out || fail "tier 1 has not lost power: $(tail -n 2 tier1.out)"
    say "cycle $cycle: $order: $(tail -qn 1 journal.out tier1.out | tr '\n' ' ')" >>"$log/losses"
}
# The next mount loses power too, while it recovers or soon after.
lose_power_mounting() {
    "$TERRACE" mount --foreground "$pool" "$mnt" -o "journal_ms=100,log=$WORK/daemon.log" >foreground.out 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 6))$((RANDOM % 10))"
    # A mount that fails ends before it is killed.
    kill -0 "$pid" || fail "cycle $cycle: mount: $(cat foreground.out)"
    lose_power "$pid"
    wait "$pid" || true
    "$TERRACE" umount "$mnt" >umount.out 2>&1 || true
    keep_images
    check_pool
}
keep_images() {
    [ -n "$keep" ] || return 0
    mkdir -p "$keep"
    cp --sparse=always "$SHM.journal" "$keep/journal"
    cp --sparse=always "$SHM.tier" "$keep/tier1"
    cp -r "$log" journal.out tier1.out "$keep/"
}
unflushed() { awk '/^power lost/ { sum += $5; if ($5) some++ } END { print sum + 0, some + 0 }' "$1"; }

(umask 077 && truncate -s 400M "$SHM.tier")
# Slow flushes leave more writes unflushed at a loss.
start_device "$SHM.tier" tier1 "$RANDOM" "${TIER_FLUSH_US:-20000}"
tier=$device
"$TERRACE" mkfs --journal "$SHM.journal,${MKFS_JOURNAL:-memory=16M,log=32M}" --tier tier1/device >mkfs.out 2>&1 ||
    fail "mkfs: $(cat mkfs.out)"
start_device "$SHM.journal" journal "$RANDOM" "${FLUSH_US:-3000}"
journal=$device
pool=journal/device

rocks_rows=0 lost=0
for cycle in $(seq "$cycles"); do
    began=$SECONDS
    mount_pool -o journal_ms=100
    pid=$(daemon_pid)
    [ "$cycle" = 1 ] || verify_all
    start_writers
    sleep "0.$((RANDOM % 7 + 2))$((RANDOM % 10))"
    [ "$(demoted_bytes)" = 0 ] || demoting=$((${demoting:-0} + 1))
    lose_power "$pid"
    # Writers end by themselves, with an error of the mount; SQLite and RocksDB say nothing of use.
    wait "${writers[@]}" "${users[@]}" || true
    "$TERRACE" umount "$mnt" >umount.out 2>&1 || fail "umount of a killed daemon: $(cat umount.out)"
    keep_images
    check_pool
    [ $((cycle % 3)) != 0 ] || lose_power_mounting
    [ $((cycle % 20)) != 0 ] || step "$cycle cycles, the last in $((SECONDS - began)) s"
done
mount_pool
verify_all
umount_pool
check_pool --data
read -r sectors losses < <(unflushed journal.out)
read -r lower_sectors lower_losses < <(unflushed tier1.out)
[ "$losses" -gt 0 ] || fail "the journal had no unflushed sector at any loss"
operations=$(cat "$log"/writer-[12] | grep -c ^A)
mail=$(cat "$log"/mail-[0-4] | grep -c '^[AD]')
rows=$(($(acknowledged wal) + $(acknowledged truncate)))
pass "$lost losses of power, ${demoting:-0} during demotion, $sectors unflushed sectors of the journal at $losses of them and" \
    "$lower_sectors of tier 1 at $lower_losses; $operations operations, $mail of mail, $rows transactions, $rocks_rows rows of" \
    "RocksDB acknowledged, nothing lost"
