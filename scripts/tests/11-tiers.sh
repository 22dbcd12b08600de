#!/usr/bin/env bash
# The tiers that mkfs makes of devices, and their order changed later.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-a.pm
mkdir mnt
# tiers FILE: the numbers of the pool's tiers by device, in the order of the paths given to mkfs.
tiers() { "$t" status "$1" --json | python3 -c '
import json, sys
found = {device["path"]: tier["id"] for tier in json.load(sys.stdin)["tiers"] if tier["id"] for device in tier["devices"]}
print(*(tier for _, tier in sorted(found.items())))'; }

## two files of one disk became two tiers when the machine was busy while one of them was measured
# Dry or not: what the devices make is the same, and dry nothing is made.
files=("$pm" "$WORK/1.img" "$WORK/2.img" "$WORK/3.img")
arguments=(--pm "$pm" --pm-size 16M --tier "$WORK/1.img,size=64M" --tier "$WORK/2.img,size=64M" --tier "$WORK/3.img,size=64M,class=900000000:900000000:4K:4K")
unchanged check "mkfs --dry-run" "$t" mkfs --dry-run "${arguments[@]}" >dry 2>err
check "nothing is made" grep -q "^nothing was made" dry
check "files of one disk share a tier" test "$(grep -cE "^tier 1: .*/[12].img, 64 MiB: (measured|as the kernel calls it): " dry)" = 2
check "a class that is given counts" grep -qE "^tier 2: .*/3.img, 64 MiB: as given: read 900 ms" dry
# With every processor and the disk busy, while it is measured.
for _ in 1 2 3 4; do (while :; do :; done) & done
(while :; do dd if=/dev/zero of=busy bs=1M count=64 oflag=direct conv=notrunc status=none; done) 2>/dev/null &
check "mkfs on a busy machine" "$t" mkfs "${arguments[@]}" >out 2>err
kill $(jobs -p) && wait 2>/dev/null
rm -f busy
check "files of one disk share a tier" test "$(tiers "$pm")" = "1 1 2"
# By whom they are known is said: either two measurements agreed, or the kernel was asked.
check "it says how fast they are" eval 'grep -qE "measured: read" out || grep -q "1.img, .*/2.img: its speed cannot be measured while the machine is busy; taken as" err'
if loop=$(losetup -f --show 2.img 2>/dev/null); then
    check "a loop device is on the disk of its file" "$t" mkfs --dry-run --force --pm "$pm" --tier 1.img --tier "$loop" >dry 2>err
    check "they share a tier" test "$(grep -c "^tier 1: " dry)" = 2
    check "a device is only read" grep -qE "$loop, 64 MiB: (measured by reading alone|as the kernel calls it)" dry
    losetup -d "$loop"
fi
for place in "$WORK/4.img" "$SHM-4.img"; do
    truncate -s 64M "$place"
    if loop=$(losetup -f --show "$place" 2>/dev/null); then
        expect 1 "has 64 MiB and is taken whole, not 48 MiB; size=SIZE is for files" "$t" mkfs --pm "$SHM-b.pm" --pm-size 16M --tier "$loop,size=48M"
        "$t" mkfs --pm "$SHM-b.pm" --pm-size 16M --tier "$loop" >out 2>err
        case $(stat -f -c %T "$place") in
        tmpfs | ramfs) promise=process-crash ;;
        *) promise=power-fail ;;
        esac
        check "a device survives what its file survives" grep -qE "^tier 1: $loop, .*promise $promise$" out
        losetup -d "$loop"
    fi
    rm -f "$place" "$SHM-b.pm"
done
check "the pool is as it was" "$t" check --data "$pm" >/dev/null

## the order of tiers could not be changed
check "mkfs" "$t" mkfs --force --pm "$pm" --tier 1.img,class=nvme --tier 2.img,class=sata --tier 3.img,class=hdd >/dev/null 2>&1
check "by class" test "$(tiers "$pm")" = "1 2 3"
check "mount" "$t" mount "$pm" mnt
head -c 2M /dev/urandom >random
mkdir mnt/pinned && cp random mnt/pinned/a && cp random mnt/b
check "pin" "$t" pin mnt/pinned --tier 2 --wait
check "migrate" "$t" migrate mnt/b --to 1 --wait >/dev/null
expect 1 "busy: already mounted at .*mnt" "$t" tier "$pm" 1.img --to 4
check "umount" "$t" umount mnt
files+=("$pm")
unchanged expect 1 "no device of" "$t" tier "$pm" random --to 1
unchanged expect 1 "0 is not in 1..=254" "$t" tier "$pm" 1.img --to 0
unchanged check "tier --dry-run" "$t" tier "$pm" 2.img --to 5 --dry-run >out
check "it says what would be" grep -qE "^tier 5: .*/2.img: sata" out
check "and what becomes of pins" grep -q "no device is tier 2 any more; pins to it mean the next slower tier" out
check "the order changes" "$t" tier "$pm" 2.img --to 5 >/dev/null
check "it is the new one" test "$(tiers "$pm")" = "1 5 3"
check "nothing is damaged" "$t" check --data "$pm" >/dev/null
check "mount in the new order" "$t" mount "$pm" mnt
where() { "$t" where "$1" --json | python3 -c '
import json, sys
print(*("%d:%d" % (tier["id"], tier["bytes"]) for tier in json.load(sys.stdin)[0]["tiers"] if tier["bytes"]))'; }
check "on the device where it lay" test "$(where mnt/b)" = 1:2097152
check "what lay there is what it was" sh -c 'cmp random mnt/pinned/a && cmp random mnt/b'
check "the pin's number is nobody's: the next slower tier" test "$("$t" where mnt/pinned/a --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["pinned_tier"])')" = 3
check "tiers are found by their new numbers" "$t" migrate mnt/b --to 5 --wait >/dev/null
check "and go there" test "$(where mnt/b)" = 5:2097152
check "umount" "$t" umount mnt
# The header has the number of the last mount that wrote; a change without one between the two is no damage either.
check "back, and without a mount" sh -c '"$0" tier "$1" 2.img --to 2 >/dev/null && "$0" check --data "$1" >/dev/null && "$0" check --repair "$1" >/dev/null' "$t" "$pm"
check "devices may share a tier" "$t" tier "$pm" 3.img --to 2 >/dev/null
check "they do" test "$(tiers "$pm")" = "1 2 2"
check "mount" "$t" mount "$pm" mnt
check "what lay there is what it was" sh -c 'cmp random mnt/pinned/a && cmp random mnt/b'
check "umount" "$t" umount mnt
check "nothing is damaged" "$t" check --data "$pm" >/dev/null
# One damaged copy of the superblock: the other one stays sound until it is mended.
printf x | dd of="$pm" bs=1 seek=200 conv=notrunc status=none
check "the order changes beside a damaged copy" "$t" tier "$pm" 1.img --to 9 >/dev/null
check "both are sound" eval '! "$t" status "$pm" | grep -q "is damaged"'
check "it is the new one" test "$(tiers "$pm")" = "9 2 2"
finish
