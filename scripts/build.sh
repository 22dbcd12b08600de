#!/usr/bin/env bash
# Builds target/release/terrace; `build.sh lab` builds target/release/terrace-lab too.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
command -v cargo >/dev/null || die "cargo is missing; install Rust from https://rustup.rs"
command -v cc >/dev/null || install_packages gcc libc6-dev
packages=(-p terrace-cli)
[ "${1:-}" != lab ] || packages+=(-p terrace-lab)
cargo build --release --locked "${packages[@]}"
