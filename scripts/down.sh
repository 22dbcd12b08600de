#!/usr/bin/env bash
# Unmounts ./mnt.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if is_mounted; then
    "$terrace" umount "$mountpoint" || die "'${terrace#"$root"/} umount --force $mountpoint' cuts off programs that still use it"
    say "unmounted $mountpoint"
else
    say "nothing is mounted at $mountpoint"
fi
