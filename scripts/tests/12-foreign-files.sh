#!/usr/bin/env bash
# Files of a pool that others had a hand in: a path that hangs whoever opens it, files of other users, links laid where a
# file is to be made. Each check first tells what a command did.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-a.pm
tier=$WORK/tier.img
mkdir mnt
make_pool() { "$t" mkfs --force --pm "$pm" --pm-size 16M --tier "$tier,size=64M" >/dev/null 2>&1; }
# soon COMMAND…: ends by itself; that it hung is a failure by its status, 124.
soon() { timeout -k 1 20 "$@"; }

## status, check and mount opened whatever the superblock named: a FIFO hung them
check "mkfs" make_pool
mv tier.img aside.img
for kind in fifo device directory kernel; do
    case $kind in
        fifo) mkfifo tier.img ;;
        device) mknod tier.img c 1 3 ;;
        directory) mkdir tier.img ;;
        kernel) ln -s /proc/kmsg tier.img ;;
    esac
    expect 32 "foreign tier 1: .*(is a FIFO|is a character device|is a directory|made by the kernel)" soon "$t" mount "$pm" mnt
    expect 8 "foreign tier 1: " soon "$t" check "$pm"
    expect 8 "foreign tier 1: " soon "$t" check --repair "$pm"
    check "status of a pool whose tier is a $kind" eval 'soon "$t" status "$pm" >status; [ $? = 1 ]'
    check "says so" grep -q "tier.img \[foreign\]" status
    expect 1 "neither a file nor a block device" soon "$t" mkfs --pm "$SHM-b.pm" --pm-size 16M --tier tier.img
    rm -rf tier.img
done
mkfifo fifo
for command in "status" "check" "check --repair"; do expect "$([ "$command" = status ] && echo 1 || echo 8)" "FIFO" soon "$t" $command fifo; done
expect 32 "FIFO" soon "$t" mount fifo mnt
expect 1 "FIFO" soon "$t" mkfs --pm fifo --pm-size 16M
mv aside.img tier.img
check "the pool is as it was" "$t" check "$pm" >/dev/null

## root made its pool of a file of another user, who kept it open
files=("$SHM-c.pm" "$WORK/theirs.img" "$WORK/nowhere")
truncate -s 64M theirs.img
for change in "chown 65534" "chmod 666" "chmod 620"; do
    truncate -s 16M "$SHM-c.pm" && chmod 600 "$SHM-c.pm" theirs.img && chown 0 theirs.img
    $change "$SHM-c.pm"
    unchanged expect 1 "who may change what it holds|other users may change what it holds" "$t" mkfs --pm "$SHM-c.pm"
    rm "$SHM-c.pm"
    $change theirs.img
    unchanged expect 1 "theirs.img: .*may change what it holds" "$t" mkfs --force --pm "$SHM-c.pm" --pm-size 16M --tier theirs.img
done
# A link that leads nowhere decided where the file was made.
ln -s "$WORK/nowhere" link
unchanged expect 1 "link: File exists" "$t" mkfs --pm link --pm-size 16M
unchanged expect 1 "link: File exists" "$t" mkfs --pm "$SHM-c.pm" --pm-size 16M --tier link,size=64M
(umask 000 && check "mkfs" "$t" mkfs --pm "$SHM-c.pm" --pm-size 16M --tier "$WORK/new.img,size=64M" >/dev/null 2>&1)
check "new files are their owner's alone" test "$(stat -c %a "$SHM-c.pm" new.img | tr '\n' ' ')" = "600 600 "
rm -f "$SHM-c.pm" new.img theirs.img
chmod 644 tier.img
check "mkfs on a file that others may read" "$t" mkfs --force --pm "$pm" --tier tier.img >/dev/null 2>err
check "it is warned of" grep -q "tier.img: insecure permissions 0644, 0600 suggested" err
expect 0 "tier.img: insecure permissions 0644, 0600 suggested" "$t" mount "$pm" mnt
check "umount" "$t" umount mnt
chmod 600 tier.img

## root mounted a pool of another user, with set-uid programs in it
flags() { awk -v dir="$WORK/mnt" '$5 == dir { print $6 }' /proc/self/mountinfo; }
for file in "$pm" tier.img; do
    for change in "chown 65534" "chmod 666" "chmod 620"; do
        chown 0 "$pm" tier.img && chmod 600 "$pm" tier.img
        $change "$file"
        expect 32 "may change what it holds.* or mount with -o nosuid,nodev" "$t" mount "$pm" mnt
        expect 32 "may change what it holds" "$t" mount "$pm" mnt -o nosuid
        check "nothing is mounted" eval '! is_mounted "$WORK/mnt"'
    done
    expect 0 "may change what it holds" "$t" mount "$pm" mnt -o nosuid,nodev
    check "its programs and devices are nobody's" eval '[[ $(flags) == *nosuid* && $(flags) == *nodev* ]]'
    check "umount" "$t" umount mnt
done
chown 0 "$pm" tier.img && chmod 600 "$pm" tier.img
check "mount" "$t" mount "$pm" mnt
check "programs of root's own pool" eval '[[ $(flags) != *nosuid* ]]'
check "umount" "$t" umount mnt

## mkfs --force followed a link of another user to a pool of root's
ln -s "$pm" led && chown -h 65534 led
expect 1 "led: a link of user 65534; name the file" "$t" mkfs --force --pm led --pm-size 16M
expect 1 "led: a link of user 65534; name the file" "$t" mkfs --force --pm "$SHM-new.pm" --pm-size 16M --tier "$WORK/led"
check "the pool is as before" grep -q "not mounted, clean" <("$t" status "$pm")
chown -h 0 led
expect 1 "holds a Terrace pool" "$t" mkfs --pm led --pm-size 16M
finish
