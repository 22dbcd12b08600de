#!/usr/bin/env bash
# Pages of docs/evaluation are those that their sources make. A planted difference is found, and a new result is taken.
. "$(dirname "$0")/lib.sh"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
pages=$root/scripts/evaluation-pages
check "pages and their sources agree" "$pages" --check

## planted differences
copy=$WORK/evaluation
again() { rm -rf "$copy" && cp -r "$root/docs/evaluation" "$copy"; }
again
check "a copy agrees" "$pages" --check --docs "$copy"
# differs FILE: --check finds that FILE differs, and writing the pages mends it.
differs() {
    checks=$((checks + 1))
    local text got
    text=$("$pages" --check --docs "$copy" 2>/dev/null)
    got=$?
    [ "$got" = 1 ] || fail "exit status $got instead of 1 ($text)"
    grep -qF -- "--- $1" <<<"$text" || fail "$1 is not named ($text)"
    "$pages" --docs "$copy" || fail "no pages are written"
    "$pages" --check --docs "$copy" >&9 || fail "pages still differ"
}
sed -i 's/| terrace 6% | 103,203 /| terrace 6% | 103,204 /' "$copy/rows/tpfs-8.md"
check "the page is changed" eval '! cmp -s "$copy/rows/tpfs-8.md" "$root/docs/evaluation/rows/tpfs-8.md"'
differs rows/tpfs-8.md
check "the page is as before" cmp "$copy/rows/tpfs-8.md" "$root/docs/evaluation/rows/tpfs-8.md"
sed -i 's/"verdict": "not held"/"verdict": "held"/' "$copy/results/mails.json"
differs rows/mails.md
check "the index counts it" grep -q '^| \[mails\].*| 21 held, 3 undecided |$' "$copy/README.md"
echo "A sentence more." >>"$copy/prose/scan.md"
differs rows/scan.md
rm "$copy/rows/rich.md"
differs rows/rich.md
sed -i '1s/held/kept/' "$copy/prose/cold-small.md"
differs README.md

## a result of `terrace bench paper`
again
result() { # QUICK: with the fields of crates/bench/src/comparison/outcome.rs
    cat <<JSON
{ "output_version": 1, "row": "tpfs-13", "sentence": "filebench varmail", "published": "p", "shape": "s",
  "class": "nvme", "quick": $1, "one_core": true, "rounds": 3, "dataset_bytes": 536870912,
  "machine": { "cpu": "Some CPU", "cores": 2, "kernel": "6.18", "memory_bytes": 1, "load": "0" },
  "figures": [
    { "series": "terrace 3%", "at": "1", "x": 1.0, "unit": "operations/s", "samples": [1], "median": 123456.7 },
    { "series": "terrace 3% device", "at": "1", "x": 1.0, "unit": "bytes/s", "samples": [1], "median": 98700000.0 },
    { "series": "ext4-dj", "at": "1", "x": 1.0, "unit": "operations/s", "samples": [null], "median": null } ],
  "verdicts": [ { "text": "t", "ours": "terrace 3%", "theirs": "ext4-dj", "must": "≥ 3.900", "held": false, "places": [
    { "at": "1", "ratio": { "mean": 2.345, "low": 2.2, "high": 2.4, "pairs": 3 }, "held": false } ] } ],
  "not_measured": [ { "what": "xfs-ml", "reason": "no xfsprogs" } ], "derived": [["share", 0.5]], "notes": ["a note"] }
JSON
}
result false >"$copy/results/tpfs-13-nvme.json"
differs rows/tpfs-13.md
page=$copy/rows/tpfs-13.md
check "medians" grep -qxF "| terrace 3% | 123,457 |" "$page"
check "bytes" grep -qxF "| terrace 3% device | 98.7 |" "$page"
check "claims" grep -qxF "| terrace 3% ÷ ext4-dj | ≥ 3.900 | 1: 2.35 (2.2 to 2.4) **not held** |" "$page"
check "peers that are absent" grep -qxF -- "- Not measured: xfs-ml: no xfsprogs." "$page"
check "a series without figures is left out" eval '! grep -qF "| ext4-dj |  |" "$page"'
check "older figures stay" grep -qF "| terrace 3% | 104,727 |" "$page"
result true >"$copy/results/tpfs-13-nvme.json"
expect 2 "tpfs-13-nvme.json: taken with --quick, whose figures mean nothing" "$pages" --docs "$copy"
echo '{ "row": "tpfs-99" }' >"$copy/results/tpfs-13-nvme.json"
expect 2 "row tpfs-99 is not in registry.rs" "$pages" --docs "$copy"
finish
