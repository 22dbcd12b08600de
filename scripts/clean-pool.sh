#!/usr/bin/env bash
# Unmounts and deletes the pool of `make up`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if is_mounted; then
    "$terrace" umount "$mountpoint"
fi
[ ! -O "$pm" ] || rm -f "$pm"
[ ! -O "$memory.pm" ] || rm -f "$memory.pm" # as it was named until it had a directory
[ ! -O "$memory" ] || rmdir "$memory"
rm -rf "$state"
[ ! -d "$mountpoint" ] || rmdir "$mountpoint" 2>/dev/null ||
    die "the pool is deleted; $mountpoint has files that were written while no pool was mounted there: move them away"
say "deleted the pool in $state"
