#!/usr/bin/env bash
# The command line end to end: every kind of bad input with its exit status and without a change to any file,
# then mount, umount, status, where, sync, check, and a daemon that is killed.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-a.pm
tier=$WORK/tier.img
mnt=$WORK/mnt
mkdir mnt

# Rewrites a field of both superblock copies and seals them: superblock FILE OFFSET BYTES-IN-HEX.
superblock() {
    python3 - "$@" <<'PY'
import sys
path, offset, patch = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
table = []
for n in range(256):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
    table.append(n)
with open(path, "r+b") as file:
    for copy in (0, 8192):
        file.seek(copy)
        block = bytearray(file.read(8192))
        block[offset:offset + len(patch)] = patch
        crc = 0xFFFFFFFF
        for byte in block[:8188]:
            crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
        block[8188:] = (crc ^ 0xFFFFFFFF).to_bytes(4, "little")
        file.seek(copy)
        file.write(block)
PY
}

is_json() { python3 -c 'import json, sys; json.load(sys.stdin)'; }
# says STATUS PATTERN COMMAND…: exit status, and a line of the output that matches.
says() {
    checks=$((checks + 1))
    local status=$1 pattern=$2 text got
    shift 2
    text=$("$@" 2>/dev/null)
    got=$?
    [ "$got" = "$status" ] || fail "exit status $got instead of $status: $* ($text)"
    grep -qE -- "$pattern" <<<"$text" || fail "output does not match '$pattern': $* ($text)"
}

## usage
expect 1 "unrecognized subcommand" "$t" frobnicate
expect 1 "unexpected argument '--frob'" "$t" mkfs --frob
expect 1 "required arguments" "$t" mkfs
for name in inspect; do expect 1 "$name: not built yet" "$t" $name; done
expect 1 "which workload" "$t" bench run
expect 1 "in which directories" "$t" bench run varmail
expect 1 "no workload postmark" "$t" bench run postmark .
expect 1 "which row" "$t" bench paper
expect 16 "unexpected argument" "$t" check --frob x
check "version" grep -qE '^terrace [0-9.]+ \(format version [0-9]+\)$' <("$t" --version)
# What the simulator needs of the engine (planted mistakes, interleaving) is in no product.
check "no simulation" eval '! grep -aq freed-before-record "$t"'
check "help with example" grep -q '^Example:' <("$t" mkfs --help)
check "repair is offered" grep -q -- '--repair *Repair' <("$t" check --help)
for name in mount mkfs fsck; do
    ln -s "$t" $name.terrace
    check "usage of $name.terrace" grep -qE "^Usage: $name\\.terrace (\\[OPTIONS\\]|--pm)" <(./$name.terrace --help)
done
expect 1 "required arguments.*see 'mount.terrace --help'" ./mount.terrace
expect 1 "unexpected argument.*see 'mkfs.terrace --help'" ./mkfs.terrace --frob
expect 16 "unexpected argument.*see 'fsck.terrace --help'" ./fsck.terrace --frob
for shell in bash zsh fish; do check "completions $shell" grep -q terrace <("$t" completions $shell); done

## mkfs refuses and changes nothing
files=("$pm" "$tier" "$WORK/content" "$WORK/tail" "$WORK/blank" "$WORK/ext4.img")
head -c 1M /dev/urandom >content
truncate -s 40M tail && printf x | dd of=tail bs=1 seek=$((40 * 1024 * 1024 - 1)) conv=notrunc status=none
truncate -s 40M blank
truncate -s 40M ext4.img && mkfs.ext4 -q ext4.img
unchanged expect 1 "content: holds data in its first MiB; use --force" "$t" mkfs --pm content --pm-size 16M
unchanged expect 1 "tail: holds data in its last MiB" "$t" mkfs --pm "$pm" --pm-size 16M --tier tail
unchanged expect 1 "ext4.img: holds an ext2, ext3 or ext4 file system" "$t" mkfs --pm "$pm" --pm-size 16M --tier ext4.img
unchanged expect 1 ": 1 MiB is below the minimum of persistent memory, 2 MiB" "$t" mkfs --pm "$pm" --pm-size 1M
unchanged expect 1 ": 64 B is below the minimum of persistent memory, 2 MiB" "$t" mkfs --pm "$pm" --pm-size 64
unchanged expect 1 "below the minimum of a tier" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=16M"
unchanged expect 1 "say how large to make it with --pm-size" "$t" mkfs --pm "$pm"
unchanged expect 1 "say how large to make it with size=SIZE" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier"
touch empty
unchanged expect 1 "empty: is empty; say how large to make it with --pm-size" "$t" mkfs --pm empty
unchanged expect 1 "empty: is empty; say how large to make it with size=SIZE" "$t" mkfs --pm "$pm" --pm-size 16M --tier empty
unchanged expect 1 "'lots' is not a size" "$t" mkfs --pm "$pm" --pm-size lots
unchanged expect 1 "'fast' is no device class; use ssd" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=64M,class=fast"
unchanged expect 1 "'speed=9': use size=SIZE or class" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,speed=9"
unchanged expect 1 "no space for 15 TiB" "$t" mkfs --pm "$pm" --pm-size 15T
unchanged expect 1 ": 1023 TiB is too large for persistent memory, which must be below 16 TiB" "$t" mkfs --pm "$pm" --pm-size 1023T
unchanged expect 1 ": 16 TiB is too large for persistent memory" "$t" mkfs --pm "$pm" --pm-size 16T
unchanged expect 1 "given twice" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=64M" --tier "$tier,size=64M"
ln blank blank2
unchanged expect 1 "given twice" "$t" mkfs --pm "$pm" --pm-size 16M --tier blank --tier blank2
rm blank2
unchanged expect 1 "nowhere: No such file" "$t" mkfs --pm /nowhere/pm --pm-size 16M
unchanged expect 1 "neither a file nor a block device" "$t" mkfs --pm "$WORK" --pm-size 16M
unchanged expect 1 "label" "$t" mkfs --pm "$pm" --pm-size 16M --label "$(printf 'x%.0s' {1..65})"
mount -t tmpfs -o size=8M none mnt
unchanged expect 1 "no space for 16 MiB" "$t" mkfs --pm mnt/pm --pm-size 16M
check "nothing left behind" test ! -e mnt/pm
umount mnt
if loop=$(losetup --find --show ext4.img 2>/dev/null); then
    unchanged expect 1 "holds an ext2, ext3 or ext4" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$loop"
    unchanged expect 1 "in use by /dev/loop" "$t" mkfs --pm "$pm" --pm-size 16M --tier ext4.img
    mount -o ro "$loop" mnt
    unchanged expect 1 "mounted or in use" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$loop" --force
    umount mnt
    unchanged expect 1 "a block device cannot be persistent memory" "$t" mkfs --pm "$loop"
    losetup -d "$loop"
fi

## mkfs makes a pool, and says what
check "mkfs" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=96M" --label test >out 2>err
check "geometry" grep -q "tier 0: .* 16 MiB: .* lanes" out
check "mkfs names map, policy and data mode" grep -q "^map radix  policy predictive  data atomic" out
promise=$([ "$(stat -f -c %T .)" = tmpfs ] && echo process-crash || echo power-fail)
check "promises" eval 'grep -q "tier 0: .*promise process-crash" out && grep -q "tier 1: .*promise $promise" out'
check "tmpfs is memory" eval '! grep -q "not on tmpfs" err'
check "sparse file warned of" grep -q "tier.img: sparse file" err
check "PM fully allocated" test "$(stat -c %b "$pm")" -ge $((16 * 2048))
files+=("$SHM-b.pm" "$WORK/tier-b.img")
unchanged expect 1 "holds a Terrace pool; use --force" "$t" mkfs --pm "$pm" --pm-size 16M
unchanged expect 1 "holds a tier of a Terrace pool" "$t" mkfs --pm "$SHM-b.pm" --pm-size 16M --tier "$tier"
check "--force" "$t" mkfs --pm "$pm" --tier "$tier" --label test --force >/dev/null
check "second pool" ./mkfs.terrace --pm "$SHM-b.pm" --pm-size 16M --tier "$WORK/tier-b.img,size=96M" >/dev/null 2>&1

## mount refuses and changes nothing
touch plain
unchanged expect 32 "no Terrace pool" "$t" mount content mnt
unchanged expect 32 "no Terrace pool" "$t" mount plain mnt
unchanged expect 32 "No such file" "$t" mount "$SHM-none" mnt
unchanged expect 32 "mount point does not exist" "$t" mount "$pm" nowhere
unchanged expect 32 "not a directory" "$t" mount "$pm" plain
unchanged expect 1 "unknown option" "$t" mount "$pm" mnt -o bogus
unchanged expect 1 "unknown option" "$t" mount "$pm" mnt -o bogus=1
unchanged expect 1 "option ' ro': unknown option, options have no spaces" "$t" mount "$pm" mnt -o 'noatime, ro'
unchanged expect 1 "option log=: needs a path" "$t" mount "$pm" mnt -o log=
unchanged expect 1 "threshold=0: must be" "$t" mount "$pm" mnt -o threshold=0
for option in sync_blocks=0 large_after=251 large_min=1K large_pm=101 read_times=0 touches=101 whole_after_s=0 threshold_even=100 \
    threshold_step=51 threshold_min=0 threshold_max=100 threshold_decay=0 dataflow_high=0 dataflow_low=-1 dataflow_s=17 \
    spill_high=101 spill_low=0; do
    unchanged expect 1 "$option: must be" "$t" mount "$pm" mnt -o "$option"
    # Each that the help and the manual do not name is one that nobody finds.
    check "help names $option" grep -q -- "[ ,]${option%%=*}=" <("$t" mount --help)
    check "operating.md names $option" grep -q "\`${option%%=*}=\`" "$(dirname "$0")/../../docs/operating.md"
done
for option in buffer cache group prefetch; do check "help names $option" grep -q " $option=\(auto|\)\?SIZE" <("$t" mount --help); done
unchanged expect 1 "threshold_min=80 is above threshold_max=60" "$t" mount "$pm" mnt -o threshold_min=80,threshold_max=60
unchanged expect 1 "dataflow_low is above dataflow_high" "$t" mount "$pm" mnt -o dataflow_low=3
unchanged expect 1 "spill_low=90 is above spill_high=80" "$t" mount "$pm" mnt -o spill_high=80
for option in metrics=:1 lazytime; do
    unchanged expect 1 "not built yet" "$t" mount "$pm" mnt -o "$option"
