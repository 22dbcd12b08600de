#!/usr/bin/env bash
# Bad input of a journal: each command says in one or two lines what to do, and writes nothing.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
mkdir mnt own
check "mkfs" "$t" mkfs --journal a,memory=48M,log=64M --tier a.img,size=256M >out
check "mkfs" "$t" mkfs --journal b,memory=48M,log=64M --tier b.img,size=256M >out
files=(a a.img b b.img)
# patch FILE OFFSET BYTES [SEAL]: stores bytes in both anchors; SEAL makes their checksums right again.
patch() {
    python3 - "$@" <<'PY'
import sys
name, offset, data = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
with open(name, "r+b") as file:
    for at in (0, 256 * 4096):
        file.seek(at)
        anchor = bytearray(file.read(160))
        anchor[offset:offset + len(data)] = data
        if len(sys.argv) > 4:
            anchor[156:] = crc32c(anchor[:156]).to_bytes(4, "little")
        file.seek(at)
        file.write(anchor)
PY
}
# refuse PATTERN FILE: mount, a mount that only reads, check and a repair refuse FILE, and leave all files as they are.
refuse() {
    unchanged expect 32 "$1" "$t" mount "$2" mnt
    unchanged expect 32 "$1" "$t" mount -o ro "$2" mnt
    unchanged expect 8 "$1" "$t" check "$2"
    unchanged expect 8 "$1" "$t" check --repair "$2"
}

# keep FILE COMMAND…: the command changes no file, and of FILE the two anchors alone. Tiers are looked at when the journal is open,
# and its opening is noted in the anchors.
keep() {
    local journal=$1 before sum="cat <(tail -c +4097 \"\$journal\" | head -c 1044480) <(tail -c +1052673 \"\$journal\") | sha256sum"
    shift
    before=$(eval "$sum")
    unchanged "$@"
    check "content unchanged: $*" test "$before" = "$(eval "$sum")"
}

## no journal
unchanged expect 32 "No such file" "$t" mount none mnt
unchanged expect 8 "No such file" "$t" check none
truncate -s 64M zeros
files+=(zeros)
unchanged expect 32 "no Terrace pool" "$t" mount zeros mnt
unchanged expect 8 "no Terrace pool" "$t" check zeros
check "no file was made" test ! -e none

## an anchor of another version
cp --sparse=always a other
files+=(other)
patch other 8 02000000 seal
refuse "version 2, this program knows version 1; use the program" other
unchanged expect 1 "of another version; 'terrace check' says more" "$t" status other

## both anchors damaged, and one of them
cp --sparse=always a damaged
files+=(damaged)
patch damaged 50 ff
refuse "journal is damaged, nothing was written: .*; put a backup back" damaged
unchanged expect 1 "anchor is damaged" "$t" status damaged
dd if=a of=damaged bs=4096 count=1 conv=notrunc status=none
check "one sound anchor serves" "$t" check damaged >out

## home or log shorter than the anchor says
cp --sparse=always a short
files+=(short)
for size in 1M 2M 20M 114M; do
    truncate -s "$size" short
    refuse "is it a copy that was cut off" short
done
cp --sparse=always a large
files+=(large)
patch large 40 0000010000000000 seal # a log of 64 KiB, below the smallest
refuse "journal is damaged" large

## memory that the machine does not have
unchanged expect 1 "of memory, .*use a smaller memory=" "$t" mkfs --journal c,memory=8T
check "no file was made" test ! -e c
sed 's/^MemAvailable:.*/MemAvailable: 100000 kB/' /proc/meminfo >meminfo
mount --bind meminfo /proc/meminfo
refuse "bytes of memory, .* are available; end other programs first" a
umount /proc/meminfo
# A sparse file that says it has an image of 1 TiB.
cp --sparse=always a sparse
truncate -s 3T sparse
files+=(sparse)
patch sparse 32 00000000000100000000000000010000 seal
refuse "bytes of memory, .* are available" sparse

## a device of another pool
mv a.img kept.img
cp --sparse=always b.img a.img
files=(a.img b b.img kept.img)
keep a expect 32 "belongs to another pool; -o degraded mounts without" "$t" mount a mnt
keep a expect 32 "belongs to another pool; -o degraded mounts without" "$t" mount -o ro a mnt
files+=(a)
unchanged expect 8 "belongs to another pool" "$t" check a
mv kept.img a.img

## a journal inside its own mount, and one in use
mv b own/b
files+=(own/b)
unchanged expect 32 "lies inside the mount point" "$t" mount own/b own
mv own/b b
check "mount" "$t" mount a mnt
expect 32 "already mounted" "$t" mount a own
expect 1 "in use" "$t" mkfs --journal a,memory=48M --force
expect 8 "busy: " "$t" check a
check "umount" "$t" umount mnt

## a copy that is older than the pool
cp --sparse=always a copy
check "mount" "$t" mount a mnt
echo new >mnt/file
check "umount" "$t" umount mnt
files=(a a.img b b.img)
keep copy expect 32 "an older copy of this pool's tier 0: .*use the newest copy" "$t" mount copy mnt
check "the newest copy serves" "$t" check a >out

## a device below a mounted file system
truncate -s 300M disk
if loop=$(losetup -f --show disk); then
    mkfs.ext4 -q "$loop"
    mkdir host
    mount "$loop" host
    expect 1 "mounted at .*end that first" "$t" mkfs --journal "$loop",memory=48M
    expect 1 "mounted at .*end that first" "$t" mkfs --journal "$loop",memory=48M --force
    expect 32 "block device" "$t" mount "$loop" mnt
    umount host
    check "the file system is whole" fsck.ext4 -fn "$loop" >out 2>&1
    losetup -d "$loop"
fi
finish
