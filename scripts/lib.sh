# Shared by the scripts of this folder: where things are. Sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
target=${CARGO_TARGET_DIR:-$root/target}
terrace=${TERRACE:-$target/release/terrace}
# The pool of `make up`: one per user and checkout.
checkout=$(printf %s "$root" | sha256sum | cut -c1-8)
state=$root/.state
journal=$state/pool
# A fast tier on tmpfs, in a directory that only its owner enters: names in /dev/shm itself are anybody's to take.
memory=/dev/shm/terrace-$(id -u)-$checkout
pm=$memory/pool
tier=$state/tier1.img
mountpoint=$root/mnt

say() { printf '%s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# True when something is mounted at ./mnt, a daemon that died included.
is_mounted() { awk -v dir="$mountpoint" '$5 == dir { found = 1 } END { exit !found }' /proc/self/mountinfo; }

# Installs Debian packages where that is possible; else says which are missing. Arguments: packages.
install_packages() {
    [ $# -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $*"
        local apt=(timeout 600 apt-get)
        "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
            { "${apt[@]}" update >/dev/null && "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null; } ||
            die "could not install $*"
    else
        die "missing: $*; install them as root (apt-get install $*)"
    fi
}

# Installs Debian packages that are of use and not needed; says which could not be. Arguments: packages.
offer_packages() {
    [ $# -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $*"
        timeout 300 apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    fi
    say "not there: $*; what needs them is left out"
}