done
unchanged expect 1 "required arguments" "$t" mount "$pm"
cp --sparse=always "$pm" "$SHM-b.pm.save"
superblock "$SHM-b.pm" 8 63000000
unchanged expect 32 "format version 99 is not known" "$t" mount "$SHM-b.pm" mnt
superblock "$SHM-b.pm" 8 01000000
superblock "$SHM-b.pm" 32 0100000000010000
unchanged expect 32 "unknown incompatible features 0x10000000000" "$t" mount "$SHM-b.pm" mnt
superblock "$SHM-b.pm" 32 0100000000000000
superblock "$SHM-b.pm" 24 0100000000000000
unchanged expect 32 "mount it with -o ro" "$t" mount "$SHM-b.pm" mnt
superblock "$SHM-b.pm" 24 0000000000000000
mv tier.img moved.img
unchanged expect 32 "missing tier 1: .*tier.img: No such file" "$t" mount "$pm" mnt
says 1 "tier.img \[missing\] \(No such file" "$t" status "$pm"
expect 0 "mounted without a device: missing tier 1: .*tier.img: No such file" "$t" mount "$pm" mnt -o degraded
says 1 "tier.img \[degraded\] \(mounted without it" "$t" status mnt
check "a pool without its device takes data" sh -c 'head -c 1M /dev/zero >mnt/without && "$0" sync mnt' "$t"
check "and is unmounted in order" "$t" umount mnt
cp --sparse=always tier-b.img tier.img
unchanged expect 32 "foreign tier 1: .*belongs to another pool" "$t" mount "$pm" mnt
says 1 "tier.img \[foreign\] \(foreign tier 1: .*belongs to another pool" "$t" status "$pm"
head -c 96M /dev/zero >tier.img
unchanged expect 32 "foreign tier 1: .*no Terrace device" "$t" mount "$pm" mnt
cp --sparse=always moved.img tier.img && truncate -s 64M tier.img
unchanged expect 32 "resized tier 1" "$t" mount "$pm" mnt
cp --sparse=always moved.img tier.img && truncate -s 512M tier.img
unchanged expect 32 "resized tier 1" "$t" mount "$pm" mnt
says 1 "tier.img \[resized\] \(resized tier 1" "$t" status "$pm"
mv moved.img tier.img
truncate -s 17M "$pm"
unchanged expect 32 "resized tier 0" "$t" mount "$pm" mnt
says 1 "$pm \[resized\] \(was 16777216 bytes, is 17825792" "$t" status "$pm"
# A check called it clean, and a shorter one damaged beyond repair.
for repair in "" --repair; do
    unchanged expect 8 "$pm: resized tier 0: was 16777216 bytes, is 17825792; bring back its size" "$t" check $repair "$pm"
done
truncate -s 16M "$pm"
cp --sparse=always "$pm" "$SHM-cut.pm"
files+=("$SHM-cut.pm")
for size in $((15 << 20)) $(((15 << 20) + 5)) 8192; do
    truncate -s "$size" "$SHM-cut.pm"
    unchanged expect 8 "$SHM-cut.pm: resized tier 0: was 16777216 bytes, is $size; bring back its size" "$t" check "$SHM-cut.pm"
    unchanged expect 8 "resized tier 0: was 16777216 bytes, is $size" "$t" check --repair "$SHM-cut.pm"
done
rm "$SHM-cut.pm"
check "sound with its size" "$t" check "$pm" >/dev/null
mkdir -p inside
check "pool on a disk" "$t" mkfs --pm inside/pm --pm-size 16M >/dev/null 2>err
[ "$(stat -f -c %T inside)" = tmpfs ] || check "a disk is no memory" grep -q "not on tmpfs, hugetlbfs or DAX" err
files+=("$WORK/inside/pm")
unchanged expect 32 "lies inside the mount point" "$t" mount inside/pm inside
check "nothing is mounted" test -z "$(awk -v dir="$WORK" 'index($5, dir) == 1' /proc/self/mountinfo)"

## mount, and what works in it
check "mount" "$t" mount "$pm" mnt -o noatime,nofail,x-systemd.automount,nosuid,cache=32M,kernel_cache=48M
check "entry" grep -q "^$pm $mnt fuse.terrace rw,nosuid.*noatime" /proc/mounts
expect 32 "busy: already mounted at $mnt" "$t" mount "$pm" mnt
expect 1 "in use by another process" "$t" mkfs --pm "$pm" --force
expect 1 "in use by another process" "$t" mkfs --pm "$SHM-c.pm" --pm-size 16M --tier "$tier" --force
check "nothing left behind" test ! -e "$SHM-c.pm"
expect 8 "busy: already mounted" "$t" check "$pm"
expect 8 "$mnt: is the mount of $pm; unmount it and check $pm" "$t" check mnt
expect 8 "is a directory and no Terrace mount" "$t" check "$WORK"
head -c 50M /dev/urandom >data
check "write more than PM" cp data mnt/data
check "read" cmp data mnt/data
for what in mnt "$pm"; do
    check "status of $what" "$t" status --verbose $what >out
    check "status --json of $what" python3 - <<PY
import json, subprocess
status = json.loads(subprocess.check_output(["$t", "status", "--json", "$what"]))
assert status["output_version"] == 1 and status["mounted"] and status["mountpoint"] == "$mnt"
assert [tier["id"] for tier in status["tiers"]] == [0, 1]
for tier in status["tiers"]:
    assert {"id", "kind", "promise", "devices", "capacity_bytes", "used_bytes"} <= set(tier)
    for device in tier["devices"]:
        assert {"path", "capacity_bytes", "used_bytes", "health"} <= set(device) and device["health"] == "ok"
assert status["tiers"][0]["promise"] == "process-crash"
assert {"state", "reason", "demoted_bytes", "promoted_bytes"} <= set(status["migration"])
assert {"duration_seconds", "records_replayed", "clean"} <= set(status["recovery"])
assert {"cache_bytes", "buffer_bytes", "dirty_bytes"} <= set(status["dram"])
assert status["map"] == "radix" and status["policy"] == "predictive" and 50 <= status["threshold"] <= 90
placement = status["placement"]
assert (placement["sync_blocks"], placement["large_after"], placement["large_min_bytes"]) == (1024, 4, 65536)
assert placement["writes_seen"] > 0 and {"dataflow_ratio", "dataflow_idle"} <= set(placement)
rows = {"synchronous", "asynchronous", "unjudged", "expected_synchronous", "expected_asynchronous"}
assert set(placement["confusion"]) == rows
assert status["parameters"] == {
    "sync_blocks": 1024, "large_after": 4, "large_min_bytes": 65536, "large_pm_percent": 50, "read_times": 2, "touches": 2,
    "whole_after_seconds": 30, "threshold_percent": 80, "threshold_even_percent": 70, "threshold_step_percent": 5,
    "threshold_min_percent": 50, "threshold_max_percent": 90, "threshold_decay": 8, "dataflow_high": 2.0,
    "dataflow_low": 0.5, "dataflow_seconds": 4, "spill_high_percent": 95, "spill_low_percent": 90, "group_bytes": status["parameters"]["group_bytes"],
    "cache_bytes": 32 << 20, "cache_follows_memory": False, "kernel_cache_bytes": 48 << 20, "kernel_cached_bytes": 0, "buffer_bytes": 64 << 20, "prefetch_bytes": 128 << 10, "prefetch_seconds": 1.0,
    "lazy_low_percent": 5, "lazy_high_percent": 20, "lazy_age_seconds": 30.0, "lazy_period_seconds": 5.0, "lazy_idle_seconds": 5.0}
# 1 MiB, which is more than a sixteenth of 16 MiB.
assert 1 << 20 <= status["parameters"]["group_bytes"] <= 2 << 20, status["parameters"]
PY
    check "thresholds shown" grep -qF "thresholds: 70 % + 5 % · log2(read/written), 50 to 90 %, decay 1/8 a second; dataflow 0.5 to 2 for 4 s" out
    check "limits shown" grep -qE "^limits: group [0-9.]+ MiB, cache 32 MiB, kernel's cache of files in PM 48 MiB \(0 B now\), buffer 64 MiB, prefetch 128 KiB for 1 s" out
    check "what is not known yet of predictions" grep -qE "^predicted, of it synced/not/not known yet: synchronous [0-9.]+ [KMi]*B/[0-9.]+ [KMi]*B/[0-9.]+ [KMi]*B" out
done
check "sync" "$t" sync mnt
expect 1 "no tier 7" "$t" sync mnt --to 7
expect 1 "no tier 'tape'" "$t" sync mnt --to tape
expect 1 "no tier 7" "$t" sync mnt --to 7 --dry-run
expect 1 "required arguments" "$t" sync mnt --to 1 --json
head -c 1M /dev/urandom >mnt/new
says 0 "mnt: would move to tier 1 or below: [0-9.]+ MiB from tier 0; would write back first: [0-9.]+ [KMi]*B from DRAM$" \
    "$t" sync mnt --to 1 --dry-run
says 0 "mnt: would write back: [0-9.]+ [KMi]*B from DRAM$" "$t" sync mnt --dry-run
check "sync --to --dry-run --json" python3 - <<PY
import json, subprocess
def where():
    [file] = json.loads(subprocess.check_output(["$t", "where", "--json", "mnt/new"]))
    return {tier["id"]: tier["bytes"] for tier in file["tiers"]}
assert where() == {0: 1 << 20, 1: 0}, where()
plan = json.loads(subprocess.check_output(["$t", "sync", "mnt", "--to", "ssd", "--dry-run", "--json"]))
assert plan["output_version"] == 1 and plan["dry_run"] and plan["action"] == "sync" and plan["tier"] == 1, plan
[pm] = plan["tiers"]
assert pm["id"] == 0 and pm["bytes"] == plan["move_bytes"] >= 1 << 20 and plan["dirty_bytes"] >= 0, plan
assert where() == {0: 1 << 20, 1: 0}, where()
PY
check "sync --to 1" "$t" sync mnt --to 1
rm mnt/new
says 0 "mnt: would move to tier 1 or below: nothing; would write back first: 0 B from DRAM$" "$t" sync mnt --to 1 --dry-run
check "sync --to ssd" "$t" sync mnt --to ssd
check "where" "$t" where mnt/data mnt >out
check "where says no as it says yes" grep -qE "^mnt/data: .*  asynchronous  (not )?large  not read-dominated$" out
check "where --json" python3 - <<PY
import json, subprocess
[file] = json.loads(subprocess.check_output(["$t", "where", "--json", "$mnt/data"]))
assert file["path"] == "$mnt/data" and file["size_bytes"] == 50 << 20, file
tiers = {tier["id"]: tier["bytes"] for tier in file["tiers"]}
assert tiers == {0: 0, 1: 50 << 20}, file
assert file["sync_predicted"] is False and file["read_dominated"] is False, file
assert isinstance(file["large_predicted"], bool) and file["average_mtime"] is None and file["average_rtime"] is None
PY
check "where of a synced file" python3 - <<PY
import json, os, subprocess, time
with open("$mnt/log", "wb") as log:
    for _ in range(3):
        log.write(bytes(4096)), log.flush(), os.fsync(log.fileno())
