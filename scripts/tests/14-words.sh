#!/usr/bin/env bash
# Messages and reports that new users met: what they say, and what to do. Remounts and mkfs(8) included.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-w.pm
tier=$WORK/tier.img
mnt=$WORK/mnt
mkdir mnt
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

## commands
expect 1 "unrecognized subcommand 'migrat'; a similar subcommand exists: 'migrate'; see 'terrace --help'" "$t" migrat
expect 1 "unexpected argument '--jsn' found; a similar argument exists: '--json'" "$t" status --jsn .
says 0 "^Usage: [^ ]+ mount " "$t" help mount
says 0 "^Usage: [^ ]+ <COMMAND>" "$t" help
check "version" test "$("$t" version)" = "$("$t" --version)"
for group in "Options in general" "Devices that have moved" Memory Durability Placement "For trials"; do
    says 0 "^$group.*:$" "$t" mount --help
done

## sizes that differ
expect 1 ": 33554432 bytes is below the minimum of a tier, 33558528 bytes" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=32M"

expect 1 "1 MiB is below the minimum of a tier, 32 MiB \(33558528 bytes\)" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=1M"
expect 1 "huge: File too large" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$WORK/huge,size=8000000T"
check "no file of the mkfs that failed is left" test ! -e huge -a ! -e "$pm"
: >empty
expect 1 "empty: no Terrace pool" "$t" tier empty "$tier" --to 2

## mount options that contradict each other, or take no value
expect 1 "mount option ro=1: takes no value; write ro" "$t" mount "$pm" mnt -o ro=1

## mkfs as mkfs(8) calls it
ln -s "$t" mkfs.terrace
check "POOL SIZE" ./mkfs.terrace -v "$pm" 16M >/dev/null
says 0 "not mounted, clean" "$t" status "$pm"
expect 1 "holds a Terrace pool" ./mkfs.terrace "$pm"
expect 1 "cannot be used with" ./mkfs.terrace --pm "$pm" "$pm"
rm "$pm"
if loop=$(truncate -s 64M disk.img && losetup --find --show disk.img 2>/dev/null); then
    expect 1 "cannot be persistent memory.*give devices with --tier" ./mkfs.terrace "$loop"
    mkfs.ext4 -q "$loop" && mount "$loop" mnt
    expect 1 "$loop: mounted or in use: mounted at $mnt; end that first" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$loop" --force
    umount mnt
    losetup -d "$loop"
fi

## pools and tiers that are not there
expect 32 "$SHM-none: No such file or directory: files in memory \(tmpfs\) are gone after a reboot" "$t" mount "$SHM-none" mnt
expect 1 "files in memory \(tmpfs\) are gone after a reboot" "$t" status "$SHM-none"
check "mkfs" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$tier,size=96M,class=hdd" --tier "$WORK/fast.img,size=96M,class=nvme" >/dev/null 2>&1
expect 32 "tier.img: a device \(tier 2\) of a Terrace pool, not the pool" "$t" mount "$tier" mnt
expect 8 "tier.img: a device \(tier 2\) of a Terrace pool, not the pool" "$t" check "$tier"
mkdir aside other && mv tier.img aside/moved.img
expect 32 "missing tier 2: .*tier.img: No such file or directory; where it has moved, -o tier=PATH says so; -o degraded mounts without it" \
    "$t" mount "$pm" mnt
expect 32 "other: is a directory" "$t" mount "$pm" mnt -o "tier=$WORK/other"
head -c 96M /dev/zero >other/zeros
expect 32 "zeros: no device of this pool" "$t" mount "$pm" mnt -o tier=other/zeros
mkfifo other/fifo
expect 32 "fifo: is a FIFO" timeout 20 "$t" mount "$pm" mnt -o tier=other/fifo
check "a device that has moved, by its path" "$t" mount "$pm" mnt -o tier=aside/moved.img
head -c 4M /dev/urandom >data && cp data mnt/data
check "it holds what is written to it" "$t" sync mnt --to hdd
says 0 "tier 2 4 MiB" "$t" where mnt/data
check "umount" "$t" umount mnt
# Beside the pool a file is found by its header, whatever its name and whatever lies there too.
mkdir -m 700 "$SHM-dir" && mv "$pm" "$SHM-dir/pool" && mkfifo "$SHM-dir/a-fifo"
pm=$SHM-dir/pool
for name in alike another; do truncate -s 96M "$SHM-dir/$name"; done
# A copy that a later mount has not used is not taken for it.
cp --sparse=always aside/moved.img "$SHM-dir/older"
check "mount" "$t" mount "$pm" mnt -o tier=aside/moved.img
check "umount" "$t" umount mnt
expect 32 "missing tier 2" timeout 60 "$t" mount "$pm" mnt
cp --sparse=always aside/moved.img "$SHM-dir/any name" && rm -r aside
expect 0 "a device of tier 2 was found by its header at $SHM-dir/any name, not at $tier" timeout 60 "$t" mount "$pm" mnt
check "content" cmp data mnt/data
rm "$SHM-dir"/{alike,another,older}
check "umount" "$t" umount mnt

