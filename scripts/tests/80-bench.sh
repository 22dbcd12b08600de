#!/usr/bin/env bash
# `terrace bench paper`: the list of rows, quick rows in process and beside peers, their results, a wrong name.
# No figure is judged: those depend on the machine.
. "$(dirname "$0")/lib.sh"

paper() { timeout 120 "$TERRACE" bench paper "$@"; }
rows_are_listed() {
    paper --list >list.txt && grep -q '^tpfs-13 ' list.txt && grep -q '^acbpfs-t1 ' list.txt &&
        paper --list --json | python3 -c '
import json, sys
rows = json.load(sys.stdin)["rows"]
assert len(rows) == len({row["id"] for row in rows}) >= 30, rows
assert all(row["not_built"] or row["sentence"] for row in rows), rows'
}
check "the rows are listed" rows_are_listed

quick_row_runs() {
    paper acbpfs-t1 --quick --rounds 2 --peers local --dir "$WORK/scratch" --out "$WORK/out" --json >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - <<'PY'
import json
with open("row.json") as shown, open("out/acbpfs-t1.json") as written:
    row = json.load(shown)
    assert row["figures"] == json.load(written)["figures"]
assert row["output_version"] == 1 and row["quick"], row
assert not row["not_measured"], row["not_measured"]
assert all(figure["median"] > 0 and len(figure["samples"]) == 2 for figure in row["figures"]), row["figures"]
assert len(row["figures"]) == 22, len(row["figures"])
PY
}
check "a quick row runs in process" quick_row_runs

# Its mounts are in a mount namespace of its own, and what it measures through the kernel is in a memory cgroup. The mounts
# around it propagate, as they do under systemd: what is unmounted outside may not live on in the bench.
mkdir bound && mount --bind bound bound && mount --make-shared bound
mkdir bound/other && mount -t tmpfs none bound/other
confined() {
    python3 - "$TERRACE" "$WORK" <<'PY'
import glob, os, subprocess, sys
terrace, work = sys.argv[1:]
def link(pid): return os.readlink(f"/proc/{pid}/ns/mnt")
def groups(pid): return [line.split(":", 2) for line in open(f"/proc/{pid}/cgroup").read().split("\n") if line]
def memory(pid): return [path for _, names, path in groups(pid) if names in ("", "memory")]
def children(pid):
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        for child in open(task).read().split():
            yield int(child)
            yield from children(child)
mounts = open("/proc/self/mountinfo").read()
def daemons(): return [child for child in children(run.pid) if f" {work}/bound/scratch" in open(f"/proc/{child}/mountinfo").read()]
run = subprocess.Popen([terrace, "bench", "paper", "tpfs-9", "--quick", "--rounds", "2", "--peers", "terrace", "--dir", f"{work}/bound/scratch",
                        "--out", f"{work}/out", "--json"], stdout=open("confined.json", "w"), stderr=open("confined.err", "w"))
apart, confined, let_go = False, set(), None
while run.poll() is None:
    try:
        apart |= link(run.pid) != link("self")
        for child in children(run.pid):
            confined.update(set(memory(child)) - set(memory("self")))
        assert open("/proc/self/mountinfo").read() == mounts, "a mount of the bench is seen outside"
        # Once it has mounted something itself.
        if let_go is None and (found := daemons()):
            if " " + work + "/bound/other " in mounts:
                subprocess.check_call(["umount", "bound/other"])
                mounts = open("/proc/self/mountinfo").read()
            let_go = all(f" {work}/bound/other " not in open(f"/proc/{pid}/mountinfo").read() for pid in [run.pid, *found])
    except OSError:  # of a process that has ended
        pass
assert run.returncode == 0, open("confined.err").read()
assert apart, "the bench mounts in the namespace of its caller"
assert let_go, "what was unmounted outside lives on in the bench"
if "no cgroup hierarchy has the memory controller" not in open("confined.json").read():
    assert any("terrace" in path for path in confined), confined
PY
}
check "the bench has a mount namespace and a memory cgroup" confined
umount bound/other 2>/dev/null
check "it leaves no mount" umount bound