[file] = json.loads(subprocess.check_output(["$t", "where", "--json", "$mnt/log"]))
assert file["sync_predicted"] is True and file["large_predicted"] is False, file
assert abs(file["average_mtime"] - time.time()) < 3600 and file["temperature"] == "write-hot", file
status = json.loads(subprocess.check_output(["$t", "status", "--json", "$mnt"]))
assert status["placement"]["confusion"]["synchronous"]["synced_bytes"] >= 8192, status
PY
says 0 "  synchronous  not large  not read-dominated$" "$t" where mnt/log
rm mnt/log
expect 1 "No such file" "$t" where mnt/nothing
expect 1 "not in a mounted pool" "$t" where data
expect 1 "not a mounted pool" "$t" sync "$WORK"

## moves by hand and what passes through the tiers
# Under a policy that has all writes begin in PM and moves nothing by itself, beginning with an empty PM.
says 0 "" "$t" umount mnt
says 0 "" "$t" mount "$pm" mnt -o policy=static
says 0 "" "$t" sync mnt --to 1
expect 1 "required arguments" "$t" migrate mnt/data
expect 1 "no tier 7" "$t" migrate mnt/data --to 7
expect 1 "no tier 'tape'" "$t" migrate mnt/data --to tape
expect 1 "No such file" "$t" migrate mnt/nothing --to 1
expect 1 "not in a mounted pool" "$t" migrate data --to 1
expect 1 "not in a mounted pool" "$t" migrate "$pm" --to 1
head -c 2M /dev/urandom >small && mkdir mnt/sub && cp small mnt/sub/a && cp small mnt/sub/b
says 0 "sub: 3 files and directories; would move to tier 1: 4 MiB from tier 0" "$t" migrate mnt/sub --to 1 --dry-run
check "dry run --json" python3 - <<PY
import json, subprocess
plan = json.loads(subprocess.check_output(["$t", "migrate", "mnt/sub", "--to", "ssd", "--dry-run", "--json"]))
assert plan["output_version"] == 1 and plan["dry_run"] and plan["tier"] == 1, plan
assert plan["tiers"][0] == {"id": 0, "bytes": 4 << 20} and plan["move_bytes"] == 4 << 20 and plan["files"] == 3, plan
PY
# Names as status and iostat print them, and as people write them.
for name in ram RAM PM 0; do
    says 0 "sub: 3 files and directories; would move to tier 0: nothing" "$t" migrate mnt/sub --to $name --dry-run
done
says 0 "would move to tier 1: 4 MiB from tier 0" "$t" pin mnt/sub --tier SSD --dry-run
says 0 "would move to tier 1 or below" "$t" sync mnt --to Ssd --dry-run
says 0 "PM 2 MiB  tier 1 0 B" "$t" where mnt/sub/a
says 0 "sub: 4 MiB moved to tier 1$" "$t" migrate mnt/sub --to 1 --wait
says 0 "PM 0 B  tier 1 2 MiB" "$t" where mnt/sub/b
# A bar on a terminal, and nothing of it elsewhere: 64 MiB take a disk two thirds of a second.
progress() { # PATTERN COMMAND…
    script -qec "${*:2}" /dev/null </dev/null >drawn
    tr '\r' '\n' <drawn | grep -caE "$1" >/dev/null
}
check "a pool on a slow device" "$t" mkfs --pm "$SHM-p.pm" --pm-size 128M --tier "$WORK/slow.img,size=256M" >/dev/null 2>&1
mkdir slow && "$t" mount "$SHM-p.pm" slow -o emulate-tier=1:disk && head -c 64M /dev/urandom >slow/a && cp slow/a slow/b && "$t" sync slow
check "progress of migrate" progress '[0-9.]+ [KM]?i?B/[0-9.]+ [KM]iB [0-9.]+ [KM]?i?B/s' "$t" migrate slow/a --to 1 --wait
check "progress of sync" progress '[0-9.]+ [KM]?i?B/[0-9.]+ [KM]iB' "$t" sync slow --to 1
expect 0 '^$' "$t" migrate slow/a --to 0 --wait
check "the slow pool is unmounted" "$t" umount slow
rm -f "$SHM-p.pm" slow.img
check "migrate --wait --json" python3 - <<PY
import json, subprocess
move = json.loads(subprocess.check_output(["$t", "migrate", "mnt/sub/a", "--to", "pm", "--wait", "--json"]))
assert move["output_version"] == 1 and move["state"] == "done" and move["action"] == "migrate", move
assert move["tier"] == 0 and move["done_bytes"] == 2 << 20 and move["left_bytes"] == 0 and move["path"] == "mnt/sub/a", move
status = json.loads(subprocess.check_output(["$t", "status", "mnt", "--json"]))
assert [one["state"] for one in status["moves"]] == ["done", "done"], status["moves"]
PY
says 0 "PM 2 MiB" "$t" where mnt/sub/a
says 0 "^move 1: migrate $mnt/sub to tier 1: done, 4 MiB of 4 MiB$" "$t" status mnt
says 0 "^move 2: migrate $mnt/sub/a to tier 0: done, 2 MiB of 2 MiB$" "$t" status mnt
# static has no predictors: nothing is said of them.
check "where without predictors" eval '! grep -qE "synchronous|large|dominated" <("$t" where mnt/sub/a)'
check "no thresholds without predictors" eval '! grep -q "^thresholds" <("$t" status -v mnt)'
check "content" cmp small mnt/sub/a
# M7: a file that is open, mapped and locked moves like any other, and stays all that.
check "an open, mapped, locked file moves" python3 - <<PY
import fcntl, mmap, os, subprocess
path = "mnt/in-use"
with open(path, "wb") as file:
    file.write(os.urandom(1 << 20))
    os.fsync(file.fileno())
with open(path, "r+b") as file, open(path, "rb") as other:
    fcntl.flock(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 0) as mapped:
        before = bytes(mapped)
        mapped[4096:4100] = b"left"
        for tier in "1", "0", "1":
            subprocess.check_call(["$t", "migrate", path, "--to", tier, "--wait"], stdout=subprocess.DEVNULL)
            assert mapped[4096:4100] == b"left" and mapped[8192:] == before[8192:], tier
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise SystemExit("the lock was lost")
            except BlockingIOError:
                pass
        mapped.flush()
    assert file.read() == before[:4096] + b"left" + before[4100:]
os.unlink(path)
PY
says 0 "in the background \\(move [0-9]+\\)|moved to tier 1$" "$t" migrate mnt/sub/a --to 1
head -c 30M /dev/urandom >big && cp big mnt/big
says 0 "moved to tier 1$" "$t" migrate mnt/big --to 1 --wait
expect 1 "tier 0 is full.* did not move" "$t" migrate mnt/big --to 0 --wait
says 0 "^move [0-9]+: migrate $mnt/big to tier 0: failed \\(tier 0 is full.*\\), [0-9.]+ MiB of 30 MiB$" "$t" status mnt
check "three moves that have ended are shown" test "$("$t" status mnt | grep -c "^move ")" = 3
check "content" cmp big mnt/big
expect 1 "not a mounted pool" "$t" iostat "$WORK"
expect 1 "invalid value 'often'" "$t" iostat mnt often
expect 1 "INTERVAL: must be between" "$t" iostat mnt 0
expect 1 "COUNT: must be" "$t" iostat mnt 1 0
expect 1 "give an INTERVAL" "$t" iostat -y mnt
says 0 "^1-ssd +[0-9.]+[KMG]?" "$t" iostat mnt
says 0 "^dram" "$t" iostat mnt
check "no header, tabs, exact numbers" eval '"$t" iostat -Hp mnt >out && grep -qP "^0-ram(\\t([0-9]+|-)){8}$" out && [ "$(wc -l <out)" = 7 ]'
check "three reports" test "$("$t" iostat -H mnt 0.01 3 | grep -c ^dram)" = 3
check "not since mount" test "$("$t" iostat -yH mnt 0.01 2 | grep -c ^dram)" = 2
check "iostat --json" python3 - <<PY
import json, subprocess
lines = subprocess.check_output(["$t", "iostat", "--json", "mnt", "0.01", "2"]).splitlines()
first, second = [json.loads(line) for line in lines]
assert first["output_version"] == 1 and first["since_mount"] and not second["since_mount"], first
assert [tier["id"] for tier in first["tiers"]] == [0, 1], first
assert first["tiers"][0]["write_bytes"] >= 4 << 20 and first["tiers"][1]["write_bytes"] >= 30 << 20, first
assert first["tiers"][0]["write_latency_seconds"] is None and first["tiers"][1]["write_latency_seconds"] > 0, first
assert first["migration"]["demoted_bytes"] >= 4 << 20 and first["migration"]["promoted_bytes"] >= 2 << 20, first
assert 0 < second["interval_seconds"] < first["interval_seconds"], second
PY

## pins
expect 1 "required arguments" "$t" pin mnt/sub
expect 1 "no tier 7" "$t" pin mnt/sub --tier 7
expect 1 "No such file" "$t" pin mnt/nothing --tier 0
expect 1 "not in a mounted pool" "$t" unpin data
says 0 "sub: 3 files and directories; would move to tier 1" "$t" pin mnt/sub --tier 1 --dry-run
says 0 "sub: 3 files and directories pinned to tier 1; .*moved to tier 1$" "$t" pin mnt/sub --tier ssd --wait
says 0 "pinned to tier 1$" "$t" where mnt/sub/a
touch mnt/sub/new
says 0 "pinned to tier 1$" "$t" where mnt/sub/new
expect 1 "pinned to another tier; unpin it first" "$t" migrate mnt/sub --to 0 --wait
expect 1 "pinned to another tier; unpin it first" "$t" migrate mnt/sub --to 0 --dry-run
check "trusted attributes are listed to root alone" python3 -c '
import os
os.setxattr("mnt/sub/a", "trusted.t", b"1")
assert os.listxattr("mnt/sub/a") == ["trusted.t"]
child = os.fork()
if not child:
    os.setuid(65534)
    os._exit(os.listxattr("mnt/sub/a") != [])
