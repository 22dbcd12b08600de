#!/usr/bin/env bash
# Six users keep the daemon busy with what is long: 8 GiB laid out by fallocate and given back, SEEK_DATA over them, 350
# threads that write 1 MiB each faster than the tier takes it, and as many attributes as a file takes. Another user
# writes 4 KiB and syncs beside them. All calls give what they should, and the daemon's memory (RssAnon) stays within what
# was configured and 192 MiB (350 MiB and more without a bound). How long the victim's writes took is printed; it decides only
# with FAIR_JUDGE=1 (a machine that does nothing else): p99 at most 10 times what it is alone, none above 250 ms, and
# RssAnon within what was configured and 64 MiB.
. "$(dirname "$0")/suites.sh"
need setpriv util-linux
build_helper
seconds=${FAIR_SECONDS:-10}
cache=16 buffer=16 # MiB

rm -f "$pool" tier.img
"$TERRACE" mkfs --pm "$pool" --pm-size 256M --tier "$WORK/tier.img,size=64G,class=ssd" >mkfs.out 2>&1 ||
    fail "mkfs: $(cat mkfs.out)"
mount_pool -o "cache=${cache}M,buffer=${buffer}M,large_after=0,large_pm=0,kernel_cache=0"
daemon=$(daemon_pid)
chmod 755 "$WORK"
anonymous() { awk '$1 == "RssAnon:" { print int($2 / 1024) }' "/proc/$daemon/status"; }
cp "$helper" suites # in a directory that other users may enter
as() { # UID COMMAND...
    local uid=$1
    shift
    setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"
}
directory_of() { # UID
    mkdir -p "$mnt/$1"
    chown "$1:$1" "$mnt/$1"
}
figure() { awk -v name="$1" '{ for (at = 1; at < NF; at++) if ($at == name) print $(at + 1) }' "$2"; }

directory_of 2000
as 2000 ./suites fair-victim "$mnt/2000" 3 >alone.out || fail "victim alone"
step "alone: $(cat alone.out)"
before=$(anonymous)

attackers=()
attack() { # UID KIND
    directory_of "$1"
    as "$1" ./suites fair-attack "$mnt/$1" "$2" "$seconds" >"attack-$1-$2.out" 2>&1 &
    attackers+=("$! $1-$2")
}
for kind in ${FAIR_KINDS:-allocate allocate seek seek attributes write}; do
    attack $((2001 + ${#attackers[@]})) "$kind"
done
sleep 1
as 2000 ./suites fair-victim "$mnt/2000" $((seconds - 2)) >beside.out &
victim=$!
most=0
while kill -0 "$victim" 2>/dev/null; do
    now=$(anonymous)
    [ "$now" -le "$most" ] || most=$now
    sleep 0.05
done
wait "$victim" || fail "victim beside attackers"
step "beside: $(cat beside.out)"
for attacker in "${attackers[@]}"; do
    wait "${attacker% *}" || fail "attacker ${attacker#* }: $(cat "attack-${attacker#* }.out")"
    say "  $(cat "attack-${attacker#* }.out")"
done
say "  RssAnon $before MiB before, at most $most MiB, $(anonymous) MiB after"
beyond=192
[ "${FAIR_JUDGE:-0}" != 1 ] || beyond=64
[ "$most" -le $((cache + buffer + beyond)) ] ||
    fail "RssAnon was $most MiB, more than cache=$cache MiB and buffer=$buffer MiB and $beyond MiB"
alone=$(figure p99 alone.out) p99=$(figure p99 beside.out) longest=$(figure longest beside.out)
if [ "${FAIR_JUDGE:-0}" = 1 ]; then
    [ "$p99" -le $((10 * alone)) ] || fail "p99 $p99 us, alone $alone us"
    [ "$longest" -le 250000 ] || fail "the longest took $longest us"
fi
health=$("$TERRACE" status mnt | grep -c '\[ok\]') || true
[ "$health" = 2 ] || fail "a device is not healthy"
umount_pool
check_pool
pass "p99 $alone us alone, $p99 us beside six others, longest $longest us, RssAnon at most $most MiB"