# The rows beyond the publications, in process and on a plain file. What they claim is not judged here: only that every
# figure is there, and its claims, and that a burst is not refused for want of space.
tiering_row_runs() { # ROW PEERS
    paper "$1" --quick --rounds 2 --class host --peers "$2" --dir "$WORK/scratch" --out "$WORK/out" --json \
        >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - "$1" <<'PY'
import json, sys
row = json.load(open("row.json"))
assert not row["not_measured"], row["not_measured"]
# Nothing is demoted in so short a time, perhaps: then what the device was written is no ratio.
assert row["figures"] and (row["verdicts"] or sys.argv[1] == "sync-write"), row
for figure in row["figures"]:
    assert figure["median"] is not None or "amplification" in figure["series"], figure
    assert len(figure["samples"]) == 2, figure
if sys.argv[1] == "burst":
    refused = [verdict for verdict in row["verdicts"] if verdict["text"] == "no ENOSPC"]
    assert refused and all(verdict["held"] for verdict in refused), refused
PY
}
for row in burst scan cold-small rich; do
    check "row $row runs in process" tiering_row_runs $row local
done
for row in sync-write demoted-read; do
    check "row $row runs in process" tiering_row_runs $row local,device
done

# YCSB over LevelDB on each file map: every workload has a figure, and no pool is left.
ycsb_row_runs() { # ROW
    paper "$1" --quick --rounds 2 --dir "$WORK/scratch" --out "$WORK/out" --json >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - <<'PY'
import json
row = json.load(open("row.json"))
figures = [(figure["series"], figure["at"]) for figure in row["figures"]]
maps = dict.fromkeys(series for series, _ in figures)
assert figures == [(name, at) for name in maps for at in ("load", "A", "B", "C", "F", "D", "E")], figures
assert "radix" in maps and len(row["derived"]) == len(maps), row["derived"]
assert all(figure["median"] > 0 and len(figure["samples"]) == 2 for figure in row["figures"]), row["figures"]
PY
}
for row in hashfs-13 hashfs-14; do
    check "row $row runs in process" ycsb_row_runs $row
done

# File maps: every map of the registry is measured, and every figure is there.
map_row_runs() { # ROW SERIES
    paper "$1" --quick --rounds 2 --dir "$WORK/scratch" --out "$WORK/out" --json >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - "${@:2}" <<'PY'
import json, sys
row = json.load(open("row.json"))
assert not row["not_measured"] and row["verdicts"], row
series = {figure["series"] for figure in row["figures"]}
for name in sys.argv[1:]:
    assert any(found == name or found.startswith(name + " ") for found in series), (name, series)
assert all(figure["median"] is not None and len(figure["samples"]) == 2 for figure in row["figures"]), row["figures"]
PY
}
for row in hashfs-5 hashfs-6 hashfs-7 hashfs-8 hashfs-9 hashfs-10 maps-hot maps-full maps-cold; do
    check "row $row runs in process" map_row_runs $row radix extent hashfs-linear
done
check "row hashfs-11 runs in process" map_row_runs hashfs-11 extent "extent in a page cache"
check "row hashfs-12 runs in process" map_row_runs hashfs-12 radix hashfs-linear "extent in a page cache" "level hashing"
check "row hashfs-4.9 runs in process" map_row_runs hashfs-4.9 hashfs-linear "level hashing"
check "row maps-tiers runs in process" tiering_row_runs maps-tiers local

# Both models of PM reach both mounts, and the row says where reads came from.
emulated_pm_runs() { # MODEL
    paper dram-reads --quick --rounds 2 --class host --peers terrace,local --emulate-pm "$1" --dir "$WORK/scratch" \
        --out "$WORK/out" --json >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - "$1" <<'PY'
import json, sys
row = json.load(open("row.json"))
assert not row["not_measured"], row["not_measured"]
assert all(subject["tuning"]["emulate_pm"].startswith(sys.argv[1]) for subject in row["subjects"]), row["subjects"]
assert len(row["status"]) == 4, row["status"].keys()
for label, status in row["status"].items():
    assert "ns a " + sys.argv[1] in str(status), (label, status["pm"])
    assert "to_dram_bytes" in status["migration"], status["migration"]
reads = dict(row["derived"])
assert set(reads) == {"reads of " + label for label in row["status"]}, reads
assert all(found["bytes from PM"] > 0 for found in reads.values()), reads
PY
}
for model in line run; do
    check "PM by the $model is emulated" emulated_pm_runs $model
done
expect 1 "emulate-pm: 'fast'" paper dram-reads --emulate-pm fast

