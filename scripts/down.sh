#!/usr/bin/env bash
# Unmounts ./mnt.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if is_mounted; then
    "$terrace" umount "$mountpoint"
    say "unmounted $mountpoint"
else
    say "nothing is mounted at $mountpoint"
fi