## status says of a pool the same, mounted or not
of_tiers() {
    "$t" status "$pm" --json | python3 -c '
import json, sys
print([(tier["id"], tier["kind"], tier["capacity_bytes"], [(device["path"], device["capacity_bytes"]) for device in tier["devices"]])
       for tier in json.load(sys.stdin)["tiers"]])'
}
before=$(of_tiers)
check "mount" "$t" mount "$pm" mnt
check "kinds, order and capacities" test "$before" = "$(of_tiers)"
says 0 "^memory: .* of copies of lower tiers; written and not yet durable: " "$t" status mnt
says 0 "^predictors: " "$t" status mnt --verbose
says 0 "^thresholds: " "$t" status mnt -v
check "no predictors for everybody" eval '! "$t" status mnt | grep -qE "^(predict|thresholds|limits|large|PM lately)"'

## where a file and all below a directory lies
cp data mnt/again && cat mnt/again mnt/again >/dev/null
says 0 "  read-hot" "$t" where mnt/again
head -c 256K data >small
mkdir -p mnt/dir/sub && cp small mnt/dir/a && cp small mnt/dir/sub/b && ln mnt/dir/a mnt/dir/sub/c && ln -s /nowhere mnt/dir/link
mkfifo mnt/dir/fifo
check "to tier 1" "$t" migrate mnt/dir/sub/b --tier 1 --wait >/dev/null
says 0 "^mnt/dir: 512 KiB  in 2 files  PM 256 KiB  tier 1 256 KiB  tier 2 0 B" "$t" where mnt/dir
check "where DIR --json" python3 - <<PY
import json, subprocess
found, file = json.loads(subprocess.check_output(["$t", "where", "--json", "mnt/dir", "mnt/dir/a"]))
assert (found["files"], found["directories"], found["size_bytes"]) == (2, 1, 512 << 10), found
assert found["tiers"] == [{"id": 0, "bytes": 256 << 10}, {"id": 1, "bytes": 256 << 10}, {"id": 2, "bytes": 0}], found
assert "files" not in file and set(file) < set(found), file
PY
mkdir mnt/empty
says 0 "^mnt/empty: 0 B  in 0 files  PM 0 B" "$t" where mnt/empty
check "pin --to" "$t" pin mnt/dir/a --to 0 --wait >/dev/null
check "pin --tier" "$t" pin mnt/dir/a --tier 0 >/dev/null
# As status and completions call it.
for name in ram RAM pm; do check "pin --tier $name" "$t" pin mnt/dir/a --tier $name >/dev/null; done
check "sync --tier" "$t" sync mnt --tier 0

## remounts
ln -s "$t" mount.fuse.terrace
remount() { ./mount.fuse.terrace "$pm" "$mnt" -o "$1"; }
exec 8>>mnt/data
expect 32 "busy: files are open for writing" remount remount,ro
exec 8>&-
check "ro" remount remount,ro
check "no changes" eval '! touch mnt/new 2>/dev/null && grep -q " $mnt fuse.terrace ro," /proc/mounts'
says 0 "mounted read-only at" "$t" status mnt
check "other words leave it read-only" eval 'remount remount,cache=64M 2>/dev/null && grep -q " $mnt fuse.terrace ro" /proc/mounts'
check "rw" remount ro,nosuid,remount,rw
check "changes" touch mnt/new
check "nosuid stays" eval 'remount remount,rw && grep -q " $mnt fuse.terrace rw,nosuid" /proc/mounts'
expect 0 "as before until the next mount: cache=64M" remount remount,rw,cache=64M
expect 32 "access times.*unmount it and mount it again" remount remount,noatime
expect 1 "unknown option" remount remount,bogus
check "umount" "$t" umount mnt
expect 32 "no Terrace pool is mounted there" remount remount,ro
check "mount -o ro,noatime" "$t" mount "$pm" mnt -o ro,noatime
expect 32 "mounted with -o ro, and its daemon takes no changes" remount remount,rw
check "noatime as it is" remount remount,ro,noatime
check "umount" "$t" umount mnt

## what a user mounted is root's to end; state directories without users go
if command -v fusermount3 >/dev/null && command -v setpriv >/dev/null; then
    mkdir user && chown 65534 user && cp "$t" user/terrace
    as_user() { HOME=$WORK/user setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR "$@"; }
    rm -rf /tmp/terrace-65534
    check "mkfs as a user" as_user user/terrace mkfs --pm "$SHM-user.pm" --pm-size 16M >/dev/null 2>&1
    # With a log elsewhere: without syslog it lies in the state directory, which then stays.
    mkdir user/mnt && chown 65534 user/mnt
    mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse
    if as_user test -w /dev/fuse; then
        check "mount as a user" as_user user/terrace mount "$SHM-user.pm" user/mnt -o "log=$WORK/user/log"
        says 0 "mounted at $WORK/user/mnt" "$t" status user/mnt
        check "root ends it" "$t" umount user/mnt
        check "clean" grep -q "not mounted, clean" <("$t" status "$SHM-user.pm")
        check "mount as a user again" as_user user/terrace mount "$SHM-user.pm" user/mnt -o "log=$WORK/user/log"
        check "the state directory" test -d /tmp/terrace-65534
        check "umount as a user" as_user user/terrace umount user/mnt
        check "no state directory" test ! -e /tmp/terrace-65534
    else
        echo "/dev/fuse is closed to ordinary users: skipped"
    fi
    umount /dev/fuse
fi
finish
