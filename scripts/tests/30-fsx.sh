#!/usr/bin/env bash
# fsx 0.3.2: 20,000 operations on a file of 4 x PM, mapped reads and writes, holes, fallocate and truncation
# among them, while migration runs; half of them with lazy writes; the second seed on a pool whose data has checksums.
# SEEDS="1 2": these seeds instead of random ones; OPERATIONS: other than 20,000.
. "$(dirname "$0")/suites.sh"
cargo_tool fsx 0.3.2
operations=${OPERATIONS:-20000}
seeds=${SEEDS:-"$RANDOM$RANDOM $RANDOM$RANDOM"}

make_config() { # FILE LARGEST_OPERATION TRUNCATE
    cat >"$1" <<TOML
flen = $((64 << 20))
[opsize]
min = 1
max = $2
[weights]
close_open = 2
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = $3
fsync = 2
fdatasync = 2
posix_fallocate = 1
punch_hole = 4
sendfile = 5
posix_fadvise = 1
copy_file_range = 4
TOML
}
# Mostly a large file that stays; and one that is cut often, with short and unaligned operations.
make_config large.toml 262144 0.05
make_config small.toml 20000 0.5

total=0
demoted=0
for seed in $seeds; do
    config=large.toml
    checksums=off
    size=16M
    # A file that is cut often is seldom large.
    [ "$total" = 0 ] || config=small.toml checksums=on size=4M
    for lazy in off on; do
        make_pool $size 512M --data-checksum $checksums
        mount_pool -o "cache=8M,lazy=$lazy"
        say "seed $seed, $config, lazy=$lazy"
        "$tools/bin/fsx" -q -f $config -N $((operations / 2)) -S "$seed" -P "$WORK" mnt/file.$seed >fsx.out 2>&1 || {
            tail -n 60 fsx.out >&2
            fail "seed $seed, $config, lazy=$lazy, after $total operations; $(grep -m1 -iE 'error|panicked|bad' fsx.out)"
        }
        total=$((total + operations / 2))
        expect_demotion
        demoted=$((demoted + $(demoted_bytes)))
        umount_pool
        check_pool --data
    done
done
pass "$total operations, seeds $seeds, $((demoted >> 20)) MiB demoted"
