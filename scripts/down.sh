#!/usr/bin/env bash
# Unmounts ./mnt.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if is_mounted; then
    "$terrace" umount "$mountpoint" || die "end these first; '${terrace#"$root"/} umount --force $mountpoint' cuts them off"
    say "unmounted $mountpoint"
else
    say "nothing is mounted at $mountpoint"
fi
