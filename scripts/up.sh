#!/usr/bin/env bash
# Makes an embedded pool and mounts it at ./mnt; mounts it again when it is there already. Its fast tier is in memory, and a
# journal in ./.state brings it over a reboot. PM=1: a fast tier on /dev/shm instead, which a reboot deletes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"

if [ ! -e /dev/fuse ]; then
    [ "$(id -u)" = 0 ] && modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || die "/dev/fuse is missing; load the kernel module fuse, or allow the device in this container"
fi
[ -r /dev/fuse ] && [ -w /dev/fuse ] || die "/dev/fuse cannot be opened by this user; ask for read and write access"
if [ "$(id -u)" != 0 ]; then
    command -v fusermount3 >/dev/null || install_packages fuse3
fi
scripts/build.sh

if is_mounted && "$terrace" status "$mountpoint" >/dev/null 2>&1; then
    say "already mounted at $mountpoint"
    exit 0
fi

# The pool that is there: a journal, or a pool of PM=1 or of an older checkout. What another user made does not count.
if [ -e "$journal" ]; then
    [ -z "${PM:-}" ] || die "$journal is there, a pool with a journal; 'make clean-pool' deletes it, then 'make up PM=1' makes another"
    pool=$journal
elif [ -n "${PM:-}" ] || [ -e "$tier" ] || [ -O "$pm" ] || [ -O "$memory.pm" ]; then
    pool=$pm
else
    pool=$journal
fi

if [ "$pool" = "$journal" ]; then
    :
elif [ -e "$memory" ] || [ -L "$memory" ]; then
    [ -d "$memory" ] && [ ! -L "$memory" ] && [ -O "$memory" ] && [ "$(stat -c %a "$memory")" = 700 ] ||
        die "$memory is not a directory of yours with mode 0700; another user may have made it: remove it"
elif [ -f "$memory.pm" ] && [ -O "$memory.pm" ]; then # as it was named until it had a directory
    mkdir -m 700 "$memory"
    mv "$memory.pm" "$pm"
fi

if [ -e "$tier" ] && [ ! -e "$pool" ]; then
    die "there is no $journal, and $pm is gone (tmpfs after a reboot?) and with it the pool; nothing was changed
'make clean-pool' deletes what is left, then 'make up' makes a new one"
fi
if [ -e "$pool" ] && [ ! -e "$tier" ]; then
    die "$tier is gone and with it the pool in $pool; nothing was changed
'make clean-pool' deletes what is left, then 'make up' makes a new one"
fi

if [ ! -e "$pool" ]; then
    # An eighth of the memory that is free, from 64 to 512 MiB.
    available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
    size=$((available / 8))
    [ "$size" -le 512 ] || size=512
    [ "$size" -ge 64 ] || size=64
    mkdir -p "$state"
    if [ "$pool" = "$journal" ]; then
        # On the disk the image, a log of twice its size and at least 256 MiB, as mkfs makes it, and room for the first files.
        log=$((2 * size))
        [ "$log" -ge 256 ] || log=256
        needed=$((size + log + 256))
        free=$(df --output=avail -m "$state" | tail -1 | tr -d ' ')
        [ "$available" -ge 512 ] && [ "$free" -ge "$needed" ] ||
            die "only $available MiB of memory and $free MiB of $state are free; 512 and $needed are needed"
        "$terrace" mkfs --journal "$journal,memory=${size}M" --tier "$tier,size=8G"
    else
        # And never more than half of /dev/shm.
        shm=$(df --output=avail -m /dev/shm | tail -1 | tr -d ' ')
        [ "$size" -le $((shm / 2)) ] || size=$((shm / 2))
        [ "$size" -ge 64 ] || size=64
        [ "$available" -ge 256 ] && [ "$shm" -ge 80 ] ||
            die "only $available MiB of memory and $shm MiB of /dev/shm are free; 256 and 80 are needed"
        [ -d "$memory" ] || mkdir -m 700 "$memory"
        "$terrace" mkfs --pm "$pm" --pm-size "${size}M" --tier "$tier,size=8G"
    fi
fi

mkdir -p "$mountpoint"
"$terrace" mount "$pool" "$mountpoint"
cat <<TEXT

Mounted at $mountpoint. Try:
  cp -r crates mnt/                      ordinary programs work in it
  ${terrace#"$root"/} status mnt         tiers, their use, migration
  dd if=/dev/urandom of=mnt/big bs=1M count=1024
  ${terrace#"$root"/} where mnt/big      which tier holds it now
  ${terrace#"$root"/} sync mnt --to 1    everything down to tier 1
  make down                              unmount; 'make up' mounts it again
  make clean-pool                        delete it
TEXT