# The device is measured beside what reaches it.
device_row_runs() {
    paper zig-4w --quick --rounds 2 --class host --peers local,device --dir "$WORK/scratch" --out "$WORK/out" --json \
        >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - <<'PY'
import json
row = json.load(open("row.json"))
assert not row["not_measured"], row["not_measured"]
series = {figure["series"] for figure in row["figures"]}
assert {"local 6% device", "local 6% amplification", "device", "local 400%"} <= series, series
written = [figure for figure in row["figures"] if figure["series"] == "device bytes"]
assert written and all(figure["median"] > 0 for figure in written), written
PY
}
check "row zig-4w says what the device is written" device_row_runs

# What is not there is named in the result, and is no failure: peers need programs and loop devices.
todays_peers_run() {
    paper tpfs-13 --quick --rounds 1 --peers local,tmpfs,btrfs,mergerfs --dir "$WORK/scratch" --out "$WORK/out" --json \
        >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - <<'PY'
import json
row = json.load(open("row.json"))
measured = {figure["series"].split()[0] for figure in row["figures"] if figure["median"]}
for peer in "local", "tmpfs", "btrfs", "mergerfs":
    reasons = [missing for missing in row["not_measured"] if missing["what"].startswith(peer) and missing["reason"]]
    assert peer in measured or reasons, (peer, row["not_measured"])
    for missing in reasons:
        print("left out:", missing["what"] + ":", missing["reason"])
assert {"local", "tmpfs"} <= measured, row["not_measured"]
PY
}
check "tmpfs, btrfs and mergerfs run or are named" todays_peers_run

# Everything that a measurement sets up: FUSE, an emulated device, loop devices with journals in memory, a cgroup.
peers_run() {
    paper zig-8 --quick --rounds 1 --class nvme --device-memory --peers terrace,ext4,ext4-dj,xfs-ml,ext4-pm,xfs-pm --one-core \
        --dir "$WORK/scratch" --out "$WORK/out" --json >row.json 2>row.err || {
        cat row.err >&9
        return 1
    }
    python3 - <<'PY'
import json
row = json.load(open("row.json"))
assert row["class"] == "nvme" and row["one_core"], row
measured = {figure["series"].split()[0] for figure in row["figures"] if figure["median"]}
assert measured == {"terrace", "ext4", "ext4-dj", "xfs-ml", "ext4-pm", "xfs-pm"}, (measured, row["not_measured"])
PY
}
check "a row beside the publications' peers on an emulated device" peers_run
nothing_left() {
    local found
    found=$(
        losetup --list --noheadings --output BACK-FILE | grep -F -e "$WORK" -e terrace-paper
        ls -d /dev/shm/terrace-paper-* "$WORK"/scratch/paper-* 2>/dev/null
        grep -F -e terrace-paper -e "$WORK/scratch" /proc/self/mounts
    )
    [ -z "$found" ] || { echo "$found" >&9 && return 1; }
}
check "it leaves nothing behind" nothing_left
# Ended in the middle.
interrupted() {
    timeout --foreground 120 "$TERRACE" bench paper tpfs-9 --rounds 50 --seconds 1 --class nvme --device-memory --dataset 64M \
        --peers terrace,ext4-dj,xfs-ml --dir "$WORK/scratch" --out "$WORK/out" >row.txt 2>row.err &
    local child=$!
    for _ in $(seq 600); do
        grep -q "round 0" row.err && break
        sleep 0.1
    done
    grep -q "round 0" row.err && pkill -INT -P $child
    wait $child
    [ $? != 0 ] && nothing_left
}
check "nor after SIGINT" interrupted
# The programs of its rows, in a directory.
programs_run() {
    mkdir -p programs
    for load in sqlite rocksdb fio; do
        timeout 120 "$TERRACE" bench run $load programs --quick --rounds 1 --json >run.json 2>run.err || {
            cat run.err >&9
            return 1
        }
        python3 - $load <<'PY' || return 1
import json, sys
row = json.load(open("run.json"))
assert not row["not_measured"] and row["figures"], (sys.argv[1], row["not_measured"])
assert all(figure["median"] for figure in row["figures"]), row["figures"]
PY
    done
}
check "programs run" programs_run

