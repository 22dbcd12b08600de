#!/usr/bin/env bash
# make up, down, up, clean-pool as a newcomer types them, on top of the checkout: an overlay at its own path takes
# all changes, so that nothing is built twice, and /dev/shm is one of our own.
. "$(dirname "$0")/lib.sh"
checkout=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd -P)
while is_mounted "$checkout/mnt"; do umount -l "$checkout/mnt"; done # only in this mount namespace
mkdir changes work
mount -t tmpfs -o size=4G none changes # an overlay's upper layer may not lie on every file system
mkdir changes/upper changes/work
mount -t overlay -o "lowerdir=$checkout,upperdir=$WORK/changes/upper,workdir=$WORK/changes/work" none "$checkout" || exit 1
mount -t tmpfs -o size=2G,mode=1777 none /dev/shm
cd "$checkout" || exit 1
rm -rf .state mnt
unset MAKEFLAGS MFLAGS MAKELEVEL
terrace=${CARGO_TARGET_DIR:-$checkout/target}/release/terrace
unset TERRACE
memory=/dev/shm/terrace-$(id -u)-$(printf %s "$checkout" | sha256sum | cut -c1-8)
pm=$memory/pool
daemon() { "$terrace" status mnt --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'; }
# The cleaner knows processes by WORK: this daemon has another path in its arguments.
trap '[ ! -e "$pm" -a ! -e .state ] || make clean-pool >/dev/null 2>&1 || kill -KILL "$(daemon)"; cd /' EXIT

# Another user's directory in /dev/shm is no hindrance.
mkdir "$memory" && chmod 700 "$memory" && chown 65534 "$memory"
check "make up" make up >"$WORK/out" 2>"$WORK/err"
[ "$wrong" = 0 ] || { cat "$WORK/err" >&2; finish; }
check "says what to try" grep -q "make down" "$WORK/out"
check "mounted" is_mounted "$checkout/mnt"
check "its fast tier has a journal" grep -q "^journal: an image of" "$WORK/out"
check "nothing was made in /dev/shm" test "$(find /dev/shm -mindepth 1)" = "$memory"
rmdir "$memory"
check "the journal has an image of 64 to 512 MiB and a log" test "$(stat -c %s .state/pool)" -ge $(((64 + 256) << 20)) \
    -a "$(stat -c %s .state/pool)" -le $((1540 << 20))
check "tier 1 is 8 GiB" test "$(stat -c %s .state/tier1.img)" = $((8 << 30))
check "tier 1 is sparse" test "$(stat -c %b .state/tier1.img)" -lt 1000000
check "programs work in it" cp -r crates mnt/
check "same content" diff -r crates mnt/crates
check "a program runs from it" bash -c 'cp /bin/true mnt/true && mnt/true'
check "make up again" make up >"$WORK/out" 2>"$WORK/err"
check "says so" grep -q "already mounted" "$WORK/out"
check "make down" make down >"$WORK/out"
check "unmounted" bash -c '! grep -q " '"$checkout"'/mnt " /proc/self/mountinfo'
check "make down again" make down >"$WORK/out"
check "make up remounts" make up >"$WORK/out" 2>"$WORK/err"
check "kept" diff -r crates mnt/crates
sync -f mnt/crates
# As a reboot without warning: the daemon, its memory and all of /dev/shm are gone.
kill -KILL "$(daemon)"
sleep 0.3
mount -t tmpfs -o size=2G,mode=1777 none /dev/shm
check "make up after a reboot" make up >"$WORK/out" 2>"$WORK/err"
check "recovered" diff -r crates mnt/crates
check "make down" make down >"$WORK/out"
checks=$((checks + 1))
make up PM=1 >"$WORK/out" 2>"$WORK/err" && fail "make up PM=1 beside a pool with a journal succeeded"
check "says what is there" grep -q "is there, a pool with a journal" "$WORK/err"
mv .state/pool .state/pool.gone
checks=$((checks + 1))
make up >"$WORK/out" 2>"$WORK/err" && fail "make up without its journal succeeded"
check "says that the journal is gone" grep -q "there is no $checkout/.state/pool" "$WORK/err"
mv .state/pool.gone .state/pool
check "make clean-pool" make clean-pool >"$WORK/out"
check "all deleted" test ! -e .state -a ! -e mnt

# With little space on the disk nothing is made.
mkdir .state
mount -t tmpfs -o size=300M none .state
checks=$((checks + 1))
make up >"$WORK/out" 2>"$WORK/err" && fail "make up on a full disk succeeded"
check "says what is needed" grep -q "MiB of $checkout/.state are free" "$WORK/err"
check "nothing was made" test -z "$(ls .state)"
umount .state && rmdir .state

# A fast tier on /dev/shm. A bare name there could be taken by another user before the pool's own is made.
mkdir "$memory" && chmod 700 "$memory" && chown 65534 "$memory"
make up PM=1 >"$WORK/out" 2>"$WORK/err"
check "make up refuses another user's directory" grep -q "$memory is not a directory of yours" "$WORK/err"
check "nothing was made" test ! -e "$pm" -a ! -e .state
rmdir "$memory"
check "make up PM=1" make up PM=1 >"$WORK/out" 2>"$WORK/err"
check "only its owner enters its directory" test "$(stat -c '%a %u %F' "$memory")" = "700 $(id -u) directory"
check "PM at most 512 MiB" test "$(stat -c %s "$pm")" -le $((512 << 20))
check "PM at least 64 MiB" test "$(stat -c %s "$pm")" -ge $((64 << 20))
check "no journal" test ! -e .state/pool
check "programs work in it" cp -r crates/format mnt/
kill -KILL "$(daemon)"
sleep 0.3
check "make up after the daemon was killed" make up >"$WORK/out" 2>"$WORK/err"
check "recovered" diff -r crates/format mnt/format
check "make down" make down >"$WORK/out"

mv "$pm" "$pm.gone"
before=$(stat -c '%y %s %b' .state/tier1.img)
checks=$((checks + 1))
make up >"$WORK/out" 2>"$WORK/err" && fail "make up without PM succeeded"
check "says that PM is gone" grep -q "is gone (tmpfs after a reboot?)" "$WORK/err"
check "changes nothing" test "$before" = "$(stat -c '%y %s %b' .state/tier1.img)" -a ! -e "$pm" -a ! -e .state/pool
mv "$pm.gone" "$pm"
check "make up" make up >"$WORK/out" 2>"$WORK/err"
check "make down" make down >"$WORK/out"
# Made by an older checkout, its file has a bare name.
mv "$pm" "$memory.pm" && rmdir "$memory"
check "make up takes the pool of an older checkout" make up >"$WORK/out" 2>"$WORK/err"
check "kept" diff -r crates/format mnt/format
check "make clean-pool" make clean-pool >"$WORK/out"
check "all deleted" test ! -e "$memory" -a ! -e .state -a ! -e mnt
finish