seen = os.waitpid(child, 0)[1]
os.removexattr("mnt/sub/a", "trusted.t")
assert seen == 0'
check "pins are hidden" python3 -c 'import os, sys; sys.exit(os.listxattr("mnt/sub/a") != [])'
check "where --json" python3 - <<PY
import json, subprocess
[file] = json.loads(subprocess.check_output(["$t", "where", "--json", "mnt/sub/a"]))
assert file["pinned"] and file["pinned_tier"] == 1, file
PY
says 0 "sub: 4 files and directories$" "$t" unpin mnt/sub --dry-run
says 0 "sub: 4 files and directories without a pin now$" "$t" unpin mnt/sub
says 0 "a: 1 file or directory without a pin now$" "$t" unpin mnt/sub/a
says 0 "" "$t" sync mnt --to 1
check "pin --json" python3 - <<PY
import json, subprocess
pin = json.loads(subprocess.check_output(["$t", "pin", "mnt/sub/a", "--tier", "0", "--wait", "--json"]))
assert pin["action"] == "pin" and pin["tier"] == 0 and pin["state"] == "done" and pin["files"] == 1, pin
unpin = json.loads(subprocess.check_output(["$t", "unpin", "mnt/sub/a", "--json"]))
assert unpin["action"] == "unpin" and unpin["tier"] is None and unpin["state"] == "done", unpin
PY
expect 1 "big: pins to tier 0 may take half of it" "$t" pin mnt/big --tier 0
says 1 "big: would be refused: pins to tier 0 may take half of it" "$t" pin mnt/big --tier 0 --dry-run
rm -r mnt/sub mnt/big
expect 1 "no Terrace" "$t" status "$WORK"

## umount
sleep 1000 <mnt/data &
holder=$!
# It has opened the file once it is that program.
until [ "$(cat /proc/$holder/comm)" = sleep ]; do sleep 0.01; done
expect 1 "busy: sleep \($holder\): has $mnt/data open" "$t" umount mnt
kill $holder && wait $holder 2>/dev/null
mkdir mnt/inner bind
for inside in mnt/inner mnt/data; do expect 1 "$inside: not a mount, but lies in that at $mnt; unmount $mnt" "$t" umount $inside; done
mount --bind mnt bind
expect 0 "bind: unmounted here; the pool is still mounted at $mnt$" "$t" umount bind
rmdir mnt/inner bind
pid=$(daemon_of mnt)
check "umount" "$t" umount mnt
check "the daemon has ended" test ! -e /proc/$pid/exe
expect 1 "not mounted" "$t" umount mnt
expect 1 "not mounted" "$t" umount "$pm"
check "mount" "$t" mount "$pm" mnt
pid=$(daemon_of mnt)
expect 0 '^$' "$t" umount "$pm"
check "umount of a pool ends its daemon" test ! -e /proc/$pid/exe
check "and its mount" eval '! is_mounted "$mnt"'
check "clean" grep -q "not mounted, clean" <("$t" status "$pm")
check "check" grep -q ": clean; .*cold data not read" <("$t" check "$pm")
check "check --data" grep -q ": clean; .*cold data read" <("$t" check --data "$pm")
check "check names the map" grep -q "^map radix  (load [0-9]* %)" <("$t" check "$pm")
check "check --json" python3 -c 'import json, subprocess, sys; json.loads(subprocess.check_output(sys.argv[1:]))' "$t" check --json "$pm"
files=("$pm" "$tier")
unchanged says 0 ": clean" "$t" check --repair "$pm"
unchanged says 0 ": clean" ./fsck.terrace -a "$pm"
check "fsck -n" ./fsck.terrace -n "$pm"
expect 8 "no Terrace pool" "$t" check content
# What somebody else has open is not judged, and not called unsound or absent.
expect 8 "tier.img: busy: in use by another process" flock -n tier.img "$t" check "$pm"
says 8 "$pm: could not be judged; " flock -n tier.img "$t" check "$pm"
flock -n tier.img "$t" check "$pm" >out 2>/dev/null
check "in use is not absent" eval 'grep -q "^could not be judged: device 0" out && ! grep -qE "DeviceAbsent|NOT sound" out'
for option in y a p n f; do
    check "operating.md names -$option" grep -qE -- "fsck.terrace.*[ (]\`?-$option[\`, ]" "$(dirname "$0")/../../docs/operating.md"
done
check "umount(8) ends the daemon too" bash -c "'$t' mount '$pm' mnt && pid=\$('$t' status mnt --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)[\"pid\"])') && umount mnt &&
    for i in \$(seq 50); do [ -e /proc/\$pid/exe ] || exit 0; sleep 0.1; done; exit 1"
check "clean after umount(8)" grep -q "not mounted, clean" <("$t" status "$pm")

## tiers by speed: measured where no class is given
check "mkfs that measures" "$t" mkfs --pm "$SHM-probe.pm" --pm-size 16M --tier probe1.dev,size=40M --tier probe2.dev,size=40M >out 2>err
# A busy machine measures nothing that counts: then the kernel's word does, and it is said.
check "says what it measured" test "$(grep -cE '^tier 1: .*probe[12].dev.*, (measured: )?read ' out)" = 2
check "or why not" eval 'grep -q ", measured: " out || grep -q "cannot be measured while the machine is busy" err'
check "status has the speeds" python3 - <<PY
import json, subprocess
status = json.loads(subprocess.check_output(["$t", "status", "--json", "$SHM-probe.pm"]))
devices = [device for tier in status["tiers"] if tier["id"] > 0 for device in tier["devices"]]
assert len(devices) == 2 and all(device["speed"] for device in devices), devices
PY
rm -f probe1.dev probe2.dev "$SHM-probe.pm"
## tiers by speed: of given classes, not measured
tiers=()
for device in disk1:disk nvme:nvme ssd:ssd sata:sata optane:10000:10000:2G:1800M; do
    tiers+=(--tier "${device%%:*}.dev,size=40M,class=${device#*:}")
done
check "mkfs with five devices" "$t" mkfs --pm "$SHM-speed.pm" --pm-size 16M "${tiers[@]}" >out 2>/dev/null
check "the fastest first" grep -qE "^tier 1: .*optane.dev, 40 MiB: ssd, read 10 µs 2.1 GB/s, write 10 µs 1.8 GB/s" out
check "then nvme" grep -qE "^tier 2: .*nvme.dev, 40 MiB: nvme, read 120 µs 2 GB/s, write 30 µs 500 MB/s, 3 chunks" out
check "similar ones together" test "$(grep -cE '^tier 3: .*(ssd|sata).dev' out)" = 2
check "the slowest last" grep -qE "^tier 4: .*disk1.dev, 40 MiB: disk, read 10 ms" out
check "status --json of tiers by speed" python3 - <<PY
import json, subprocess
status = json.loads(subprocess.check_output(["$t", "status", "--json", "$SHM-speed.pm"]))
tiers = {tier["id"]: tier for tier in status["tiers"]}
assert sorted(tiers) == [0, 1, 2, 3, 4], tiers
assert [device["class"] for device in tiers[3]["devices"]] == ["ssd", "sata"], tiers[3]
# As a mount counts: without the header of each device.
assert tiers[3]["capacity_bytes"] == (80 << 20) - 2 * 4096
assert tiers[2]["devices"][0]["speed"]["write_latency_ns"] == 30000
PY
expect 32 "emulate-tier: the pool has no tier 5" "$t" mount "$SHM-speed.pm" mnt -o emulate-tier=5:nvme
expect 1 "emulate-pm=1:2: .*WRITE_NS:BYTES_PER_S" "$t" mount "$SHM-speed.pm" mnt -o emulate-pm=1:2
expect 1 "emulate-pm=300:1G: given twice" "$t" mount "$SHM-speed.pm" mnt -o emulate-pm=200:1G,emulate-pm=300:1G
expect 1 "emulate-tier=1:fast: 'fast' is no device class" "$t" mount "$SHM-speed.pm" mnt -o emulate-tier=1:fast
check "mount with emulated media" "$t" mount "$SHM-speed.pm" mnt \
    -o emulate-pm=run:300:2G:300,emulate-tier=1:nvme,emulate-tier=4:sata
check "write" cp content mnt/content
expect 1 "no tier 'hdd'" "$t" sync mnt --to hdd
check "sync to a class" "$t" sync mnt --to nvme
check "content" cmp content mnt/content
"$t" status mnt >out
check "floor shown" grep -qE "^emulated tier 0: 300 ns a run, 2147 MB/s, reads 300 ns; not below [0-9]+ ns for 64 B written, [0-9]+ ns for 4 KiB read$" out
check "emulations shown" eval 'grep -q "^emulated tier 0: 300 ns a run" out && grep -q "^emulated tier 4: sata, read 80 µs" out'
check "speeds shown" grep -qE "nvme.dev: nvme, read 120 µs" out
check "promise passes through" grep -qE "^0 +ram +process-crash" out
check "umount" "$t" umount mnt
check "check" "$t" check --data "$SHM-speed.pm" >/dev/null
# No machine writes a line in 1 ns, and none needs a tenth of a millisecond.
expect 0 "emulated persistent memory: a write of 64 B with its fence takes [0-9]+ ns on this machine, not 1 ns" \
    "$t" mount "$SHM-speed.pm" mnt -o emulate-pm=1:64G
says 0 "^warning: emulated persistent memory: a write of 64 B with its fence takes [0-9]+ ns" "$t" status mnt
check "umount" "$t" umount mnt
expect 0 "^$" "$t" mount "$SHM-speed.pm" mnt -o emulate-pm=100000:1G:100000
check "no warning" eval '! grep -q "^warning: emulated" <("$t" status mnt)'
check "umount" "$t" umount mnt
expect 0 "a read of 4 KiB takes [0-9]+ ns on this machine, not 1 ns" \
    "$t" mount "$SHM-speed.pm" mnt -o emulate-pm=100000:1G:1
check "umount" "$t" umount mnt

## parameters of a mount
check "mount" "$t" mount "$SHM-speed.pm" mnt -o threshold_even=60%,threshold_step=10,threshold_min=20,threshold_max=80 \
    -o threshold_decay=4,dataflow_high=1.25,dataflow_low=0.1,dataflow_s=2,whole_after_s=5,read_times=3,touches=4,group=4K,spill_high=80,spill_low=70%
