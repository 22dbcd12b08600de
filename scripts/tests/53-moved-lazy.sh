#!/usr/bin/env bash
# Small appends and overwrites that wait in DRAM (lazy=on) in front of slow PM, while `terrace sync --to 1` empties PM again and
# again: each read is as written, and so is the content after a mount. SECONDS_EACH: of each of three loads.
. "$(dirname "$0")/suites.sh"
need python3 python3
seconds=${SECONDS_EACH:-5}

cat >load.py <<'PY'
"""Writes, with and without fsync, beside `terrace sync --to 1`; compares a file after each write, and all at the end."""
import os, random, subprocess, sys, threading, time

terrace, mnt, seconds, mode = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
pick = random.Random(1)
content = [bytearray(os.urandom(65536).replace(b"\0", b"\1")) for _ in range(4)]
files = [os.open(f"{mnt}/f{number}", os.O_CREAT | os.O_RDWR, 0o600) for number in range(4)]
for file, bytes_ in zip(files, content):
    os.pwrite(file, bytes_, 0)
    os.fsync(file)
is_over, moves, writes = False, 0, 0

def move():
    global moves
    while not is_over:
        subprocess.run([terrace, "sync", mnt, "--to", "1"], capture_output=True)
        moves += 1

def compare(number):
    found = os.pread(files[number], len(content[number]) + 9, 0)
    if found != content[number]:
        wrong = [at for at, pair in enumerate(zip(found, content[number])) if pair[0] != pair[1]]
        sys.exit(f"f{number}, {len(found)} of {len(content[number])} bytes: {len(wrong)} wrong from {wrong[:1]} to {wrong[-1:]}")

mover = threading.Thread(target=move, daemon=True)
mover.start()
end = time.monotonic() + seconds
while time.monotonic() < end:
    number = pick.randrange(4)
    if len(content[number]) > 200000:
        os.ftruncate(files[number], 65536)
        del content[number][65536:]
    length = pick.choice([7, 64, 1000, 4000])
    at = len(content[number]) if mode == "append" else pick.randrange(len(content[number]) - length)
    data = os.urandom(length).replace(b"\0", b"\1")
    os.pwrite(files[number], data, at)
    content[number][at:at + length] = data
    writes += 1
    if mode == "synced" and pick.random() < 0.5:
        os.fsync(files[number])
    compare(pick.randrange(4))
is_over = True
mover.join()
for number in range(4):
    compare(number)
    with open(f"{sys.argv[5]}/f{number}", "wb") as copy:
        copy.write(content[number])
print(f"{writes} writes, {moves} times emptied")
PY

make_pool 32M 128M
all=
for mode in append overwrite synced; do
    mount_pool -o lazy=on,emulate-pm=run:20000:100000000
    mkdir -p expected
    python3 load.py "$TERRACE" "$mnt" "$seconds" "$mode" expected >load.out 2>&1 || fail "$mode: $(tail -n 3 load.out)"
    all="$all; $mode: $(cat load.out)"
    umount_pool
    check_pool --data
    mount_pool
    for file in expected/*; do cmp "$file" "$mnt/$(basename "$file")" || fail "$mode: $file after a mount"; done
    rm -f "$mnt"/f*
    umount_pool
done
pass "${all#; }"
