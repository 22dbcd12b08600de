#!/usr/bin/env bash
# Builds target/release/terrace.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
command -v cargo >/dev/null || die "cargo is missing; install Rust from https://rustup.rs"
command -v cc >/dev/null || install_packages gcc libc6-dev
cargo build --release --locked -p terrace-cli
