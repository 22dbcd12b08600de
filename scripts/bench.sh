#!/usr/bin/env bash
# Runs the benchmarks; arguments go to `terrace bench smoke`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
exec "$terrace" bench smoke "$@"