# Two directories side by side, a trace recorded and done again in them.
run_in_directories() { # WORKLOAD
    mkdir -p a b
    timeout 120 "$TERRACE" bench run "$1" a b --quick --rounds 2 --json >run.json 2>run.err || {
        cat run.err >&9
        return 1
    }
    python3 - <<'PY'
import json
row = json.load(open("run.json"))
assert not row["not_measured"], row["not_measured"]
assert {"a", "b"} <= {figure["series"] for figure in row["figures"]}, row["figures"]
assert all(figure["median"] is not None for figure in row["figures"]), row["figures"]
PY
}
for workload in varmail random-write burst; do
    check "bench run $workload" run_in_directories $workload
done
recorded() {
    paper tpfs-13 --quick --rounds 1 --peers local --dir "$WORK/scratch" --out "$WORK/out" --record mix.trace \
        >/dev/null 2>&1 && [ -s mix.trace ]
}
check "a load is recorded" recorded
check "bench run of a trace" run_in_directories trace:mix.trace
# As many operations as were recorded, on a pool that they are found in.
replayed() {
    paper --replay mix.trace --json --dataset 64M --dir "$WORK/scratch" --out "$WORK/out" >replay.json 2>replay.err || {
        cat replay.err >&9
        return 1
    }
    python3 - "$(($(stat -c %s mix.trace) / 32))" <<'PY'
import json, sys
found = json.load(open("replay.json"))
assert int(sys.argv[1]) * 0.9 < found["operations"] <= int(sys.argv[1]), (found["operations"], sys.argv[1])
assert found["elapsed_ns"] > 0 and found["status"]["placement"]["writes_seen"] > 0, found
PY
}
check "a trace is replayed in process" replayed
replayed_for_people() {
    paper --replay mix.trace --dataset 64M --dir "$WORK/scratch" --out "$WORK/out" 2>/dev/null |
        grep -qE '^[0-9]+ operations in [0-9.]+ s, [0-9]+ operations/s; moved down [0-9.]+ MiB, up [0-9.]+ MiB$'
}
check "and tells people of it in a line" replayed_for_people
head -c 16 mix.trace >empty.trace
expect 1 "empty.trace: no operations" paper --replay empty.trace --dir "$WORK/scratch"
expect 1 "empty.trace: no operations" timeout 20 "$TERRACE" bench run trace:empty.trace a
directories_are_clean() { [ -z "$(ls -A a)$(ls -A b)" ]; }
check "nothing is left in the directories" directories_are_clean
expect 1 "list.txt: not a trace" timeout 20 "$TERRACE" bench run trace:list.txt a
expect 1 "nowhere: No such file" timeout 20 "$TERRACE" bench run varmail nowhere --quick

# What must be shown: results that are there are not made again, and the table is printed from them.
must_show_resumes() {
    paper --must-show --quick --rounds 1 --only rich --limit 1 --dir "$WORK/scratch" --out "$WORK/out" >table.md 2>must.err || {
        cat must.err >&9
        return 1
    }
    grep -q 'one core, host (quick' table.md && grep -q 'unpinned | not measured' table.md &&
        cp -p "$WORK/out/must-show/rich-one-core/rich.json" first.json &&
        paper --must-show --quick --rounds 1 --only rich --dir "$WORK/scratch" --out "$WORK/out" >table.md 2>>must.err &&
        grep -q 'unpinned, host (quick' table.md &&
        cmp -s first.json "$WORK/out/must-show/rich-one-core/rich.json"
}
check "what must be shown is run once" must_show_resumes
expect 1 "only: one of varmail-sata" paper --must-show --only nothing

check "a plot was written" grep -q '</svg>' "$WORK/out/acbpfs-t1.svg"
regret_runs() {
    paper regret --quick --dir "$WORK/scratch" --out "$WORK/out" --json >regret.json 2>regret.err || {
        cat regret.err >&9
        return 1
    }
    python3 - <<'PY'
import json
with open("regret.json") as shown:
    row = json.load(shown)
traces = row["details"]["machine"]
assert len(traces) == 10 and len(row["figures"]) == 10 * 11, (len(traces), len(row["figures"]))
for trace in traces:
    bound = trace["bound"]
    assert 0 < bound["any_ns"] <= bound["demand_ns"] <= bound["priced_ns"] <= bound["schedule_ns"], trace
    assert bound["priced_ns"] <= bound["fixed_ns"], trace
    assert all(sum(waits[part] for part in ("memory_ns", "read_ns", "sync_ns", "room_ns")) >= bound["any_ns"]
               for waits in trace["waits"].values()), trace
PY
}
check "traces are recorded and replayed through every policy" regret_runs
nothing_is_left() { [ -z "$(ls -A "$WORK/scratch")" ]; }
check "nothing is left of the run" nothing_is_left