"$t" status -v mnt >out
check "thresholds" grep -qF "thresholds: 60 % + 10 % · log2(read/written), 20 to 80 %, decay 1/4 a second; dataflow 0.1 to 1.25 for 2 s" out
check "others" grep -qF "files go whole after 5 s, are read-dominated above 3 times their size; blocks come up on touch 4" out
check "marks of a nearly full tier" grep -qF "a lower tier gives files to slower ones above 80 %, down to 70 %" out
check "in force" eval 'grep -qF "policy predictive  data atomic  threshold 60 %" out && grep -q "^limits: group 4 KiB" out'
check "umount" "$t" umount mnt
check "first_touch" "$t" mount "$SHM-speed.pm" mnt -o touches=9,first_touch
check "is touch 1" grep -q "blocks come up on touch 1$" <("$t" status -v mnt)
check "umount" "$t" umount mnt
rm -f "$SHM-speed.pm" ./*.dev

## an emulated device for benches: what was written is there as soon as the write has returned
mkdir device && truncate -s 41943553 backing
expect 1 "class: 'fast' is no device class" "$t" bench device backing device --class fast
expect 1 "nowhere: No such file" "$t" bench device nowhere device --class nvme
check "bench device" timeout 20 "$t" bench device backing device --class nvme
check "size" test "$(stat -c %s device/device)" = 41943553
mkdir other-device
expect 1 "in use by another process" timeout 20 "$t" bench device backing other-device --class nvme
timeout 60 python3 - <<'PY'
import mmap, os
name = "device/device"
size = os.stat(name).st_size
direct = os.open(name, os.O_RDWR | os.O_DIRECT)
plain = os.open(name, os.O_RDWR)
# A reader that looked before must not keep what it saw.
assert os.pread(plain, 8192, 0) == bytes(8192)
page = mmap.mmap(-1, 1 << 20)
page.write(bytes(range(256)) * 4096)
for at in (0, 4096, 3 << 20):
    assert os.pwritev(direct, [page], at) == 1 << 20
    assert os.pread(plain, 1 << 20, at) == page[:], at
assert os.pwrite(plain, b"odd", 777) == 3 and os.pread(plain, 5, 776)[1:4] == b"odd"
back = mmap.mmap(-1, 4096)
assert os.preadv(direct, [back], 0) == 4096 and back[777:780] == b"odd"
os.fsync(direct)
# The end: whole up to it, nothing behind it, and the size stays.
assert os.pwrite(plain, b"abc", size - 2) == 2 and os.pread(plain, 10, size - 2) == b"ab"
for refused, number in ((lambda: os.pwrite(plain, b"x", size), 28), (lambda: os.ftruncate(plain, 5), 1)):
    try:
        refused()
    except OSError as error:
        assert error.errno == number, error
    else:
        raise SystemExit("not refused")
PY
check "reads find what was written" test $? = 0
check "a pool on it" timeout 60 "$t" mkfs --pm "$SHM-device.pm" --pm-size 16M --tier device/device --force >/dev/null
check "mkfs was seen" grep -q "not mounted, clean" <("$t" status "$SHM-device.pm")
check "mount on it" timeout 20 "$t" mount "$SHM-device.pm" mnt
check "write" cp content mnt/content
check "sync below" timeout 60 "$t" sync mnt --to 1
check "umount" timeout 60 "$t" umount mnt
check "check --data" timeout 60 "$t" check --data "$SHM-device.pm" >/dev/null
check "unmount the device" timeout 20 umount device
for _ in $(seq 100); do flock -n backing true && break; sleep 0.1; done
check "its server has ended" flock -n backing true
check "the pool's header is in the file" grep -q TERRDEV0 <(head -c 8 backing)
rm -f "$SHM-device.pm" backing

## an emulated device that loses unflushed writes: a durable write and a flush reach the server, and take their time
expect 1 "required.*--volatile" "$t" bench device backing device --class nvme --seed 7
expect 1 "flush-us" "$t" bench device backing device --class nvme --flush-us 0
truncate -s 1M backing
"$t" bench device backing device --class 1000:1000:4G:4G --volatile --seed 7 --flush-us 5000 --foreground >volatile.out 2>&1 &
volatile=$!
for _ in $(seq 200); do [ -e device/device ] && break; sleep 0.05; done
timeout 60 python3 - "$volatile" <<'PY'
import mmap, os, signal, sys, time
direct = os.open("device/device", os.O_RDWR | os.O_DIRECT)
backing = os.open("backing", os.O_RDONLY)
page = mmap.mmap(-1, 4096)
def write(at, letter, flags=0):
    page.write(letter * 4096)
    page.seek(0)
    assert os.pwritev(direct, [page], at, flags) == 4096
def stored(at): return os.pread(backing, 1, at)
def lasts(call):
    begin = time.monotonic()
    call()
    return time.monotonic() - begin >= 0.005
write(0, b"a")
assert stored(0) == b"\0", "written through"
assert lasts(lambda: write(4096, b"b", os.RWF_DSYNC)), "a durable write took less than a flush"
assert stored(4096) == b"b" and stored(0) == b"\0", "a durable write is not its own alone"
assert lasts(lambda: os.fdatasync(direct)) and stored(0) == b"a", "not flushed"
assert lasts(lambda: os.fsync(direct)), "a flush of nothing took no time"
synchronous = os.open("device/device", os.O_WRONLY | os.O_DSYNC)
os.pwrite(synchronous, b"c" * 4096, 8192)
assert stored(8192) == b"c", "O_DSYNC"
for at in range(0, 1 << 20, 4096):
    write(at, b"d")
os.kill(int(sys.argv[1]), signal.SIGUSR1)
for _ in range(200):
    if "power lost, 1: of 2048 unflushed sectors" in open("volatile.out").read():
        break
    time.sleep(0.05)
else:
    raise SystemExit("no loss is told")
for call in (lambda: write(0, b"e"), lambda: os.fsync(direct), lambda: os.pread(synchronous, 1, 0)):
    try:
        call()
    except OSError:
        pass
    else:
        raise SystemExit("a file from before the loss goes on")
again = os.open("device/device", os.O_RDWR)
left = os.pread(again, 1 << 20, 0)
assert left == os.pread(backing, 1 << 20, 0), "what survived is not in the file"
sectors = {left[at:at + 512] for at in range(0, 1 << 20, 512)}
assert sectors <= {letter * 512 for letter in (b"a", b"b", b"c", b"d", b"\0")}, "a torn sector"
os.pwrite(again, b"f" * 512, 0)
os.fsync(again)
assert stored(0) == b"f"
PY
check "a volatile device" test $? = 0
check "its seed is told" grep -q "volatile, seed 7$" volatile.out
check "unmount the volatile device" timeout 20 umount device
check "its server has ended well" wait "$volatile"
rm -f backing volatile.out

## a damaged superblock: the second copy is used, and said so
cp --sparse=always "$pm" "$SHM-keep.pm"
printf x | dd of="$pm" bs=1 seek=200 conv=notrunc status=none
check "status warns" grep -q "^warning: superblock copy 0 is damaged" <("$t" status "$pm")
expect 0 "superblock copy 0 is damaged.*copy 1 is used" "$t" mount "$pm" mnt -o ro
check "content" cmp data mnt/data
"$t" status mnt >out
check "status of a mount warns" grep -q "^warning: .*superblock copy 0 is damaged.*copy 1 is used" out
check "status says read-only" grep -q "mounted read-only at $mnt" out
check "umount" "$t" umount mnt
check "nothing is mended read-only" eval '! cmp -s <(head -c 8192 "$pm") <(tail -c +8193 "$pm" | head -c 8192)'
expect 0 "superblock copy 0 is damaged.*copy 1 is used" "$t" mount "$pm" mnt
check "status --json warns" python3 - <<PY
import json, subprocess
status = json.loads(subprocess.check_output(["$t", "status", "--json", "mnt"]))
assert not status["read_only"]
first, second = status["warnings"]
assert "superblock copy 0 is damaged" in first and "was rewritten" in second, status["warnings"]
PY
check "umount" "$t" umount mnt
check "the damaged copy is mended" cmp <(head -c 8192 "$pm") <(tail -c +8193 "$pm" | head -c 8192)
check "no warning any more" eval '! grep -q warning <("$t" status "$pm")'
for copy in 0 8192; do printf x | dd of="$pm" bs=1 seek=$((copy + 200)) conv=notrunc status=none; done
files=("$pm" "$tier")
unchanged expect 32 "both copies of the superblock are damaged, and a check cannot repair that" "$t" mount "$pm" mnt
unchanged expect 8 "both copies of the superblock are damaged, and a check cannot repair that" "$t" check "$pm"
cp --sparse=always "$SHM-keep.pm" "$pm"

## repair: the block table's first lines behind the fixed area, and the header of the tier
python3 - <<PY
import struct
with open("$pm", "r+b") as pm, open("$tier", "r+b") as tier:
    block = pm.read(8192)
    pm_size, lane_size, lanes = struct.unpack_from("<QQI", block, 136)
    table = 8 * 4096 + lane_size * lanes
    first = -(-(table + pm_size // 4096 * 16) // 4096)
    pm.seek(table + first * 16)
    pm.write(bytes(4096))
    tier.write(b"damaged!")
PY
check "damage" test $? = 0
unchanged says 4 "BlockOwner" "$t" check "$pm"
unchanged says 4 "DeviceHeader" "$t" check "$pm"
unchanged says 4 "BlockOwner" ./fsck.terrace -n "$pm"
says 1 "repaired: BlockOwner" "$t" check --repair "$pm"
unchanged says 0 ": clean" "$t" check --repair "$pm"
check "check --repair --json" is_json < <("$t" check --repair --json "$pm")
check "mount" "$t" mount "$pm" mnt
check "content" cmp data mnt/data
expect 8 "busy: already mounted" "$t" check --repair "$pm"
check "umount" "$t" umount mnt
check "sound after all that" grep -q ": clean; .*cold data read" <("$t" check --data "$pm")

## an interrupted repair: nothing but check --repair touches the pool
cp --sparse=always "$pm" "$SHM-keep.pm"
superblock "$pm" 32 03
files=("$pm" "$tier")
unchanged expect 32 "repair of this pool was interrupted; run 'terrace check --repair'" "$t" mount "$pm" mnt
unchanged says 4 "RepairInterrupted" "$t" check "$pm"
says 1 "repaired: RepairInterrupted" "$t" check --repair "$pm"
check "clean" grep -q ": clean" <("$t" check "$pm")
cp --sparse=always "$SHM-keep.pm" "$pm"

## a block of the tier that rots: status counts it and says why the pool is degraded
cp --sparse=always tier.img rotten.img
python3 - <<PY
with open("$WORK/data", "rb") as file:
    block = file.read(4096)
with open("$tier", "r+b") as tier:
    at = tier.read().find(block)
    assert at > 0
    tier.seek(at)
    tier.write(bytes([block[0] ^ 1]))
PY
check "a block is damaged" test $? = 0
check "mount" "$t" mount "$pm" mnt
check "status is healthy before" "$t" status mnt >/dev/null
expect 1 "Input/output error" dd if=mnt/data of=/dev/null bs=4k count=1 status=none
check "the log says which block, and whose" grep -qE "tier.img block [0-9]+, inode $(stat -c %i mnt/data) file block 0: wrong checksum" \
    "$("$t" status mnt --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state_directory"])')/log"
"$t" status mnt >out && fail "status of a degraded pool is 0"
check "count and reason" grep -qE "\\[degraded\\] \\(wrong checksums since mount: [1-9]" out
check "umount" "$t" umount mnt
mv rotten.img tier.img

## a metadata page in PM that rots: EIO, and status says why the pool is degraded
mkdir named
check "mkfs" "$t" mkfs --pm "$SHM-named.pm" --pm-size 32M >/dev/null 2>&1
check "mount" "$t" mount "$SHM-named.pm" named
check "name" touch named/a-name-that-rots
check "umount" "$t" umount named
python3 - <<PY
with open("$SHM-named.pm", "r+b") as pm:
    # The log, which has the name too, lies before the pages of the catalog.
    at = pm.read().rindex(b"a-name-that-rots")
    pm.seek(at)
    pm.write(b"b")
PY
check "a name is damaged" test $? = 0
check "mount" "$t" mount "$SHM-named.pm" named
expect 2 "Input/output error" ls named
says 1 "\\[degraded\\] \\(metadata pages that do not match their checksums: 1\\)" "$t" status named
says 1 '"healthy": *false' "$t" status --json named
check "umount" "$t" umount named
rm "$SHM-named.pm"

## the host of a tier file is full: ENOSPC, nothing is lost, and status says why
mkdir host && mount -t tmpfs -o size=40M none host
check "mkfs" "$t" mkfs --pm "$SHM-full.pm" --pm-size 16M --tier host/tier,size=96M >/dev/null 2>&1
check "mount" "$t" mount "$SHM-full.pm" mnt
check "write" eval 'head -c 20M data >mnt/first'
expect 1 "No space left on device" dd if=data of=mnt/second bs=1M status=none
check "data from before" cmp -n $((20 << 20)) data mnt/first
length=$(stat -c %s mnt/second)
check "data up to there" cmp -n "$length" data mnt/second
"$t" status mnt >out && fail "status of a degraded pool is 0"
check "reason" grep -q "\\[degraded\\] (device errors since mount: .*No space left on device" out
rm mnt/second
check "umount" "$t" umount mnt
check "check" "$t" check --data "$SHM-full.pm"
umount host

## the tier file moved together with the pool's file
mkdir other && cp --sparse=always "$pm" other/pm && mv tier.img other/tier.img
check "mount of a moved pool" "$t" mount other/pm mnt
check "content" cmp data mnt/data
check "umount" "$t" umount mnt
mv other/tier.img tier.img && cp --sparse=always other/pm "$pm"

## killed daemon
check "mount" "$t" mount "$pm" mnt
check "write" cp content mnt/content
exec 7<mnt/content
kill -KILL "$(daemon_of mnt)"
sleep 0.3
checks=$((checks + 1))
text=$(cat <&7 2>&1) && fail "read after kill -9 succeeded"
grep -qE "not connected|connection abort" <<<"$text" || fail "no ENOTCONN: $text"
exec 7<&-
expect 1 "daemon was killed" "$t" status mnt
check "not clean" grep -q "not clean" <("$t" status "$pm")
# Where there is no syslog its log lies there.
rm -f "$("$t" status "$pm" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state_directory"])')"/log
expect 0 "removed the mount of a daemon that was killed" "$t" mount "$pm" mnt -o "log=$WORK/killed.log"
check "acknowledged data" cmp content mnt/content
check "recovered" grep -q "after a crash" <("$t" status mnt)
kill -KILL "$(daemon_of mnt)"
sleep 0.3
state=$("$t" status "$pm" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state_directory"])')
check "a killed daemon leaves its socket" test -S "$state/control"
# One that has just been made may be about to listen.
touch -d '1 minute ago' "$state/control"
expect 0 "removed the mount of a daemon that was killed" "$t" umount mnt
check "which goes with the mount" test ! -e "$state"
check "nothing is mounted" test -z "$(awk -v dir="$WORK" 'index($5, dir) == 1' /proc/self/mountinfo)"
check "check after kill" "$t" check "$pm" >out
check "verdict after kill" grep -q ": sound; was not unmounted: " out

## SIGTERM: flushes, unmounts, clean; users are cut off
check "mount" "$t" mount "$pm" mnt -o "log=$WORK/log"
pid=$(daemon_of mnt)
sleep 1000 <mnt/content &
holder=$!
sleep 0.3
kill -TERM "$pid"
for _ in $(seq 80); do [ -e /proc/$pid/exe ] || break; sleep 0.1; done
check "ended" test ! -e /proc/$pid/exe
check "unmounted" test -z "$(awk -v dir="$WORK" 'index($5, dir) == 1' /proc/self/mountinfo)"
check "clean" grep -q "not mounted, clean" <("$t" status "$pm")
check "log" grep -q "unmounted, pool is clean" log
kill $holder && wait $holder 2>/dev/null

## read-only; foreground; systemd; mount(8)
check "a tier that nobody may change" chattr +i "$tier"
check "ro" "$t" mount "$pm" mnt -o ro
chattr -i "$tier"
check "no writes" bash -c '! touch mnt/x 2>/dev/null'
check "reads" cmp content mnt/content
check "umount" "$t" umount mnt
python3 - "$t" "$pm" mnt <<'PY'
import os, signal, socket, subprocess, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind("notify")
listener.settimeout(20)
daemon = subprocess.Popen([sys.argv[1], "mount", "--foreground", sys.argv[2], sys.argv[3]],
                          env={**os.environ, "NOTIFY_SOCKET": os.path.abspath("notify")}, stderr=subprocess.DEVNULL)
assert listener.recv(100) == b"READY=1"
assert os.path.ismount(sys.argv[3])
daemon.send_signal(signal.SIGINT)
assert listener.recv(100) == b"STOPPING=1"
assert daemon.wait(20) == 0
PY
check "foreground with NOTIFY_SOCKET" test $? = 0
check "mount.terrace as mount(8) calls it" ./mount.terrace "$pm" mnt -o rw,nodev -v -n
ln -s "$t" mount.fuse.terrace
check "remount" ./mount.fuse.terrace "$pm" mnt -o remount,ro,nodev
check "and back" ./mount.fuse.terrace "$pm" mnt -o remount,rw
expect 1 "more than the .* of memory of this machine" "$t" mount "$pm" mnt -o cache=1000T
expect 1 "not a directory.*migrate" "$t" sync mnt/content --to 1
check "umount" "$t" umount mnt

## names of any bytes
odd=$WORK/$'\xff name'
mkdir "$odd"
check "mkfs of any bytes" "$t" mkfs --pm "$odd/pm" --pm-size 16M --tier "$odd/tier,size=64M" >/dev/null 2>&1
mkdir "$odd/mnt"
check "status of any bytes" is_json < <("$t" status --json "$odd/pm")
check "mount of any bytes" "$t" mount "$odd/pm" "$odd/mnt" -o "log=$odd/log"
check "write" cp content "$odd/mnt/"$'\xfe'
check "where of any bytes" is_json < <("$t" where --json "$odd/mnt/"$'\xfe')
check "where of any bytes, for people" grep -q "PM 1 MiB" <("$t" where "$odd/mnt/"$'\xfe')
for what in "$odd/pm" "$odd/mnt"; do
    check "status of any bytes" "$t" status "$what" >/dev/null
    check "status --json of any bytes" is_json < <("$t" status --json "$what")
done
expect 1 "No such file" "$t" where "$odd/mnt/"$'\xfd'
expect 32 "busy: already mounted" "$t" mount "$odd/pm" "$odd/mnt"
check "umount of any bytes" "$t" umount "$odd/mnt"
check "mount -s of any bytes" "$t" mount -s "$odd/pm" "$odd/mnt" -o "bogus,log=$odd/log2"
check "log of any bytes" test -s "$odd/log2"
check "umount of any bytes" "$t" umount "$odd/mnt"
check "check of any bytes" "$t" check "$odd/pm" >/dev/null
check "check --json of any bytes" is_json < <("$t" check --json "$odd/pm")

## another mount namespace reaches the daemon, and a mount that lives on there is not reported as ended
check "mount" "$t" mount "$pm" mnt
check "status from another namespace" unshare -m --propagation private bash -c \
    "mount -t tmpfs none /run && '$t' status mnt >/dev/null && '$t' sync mnt"
check "umount" "$t" umount mnt

## a copy of the mount in another mount namespace is named, and not waited for without end
check "mount" "$t" mount "$pm" mnt
pid=$(daemon_of mnt)
unshare -m --propagation private sleep 1000 &
holder=$!
until [ "$(cat /proc/$holder/comm)" = sleep ]; do sleep 0.01; done
expect 1 "unmounted here, but still mounted at $mnt in the mount namespace of sleep \($holder\); 'terrace umount $pm' ends it there too" \
    "$t" umount mnt
check "unmounted here" eval '! is_mounted "$mnt"'
expect 32 "busy: mounted at $mnt in the mount namespace of sleep \($holder\); 'terrace umount $pm' ends it" "$t" mount "$pm" mnt
kill $holder && wait $holder 2>/dev/null
for _ in $(seq 80); do [ -e /proc/$pid/exe ] || break; sleep 0.1; done
check "clean when the copy is gone" grep -q "not mounted, clean" <("$t" status "$pm")
check "mount" "$t" mount "$pm" mnt
(cd mnt && "$t" umount . 2>"$WORK/err")
check "names the shell, not itself" eval 'grep -q "busy: " err && ! grep -q "terrace (" err'
check "umount" "$t" umount mnt

## reports: all of it arrives or the command fails, and no name commands the terminal
# Below is a device so slow that writes wait in DRAM for it.
check "mkfs" "$t" mkfs --pm "$SHM-words.pm" --pm-size 16M --tier "words.img,size=96M" --label $'a\e[31mb' >/dev/null 2>&1
expect 0 "threshold=50 is for policy=anticache alone, and the policy is predictive" \
    "$t" mount "$SHM-words.pm" mnt -o threshold=50,emulate-tier=1:100000:100000:1G:4M
says 0 "^warning: mount option threshold=50 is for policy=anticache alone" "$t" status mnt
says 0 'label a\\u\{1b\}\[31mb' "$t" status mnt
check "help says whose threshold= is" grep -q "threshold=PERCENT  *policy=anticache" <("$t" mount --help)
check "write into DRAM" cp big mnt/big
check "where tells what is only in DRAM" python3 - <<PY
import json, re, subprocess
def dirty():
    [file] = json.loads(subprocess.check_output(["$t", "where", "--json", "mnt/big"]))
    return file["dirty_bytes"]
before = dirty()
text = subprocess.check_output(["$t", "where", "mnt/big"], text=True)
assert before > 0 and dirty() > 0 and re.search(r"  copies in DRAM [0-9.]+ [KMi]*B  only in DRAM [0-9.]+ MiB  ", text), (before, text)
PY
check "sync" "$t" sync mnt
check "nothing is only in DRAM" eval '! grep -q "only in DRAM" <("$t" where mnt/big)'
name=$'mnt/e\e[2J\nf'
touch "$name"
says 0 '^mnt/e\\u\{1b\}\[2J\\nf: 0 B' "$t" where "$name"
expect 1 'mnt/none\\u\{1b\}\[2J: No such file' "$t" where $'mnt/none\e[2J'
check "JSON has the name itself" python3 - <<PY
import json, subprocess
[file] = json.loads(subprocess.check_output(["$t", "where", "--json", "mnt/e\x1b[2J\nf"]))
assert file["path"] == "mnt/e\x1b[2J\nf", file
PY
full() { "$@" >/dev/full; }
for what in "status mnt" "status --json mnt" "where mnt/big" "iostat mnt 0.01 3" "sync mnt --dry-run" --help "completions bash" \
    "bench paper --list" "bench run --help" "bench smoke --help"; do
    # shellcheck disable=SC2086
    expect 1 "standard output: No space left on device" full "$t" $what
    check "$what with nobody who reads" bash -o pipefail -c "{ sleep 0.1; exec '$t' $what; } | true"
done
check "umount" "$t" umount mnt
expect 8 "standard output: No space left on device" full "$t" check "$SHM-words.pm"

## the daemon may be gone before it has taken up the request to tell of its end
for _ in $(seq 30); do
    expect 0 "^$" "$t" mount "$SHM-words.pm" mnt
    expect 0 "^$" "$t" umount mnt
done
rm -f "$SHM-words.pm" words.img

## what is only read is read from the kernel's cache, and nobody gets what was there before
"$t" mkfs --pm "$SHM-k.pm" --pm-size 64M --tier "$WORK/k.img,size=64M" >/dev/null 2>&1
mkdir kept && "$t" mount "$SHM-k.pm" kept
head -c 1M /dev/urandom >random
for n in $(seq 0 9); do cp random "kept/$n"; done
check "cached reads" python3 - "$t" <<'PY'
import ctypes, errno, json, mmap, os, random, subprocess, sys, time
def reads():
    found = json.loads(subprocess.check_output([sys.argv[1], "iostat", "--json", "kept"]))
    return sum(place["reads"] for place in [found["dram"], *found["tiers"]])
SIZE = 1 << 20
held = [bytearray(open("random", "rb").read()) for _ in range(10)]
def same(n):
    assert open(f"kept/{n}", "rb").read() == held[n], n
same(0)
same(0)
before = reads()
for _ in range(5):
    same(0)
    with open("kept/0", "rb") as file:
        mapped = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        assert mapped[:] == held[0]
        mapped.close()
assert reads() == before, "a read left the kernel"
# The kernel has pages of who maps a file that is open directly. They are dropped before it may keep what it has.
def resident(fd):
    seen = (ctypes.c_ulong * 5)()
    code = ctypes.CDLL(None, use_errno=True).syscall(451, fd, (ctypes.c_ulong * 2)(0, SIZE), seen, 0)  # cachestat
    if code != 0 and ctypes.get_errno() == errno.ENOSYS:
        return None  # before Linux 6.5
    assert code == 0, os.strerror(ctypes.get_errno())
    return seen[0]
for for_writing in (True, False, False):
    fd = os.open("kept/1", os.O_RDWR if for_writing else os.O_RDONLY)
    look = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)
    assert look[:] == held[1]
    filled = resident(fd)
    look.close()
    os.close(fd)
    time.sleep(0.2)  # the kernel tells of the last close later
    if for_writing:
        assert filled in (SIZE // 4096, None), filled
        fd = os.open("kept/1", os.O_RDONLY)
        assert not resident(fd), "pages of before were kept"
        os.close(fd)
# Writers beside a reader, before it and after it, by all ways. Of half of the files somebody always reads.
readers = [os.open(f"kept/{n}", os.O_RDONLY) for n in range(0, 10, 2)]
for turn in range(300):
    n = random.randrange(10)
    name, now = f"kept/{n}", held[n]
    at, bytes_ = random.randrange(SIZE - 9000), os.urandom(random.randrange(1, 9000))
    first = os.open(name, os.O_RDONLY) if turn % 2 else None
    out = os.open(name, os.O_RDWR | (os.O_DSYNC if turn % 3 == 0 else 0))
    late = os.open(name, os.O_RDONLY)
    looks = [mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) for fd in (first, late) if fd is not None]
    looks[-1][at]  # a page that is mapped while it is written
    if turn % 5 == 0:
        stores = mmap.mmap(out, SIZE)
        stores[at:at + len(bytes_)] = bytes_
        if turn % 10 == 0:
            stores.flush()
        stores.close()
    elif turn % 7 == 0:
        os.ftruncate(out, at)
        os.pwrite(out, bytes_, at)
        now[at:] = bytes(SIZE - at)
        os.ftruncate(out, SIZE)
    else:
        os.pwrite(out, bytes_, at)
    now[at:at + len(bytes_)] = bytes_
    for fd in [fd for fd in (first, late) if fd is not None]:
        assert os.pread(fd, SIZE, 0) == now, turn
    assert all(look[:] == now for look in looks), turn
    for look in looks: look.close()
    for fd in (first, out, late):
        if fd is not None: os.close(fd)
    same(n)
    if turn % 50 == 0:
        subprocess.check_call([sys.argv[1], "migrate", name, "--to", str(turn // 50 % 2), "--wait"], stdout=subprocess.DEVNULL)
        same(n)
PY
# A writer with its fsync beside readers that come and go: who opens may not bring back what was there before.
check "readers that come and go beside a writer" python3 - <<'PY'
import os, subprocess, sys
SIZE = 1 << 20
reader = """
import os, time
end = time.monotonic() + 4
while time.monotonic() < end:
    fd = os.open("kept/w", os.O_RDONLY)
    for at in range(0, 1 << 20, 65536): os.pread(fd, 4096, at)
    os.close(fd)
"""
open("kept/w", "wb").write(bytes(SIZE))
running = [subprocess.Popen([sys.executable, "-c", reader]) for _ in range(2)]
turn = 0
try:
    while any(one.poll() is None for one in running):
        turn += 1
        fd = os.open("kept/w", os.O_RDWR)
        os.pwrite(fd, bytes([turn % 251]) * SIZE, 0)
        os.fsync(fd)
        assert os.pread(fd, SIZE, 0) == bytes([turn % 251]) * SIZE, "the writer reads what was before"
        os.close(fd)
finally:
    for one in running: one.wait()
assert open("kept/w", "rb").read() == bytes([turn % 251]) * SIZE, "old pages stayed"
PY
# The same for certain: the writer is held between two of its pages, by memory that is not there yet.
check "a reader that opens beside a held writer" python3 - <<'PY'
import ctypes, errno, fcntl, mmap, os, struct, sys, threading, time
PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
fault = libc.syscall(323, 0)  # userfaultfd
if fault < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
    print("no userfaultfd here: left out")
    sys.exit()
assert fault >= 0, os.strerror(ctypes.get_errno())
fcntl.ioctl(fault, 0xc018aa3f, bytearray(struct.pack("QQQ", 0xaa, 0, 0)))
for before in ("cached", "direct"):
    name = f"kept/held-{before}"
    with open(name, "wb") as file:
        file.write(bytes(1 << 20))
    time.sleep(0.2)
    first = os.open(name, os.O_RDONLY if before == "cached" else os.O_RDWR)
    os.pread(first, 1 << 20, 0)
    out = os.open(name, os.O_RDWR)
    # Before the write: the kernel lets nobody map a file while it is written directly.
    look = mmap.mmap(first, PAGE, prot=mmap.PROT_READ) if before == "direct" else None
    memory = libc.mmap(None, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(memory, 1, PAGE)
    fcntl.ioctl(fault, 0xc020aa00, bytearray(struct.pack("QQQQ", memory + PAGE, PAGE, 1, 0)))
    written = []
    writer = threading.Thread(target=lambda: written.append(libc.pwrite(out, memory, 2 * PAGE, 0)))
    writer.start()
    os.read(fault, 32)  # it is at its second page
    late = os.open(name, os.O_RDONLY)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(look[0] if look else os.pread(late, 1, 0)[0]))
    reader.start()
    reader.join(2)  # or it waits for the page
    source = ctypes.create_string_buffer(b"\1" * PAGE, PAGE)
    fcntl.ioctl(fault, 0xc028aa03, bytearray(struct.pack("QQQQq", memory + PAGE, ctypes.addressof(source), PAGE, 0, 0)))
    writer.join()
    reader.join()
    assert written == [2 * PAGE], written
    assert os.pread(late, 2 * PAGE, 0) == b"\1" * 2 * PAGE, f"{before}: a reader brought back what was there before"
    if look: look.close()
    for fd in (first, out, late): os.close(fd)
    time.sleep(0.2)
    for _ in range(2):
        assert open(name, "rb").read(2 * PAGE) == b"\1" * 2 * PAGE, f"{before}: old pages stayed"
PY
check "all is on media" "$t" umount kept
check "and nothing is damaged" "$t" check --data "$SHM-k.pm" >/dev/null
rm -f "$SHM-k.pm" k.img

## devices are found by their headers: disks change their names, and files are moved
"$t" mkfs --pm "$SHM-l.pm" --pm-size 16M --tier "$WORK/l1.img,size=64M,class=ssd" --tier "$WORK/l2.img,size=64M,class=hdd" >/dev/null 2>&1
mkdir found && "$t" mount "$SHM-l.pm" found && head -c 1M /dev/urandom >found/a && cp found/a found/b
"$t" migrate found/a --to 1 --wait >/dev/null && "$t" migrate found/b --to 2 --wait >/dev/null && cp found/a there && "$t" umount found
mv l1.img aside.img && mv l2.img l1.img && mv aside.img l2.img
says 0 "l2.img \[ok\]" "$t" status "$SHM-l.pm"
check "swapped devices" "$t" mount "$SHM-l.pm" found
check "each is what it was" sh -c 'cmp found/a there && cmp found/b there'
says 0 "^1 .*l2.img" "$t" status found
"$t" umount found
check "check finds them" "$t" check --data "$SHM-l.pm" >/dev/null
loop=$(losetup -f --show l1.img) && mv l1.img gone.img
check "a device of another name" "$t" mount "$SHM-l.pm" found
check "is what it was" cmp found/b there
says 0 "^2 .*$loop" "$t" status found
"$t" umount found
losetup -d "$loop"
expect 32 "foreign tier 2: .*l2.img: is device 0 \(tier 1\) of this pool" "$t" mount "$SHM-l.pm" found
rm -f "$SHM-l.pm" gone.img l2.img

## an older copy of the fast tier would write over what later mounts put below
"$t" mkfs --pm "$SHM-o.pm" --pm-size 16M --tier "$WORK/o.img,size=64M" >/dev/null 2>&1
mkdir older && "$t" mount "$SHM-o.pm" older && head -c 1M /dev/urandom >older/a && "$t" sync older --to 1 && "$t" umount older
cp "$SHM-o.pm" "$SHM-old.pm"
check "the newest copy is mounted" "$t" mount "$SHM-o.pm" older
cp older/a newer && cat newer >>older/a && "$t" sync older --to 1 && "$t" umount older
files=("$SHM-old.pm" "$WORK/o.img")
unchanged expect 32 "an older copy of this pool's tier 0: .*o.img was used by a later mount; use the newest copy" "$t" mount "$SHM-old.pm" older
unchanged expect 32 "an older copy of this pool's tier 0" "$t" mount "$SHM-old.pm" older -o degraded
unchanged expect 32 "an older copy of this pool's tier 0" "$t" mount "$SHM-old.pm" older -o ro
unchanged expect 8 "an older copy of this pool's tier 0" "$t" check "$SHM-old.pm"
unchanged expect 8 "an older copy of this pool's tier 0" "$t" check --repair "$SHM-old.pm"
check "a copy of both is a pool" sh -c 'cp "$1-o.pm" "$1-copy.pm" && cp --sparse=always o.img copy.img && mv o.img aside.img && mv copy.img o.img &&
    "$0" mount "$1-copy.pm" older && cat newer newer | cmp - older/a && "$0" umount older && mv aside.img o.img' "$t" "$SHM"
check "the newest one is still good" "$t" mount "$SHM-o.pm" older

# Pages of shared mappings are the kernel's until it writes them: neither sync nor the end of the daemon saw them.
mapped_survives() { # COMMAND…
    python3 - "$@" <<'PY'
import mmap, os, signal, subprocess, sys
with open("older/mapped", "w+b") as file:
    file.write(b"A" * 65536)
    os.fsync(file.fileno())
    pages = mmap.mmap(file.fileno(), 65536)
    pages[:] = b"B" * 65536
    subprocess.check_call(sys.argv[1:])
    os._exit(0)  # without closing the mapping in order
PY
}
daemon=$(daemon_of older)
# The pool's own path means its mount: the file system below the pool was asked for its pages instead.
for named in older "$SHM-o.pm"; do
    daemon=$(daemon_of older)
    check "sync of mapped pages, $named" mapped_survives sh -c '"$0" sync "$2" && kill -KILL "$1"' "$t" "$daemon" "$named"
    umount -l older
    check "remount" "$t" mount "$SHM-o.pm" older
    check "mapped pages survive a killed daemon after sync" sh -c 'head -c 65536 /dev/zero | tr "\\0" B | cmp - older/mapped'
done
daemon=$(daemon_of older)
check "the end of the daemon beside a mapping" mapped_survives sh -c 'kill "$0" && while kill -0 "$0" 2>/dev/null; do sleep 0.1; done' "$daemon"
check "remount" "$t" mount "$SHM-o.pm" older
check "mapped pages survive the end of the daemon" sh -c 'head -c 65536 /dev/zero | tr "\\0" B | cmp - older/mapped'
"$t" umount older
rm -f "$SHM"-o.pm "$SHM"-old.pm "$SHM"-copy.pm o.img aside.img

## a repair that makes a new checkpoint: devices know of later mounts, and the pool was taken for an older copy of itself
"$t" mkfs --pm "$SHM-c.pm" --pm-size 16M --tier "$WORK/c.img,size=64M" >/dev/null 2>&1
mkdir both && "$t" mount "$SHM-c.pm" both && head -c 1M /dev/urandom >random && cp random both/a && "$t" umount both
dd if=/dev/zero of="$SHM-c.pm" bs=4096 seek=4 count=2 conv=notrunc status=none
expect 32 "checkpoint" "$t" mount "$SHM-c.pm" both
says 5 "repaired" "$t" check --repair "$SHM-c.pm"
check "it mounts" "$t" mount "$SHM-c.pm" both
check "and has what it had" cmp random both/a

## a copy of a mounted pool, which has its UUID: commands for the one reached the daemon of the other
cp "$SHM-c.pm" "$SHM-copy.pm"
mkdir other
expect 32 "copy of a mounted pool" "$t" mount "$SHM-copy.pm" other -o degraded
check "the one is still reached" "$t" sync both
rm -f "$SHM-copy.pm"

## the end of a daemon whose socket is gone is waited for as that of others
daemon=$(daemon_of both)
state=$("$t" status both --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state_directory"])')
# Every user can ask where the socket is: the seals of older pools rest on the UUID.
uuid=$("$t" status both --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["uuid"])')
check "the UUID is not for every user" python3 -c 'import os, sys; sys.exit(sys.argv[2] in os.getxattr(sys.argv[1], "system.terrace_control").decode())' both "$uuid"
"$t" umount both
check "a slow tier" "$t" mount "$SHM-c.pm" both -o emulate-tier=1:disk
daemon=$(daemon_of both)
head -c 40M /dev/urandom >random && cp random both/b
rm "$state/control"
check "umount without the socket" "$t" umount both
check "its daemon has ended" sh -c '! kill -0 "$0" 2>/dev/null || grep -q "^State:.Z" "/proc/$0/status"' "$daemon"
check "it is clean" "$t" check --data "$SHM-c.pm"

## what else is mounted at a directory is left alone
"$t" mkfs --pm "$SHM-d.pm" --pm-size 16M >/dev/null 2>&1
check "one" "$t" mount "$SHM-c.pm" both
check "another above it" "$t" mount "$SHM-d.pm" both
expect 1 "mounted at .*both, beneath another mount; unmount that first" "$t" umount "$SHM-c.pm"
says 0 "$SHM-d.pm" "$t" status both
check "the upper one" "$t" umount both
check "the lower one has what it had" cmp random both/b
daemon=$(daemon_of both)
exec 8<both/b
umount -l both
check "another in its place" "$t" mount "$SHM-d.pm" both
touch both/mine
kill "$daemon"
while kill -0 "$daemon" 2>/dev/null; do sleep 0.1; done
exec 8<&-
check "it is still there" test -e both/mine
check "umount" "$t" umount both

## mkfs that fails at tier 0 leaves what other pools have
mkdir "$WORK/read-only" && mount -t tmpfs -o ro,size=64M none "$WORK/read-only"
sum=$(sha256sum <c.img)
expect 1 "Read-only file system" "$t" mkfs --force --pm "$WORK/read-only/new.pm" --pm-size 16M --tier "$WORK/c.img"
check "the tier is as it was" test "$(sha256sum <c.img)" = "$sum"
umount "$WORK/read-only"
check "its pool too" "$t" check --data "$SHM-c.pm"
rm -f "$SHM-c.pm" "$SHM-d.pm" c.img random

## pages of a mapping for which there is no room
# The kernel writes them in one request and calls all of them clean, unless it is told an error: of 256 pages 248 were
# written, and msync and fsync said nothing of the others.
truncate -s 32M "$SHM-pages.pm"
mkdir pages
check "mkfs" "$t" mkfs --pm "$SHM-pages.pm"
check "mount" "$t" mount "$SHM-pages.pm" pages
check "pages of a mapping are kept, or it is told" python3 - <<'PY'
import errno, mmap, os
SIZE, told = 1 << 20, 0
assert os.path.ismount("pages")
for spare in range(240, 264, 4):
    with open("pages/mapped", "w+b") as file, open("pages/filler", "w+b", buffering=0) as filler:
        file.truncate(SIZE)
        os.fsync(file.fileno())
        for piece in SIZE, 4096:
            try:
                while True:
                    filler.write(b"f" * piece)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        filler.truncate(os.fstat(filler.fileno()).st_size - spare * 4096)
        os.sync()
        pages = mmap.mmap(file.fileno(), SIZE)
        pages[:] = b"m" * SIZE
        try:
            pages.flush()
            os.fsync(file.fileno())
            is_told = False
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            is_told = True
        pages.close()
        os.posix_fadvise(file.fileno(), 0, SIZE, os.POSIX_FADV_DONTNEED)
        lost = SIZE - file.read().count(b"m")
        assert is_told or lost == 0, f"{spare} blocks: {lost} bytes lost, and nobody told"
        told += is_told
        filler.truncate(0)
    os.unlink("pages/mapped")
    os.sync()
assert 0 < told < 6, told
PY
check "umount" "$t" umount pages
rm -f "$SHM-pages.pm"

## benches refuse what would measure nothing
expect 2 "class: 'foo' is no device class; use host, ssd" "$t" bench paper tpfs-13 --quick --class foo
expect 2 "dataset: must be more than 0" "$t" bench paper tpfs-13 --dataset 0
expect 2 "seconds: must be more than 0" "$t" bench run varmail . --seconds 0
expect 1 "/nowhere/trace: No such file" "$t" bench run trace:/nowhere/trace .
expect 2 "rounds: must be more than 0" "$t" bench paper tpfs-13 --quick --rounds 0
expect 2 "rounds: must be more than 0" "$t" bench run varmail . --rounds 0
expect 1 "rounds: must be more than 0" "$t" bench smoke --rounds 0
expect 2 "record needs peer local" "$t" bench paper tpfs-13 --quick --peers terrace --record none.trace --dir "$WORK/scratch"
expect 2 "record: row predictor-cost asks nothing of the peer local" "$t" bench paper predictor-cost --quick --record none.trace
check "no trace was made" test ! -e none.trace

## an ordinary user
if command -v fusermount3 >/dev/null && command -v setpriv >/dev/null; then
    mkdir user && chown 65534 user
    cp "$t" user/terrace
    as_user() { HOME=$WORK/user setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR "$@"; }
    check "mkfs as a user" as_user user/terrace mkfs --pm "$SHM-user.pm" --pm-size 16M >/dev/null 2>&1
    mkdir user/mnt && chown 65534 user/mnt
    if ! as_user test -w /dev/fuse; then # only in this mount namespace
        mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse
    fi
    if as_user test -w /dev/fuse; then
        check "mount as a user" as_user user/terrace mount "$SHM-user.pm" user/mnt
        check "write as a user" as_user cp content user/mnt/x
        check "status as a user" as_user user/terrace status user/mnt >/dev/null
        expect 1 "fusermount3 is missing; install the package fuse3" as_user env PATH=/nowhere \
            "$WORK/user/terrace" umount user/mnt
        check "umount as a user" as_user user/terrace umount user/mnt
        mkdir "user/"$'\xff' && chown 65534 "user/"$'\xff'
        check "mount as a user with a state directory of any bytes" as_user env XDG_RUNTIME_DIR="$WORK/user/"$'\xff' \
            "$WORK/user/terrace" mount "$SHM-user.pm" user/mnt
        check "status of it" as_user user/terrace status user/mnt >/dev/null
        check "umount of it" as_user user/terrace umount user/mnt
        check "clean" grep -q "not mounted, clean" <("$t" status "$SHM-user.pm")
    else
        echo "/dev/fuse is closed to ordinary users: skipped"
    fi
    mknod closed c 10 229 && chmod 600 closed && mount --bind closed /dev/fuse
    expect 32 "/dev/fuse: Permission denied.*this user may not open it" as_user user/terrace mount "$SHM-user.pm" user/mnt
    umount /dev/fuse
    rm -rf /tmp/terrace-65534
fi
finish
