#!/usr/bin/env bash
# The daemon from outside: mounts that other namespaces hold, sockets and mounts that others forge, files of the pool that
# lose their name, few descriptors, servers that are dead or stopped. No command may need fusectl.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
pm=$SHM-a.pm
mnt=$WORK/mnt
mkdir mnt bind
umount /sys/fs/fuse/connections 2>/dev/null
"$t" mkfs --pm "$pm" --pm-size 16M --tier "$SHM-a.tier,size=64M" >/dev/null 2>&1 || exit 1
state=$("$t" status "$pm" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state_directory"])')
# A tier on tmpfs was called power-fail.
check "a tier in memory promises as much" grep -q '"promise":"process-crash".*"promise":"process-crash"' \
    <("$t" mount "$pm" mnt && "$t" status mnt --json | tr -d ' \n' && "$t" umount mnt)
mount_it() { check "mount" "$t" mount "$pm" mnt -o "log=$WORK/log"; }
is_clean() { "$t" status "$pm" | grep -q "not mounted, clean"; }
ended() { [ ! -e "/proc/$1/exe" ]; }
# started PID NAME: the process has become that program.
started() { until [ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ]; do sleep 0.01; done; }
in_namespace() { # COMMAND: in a mount namespace of its own
    setsid unshare -m --propagation private sh -c "$1" &
    holder=$!
    started $holder sleep
}
let_go() { kill $holder 2>/dev/null && wait $holder 2>/dev/null; }

## a pool that only another namespace has mounted: status said mounted, umount not mounted, mount busy, and nothing ended it in order
mount_it
pid=$(daemon_of mnt)
echo content >mnt/file
in_namespace 'exec sleep 1000'
expect 1 "still mounted at $mnt in the mount namespace of sleep \($holder\); 'terrace umount $pm'" "$t" umount mnt
check "status says where" grep -q "mounted at $mnt in another mount namespace" <("$t" status "$pm")
expect 0 '^$' "$t" umount "$pm"
check "the daemon has ended" ended "$pid"
check "the pool is clean" is_clean
check "nothing was said that is not so" eval '! grep -E "device does not answer|not aborted|may be lost" log'
let_go
mount_it
check "what was written is there" grep -q content mnt/file
# In use there.
in_namespace 'cd mnt && exec sleep 1000'
expect 1 "still mounted at .*in use: sleep \($holder\): works in it" "$t" umount mnt
expect 1 "busy: sleep \($holder\): works in it; end its use and try again, or cut it off with --force" "$t" umount "$pm"
check "it is still served" "$t" status "$pm" >/dev/null
expect 0 '^$' "$t" umount --force "$pm"
check "the pool is clean" is_clean
let_go

## pages of a shared mapping in another namespace are kept when it is cut off
mount_it
head -c 65536 /dev/zero >mnt/mapped
in_namespace "exec python3 -c '
import mmap, os, time
pages = mmap.mmap(os.open(\"mnt/mapped\", os.O_RDWR), 65536)
pages[:] = b\"B\" * 65536
open(\"mapped.done\", \"w\").close()
os.execvp(\"sleep\", [\"sleep\", \"1000\"]) if os.fork() else time.sleep(1000)
'"
until [ -e mapped.done ]; do sleep 0.01; done
expect 1 "still mounted" "$t" umount mnt
expect 0 '^$' "$t" umount --force "$pm"
pkill -KILL -s "$holder" 2>/dev/null
wait $holder 2>/dev/null
mount_it
check "pages of the mapping" sh -c 'head -c 65536 /dev/zero | tr "\\0" B | cmp - mnt/mapped'

## bound elsewhere in the same namespace: umount waited 10 s and blamed another namespace
mount --bind mnt bind
expect 0 "mnt: unmounted here; the pool is still mounted at $WORK/bind$" "$t" umount mnt
check "it is served there" grep -q content bind/file
check "status says where" grep -q "mounted at $WORK/bind (" <("$t" status "$pm")
mount --bind bind mnt
sleep 1000 <mnt/file &
holder=$!
started $holder sleep
expect 1 "busy: sleep \($holder\): has .*/file open" "$t" umount "$pm"
let_go
expect 0 '^$' "$t" umount "$pm"
check "both are gone" eval '! is_mounted "$mnt" && ! is_mounted "$WORK/bind"'
check "the pool is clean" is_clean
mount_it
sleep 1000 <mnt/file &
holder=$!
started $holder sleep
expect 0 '^$' "$t" umount --force mnt
check "gone" eval '! is_mounted "$mnt"'
check "the pool is clean" is_clean
let_go

## a socket that anybody made in /tmp stopped root's mount and answered root's commands
mkdir evil && made=
[ -e /tmp/terrace-0 ] || { mkdir /tmp/terrace-0 && made=1; }
mkdir "evil/$(basename "$state")" && chown -R 65534 evil && chmod 755 evil && mount --bind evil /tmp/terrace-0
python3 - "/tmp/terrace-0/$(basename "$state")/control" <<'PY' &
import os, socket, sys
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
while True:
    caller = listener.accept()[0]
    caller.recv(4096)
    caller.sendall(b'{"ok": {"pool": "forged", "mountpoint": "/forged", "tiers": []}}\n')
    caller.close()
PY
forger=$!
until [ -S "/tmp/terrace-0/$(basename "$state")/control" ]; do sleep 0.01; done
check "nobody forges a pool that is not mounted" is_clean
mount_it
check "nobody forges one that is" eval '! "$t" status "$pm" | grep forged'
check "umount" "$t" umount "$pm"
kill $forger && wait $forger 2>/dev/null
umount /tmp/terrace-0
[ -z "$made" ] || rmdir /tmp/terrace-0

## servers of our own making: a forged mount of another user, and a daemon as those were that could not be killed
cat >server.py <<'PY'
import fcntl, json, os, socket, struct, subprocess, sys, threading
# forged: user 65534 serves something that calls itself the mount of the pool. lying: with a pool of that user, and says yes to
# all that it is asked. stuck: asks its own mount and never answers.
kind, pool, directory = sys.argv[1:4]
others = kind in ("forged", "lying")
uid = 65534 if others else 0
held = os.open(pool, os.O_RDWR)
if kind != "forged":
    fcntl.flock(held, fcntl.LOCK_EX)
else:
    os.close(held)
device = os.open("/dev/fuse", os.O_RDWR)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
data = f"fd={device},rootmode=40000,user_id={uid},group_id={uid},allow_other"
if libc.mount(pool.encode(), directory.encode(), b"fuse.terrace", 6, data.encode()):
    raise SystemExit(os.strerror(ctypes.get_errno()))
os.setuid(uid)
contact = b"{}"
if others:
    path = os.path.join(os.path.dirname(directory), "forged", f"{kind}-control")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    contact = json.dumps({"socket": path, "pid": os.getpid(), "uuid": "u"}).encode()
    def answer():
        while True:
            caller = listener.accept()[0]
            try:
                caller.recv(4096)
                caller.sendall(b'{"ok": {"pool": "forged", "mountpoint": "/forged", "tiers": []}}\n')
            except OSError:
                pass  # it went away
            caller.close()
    threading.Thread(target=answer, daemon=True).start()
while True:
    try:
        request = os.read(device, 1 << 21)
    except OSError:
        break
    length, opcode, unique = struct.unpack_from("<IIQ", request)
    error, body = 0, b""
    if opcode == 26:  # INIT
        body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 131072, 1, 32, 0, 0)
    elif opcode == 3 and others:  # GETATTR
        body = struct.pack("<QII6Q10I", 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, uid, uid, 0, 4096, 0)
    elif opcode == 22 and others:  # GETXATTR
        size = struct.unpack_from("<I", request, 40)[0]
        body = contact if size else struct.pack("<II", len(contact), 0)
    elif opcode in (3, 22) and kind == "stuck":
        open("server.asked", "w").close()
        threading.Event().wait()
    else:
        error = -38
    os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
    if opcode == 26 and kind == "stuck":
        threading.Thread(target=lambda: os.stat(directory), daemon=True).start()
    if opcode == 26:
        open("server.ready", "w").close()
PY
serve() { # KIND [POOL]
    rm -f server.ready server.asked
    python3 server.py "$1" "${2:-$pm}" "$mnt" &
    server=$!
    until [ -e server.ready ]; do sleep 0.01; done
}
mkdir forged && chown 65534 forged && chmod 777 "$WORK"
serve forged
for command in status umount sync iostat "umount --force"; do
    # shellcheck disable=SC2086
    expect 1 "no daemon of its user stands behind it" "$t" $command mnt
done
expect 32 "no daemon of its user stands behind it" "$t" mount "$pm" mnt
expect 1 "not mounted" "$t" umount "$pm"
check "a forged mount is not the pool's" is_clean
kill -KILL $server && wait $server 2>/dev/null
umount -l mnt

## a daemon of another user that says that it has ended: umount --force said so too, and the mount was still there
"$t" mkfs --pm "$SHM-l.pm" --pm-size 16M >/dev/null 2>&1
chown 65534 "$SHM-l.pm"
serve lying "$SHM-l.pm"
expect 1 "its daemon left the mount as it was; it was cut off" timeout 60 "$t" umount --force mnt
check "it is cut off" eval '! is_mounted "$mnt"'
kill -KILL $server 2>/dev/null
wait $server 2>/dev/null
rm "$SHM-l.pm"
chmod 755 "$WORK"

for command in status umount mount; do
    serve stuck
    until [ -e server.asked ]; do sleep 0.01; done
    kill -KILL $server
    # Its thread waits for an answer that nobody gives.
    for _ in $(seq 100); do grep -q '^State:.D' /proc/$server/task/*/status && break; sleep 0.02; done
    check "a server that cannot be killed" grep -q '^State:.D' /proc/$server/task/*/status
    case $command in
        status) expect 1 "daemon was killed" timeout 60 "$t" status mnt ;;
        umount) expect 0 "removed the mount of a daemon that was killed" timeout 60 "$t" umount mnt ;;
        mount) expect 0 "removed the mount of a daemon that was killed" timeout 60 "$t" mount "$pm" mnt ;;
    esac
    for _ in $(seq 100); do ended $server && break; sleep 0.02; done
    check "it has ended" ended $server
    [ $command != status ] || umount -l mnt
    wait $server 2>/dev/null
done
check "umount" "$t" umount mnt

## a daemon that is stopped: said, and not waited for without end
mount_it
pid=$(daemon_of mnt)
kill -STOP "$pid"
expect 1 "\($pid\) is stopped; 'kill -CONT $pid'" timeout 60 "$t" status mnt
expect 1 "\($pid\) is stopped; 'kill -CONT $pid'" timeout 20 "$t" umount mnt
for command in "where mnt/file" "sync $pm" "migrate mnt/file --to 1" "status $pm" "umount $pm"; do
    # shellcheck disable=SC2086
    expect 1 "\($pid\) is stopped; 'kill -CONT $pid'" timeout 30 "$t" $command
done
kill -CONT "$pid"
check "it answers again" "$t" status mnt >/dev/null
kill -STOP "$pid"
expect 1 "unmounted, but its daemon still has the pool: .*\($pid\) is stopped" timeout 20 "$t" umount --force mnt
kill -CONT "$pid"
for _ in $(seq 500); do ended "$pid" && break; sleep 0.02; done
check "it ends once it goes on" ended "$pid"
mount_it

## a mount that comes to nothing left a clean pool as after a crash
check "umount" "$t" umount mnt
check "the pool is clean" is_clean
mount --bind /dev/null /dev/fuse
expect 32 "mnt: mount: " "$t" mount "$pm" mnt
umount /dev/fuse
check "the pool is clean as before" is_clean

## a log that is no file: a FIFO hung the mount, and a link led root to any file
mkfifo fifo
expect 32 "fifo: log: not a regular file" timeout 20 "$t" mount "$pm" mnt -o "log=$WORK/fifo"
ln -s "$WORK/elsewhere" link
expect 32 "link: log: a link" "$t" mount "$pm" mnt -o "log=$WORK/link"
check "nothing was made" test ! -e elsewhere
expect 32 "a.pm: log: a file of the pool" "$t" mount "$pm" mnt -o "log=$pm"
expect 32 "a.tier: log: a file of the pool" "$t" mount "$pm" mnt -o "log=$SHM-a.tier"
expect 32 "mnt/log: log: lies inside the mount point" "$t" mount "$pm" mnt -o "log=$WORK/mnt/log"
check "the pool is clean as before" is_clean
mkdir full && mount -t tmpfs -o size=4k none full && head -c 4096 /dev/zero >full/log
expect 0 "full/log: log: cannot be written: No space left" "$t" mount "$pm" mnt -o "log=$WORK/full/log"
check "umount" "$t" umount mnt
umount full

## few descriptors, and no more to be had: the daemon kept the caller's output, and could not end in order
expect 32 "only 40 open files are allowed, and a mount needs 64" prlimit --nofile=40:40 "$t" mount "$pm" mnt
timeout 30 prlimit --nofile=64:64 "$t" mount "$pm" mnt 2>&1 | timeout 30 cat >few.out
check "its caller's output is not kept" test $? = 0
check "it says so" grep -q "only 64 files may be open" few.out
check "umount" "$t" umount mnt
check "the pool is clean" is_clean
mount_it

## a file of the pool that is removed or replaced: status said healthy, umount 0, and the pool was gone
mv "$SHM-a.tier" "$SHM-b.tier"
"$t" status mnt >out && fail "status of a pool without its tier's name is 0"
check "says that it was renamed" grep -q "$SHM-a.tier \[moved\] (the file was renamed while mounted" out
cp --sparse=always "$SHM-b.tier" "$SHM-a.tier"
"$t" status mnt >out && fail "status of a pool whose tier is another file is 0"
check "says that it is another file" grep -q "$SHM-a.tier \[moved\] (another file has its name now" out
expect 1 "mnt: unmounted; $SHM-a.tier: another file has its name now" "$t" umount mnt
check "it is in the log" grep -q "$SHM-a.tier: another file has its name now" log
mv "$SHM-b.tier" "$SHM-a.tier"
mount_it
check "healthy with its name" "$t" status mnt >/dev/null
cp --sparse=always "$pm" "$SHM-c.pm"
rm "$pm"
"$t" status mnt >out && fail "status of a pool that was removed is 0"
check "says that it was removed" grep -q "$pm \[removed\] (the file was removed while mounted: all that it holds is lost" out
cp -r mnt saved
check "what is in it can be saved" grep -q content saved/file
expect 1 "unmounted; $pm: the file was removed while mounted" "$t" umount mnt
mv "$SHM-c.pm" "$pm"

## persistent memory that loses the root: umount took the mount for that of an impostor, and said nothing of a shorter file
cp --sparse=always "$pm" "$SHM-c.pm"
cp --sparse=always "$SHM-a.tier" "$SHM-c.tier"
mount_it
pid=$(daemon_of mnt)
truncate -s 128K "$pm"
echo 2 >/proc/sys/vm/drop_caches
expect 2 "Input/output error" ls mnt
"$t" status mnt >out && fail "status of a pool that was shortened is 0"
truncate -s 16M "$pm"
check "status tells it still" grep -q "$pm \[shortened\]" <("$t" status mnt)
check "says that it was shortened" grep -q "$pm \[shortened\] (the file was shortened while mounted" out
expect 1 "unmounted; $pm: the file was shortened while mounted" "$t" umount mnt
for _ in $(seq 500); do ended "$pid" && break; sleep 0.02; done
check "its daemon has ended" ended "$pid"
mv "$SHM-c.pm" "$pm" && mv "$SHM-c.tier" "$SHM-a.tier"

## a root that does not match its checksum: such a mount answered nothing but EIO
mount_it
touch -d @1234567890.123456789 mnt
check "umount" "$t" umount mnt
python3 - "$pm" <<'PY'
import struct, sys
file = open(sys.argv[1], "r+b")
bytes, time = file.read(), struct.pack("<q", 1234567890123456789)
at = bytes.find(time)
while at >= 0:
    file.seek(at)
    file.write(bytes[at + 1 : at + 2])
    at = bytes.find(time, at + 1)
PY
expect 32 "its root directory cannot be read \(metadata page .*with --repair brings back" "$t" mount "$pm" mnt
check "the pool is clean as before" is_clean
"$t" check --repair "$pm" >out
check "repair names the root" eval "[ $? = 5 ] && grep -q 'CHANGED OR LOST: / (inode 1)' out"
mount_it
check "it mounts again" test -e mnt/file
check "umount" "$t" umount mnt

## few descriptors: the control socket kept a processor busy, and commands hung
(ulimit -Sn 12 && exec "$t" mount "$pm" mnt -o "log=$WORK/log")
pid=$(daemon_of mnt)
check "the limit is raised" test "$(awk '/open files/ { print $4 == $5 }' "/proc/$pid/limits")" = 1
prlimit --pid "$pid" --nofile=$(find "/proc/$pid/fd" -mindepth 1 | wc -l):20000
for _ in 1 2 3 4 5; do check "status without a descriptor to spare" timeout 60 "$t" status mnt >/dev/null; done
check "callers that say nothing keep no processor busy" python3 - "$pid" "$state/control" <<'PY'
import os, socket, sys, time
pid, path = sys.argv[1:]
callers = [socket.socket(socket.AF_UNIX) for _ in range(5)]
for caller in callers:
    caller.connect(path)
def used():
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
time.sleep(0.5)
before = used()
time.sleep(2)
assert used() - before < 0.4, f"{used() - before} s of 2 s"
PY
check "status after them" timeout 60 "$t" status mnt >/dev/null
check "umount" "$t" umount mnt
(ulimit -n 12 && exec "$t" mount "$pm" mnt -o "log=$WORK/log" 2>err)
check "a hard limit of 12 mounts or says why" eval 'is_mounted "$mnt" || grep -qi "open files\|descriptors" err'
if is_mounted "$mnt"; then
    check "status" timeout 60 "$t" status mnt >/dev/null
    check "write" cp server.py mnt/
    check "umount" timeout 60 "$t" umount mnt
fi

## the mounting shell's limit of file sizes ended the daemon at its first write to a tier
(ulimit -Sf 100 && exec "$t" mount "$pm" mnt)
head -c 1M /dev/urandom >large && cp large mnt/large
check "it moves below" "$t" sync mnt --to 1 >/dev/null
check "and is there" cmp large mnt/large
check "umount" "$t" umount mnt
check "the pool is whole" "$t" check --data "$pm" >/dev/null
finish