# The server that the row starts has to end with it. Only where PostgreSQL is installed.
database_row_ends() {
    timeout 400 "$TERRACE" bench paper zig-9 --quick --rounds 1 --peers terrace --dir "$WORK/scratch" --out "$WORK/out" \
        >zig-9.out 2>&1 || {
        cat zig-9.out >&9
        return 1
    }
}
if compgen -G "/usr/lib/postgresql/*/bin/pgbench" >/dev/null; then
    check "a row of PostgreSQL ends" database_row_ends
else
    echo "left out: zig-9 (Debian: postgresql)"
fi

# Both ways of requests into the daemon, in short; what is not there is named in the result.
parameter=/sys/module/fuse/parameters/enable_uring
way_in_runs() {
    local before
    before=$(cat $parameter 2>/dev/null)
    timeout 120 "$TERRACE" bench smoke --rows way-in --quick --rounds 1 --before "$TERRACE" --dir "$WORK/scratch" \
        --json way-in.json >way-in.txt 2>way-in.err || {
        cat way-in.err >&9
        return 1
    }
    [ "$(cat $parameter 2>/dev/null)" = "$before" ] || { echo "$parameter has changed" >&9 && return 1; }
    python3 - <<'PY'
import json
found = json.load(open("way-in.json"))
names = [figure["what"].rsplit(": ", 1) for figure in found["figures"]]
reasons = [skipped["reason"] for skipped in found["skipped"]]
for reason in reasons:
    print("left out:", reason)
left_out = " ".join(reasons)
programs = {"terrace classic", "before"} | ({"terrace io_uring"} if "io_uring:" not in left_out else set())
for part, count in ("calls, unpinned, median", 9), ("calls, one core, p99", 9), ("clients, pread", 5), ("trees, 200 files", 7):
    for program in programs:
        lines = {what for what, contestant in names if what.startswith(part) and contestant == program}
        assert len(lines) >= count, (part, program, lines, reasons)
ratios = {contestant for what, contestant in names if "with sync -f, ÷ ext4" in what}
assert ratios == programs | {"tmpfs"}, (ratios, reasons)
assert {"null classic", "ext4", "tmpfs"} <= {contestant for _, contestant in names}, (names, reasons)
assert "XFS" in {contestant for _, contestant in names} or "XFS" in left_out, reasons
assert all(figure["row"] == "way-in" and figure["median"] >= 0 for figure in found["figures"]), found["figures"]
PY
}
check "row way-in runs" way_in_runs
# Ended in the middle, it puts back the kernel's parameter and takes its mounts down.
way_in_interrupted() {
    local before
    before=$(cat $parameter 2>/dev/null)
    timeout --foreground 120 "$TERRACE" bench smoke --rows way-in --only calls --rounds 50 --dir "$WORK/scratch" \
        --json way-in.json >way-in.txt 2>way-in.err &
    local child=$!
    sleep 2
    pkill -INT -P $child
    wait $child
    [ $? != 0 ] && [ "$(cat $parameter 2>/dev/null)" = "$before" ] && [ -z "$(ls -A "$WORK/scratch")" ]
}
check "nothing is left of row way-in after SIGINT" way_in_interrupted
expect 1 "parts of row way-in are calls, clients, trees" "$TERRACE" bench smoke --rows way-in --only names

expect 1 "no row tpfs-99; terrace bench paper --list" paper tpfs-99
expect 1 "which row" paper
if [ -e /usr/lib/python3/dist-packages/plyvel ]; then
    leveldb_row_runs() {
        paper tpfs-14 --quick --rounds 1 --peers tmpfs --dir "$WORK/scratch" --out "$WORK/out" --json >row.json 2>row.err || {
            cat row.err >&9
            return 1
        }
        [ "$(grep -c '"median": [1-9]' row.json)" = 3 ]
    }
    check "a row of LevelDB runs" leveldb_row_runs
else
    echo "left out: tpfs-14 (Debian: python3-plyvel)"
fi
expect 2 "no peer ext9" paper tpfs-9 --peers ext9
finish
