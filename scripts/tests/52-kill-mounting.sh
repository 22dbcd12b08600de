#!/usr/bin/env bash
# kill -9 of a daemon while it mounts, KILLS times (60; docs/crash-consistency.md has a run of 1,000). A daemon asked for the
# attributes of its own mount from one thread while another thread served it: killed between question and answer, the first
# stayed in state D for ever, the process kept the device, and every command that named the mount hung.
# After each kill `terrace umount` clears all that is left: the mount, the connection, the process, the state directory.
. "$(dirname "$0")/suites.sh"
need python3 python3
# In memory: how long a disk takes for what a killed process has asked of it is another matter.
"$TERRACE" mkfs --pm "$pool" --pm-size 16M --tier "$SHM.tier,size=64M" >mkfs.out 2>&1 || fail "mkfs: $(cat mkfs.out)"
state=$("$TERRACE" status "$pool" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state_directory"])')
# The connections of the kernel, at a place where no command looks for them: an abort must do without.
mkdir connections && mount -t fusectl none connections
seed=${SEED:-$$}
say "SEED=$seed"
python3 - "$TERRACE" "$pool" "$mnt" "$state" "$seed" "${KILLS:-60}" <<'PY' || fail "see above"
import os, random, signal, subprocess, sys, time
terrace, pool, mnt, STATE, seed, kills = sys.argv[1:4] + [sys.argv[4], int(sys.argv[5]), int(sys.argv[6])]
random.seed(seed)
HANG = 60  # more than any machine needs

def connection():
    """The connection of the mount at the directory, if there is one."""
    with open("/proc/self/mountinfo") as file:
        found = [line.split()[2].split(":")[1] for line in file if line.split()[4] == mnt]
    return found[-1] if found else None

def is_left(number):
    """Whether a connection is there and nobody has it mounted: others use this machine too, and get numbers that are free."""
    if not os.path.exists(f"connections/{number}"):
        return False
    for process in os.listdir("/proc"):
        try:
            with open(f"/proc/{process}/mountinfo") as file:
                if any(line.split()[2] == f"0:{number}" for line in file):
                    return False
        except OSError:
            pass
    return True

def is_mounted():
    return connection() is not None

def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []

def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None

def has_ended(pid):
    """All of its threads: the first may have ended before the others."""
    try:
        return state(pid) in (None, "Z") and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return True

def wait_until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True

def umount():
    begin = time.monotonic()
    done = subprocess.run([terrace, "umount", mnt], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, timeout=HANG)
    return done, time.monotonic() - begin

def start():
    return subprocess.Popen([terrace, "mount", pool, mnt, "-o", f"log={os.getcwd()}/daemon.log"], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)

def full_mount():
    begin = time.monotonic()
    mounter = start()
    text = mounter.communicate(timeout=HANG)[1]
    assert mounter.returncode == 0, f"mount: {text}"
    took = time.monotonic() - begin
    with open(f"{mnt}/file", "a+") as file:
        file.write("x")
        file.seek(0)
        length = len(file.read())
    done, _ = umount()
    assert done.returncode == 0, f"umount: {done.stderr}"
    return took, length

def one(number, took):
    """A mount whose daemon is killed: at any moment, or near that at which the mount appears."""
    mounter = start()
    begin = time.monotonic()
    if not wait_until(lambda: children(mounter.pid) or mounter.poll() is not None, HANG):
        raise AssertionError("no daemon was started")
    found = children(mounter.pid)
    if not found:  # mounted before it was looked for
        text = mounter.communicate(timeout=HANG)[1]
        assert mounter.returncode == 0, f"mount: {text}"
        done, _ = umount()
        assert done.returncode == 0, f"umount: {done.stderr}"
        return one(number, took)
    daemon = found[0]
    if number % 2 == 0:
        moment = random.uniform(0, 1.3 * took)
        while time.monotonic() - begin < moment:
            pass
    else:
        while not is_mounted() and mounter.poll() is None:
            pass
        moment = time.monotonic() + random.uniform(0, 0.002)
        while time.monotonic() < moment:
            pass
    mounted = connection()
    os.kill(daemon, signal.SIGKILL)
    if number % 5 == 0 and mounter.poll() is None:
        mounter.kill()
    numbers = {mounted, connection()} - {None}
    done, seconds = umount()
    # A daemon that was killed just as it mounted may have its mount only now.
    if done.returncode == 1 and "not mounted" in done.stderr and is_mounted():
        numbers.add(connection())
        done, more = umount()
        seconds += more
    assert done.returncode == 0 or "not mounted" in done.stderr, f"umount: {done.returncode} {done.stderr}"
    end = time.monotonic()
    mounter.communicate(timeout=HANG)
    assert wait_until(lambda: has_ended(daemon), HANG), f"daemon {daemon} is in state {state(daemon)}"
    assert not is_mounted(), "still mounted"
    assert wait_until(lambda: not any(map(is_left, numbers)), HANG), f"a connection of {numbers} is left"
    if os.path.exists(STATE):  # the daemon was still ending
        assert "not mounted" in umount()[0].stderr
    assert not os.path.exists(STATE), f"{STATE} is left: {os.listdir(STATE)}"
    return mounted is not None, seconds + time.monotonic() - end

def main():
    took, length = full_mount()
    killed_mounted, longest = 0, 0.0
    for number in range(kills):
        try:
            mounted, seconds = one(number, took)
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            print(f"kill {number + 1}: {problem}", flush=True)
            if connection():
                with open(f"connections/{connection()}/abort", "w") as file:
                    file.write("1")
            return 1
        killed_mounted += mounted
        longest = max(longest, seconds)
        if number % 20 == 19:
            again, now = full_mount()
            assert now == length + 1, f"{now} bytes instead of {length + 1}"
            took, length = (took + again) / 2, now
    print(f"{kills} kills, {killed_mounted} of them with the mount there; a mount takes {took * 1000:.0f} ms; "
          f"the longest that terrace umount needed to clear what was left: {longest:.3f} s")
    return 0

sys.exit(main())
PY
check_pool
pass "${KILLS:-60} kills while mounting"
