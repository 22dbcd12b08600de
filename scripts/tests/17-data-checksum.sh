#!/usr/bin/env bash
# mkfs --data-checksum on: a byte that changes in persistent memory under a file is EIO for its block, never wrong bytes.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-a.pm
mkdir mnt
expect 1 "data-checksum on: --data ordered overwrites in place" "$t" mkfs --pm "$pm" --pm-size 16M --data ordered --data-checksum on
check "a refused mkfs makes nothing" test ! -e "$pm"
check "mkfs" "$t" mkfs --pm "$pm" --pm-size 16M --tier tier.img,size=64M --data-checksum on >out 2>err
check "it says so" grep -q "file data in persistent memory has checksums" out
expect 32 "data=ordered overwrites in place.*data=atomic" "$t" mount "$pm" mnt -o data=ordered
check "mount" "$t" mount "$pm" mnt -o policy=static,log="$WORK/log"
head -c 40000 /dev/urandom >other
head -c 40000 /dev/urandom >random
# Found again in persistent memory by these bytes, which lie in the third block.
printf 'terrace-finds-me' | dd of=random bs=1 seek=9000 conv=notrunc status=none
cp other random mnt/
sync -f mnt
cat >flip.py <<'PY'
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
    at = memory.find(b"terrace-finds-")
    assert at > 0 and memory.find(b"terrace-finds-", at + 1) < 0
    memory[at + 15] ^= 0x20
PY
drop() { sync; echo 3 >/proc/sys/vm/drop_caches; }
# eio COMMAND…
eio() {
    ! "$@" >/dev/null 2>said && grep -q "Input/output error" said
}
drop
check "the content is there" cmp random mnt/random
check "status is healthy" "$t" status mnt >/dev/null
drop
check "a byte changes" python3 flip.py "$pm"
check "the file gives EIO" eio cat mnt/random
check "its other blocks are there" cmp -n 8192 random mnt/random
drop
check "also those behind" cmp <(tail -c +12289 random) <(tail -c +12289 mnt/random)
check "a part of the block cannot be written" eio dd if=other of=mnt/random bs=1 count=10 seek=8200 conv=notrunc,fsync
check "it does not go below" eio sh -c '"$1" sync mnt --to 1 || { echo "Input/output error" >&2; exit 1; }' sh "$t"
check "other files are there" cmp other mnt/other
"$t" status mnt >said
check "status tells" test $? = 1
check "and says why" grep -q "data that does not match its checksum" said
# Whoever may read it filled the log.
check "every read of it fails" python3 - mnt/random <<'PY'
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
import mmap
buffer = mmap.mmap(-1, 4096)
failed = 0
for _ in range(2000):
    try:
        os.preadv(file, [buffer], 8192)
    except OSError:
        failed += 1
assert failed == 2000, failed
PY
check "the log stays short" test "$(grep -c "data in PM block" log)" -lt 30
check "umount" "$t" umount mnt
check "without --data check reads no data" "$t" check "$pm" >/dev/null
"$t" check --data "$pm" >said
check "with it, it finds the block" test $? = 4
check "by its code" grep -qE "209.*inode|DataChecksum" said
"$t" check --repair "$pm" >said 2>&1
check "mount" "$t" mount "$pm" mnt -o policy=static
check "still EIO" eio cat mnt/random
check "written anew the block is sound" dd if=random of=mnt/random bs=4096 skip=2 seek=2 count=1 conv=notrunc status=none
check "the file is whole" cmp random mnt/random
check "and goes below" "$t" sync mnt --to 1 >/dev/null
drop
check "the file is whole there" cmp random mnt/random
check "umount" "$t" umount mnt
check "nothing is damaged" "$t" check --data "$pm" >/dev/null
finish
