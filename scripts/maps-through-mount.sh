#!/usr/bin/env bash
# Measures each file map through a mount, in interleaved rounds: RocksDB (db_bench), LevelDB in C++ (plyvel), and reads of
# cold blocks that DRAM holds (fio, direct). Prints medians, and their ratios to `radix`.
# ROUNDS: 5; MAPS: all; SECONDS_EACH: seconds of cold reads in a round, 3.
. "$(dirname "$0")/tests/suites.sh"
need fio fio
need db_bench rocksdb-tools
[ -e /usr/lib/python3/dist-packages/plyvel ] || install_packages python3-plyvel
rounds=${ROUNDS:-5} each=${SECONDS_EACH:-3}
maps=${MAPS:-radix extent cuckoo hashfs-linear hashfs clustered}
result=$WORK/result

note() { # MAP WHAT VALUE
    echo "$1;$2;$3" >>"$result"
}
rocksdb() {
    db_bench --db="$mnt/rocks" --benchmarks="fillrandom,overwrite,readrandom" --num=30000 --value_size=1000 --sync=1 \
        --compression_type=none --write_buffer_size=8388608 --cache_size=8388608 >db_bench.out 2>&1 ||
        fail "db_bench: $(tail -n 3 db_bench.out)"
    awk '/^(fillrandom|overwrite|readrandom) / { print $1, $5 }' db_bench.out | while read -r name ops; do
        note "$1" "RocksDB $name, operations/s" "$ops"
    done
    rm -rf "$mnt/rocks"
}
leveldb() {
    /usr/bin/python3 - "$mnt/level" >leveldb.out <<'PY' || fail "plyvel: $(cat leveldb.out)"
import random, sys, time
sys.path.insert(0, "/usr/lib/python3/dist-packages")
import plyvel

count, value = 30000, b"v" * 1000
db = plyvel.DB(sys.argv[1], create_if_missing=True, write_buffer_size=8 << 20, compression=None)
random.seed(1)
begin = time.perf_counter()
for _ in range(count):
    db.put(b"%016d" % random.randrange(count), value, sync=True)
middle = time.perf_counter()
for _ in range(count):
    db.get(b"%016d" % random.randrange(count))
print("put", int(count / (middle - begin)))
print("get", int(count / (time.perf_counter() - middle)))
PY
    while read -r name ops; do note "$1" "LevelDB $name, operations/s" "$ops"; done <leveldb.out
    rm -rf "$mnt/level"
}
cold() {
    fio --name=cold --filename="$mnt/cold" --rw=randread --bs=4k --direct=1 --ioengine=psync --time_based \
        --runtime="$each" --size=64M --output-format=json --output=fio.json >/dev/null 2>&1 || fail "fio: $(cat fio.json)"
    note "$1" "cold 4 KiB from DRAM, ns" \
        "$(python3 -c 'import json; print(round(json.load(open("fio.json"))["jobs"][0]["read"]["clat_ns"]["mean"]))')"
}

for ((round = 1; round <= rounds; round++)); do
    for map in $maps; do
        make_pool 512M 2G --map "$map"
        mount_pool -o policy=static
        rocksdb "$map"
        leveldb "$map"
        head -c 64M /dev/urandom >"$mnt/cold"
        sync "$mnt/cold"
        "$TERRACE" sync "$mnt" --to 1 >/dev/null || fail "sync --to 1"
        cat "$mnt/cold" >/dev/null
        # The first pass fills the cache of the daemon.
        fio --name=fill --filename="$mnt/cold" --rw=read --bs=128k --direct=1 --ioengine=psync --size=64M >/dev/null 2>&1
        cold "$map"
        umount_pool
    done
    step "round $round of $rounds"
done
python3 - "$result" $maps <<'PY'
import statistics, sys
found, maps = {}, sys.argv[2:]
for line in open(sys.argv[1]):
    name, what, value = line.strip().split(";")
    found.setdefault(what, {}).setdefault(name, []).append(float(value))
print("| | " + " | ".join(maps) + " |")
print("|---" * (len(maps) + 1) + "|")
for what, of in found.items():
    base = of[maps[0]]
    cells = []
    for name in maps:
        ratio = statistics.median(a / b for a, b in zip(of[name], base))
        cells.append(f"{statistics.median(of[name]):,.0f} ({ratio:.2f})")
    print(f"| {what} | " + " | ".join(cells) + " |")
PY
pass "maps through a mount, $rounds rounds"
