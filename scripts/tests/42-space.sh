#!/usr/bin/env bash
# Space that was promised is there: writes into what fallocate laid out and over what exists succeed on a full pool
# (generic/274; SQLite; segments of a log as PostgreSQL makes them), what a removal gives back can be written (generic/275), and
# fallocate gets what df shows (generic/103). ext4 passes the same checks first, so that they ask for nothing unusual.
. "$(dirname "$0")/suites.sh"
build_helper
need mkfs.ext4 e2fsprogs
need sqlite3 sqlite3

space() { # CHECK DIRECTORY ARGUMENTS…
    "$helper" "space-$1" "${@:2}" || fail "$file_system: $1: see above"
}

# A database in WAL mode whose log has its length is changed and committed on a full file system: pages and log are written over.
database() { # DIRECTORY
    local sql="$WORK/sql" database=$1/database
    cat >"$sql" <<SQL
.bail on
PRAGMA journal_mode = WAL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA synchronous = FULL;
CREATE TABLE rows (number INTEGER PRIMARY KEY, round INTEGER, content TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
    INSERT INTO rows SELECT i, 0, hex(zeroblob(1500)) FROM n;
UPDATE rows SET round = 1, content = hex(randomblob(1500));
PRAGMA wal_checkpoint(FULL);
.shell dd if=/dev/zero of=$1/filler bs=1M 2>/dev/null; dd if=/dev/zero of=$1/filler.small bs=4096 2>/dev/null; sync
SQL
    local round
    for round in 2 3 4; do
        # One row at a time, then all at once: about as much of the log as before.
        printf 'UPDATE rows SET round = %s, content = hex(randomblob(1500)) WHERE number = %s;\n' $round 7 $round 400
        printf 'UPDATE rows SET round = %s, content = hex(randomblob(1500)) WHERE number > 20;\n' $round
        printf 'PRAGMA wal_checkpoint(FULL);\n'
    done >>"$sql"
    # Before SQLite removes its log.
    echo ".shell dd if=/dev/zero of=$1/filler.small bs=4096 count=64 conv=notrunc oflag=append 2>/dev/null && echo not full" >>"$sql"
    sqlite3 "$database" <"$sql" >sqlite.out 2>&1 || fail "$file_system: SQLite: $(tail -n 3 sqlite.out)"
    ! grep -q 'not full' sqlite.out || fail "$file_system: 256 KiB were free beside the database"
    [ "$(sqlite3 "$database" 'PRAGMA integrity_check; SELECT count(*) FROM rows WHERE round = 4')" = "$(printf 'ok\n481')" ] ||
        fail "$file_system: the database is damaged, or a commit is gone"
}

step "ext4 does"
file_system=ext4
truncate -s 128M ext4.img
mkfs.ext4 -q -m 0 ext4.img
mkdir ext4
mount -o loop ext4.img ext4
space shown "$PWD/ext4" $((512 << 10))
space promised "$PWD/ext4" $((1 << 20))
rm -rf ext4/*
space mixed "$PWD/ext4" 1
rm -rf ext4/*
space removed "$PWD/ext4"
rm -rf ext4/*
database "$PWD/ext4"
umount ext4

# FAST_TIER TIER LARGEST OPTIONS…: requests of more blocks than three eighths of the reserve fail whole (docs/operating.md).
round() {
    file_system="Terrace ($*)"
    step "$file_system"
    local fast=$1 below=$2 largest=$3
    shift 3
    make_pool "$fast" "$below"
    mount_pool "$@"
    space shown "$mnt" 0
    space promised "$mnt" "$largest"
    (cd mnt && sha256sum beyond* segment* table mapped) >sums
    umount_pool
    check_pool --data
    mount_pool "$@"
    (cd mnt && sha256sum --quiet -c "$WORK/sums") || fail "$file_system: content after a mount"
    rm -rf mnt/*
    space removed "$mnt"
    database "$mnt"
    umount_pool
    check_pool --data
}

# All that a full pool accepted, in writes of all lengths with homes in both tiers, is synced, unmounted and read.
mixed() { # OPTIONS…
    file_system="Terrace ($*), writes of all lengths"
    step "$file_system"
    make_pool 64M 128M
    mount_pool "$@"
    space mixed "$mnt" 1
    (cd mnt && sha256sum mixed-*) >sums
    umount_pool
    check_pool --data
    mount_pool "$@"
    (cd mnt && sha256sum --quiet -c "$WORK/sums") || fail "$file_system: content after a mount"
    umount_pool
}

# The space of a removed file is free once the kernel has told that it forgets the file. Beside programs that compute, the
# daemon learns that late.
beside_computing() { # FAST_TIER TIER OPTIONS…
    file_system="Terrace ($*), beside programs that compute"
    step "$file_system"
    make_pool "$1" "$2"
    mount_pool "${@:3}"
    local is_done=1 programs=()
    for _ in 1 2 3; do
        setsid timeout 120 sh -c 'while :; do :; done' &
        programs+=($!)
    done
    "$helper" space-removed "$mnt" || is_done=
    kill "${programs[@]}"
    wait "${programs[@]}" 2>/dev/null || true
    [ -n "$is_done" ] || fail "$file_system: removed: see above"
    umount_pool
    check_pool --data
}

round 32M 64M 65536
# Lazy writes need a buffer.
case ${MOUNT_OPTIONS:-} in *lazy=*) ;; *) round 32M 64M 65536 -o buffer=0 ;; esac
round 64M 64M 131072 -o policy=static,data=ordered
round 192M 48M $((1 << 20))
mixed
case ${MOUNT_OPTIONS:-} in *lazy=*) ;; *) mixed -o lazy=on ;; esac
beside_computing 64M 64M -o policy=static,data=ordered
pass "fallocate, overwrites, removals and df on full pools, as on ext4"
