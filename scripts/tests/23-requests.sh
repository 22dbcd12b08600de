#!/usr/bin/env bash
# Requests of single operations, as the kernel's tracepoint counts them: an operation that costs more of them than it must
# fails here (decision 0033). By the FUSE device and by io_uring.
. "$(dirname "$0")/suites.sh"
need python3 python3
need sqlite3 sqlite3
tracing=/sys/kernel/tracing
[ -e "$tracing/instances" ] || mount -t tracefs tracefs "$tracing" 2>/dev/null || pass "skipped: no tracefs"
[ -d "$tracing/events/fuse/fuse_request_send" ] || pass "skipped: this kernel has no tracepoint of FUSE requests"
parameter=/sys/module/fuse/parameters/enable_uring
# Events of our own, which no other program of the machine turns off or reads away.
instance=$tracing/instances/$(basename "$WORK")
mkdir "$instance" 2>/dev/null || pass "skipped: tracefs gives no instance"
uring=
leave() {
    rmdir "$instance" 2>/dev/null || true
    [ -z "$uring" ] || echo "$uring" >"$parameter"
    [ -n "$verdict" ] || say "FAIL $suite: a command failed, see above"
}
trap leave EXIT

cat >calls.py <<'EOF'
import os, sys

def make(path, size=4096):
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(file, bytes(size))
    os.close(file)

def make_many(path):
    for number in range(10):
        make(f"{path}-{number}")

def read(path):
    file = os.open(path, os.O_RDONLY)
    while os.read(file, 128 << 10):
        pass
    os.close(file)

def append(path):
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, bytes(100))
    os.close(file)

def make_and_stat(path):
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(file, bytes(100))
    os.fstat(file)
    os.close(file)

def list(path):
    os.listdir(path)  # opendir, fstat, getdents to the end, closedir

def sync(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)

def absent(path):
    for _ in range(2):
        if os.path.exists(path):
            sys.exit("it is there")

operation = {"unlink": os.unlink, "stat": os.stat}.get(sys.argv[1]) or globals()[sys.argv[1]]
operation(sys.argv[2])
EOF

# What the kernel remembers is never old: listings after each change of names, content after direct writes beside mappings.
cat >fresh.py <<'EOF'
import mmap, os, random, sys, threading

os.chdir(sys.argv[1])
names = set()

def same(what):
    for _ in range(2):  # The second listing is the kernel's own.
        found = set(os.listdir("."))
        if found != names:
            sys.exit(f"after {what}: {sorted(found ^ names)}")

def put(path, content):
    with open(path, "wb") as file:
        file.write(content)

for number in range(200):
    a, b = f"a{number}", f"b{number}"
    same("start")
    put(a, b"1"); names.add(a); same("create")
    os.link(a, b); names.add(b); same("link")
    os.unlink(a); names.remove(a); same("unlink")
    os.rename(b, a); names.remove(b); names.add(a); same("rename")
    os.symlink("x", b); names.add(b); same("symlink")
    os.unlink(b); names.remove(b); os.mkdir(b); names.add(b); same("mkdir")
    if number % 2:
        os.rmdir(b); names.remove(b); same("rmdir")
    if number % 3:
        os.rename(a, "one"); names.discard(a); names.add("one"); same("rename over a name")

# A listing that goes on beside changes: names that were there all the time are in it, once.
def change():
    while not stop:
        put("changing", b""), os.unlink("changing")

stop, before = False, set(names)
changer = threading.Thread(target=change)
changer.start()
for _ in range(300):
    found = os.listdir(".")
    if set(found) - {"changing"} != before or len(found) != len(set(found)):
        sys.exit(f"beside changes: {set(found) ^ before}")
stop = True
changer.join()

def content(path):
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 20)

def read_on(mapping):
    while not stop:
        mapping[::4096]

for size in (100, 5000, 40_000, 300_000):
    for round in range(100):
        fill = bytes([1 + round]) * size
        writer = os.open("file", os.O_RDWR | os.O_CREAT)
        os.truncate("file", size)
        case, at = round % 5, random.randrange(size)
        if case == 1:  # A mapping brings old pages into the kernel.
            with mmap.mmap(writer, size, prot=mmap.PROT_READ) as mapping:
                mapping[at]
                os.pwrite(writer, fill, 0)
                if mapping[at] != fill[0]:
                    sys.exit(f"a mapping shows old content: size {size}, round {round}")
        elif case == 2:  # … while the file is written.
            with mmap.mmap(writer, size, prot=mmap.PROT_READ) as mapping:
                stop = False
                reader = threading.Thread(target=read_on, args=[mapping])
                reader.start()
                for _ in range(20):
                    os.pwrite(writer, bytes(size), 0)
                    os.pwrite(writer, fill, 0)
                stop = True
                reader.join()
        elif case == 3:  # Copies within the kernel do that, too.
            ends = os.pipe()
            os.splice(writer, ends[1], 4096, offset_src=0)
            os.pwrite(writer, fill, 0)
            [os.close(end) for end in ends]
        elif case == 4:
            with mmap.mmap(writer, size) as mapping:
                mapping[:] = fill
        else:
            os.pwrite(writer, fill, 0)
        os.close(writer)
        for reading in range(2):
            if content("file") != fill:
                sys.exit(f"old content: size {size}, round {round}, reading {reading}")
EOF

