#!/usr/bin/env bash
# blkid, wipefs and the mkfs of other file systems saw nothing on a device that holds a tier, and wrote over it.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-a.pm
mkdir mnt
truncate -s 400M disk.img
loop=$(losetup -f --show disk.img) || { echo "no loop devices: skipped"; finish; }
trap 'losetup -d "$loop"' EXIT
check "mkfs" "$t" mkfs --pm "$pm" --pm-size 16M --tier "$loop" >out 2>err
check "it says what others see" grep -q "$loop: other programs see no more than an empty partition table" err
check "blkid sees a partition table" test "$(blkid -p -o value -s PTTYPE "$loop")" = dos
check "wipefs does" grep -q "0x1fe.*dos" <(wipefs -n "$loop")
check "it has no partitions" eval '! partprobe "$loop" 2>/dev/null; ! ls "$loop"p1 2>/dev/null'
# refuses COMMAND…: with nobody there to answer, the command leaves the device as it is.
sum() { head -c 32M "$loop" | sha256sum; }
refuses() {
    local before
    before=$(sum)
    script -qec "$*" /dev/null </dev/null >said 2>&1
    check "refused: $*" grep -qE "partition table|in use|busy|Busy|exclusively" said
    check "unchanged: $*" test "$(sum)" = "$before"
}
mkfs=(mkfs.ext4)
for other in mkfs.xfs mkfs.btrfs; do ! command -v $other >/dev/null || mkfs+=($other); done
for other in "${mkfs[@]}"; do refuses $other "$loop"; done
expect 1 "holds a tier of a Terrace pool" "$t" mkfs --pm "$SHM-b.pm" --pm-size 16M --tier "$loop"

## the device of a mounted pool
check "mount" "$t" mount "$pm" mnt
head -c 1M /dev/urandom >random && cp random mnt/a && "$t" sync mnt --to 1
for other in "mkfs.ext4 -F" "wipefs -a" "mount"; do
    # The file system's own writes would change the sum.
    script -qec "$other $loop $([ "$other" != mount ] || echo "$WORK")" /dev/null </dev/null >said 2>&1
    checks=$((checks + 1))
    grep -qiE "in use|busy|will not make" said || fail "$other is not refused: $(cat said)"
done
check "it is held exclusively" python3 - "$loop" <<'PY'
import errno, os, sys
try:
    os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)
except OSError as error:
    sys.exit(error.errno != errno.EBUSY)
sys.exit(1)
PY
check "umount" "$t" umount mnt
check "nothing is damaged" "$t" check --data "$pm" >/dev/null
# A device of a pool of an earlier version gets the signature with the next mount for writing.
printf '\0\0' | dd of="$loop" bs=1 seek=510 conv=notrunc,fsync status=none
check "mount" "$t" mount "$pm" mnt
check "umount" "$t" umount mnt
check "blkid sees it again" test "$(blkid -p -o value -s PTTYPE "$loop")" = dos
finish
