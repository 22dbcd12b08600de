#!/usr/bin/env bash
# pjdfstest 0.2.2 with every feature and guard it has on Linux: no failure, and no skip that ext4 lacks.
. "$(dirname "$0")/suites.sh"
cargo_tool pjdfstest 0.2.2
need mkfs.ext4 e2fsprogs

# Test cases skipped here and not on ext4; the README names them. link_count_max: the C library knows the
# limit of links by the type of file system, and says 127 for every FUSE one, which the case rejects.
extra_skips=(link::link_count_max)

mkdir sec bin
mount -t tmpfs -o size=16M,mode=777 none sec
config() { # ALLOW_REMOUNT
    cat <<TOML
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = $1
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
TOML
}
config false >all.toml
config true >remount.toml
# The EROFS cases call `mount -o remount,ro`, which mount(8) hands to the helper mount.fuse where that is
# installed. A remount is the kernel's own business: -i keeps helpers out of it.
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >bin/mount
chmod +x bin/mount

pjdfstest() {
    PATH=$WORK/bin:$PATH RUST_BACKTRACE=0 NO_COLOR=1 "$tools/bin/pjdfstest" -p mnt -s sec "$@" || true
}
# run NAME: leaves NAME.passed, NAME.skipped and NAME.failed. The EROFS cases run in a process of their own:
# other cases leave files open for writing, with which no file system can be made read-only.
run() {
    chmod 777 mnt
    pjdfstest -c all.toml >"$1.out" 2>&1
    pjdfstest -c remount.toml erofs >>"$1.out" 2>&1
    [ "$(grep -c '^Summary' "$1.out")" = 2 ] || fail "$1: pjdfstest ended early: $(tail -n 3 "$1.out")"
    awk '$NF == "ok" { print $1 }' "$1.out" | sort >"$1.passed"
    awk '$NF == "FAILED" || /PASSED UNEXPECTEDLY/ { print $1 }' "$1.out" | sort >"$1.failed"
    awk '$NF == "skipped" { print $1 }' "$1.out" | sort | comm -23 - "$1.passed" | comm -23 - "$1.failed" \
        >"$1.skipped"
    figures="$(wc -l <"$1.passed") passed, $(wc -l <"$1.failed") failed, $(wc -l <"$1.skipped") skipped"
}

truncate -s 256M ext4.img
mkfs.ext4 -q ext4.img
mount -o loop ext4.img mnt
run ext4
umount mnt
say "on ext4: $figures"

make_pool 64M 512M
mount_pool
run terrace
umount_pool
check_pool --data

if [ -s terrace.failed ]; then
    grep -A 3 FAILED terrace.out >&2
    fail "$figures: $(tr '\n' ' ' <terrace.failed)"
fi
more=$(comm -23 terrace.skipped ext4.skipped | grep -vxF "$(printf '%s\n' "${extra_skips[@]:-none}")" || true)
[ -z "$more" ] || fail "skipped and not on ext4: $more"
[ "$(wc -l <terrace.passed)" -ge 390 ] || fail "only $figures"
pass "$figures"
