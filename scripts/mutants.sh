#!/usr/bin/env bash
# Mutation tests: changes the code of a crate in one place after the other and runs the crate's own tests each time.
#     scripts/mutants.sh CRATE...     (wal, blocks, map, cache, placement, catalog, space unless told otherwise)
# MUTANTS_ARGS="--file pool.rs -F claim": options for cargo-mutants, to run some of them only.
# MUTANTS_TIMEOUT: seconds for the tests of one of them, 40.
# What lived is in target/mutants/CRATE/mutants.out/missed.txt; docs/mutants.md judges it.
# Changes the sources while it runs: it works in a copy of the tree, in target/mutants/tree.
set -euo pipefail
version=27.1.0
root=$(cd "$(dirname "$0")/.." && pwd)
out=${CARGO_TARGET_DIR:-$root/target}/mutants
[ $# -gt 0 ] || set -- wal blocks map cache placement catalog space
export PATH=$out/tool/bin:$PATH
if [ "$(cargo mutants --version 2>/dev/null)" != "cargo-mutants $version" ]; then
    cargo install --locked --root "$out/tool" "cargo-mutants@$version"
fi
rm -rf "$out/tree"
mkdir -p "$out/tree"
# Files of the tree as they are, also those not committed; builds of the copy are kept.
(cd "$root" && git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null --files-from=- -cf -) | tar -xf - -C "$out/tree"
# A build of a changed source, left by a run before, is newer than the source.
find "$out"/tree/crates/*/src -name '*.rs' -exec touch {} +
export RUST_BACKTRACE=0 CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_TEST_DEBUG=false CARGO_INCREMENTAL=1 CARGO_TARGET_DIR=$out/target
cd "$out/tree"
for crate in "$@"; do
    mkdir -p "$out/$crate"
    # Mutants that live, or that only a timeout ends, are no failure of the run.
    # shellcheck disable=SC2086
    cargo mutants --in-place --colors never --no-times -p "terrace-$crate" --baseline=run \
        --timeout "${MUTANTS_TIMEOUT:-40}" -o "$out/$crate" -C=--lib -C=--tests ${MUTANTS_ARGS:-} || [ $? -eq 2 ] || [ $? -eq 3 ]
    (cd "$out/$crate/mutants.out" && echo "terrace-$crate: $(wc -l caught.txt missed.txt timeout.txt unviable.txt | awk '
        $2 != "total" { sub(".txt", "", $2); printf "%s %d  ", $2, $1 }')")
done
