#!/usr/bin/env bash
# The checks for the loop of work: format, lints, unit tests, contract tests of the ground floor, and the house. With a
# warm target they end in 5 minutes on two cores. `make test` has all checks.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
begin=$SECONDS
say "format, lints, unit and contract tests: less than 5 minutes on two cores with a warm target"
cargo fmt --all --check
cargo clippy --locked --workspace --all-targets -- -D warnings
cargo test --quiet --locked --workspace --exclude terrace-sim --exclude terrace-models --lib --bins
cargo test --quiet --locked -p terrace-house -p terrace-map -p terrace-blocks -p terrace-format -p terrace-cache --tests
scripts/evaluation-pages --check
say "all passed, $((SECONDS - begin)) s"
