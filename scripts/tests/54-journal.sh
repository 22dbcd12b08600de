#!/usr/bin/env bash
# A pool whose fast tier has a journal: what is acknowledged survives kill -9 of the daemon and a second mount, ten times, under
# writers with fsync; `terrace check` finds nothing; an orderly unmount leaves nothing to replay. Bad input is refused in one or
# two lines, and leaves files as they were.
. "$(dirname "$0")/suites.sh"
build_helper
kills=${KILLS:-10}
log=$SHM.log
mkdir "$log"

refused() { # TEXT, COMMAND…
    local text=$1
    shift
    if "$@" >refused.out 2>&1; then fail "not refused: $*"; fi
    grep -q -- "$text" refused.out || fail "$* said: $(cat refused.out)"
    [ "$(wc -l <refused.out)" -le 2 ] || fail "$* said more than two lines: $(cat refused.out)"
}

refused "below the minimum of tier 0" "$terrace" mkfs --journal j,memory=1M
refused "the log needs at least" "$terrace" mkfs --journal j,memory=64M,log=1M
refused "use memory=SIZE or log=SIZE" "$terrace" mkfs --journal j,size=64M
refused "of memory, " "$terrace" mkfs --journal j,memory=8T
refused "cannot be used with" "$terrace" mkfs --journal j --pm k
[ ! -e j ] || fail "a refused mkfs left a file"

"$terrace" mkfs --journal journal,memory=48M,log=128M --tier tier.img,size=1G >mkfs.out 2>&1 || fail "mkfs: $(cat mkfs.out)"
grep -q "promise power-fail" mkfs.out || fail "mkfs names no promise: $(cat mkfs.out)"
refused "use --force to overwrite" "$terrace" mkfs --journal journal,memory=48M
"$terrace" status journal | grep -q "not mounted, clean" || fail "a new pool is not clean"
cp --sparse=always journal copy
truncate -s 100M copy
refused "is it a copy that was cut off" "$terrace" mount copy mnt
head -c 4096 /dev/zero | dd of=copy bs=4096 conv=notrunc status=none
head -c 4096 /dev/zero | dd of=copy bs=4096 seek=256 conv=notrunc status=none
refused "no Terrace pool" "$terrace" mount copy mnt
rm copy

writers=()
for round in $(seq "$kills"); do
    "$terrace" mount journal mnt -o journal_ms=200 >mount.out 2>&1 || fail "mount $round: $(cat mount.out)"
    pid=$("$terrace" status --json mnt | sed -n '0,/"pid"/s/.*"pid": \([0-9]*\).*/\1/p')
    for number in 1 2; do
        mkdir -p "mnt/writer-$number"
        if [ "$round" -gt 1 ]; then
            "$helper" verify "mnt/writer-$number" "$log/writer-$number" || fail "round $round: acknowledged data is lost"
        fi
        "$helper" writer "mnt/writer-$number" "$log/writer-$number" "$((round * 7 + number))" >>"$log/out" 2>&1 &
        writers+=($!)
    done
    sleep "0.$((RANDOM % 90 + 10))"
    sleep 1
    kill -9 "$pid"
    wait "${writers[@]}" 2>/dev/null || true # the daemon was killed under them
    writers=()
    "$terrace" umount mnt >umount.out 2>&1 || fail "umount of a killed daemon: $(cat umount.out)"
    "$terrace" check journal >check.out 2>&1 || fail "check after kill $round: $(cat check.out)"
done
"$terrace" mount journal mnt
"$terrace" status --verbose mnt | grep -q "^journal: .* of a log of" || fail "status shows no journal"
"$terrace" umount mnt
"$terrace" status journal | grep -q "not mounted, clean" || fail "not clean after an orderly unmount"
"$terrace" check journal >check.out 2>&1 || fail "check at the end: $(cat check.out)"
pass "$kills kills, nothing acknowledged was lost"
