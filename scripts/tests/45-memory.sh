#!/usr/bin/env bash
# A program takes the memory that the daemon's cache uses: the cache gives it back within 2 s, and nobody is killed. The
# machine is a control group of 1 GiB with the daemon and the program in it; the program is the first that the kernel would end.
. "$(dirname "$0")/suites.sh"
limit=$((1 << 30))
file=$((320 << 20))

# The controller: cgroup v1, else v2, where this process may make a group with a limit.
group=
find_group() {
    local root
    root=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ { print $2; exit }' /proc/mounts)
    if [ -n "$root" ] && [ -w "$root" ]; then
        group=$root/terrace-memory-$$ most=memory.limit_in_bytes used=memory.usage_in_bytes dropped=total_inactive_file
        kills=memory.oom_control
    else
        root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
        [ -n "$root" ] && grep -qw memory "$root/cgroup.controllers" || return 1
        echo +memory >"$root/cgroup.subtree_control" 2>/dev/null || return 1
        group=$root/terrace-memory-$$ most=memory.max used=memory.current dropped=inactive_file
        kills=memory.events
    fi
    mkdir "$group"
    echo $limit >"$group/$most"
}
leave() {
    [ -n "$verdict" ] || say "FAIL $suite: a command failed, see above"
    [ -z "${program:-}" ] || kill "$program" 2>/dev/null || true
    [ -n "$group" ] && [ -d "$group" ] || return 0
    [ -z "${daemon:-}" ] || kill -TERM "$daemon" 2>/dev/null || true
    for _ in $(seq 50); do
        rmdir "$group" 2>/dev/null && break
        sleep 0.1
    done
}
trap leave EXIT
find_group || fail "no memory controller: neither cgroup v1 nor v2 offers one"
killed() { awk '$1 == "oom_kill" { print $2 }' "$group/$kills"; }
anonymous() { awk '$1 == "RssAnon:" { printf "%.0f\n", $2 * 1024 }' "/proc/$daemon/status"; }
# Bytes that the group could still give without dropping what the daemon caches.
left() {
    local file_bytes
    file_bytes=$(awk -v name="$dropped" '$1 == name { print $2 }' "$group/memory.stat")
    echo $((limit - $(cat "$group/$used") + file_bytes))
}
available=$(awk '$1 == "MemAvailable:" { printf "%.0f\n", $2 * 1024 }' /proc/meminfo)
[ "$available" -gt $((3 * limit)) ] || fail "only $available bytes of memory are available on this machine"

"$TERRACE" mkfs --pm "$pool" --pm-size 64M --tier "$PWD/tier.img,size=1G" >mkfs.out 2>&1 || fail "mkfs: $(cat mkfs.out)"
mount_pool
head -c $file /dev/urandom >source
cp source mnt/cold
"$TERRACE" migrate mnt/cold --to 1 --wait >migrate.out 2>&1 || fail "migrate: $(cat migrate.out)"
umount_pool
# The daemon is in the group from the start: what it gets later counts there.
(echo "$BASHPID" >"$group/cgroup.procs" && exec "$TERRACE" mount "$pool" mnt)
daemon=$(daemon_pid)
# Where nobody has said which processes go first, and root may say so.
if [ "$(cat /proc/self/oom_score_adj)" = 0 ] && (echo -900 >"/proc/$BASHPID/oom_score_adj") 2>/dev/null; then
    [ "$(cat "/proc/$daemon/oom_score_adj")" = -900 ] || fail "the kernel would end the daemon for its cache"
fi
cmp source mnt/cold || fail "what was read"
before=$(anonymous)
[ "$before" -gt $file ] || fail "the daemon of a machine with memory has only $before bytes"
[ "$before" -lt $((file + (128 << 20))) ] || fail "the daemon has $before bytes for a file of $file"
step "the daemon has $((before >> 20)) MiB"

# Nearly all that the group has beside the daemon. That keeps its cache's least and some beyond.
rest=$((160 << 20))
take=$((limit - (64 << 20) - rest - ($(cat "$group/$used") - before)))
[ "$take" -gt "$(left)" ] || fail "the program would not need what the daemon has"
cat >take.py <<'EOF'
import mmap, sys, time
open("/proc/self/oom_score_adj", "w").write("1000")
open(sys.argv[2] + "/cgroup.procs", "w").write("0")
want, have = int(sys.argv[1]), []
begin = time.monotonic()
while want > 0:
    piece = mmap.mmap(-1, min(want, 16 << 20))
    for at in range(0, len(piece), 4096):
        piece[at] = 1
    have.append(piece)
    want -= len(piece)
    time.sleep(0.01)
print(f"{time.monotonic() - begin:.2f}", flush=True)
time.sleep(600)
EOF
mkfifo taken
python3 take.py "$take" "$group" >taken &
program=$!
read -r -t 60 seconds <taken || fail "the program did not get its $((take >> 20)) MiB: $(killed) killed"
least=$before
for tenth in $(seq 0 20); do
    least=$(anonymous)
    [ "$least" -ge $rest ] || break
    sleep 0.1
done
[ "$least" -lt $rest ] || fail "two seconds later the daemon has $((least >> 20)) of $((before >> 20)) MiB"
[ "$(killed)" = 0 ] && kill -0 "$program" 2>/dev/null || fail "the kernel ended the program"
step "a program took $((take >> 20)) MiB in $seconds s; $((tenth)) tenths later the daemon had $((least >> 20)) MiB"
cmp source mnt/cold || fail "what was read beside it"
[ "$(anonymous)" -lt $((200 << 20)) ] || fail "the daemon took $(anonymous) bytes that nobody has"
[ "$(killed)" = 0 ] || fail "the kernel ended somebody"
kill "$program"
wait "$program" 2>/dev/null || true
program=
umount_pool
daemon=
check_pool --data
pass "a cache of $((before >> 20)) MiB was given back"
