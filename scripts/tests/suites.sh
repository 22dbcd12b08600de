# Shared by the suites 20- to 60-. Sourced first, not run. Gives WORK (a directory of our own, and the current
# one), SHM (a prefix for files on /dev/shm), TERRACE, tools and the functions below; what a suite leaves
# behind is removed by run-one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
. "$here/../lib.sh"
TERRACE=$(readlink -e "$terrace") || die "no $terrace; make build first"
export TERRACE
if [ -z "${WORK:-}" ]; then
    [ "$(id -u)" = 0 ] || die "needs root: mount namespaces and loop devices"
    exec unshare --mount --propagation private "$here/run-one" "$0" "$@"
fi
cd "$WORK"
suite=$(basename "$0" .sh)
tools=$target/tools
pool=$SHM.pm
# JOURNAL=1: the pools of a suite have a journal on the disk of WORK.
[ -z "${JOURNAL:-}" ] || pool=$WORK/journal
mnt=$WORK/mnt
mkdir -p "$mnt"
started=$SECONDS
verdict=

# pass WHAT, fail REASON: the last line of a suite.
pass() {
    verdict=given
    say "PASS $suite: $* ($((SECONDS - started)) s)"
    exit 0
}
fail() {
    verdict=given
    # What the daemon says of it.
    [ ! -s daemon.log ] || { echo "-- daemon.log"; tail -n 15 daemon.log; } >&2
    timeout 5 "$TERRACE" status "$mnt" >&2 || true
    say "FAIL $suite: $*"
    exit 1
}
# A command that fails unexpectedly is a failure too.
trap '[ -n "$verdict" ] || say "FAIL $suite: a command failed, see above"' EXIT
trap 'echo "$suite: line $LINENO: status $?: $BASH_COMMAND" >&2' ERR

# need PROGRAM PACKAGE…: installs Debian packages when a program is missing.
need() {
    command -v "$1" >/dev/null || install_packages "${@:2}"
}
# cargo_tool CRATE VERSION: a program from crates.io, built once into target/tools.
cargo_tool() {
    local stamp=$tools/$1-$2
    if [ -e "$stamp" ] && [ -x "$tools/bin/$1" ]; then return; fi
    say "building $1 $2"
    cargo install --quiet --locked --force --version "$2" --root "$tools" --target-dir "$target/tools-build" "$1" ||
        fail "could not build $1 $2"
    touch "$stamp"
}
# Our own helper programs, crates/suites.
build_helper() {
    helper=${SUITES:-$target/release/terrace-suites}
    [ -n "${SUITES:-}" ] || (cd "$root" && cargo build --quiet --release --locked -p terrace-suites) ||
        fail "could not build terrace-suites"
}

make_pool() { # PM_SIZE TIER_SIZE, then options of mkfs; MKFS_OPTIONS are those of a whole suite
    rm -f "$pool" tier.img
    local tier0=(--pm "$pool" --pm-size "$1")
    [ -z "${JOURNAL:-}" ] || tier0=(--journal "$pool,memory=$1")
    # shellcheck disable=SC2086 # several words
    "$TERRACE" mkfs "${tier0[@]}" --tier "$WORK/tier.img,size=$2" ${MKFS_OPTIONS:-} "${@:3}" >mkfs.out 2>&1 ||
        fail "mkfs: $(cat mkfs.out)"
}
mount_pool() { # OPTIONS of mount; MOUNT_OPTIONS are those of a whole suite
    "$TERRACE" mount "$pool" "$mnt" -o "log=$WORK/daemon.log${MOUNT_OPTIONS:+,$MOUNT_OPTIONS}" "$@" >mount.out 2>&1 || fail "mount: $(cat mount.out)"
}
umount_pool() {
    "$TERRACE" umount "$mnt" >umount.out 2>&1 || fail "umount: $(cat umount.out)"
}
# step WHAT: a heading with the time since the start.
step() { say "== $((SECONDS - started)) s: $*"; }
# status_number NAME [SECTION]: a number of the mounted pool's status.
status_number() {
    "$TERRACE" status "$mnt" --json | awk -v name="\"$1\":" -v section="\"${2:-}\":" '
        $1 == section || section == "\"\":" { inside = 1 }
        inside && $1 == name && !found { gsub(/[^0-9]/, "", $2); print $2; found = 1 }'
}
demoted_bytes() { status_number demoted_bytes migration; }
daemon_pid() { status_number pid; }
# The pool, not mounted, is whole. Arguments: options of check.
check_pool() {
    "$TERRACE" check "$@" "$pool" >check.out 2>&1 || fail "check: $(tail -n 20 check.out)"
}
# The test would show nothing about tiers if nothing had gone below PM in this mount.
expect_demotion() {
    local bytes
    bytes=$(demoted_bytes)
    [ "${bytes:-0}" -gt 0 ] || fail "nothing was demoted"
}