# Counts the requests of the mount from now on.
observe() {
    local device
    device=$(mountpoint -d "$mnt")
    [ "${device%:*}" = 0 ] || fail "a device number of another kind: $device"
    echo "connection == ${device#*:}" >"$instance/events/fuse/fuse_request_send/filter"
    echo 1 >"$instance/events/fuse/fuse_request_send/enable"
}
# count COMMAND…: the requests of a command, as "2 LOOKUP, 1 OPEN", in `found`, and their number in `number`.
count() {
    echo >"$instance/trace"
    "$@"
    cat "$instance/trace" >trace
    if grep -q 'LOST .* EVENTS' trace; then fail "the buffer of the tracepoint is too small"; fi
    found=$(sed -n 's/.*fuse_request_send: .*(FUSE_\([A-Z0-9_]*\)).*/\1/p' trace | sort | uniq -c | sort -k1,1nr -k2 |
        awk '{ printf "%s%s %s", sep, $1, $2; sep = ", " }')
    number=$(grep -c fuse_request_send: trace || true)
}
# expect MOST WHAT COMMAND…: a command needs no more requests than that.
expect() {
    local most=$1 what=$2
    count "${@:3}"
    say "$(printf '%-44s %4s of %4s: %s' "$what" "$number" "$most" "$found")"
    [ "$number" -le "$most" ] || missed+=("$transport: $what: $number requests, not $most ($found)")
}
# report PER WHAT COMMAND…: the requests of a command, told for each of PER.
report() {
    count "${@:3}"
    say "$(printf '%-44s %7s each: %s' "$2" "$(awk -v a="$number" -v b="$1" 'BEGIN { printf "%.1f", a / b }')" "$found")"
}
call() { python3 calls.py "$@"; }
transaction() {
    sqlite3 "$mnt/base" "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; BEGIN;
        INSERT INTO entries VALUES (1, hex(randomblob(100))); COMMIT;" >/dev/null
}

mkdir -p tree/{a,b}/{c,d}
for dir in tree/*/*; do
    for i in $(seq 10); do head -c $((i * 1500)) /dev/zero >"$dir/$i"; done
done
tar -cf tree.tar tree
missed=()

counts() {
    transport=$1
    make_pool 64M 256M
    mount_pool -o "transport=$transport"
    observe
    step "transport $transport"
    mkdir "$mnt/dir"
    # The first of all directories also asks whether directories are opened and synced.
    call list "$mnt/dir"
    call sync "$mnt/dir"
    expect 4 "create, write, close" call make "$mnt/dir/first"
    # Each create lets the kernel forget the attributes of the directory, and the next asks for its mode.
    expect 50 "10 × create, write, close" call make_many "$mnt/dir/many"
    call stat "$mnt/dir"
    expect 1 "stat of what was written" call stat "$mnt/dir/first"
    expect 0 "stat again" call stat "$mnt/dir/first"
    expect 5 "create, write, fstat, close" call make_and_stat "$mnt/dir/second"
    call stat "$mnt/dir"
    expect 3 "read of a small file" call read "$mnt/dir/first"
    expect 2 "read again" call read "$mnt/dir/first"
    expect 3 "append" call append "$mnt/dir/first"
    # A write lets the kernel forget the size.
    expect 4 "read after the append" call read "$mnt/dir/first"
    expect 1 "two look-ups of a name that is not there" call absent "$mnt/dir/absent"
    call stat "$mnt/dir"
    expect 2 "listing of a directory" call list "$mnt/dir"
    # The listing has changed the access time.
    expect 1 "listing again" call list "$mnt/dir"
    expect 0 "and again" call list "$mnt/dir"
    expect 1 "unlink" call unlink "$mnt/dir/first"
    expect 3 "listing after an unlink" call list "$mnt/dir"
    [ "$(find "$mnt/dir" | wc -l)" = 12 ] || fail "a listing shows $(find "$mnt/dir" | wc -l) names, not 12"
    expect 0 "fsync of a directory" call sync "$mnt/dir"
    report 40 "untar, per file" tar -C "$mnt" -xf tree.tar
    report 40 "grep -r, per file" sh -c 'grep -r no-such-word "$1" || true' sh "$mnt/tree"
    report 40 "grep -r again, per file" sh -c 'grep -r no-such-word "$1" || true' sh "$mnt/tree"
    report 40 "cp -r, per file" cp -r "$mnt/tree" "$mnt/copy"
    report 40 "rm -r, per file" rm -r "$mnt/copy"
    sqlite3 "$mnt/base" "CREATE TABLE entries (number, text)"
    transaction
    report 1 "a transaction of SQLite (DELETE)" transaction
    mkdir "$mnt/fresh"
    python3 fresh.py "$mnt/fresh" >fresh.out 2>&1 || fail "$transport: $(tail -n 3 fresh.out)"
    umount_pool
}

# Memory pressure from outside lets the kernel forget names and pages: counts above the expected are taken again.
settle() { # TRANSPORT
    for _ in 1 2 3; do
        missed=()
        counts "$1"
        [ ${#missed[@]} -gt 0 ] || return 0
        step "missed: $(printf '%s; ' "${missed[@]}")"
    done
    fail "$(printf '%s; ' "${missed[@]}")"
}

settle classic
exec 9>/tmp/terrace-enable-uring.lock
if [ -w "$parameter" ] && flock -w 300 9; then
    uring=$(cat "$parameter")
    echo Y >"$parameter"
    settle uring
else
    step "skipped by io_uring: this kernel does not have it for FUSE, or another suite keeps it"
fi
pass "requests of single operations"
