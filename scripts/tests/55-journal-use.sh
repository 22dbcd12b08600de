#!/usr/bin/env bash
# A pool whose fast tier has a journal, in everyday use: a takeover of an older tier 0 (mkfs --from), the programs that read
# a pool by the offset of a file, the calls of mount(8) and fsck(8), and a damaged log, which is refused and cut.
. "$(dirname "$0")/suites.sh"

refused() { # TEXT, COMMAND…
    local text=$1
    shift
    if "$@" >refused.out 2>&1; then fail "not refused: $*"; fi
    grep -q -- "$text" refused.out || fail "$* said: $(cat refused.out)"
    [ "$(wc -l <refused.out)" -le 2 ] || fail "$* said more than two lines: $(cat refused.out)"
}
daemon_of() { "$TERRACE" status "$1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'; }
kill_daemon() {
    kill -9 "$(daemon_of mnt)"
    "$TERRACE" umount mnt >/dev/null 2>&1 || true
}
sound() { # POOL
    "$TERRACE" check "$1" >check.out 2>&1 || fail "check of $1: $(cat check.out)"
}

step "a tier 0 in a file of PM moves to a journal"
pm=$SHM.pm
"$TERRACE" mkfs --pm "$pm" --pm-size 48M --tier tier.img,size=200M --label kept >mkfs.out 2>&1 || fail "mkfs --pm: $(cat mkfs.out)"
"$TERRACE" mount "$pm" mnt
cp -r "$root/crates/format" mnt/
head -c 80M /dev/urandom >mnt/big # more than tier 0
sha256sum mnt/big >big.sum
refused "busy: already mounted" "$TERRACE" mkfs --journal moved --from "$pm"
kill_daemon # the content is only bytes, and the next mount recovers them
before=$(sha256sum "$pm" tier.img)
refused "memory=64 MiB: --from takes a tier 0 over as it is" "$TERRACE" mkfs --journal moved,memory=64M --from "$pm"
refused "the log needs at least" "$TERRACE" mkfs --journal moved,log=1M --from "$pm"
refused "belongs to the pool" "$TERRACE" mkfs --journal tier.img --force --from "$pm"
refused "belongs to the pool" "$TERRACE" mkfs --journal "$pm" --force --from "$pm"
refused "cannot be used with" "$TERRACE" mkfs --journal moved --tier other.img --from "$pm"
refused "not the pool; a pool is named by" "$TERRACE" mkfs --journal moved --from tier.img
head -c 1M /dev/urandom >held
refused "holds data in its first MiB" "$TERRACE" mkfs --journal held --from "$pm"
[ "$before" = "$(sha256sum "$pm" tier.img)" ] && [ ! -e moved ] || fail "a refused takeover wrote something"

step "killed at any time, a takeover leaves the old pool, or the new one"
left=
for _ in 1 2 3 4 5 6 7 8; do
    timeout -s KILL "0.$((RANDOM % 300 + 100))" "$TERRACE" mkfs --journal moved,log=64M --from "$pm" >mkfs.out 2>&1 || true
    if "$TERRACE" check moved >check.out 2>&1; then
        left=new
        break
    fi
    sound "$pm"
    rm -f moved
done
[ -n "$left" ] || "$TERRACE" mkfs --journal moved,log=64M --from "$pm" >mkfs.out 2>&1 || fail "takeover: $(cat mkfs.out)"
if "$TERRACE" status "$pm" >status.out 2>&1; then # both, if it was killed between journal and mark
    "$TERRACE" mount moved mnt
    "$TERRACE" umount mnt
    refused "an older copy of this pool's tier 0" "$TERRACE" mount "$pm" mnt
else
    for command in status check "mkfs --journal other --from"; do
        # shellcheck disable=SC2086 # several words
        refused "moved has taken over this tier 0" "$TERRACE" $command "$pm"
    done
    refused "moved has taken over this tier 0" "$TERRACE" mount "$pm" mnt
    refused "holds a tier 0 that a journal has taken over" "$TERRACE" mkfs --pm "$pm" --pm-size 48M
fi
rm "$pm"
sound moved
cp moved older
"$TERRACE" mount moved mnt
"$TERRACE" status mnt | grep -q "label kept" || fail "another pool after the takeover"
sha256sum -c --quiet big.sum && diff -r "$root/crates/format" mnt/format || fail "files differ after the takeover"
locked=$(awk '/^VmLck:/ { print $2 }' "/proc/$(daemon_of mnt)/status")
[ "$locked" -ge $((48 << 10)) ] || fail "only $locked KiB of the image are locked in memory"
"$TERRACE" umount mnt

step "from journal to journal"
refused "an older copy" "$TERRACE" mkfs --journal other --from older
"$TERRACE" mkfs --journal other,log=128M --from moved >mkfs.out 2>&1 || fail "takeover of a journal: $(cat mkfs.out)"
refused "other has taken over this tier 0" "$TERRACE" mount moved mnt
sound other
(
    ulimit -l 64
    setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$TERRACE" mount other mnt
) >mount.out 2>&1 || fail "mount without a right to lock memory: $(cat mount.out)"
grep -q "is not locked in memory" mount.out || fail "no warning about memory that is not locked: $(cat mount.out)"
sha256sum -c --quiet big.sum || fail "files differ after the second takeover"
"$TERRACE" umount mnt
rm older moved held

step "programs that look into an unmounted pool"
ln -s "$TERRACE" mount.terrace
ln -s "$TERRACE" fsck.terrace
./mount.terrace other mnt -o rw,nodev,journal_ms=100 || fail "mount as mount(8) and fstab call it"
timeout 120 "$TERRACE" bench run commit mnt --quick --rounds 1 --json >run.json 2>run.err || fail "bench run: $(cat run.err)"
sleep 2 # costs of lines would be measured within a second after the mount
"$TERRACE" status mnt --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
lazy, journal = status["dram"]["lazy"], status["log"]["journal"]
assert not lazy["on"] and lazy["reason"] == "the fast tier is DRAM with a journal", lazy
assert status["parameters"]["large_pm_percent"] == 0, status["parameters"]
assert 0 < journal["sync_p50_us"] <= journal["sync_p99_us"] and journal["stored_bytes"] > 0, journal
' || fail "status of a journaled pool"
echo text >mnt/text
kill_daemon
"$TERRACE" status other | grep -q "not mounted, not clean: the next mount recovers it" || fail "status of a pool with a log: $("$TERRACE" status other 2>&1)"
./fsck.terrace -a other >check.out 2>&1 || fail "fsck -a: $(cat check.out)"
"$TERRACE" check --repair other >check.out 2>&1 || fail "check --repair of a sound pool: $(cat check.out)"
"$TERRACE" status other | grep -q "not mounted, not clean" || fail "a check changed the pool"
"$TERRACE" tier other tier.img --to 3 >tier.out || fail "tier: $(cat tier.out)"
"$TERRACE" status other | grep -q "^3 .*tier.img" || fail "another order of tiers than asked for"
"$TERRACE" mount other mnt
"$TERRACE" umount mnt

step "a damaged log"
"$TERRACE" mount other mnt -o journal_ms=60000
for name in a b c d e f g h; do
    echo "$name" >"mnt/$name"
    sync -d "mnt/$name"
done
kill_daemon
cat >damage.py <<'PYTHON'
import struct
# Zeros over a batch in the middle of the log.
with open("other", "r+b") as journal:
    def read(block):
        journal.seek(block * 4096)
        return journal.read(4096)
    anchors = [struct.unpack_from("<8sII16sQQQQQQQ", read(block)) for block in (0, 256)]
    _, _, _, _, image, log, _, _, start, _, _ = max(anchors, key=lambda anchor: anchor[6])
    pages = image // 4096
    up = lambda number, to: -(-number // to) * to
    first = up(up(512 + 2 * -(-pages // 1020), 256) + pages, 256)
    place = lambda position: first + position % log // 4096
    position, batches = start, []
    while True:
        magic, _, _, _, at, length = struct.unpack_from("<4sIQQQI", read(place(position)))
        if magic != b"TJB0" or at != position:
            break
        batches.append(position)
        position += length
    assert len(batches) >= 6, batches
    victim = batches[len(batches) - 4]
    journal.seek(place(victim) * 4096)
    journal.write(bytes(4096))
    print(victim)
PYTHON
position=$(python3 damage.py) || fail "no log to damage"
before=$(sha256sum other)
refused "at position $position: .*--repair.* cuts the log there" "$TERRACE" mount other mnt
refused "at position $position: " "$TERRACE" check other
refused "at position $position: " ./fsck.terrace -a other
[ "$before" = "$(sha256sum other)" ] || fail "a refusal wrote something"
status=0
"$TERRACE" check --repair other >check.out 2>&1 || status=$?
[ "$status" = 5 ] || fail "check --repair of a damaged log: status $status: $(cat check.out)"
grep -q "LOST: the damaged log of the journal was cut at position $position" check.out || fail "check --repair: $(cat check.out)"
sound other
"$TERRACE" mount other mnt
[ "$(cat mnt/a)" = a ] || fail "a change before the damage is gone"
[ ! -e mnt/h ] || fail "a change behind the damage is there"
sha256sum -c --quiet big.sum || fail "other files are damaged"
for name in 1 2 3 4 5 6 7 8; do
    echo "$name" >"mnt/$name"
    sync -d "mnt/$name"
done
kill_daemon
sound other
"$TERRACE" mount other mnt
[ "$(cat mnt/8)" = 8 ] || fail "a change after the cut is gone"
"$TERRACE" umount mnt
sound other
pass "taken over, used, damaged and cut"
