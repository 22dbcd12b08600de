#!/usr/bin/env bash
# Each file map that mkfs offers beside the default: named by status and check, kept by a mount; an unknown map and a map
# byte that contradicts its feature are refused; pjdfstest, fsx with four times as much data as PM, and kill -9 amid SQLite:
# with each map a suite of these, with each commit another. OTHERS: these suites with each map; MAPS: other maps.
. "$(dirname "$0")/suites.sh"
here=$(cd "$(dirname "$0")" && pwd)
need sqlite3 sqlite3

expect_refused() { # WORDS COMMAND...
    if "${@:2}" >refused.out 2>&1; then fail "not refused: ${*:2}"; fi
    grep -q "$1" refused.out || fail "expected '$1': $(cat refused.out)"
}

# Puts a superblock's map byte or features in place, with the checksum made right, in both copies.
set_superblock() { # MAP FEATURES_TO_CLEAR FEATURES_TO_SET
    python3 - "$pool" "$@" <<'PY'
import struct, sys

def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xff]
    return crc ^ 0xffffffff

path, number, clear, add = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with open(path, "r+b") as pool:
    for at in 0, 8192:
        pool.seek(at)
        block = bytearray(pool.read(8192))
        block[164] = number
        features = struct.unpack_from("<Q", block, 32)[0]
        struct.pack_into("<Q", block, 32, features & ~clear | add)
        struct.pack_into("<I", block, 8188, crc32c(bytes(block[:8188])))
        pool.seek(at)
        pool.write(block)
PY
}

expect_refused "possible values: radix" "$TERRACE" mkfs --pm "$pool" --pm-size 16M --map btree
maps=${MAPS-extent cuckoo hashfs-linear hashfs clustered}
suites=(20-pjdfstest 30-fsx 50-kill)
turn=$(git -C "$root" rev-list --count HEAD 2>/dev/null || echo 0)
declare -A numbers=([extent]=2 [cuckoo]=3 [hashfs-linear]=4 [hashfs]=5 [clustered]=6)
for map in $maps; do
    number=${numbers[$map]}
    make_pool 16M 512M --map "$map"
    grep -q "^map $map  policy" mkfs.out || fail "mkfs does not name $map"
    [ "$("$TERRACE" status "$pool" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["map"])')" = "$map" ] ||
        fail "status of the pool does not name $map"
    mount_pool
    [ "$("$TERRACE" status "$mnt" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["map"])')" = "$map" ] ||
        fail "status of the mount does not name $map"
    head -c 64M /dev/urandom >"$mnt/random"
    sum=$(sha256sum <"$mnt/random")
    umount_pool
    check_pool
    mount_pool
    [ "$(sha256sum <"$mnt/random")" = "$sum" ] || fail "$map: another content after a mount"
    "$TERRACE" status "$mnt" --json | python3 -c '
import json, sys
found, name = json.load(sys.stdin)["table"], sys.argv[1]
assert 0 < found["load_percent"] <= 100, found
has_reach = name.startswith("hashfs") or name == "clustered"
for field in "longest_distance", "reach", "far_searches":
    assert (found[field] is not None) == has_reach, found
for field in "stash_entries", "moves":
    assert (found[field] is not None) == (name == "cuckoo"), found
assert not has_reach or found["longest_distance"] < found["reach"] and found["reach"] >= 64, found
assert name != "cuckoo" or found["load_percent"] <= 95 and found["stash_entries"] <= 256, found' "$map" ||
        fail "status of the mount does not tell the load of $map"
    "$TERRACE" status "$mnt" | grep -q "^map $map  (load [0-9]* %.*)  policy" || fail "status does not show the load of $map"
    umount_pool
    "$TERRACE" check "$pool" --json | python3 -c '
import json, sys
found, name = json.load(sys.stdin)["summary"]["map"], sys.argv[1]
assert found["name"] == name and 0 < found["load_percent"] <= 100, found
is_table = name.startswith("hashfs") or name == "clustered"
assert (found["longest_distance"] is not None) == is_table, found
assert (found["stash_entries"] is not None) == (name == "cuckoo"), found
assert not is_table or found["longest_distance"] < found["reach"], found' "$map" ||
        fail "check does not tell the load of $map"
    "$TERRACE" check "$pool" | grep -q "^map $map  (load [0-9]* %" || fail "check does not show the load of $map"
    for change in "1 0 0" "0 0 0" "99 0 0" "$number 0 1" "$number $((64 << (number - 1))) 0"; do
        cp "$pool" sound.pm
        # shellcheck disable=SC2086 # three words
        set_superblock $change
        expect_refused "superblock" "$TERRACE" mount "$pool" "$mnt"
        expect_refused "superblock" "$TERRACE" check "$pool"
        cp sound.pm "$pool"
    done
    step "$map: status, content, contradictions"
    export MKFS_OPTIONS="--map $map"
    for other in ${OTHERS-${suites[$((turn++ % 3))]}}; do
        SEEDS=$RANDOM KILLS=${KILLS:-8} WORK='' "$here/$other.sh" >"$other.out" 2>&1 ||
            fail "$map, $other: $(tail -n 5 "$other.out")"
        step "$map: $(tail -n 1 "$other.out")"
    done
    unset MKFS_OPTIONS
done
pass "maps: $maps"
