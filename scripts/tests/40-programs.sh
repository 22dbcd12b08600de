#!/usr/bin/env bash
# Real programs on a pool whose PM is smaller than the data: git, cargo and what it built, copies of a tree of
# 10,000 files, and the system calls that programs rely on (crates/suites, programs).
. "$(dirname "$0")/suites.sh"
build_helper
need git git
need setfattr attr
need cc gcc libc6-dev

make_pool 32M 2G
mount_pool -o cache=16M
step "system calls"
mkdir mnt/calls
"$helper" programs mnt/calls || fail "system calls: see above"

step "requests of a writer beside a reader that came first"
# The kernel caches a file that is first opened to read, for a later writer too: each write must reach the predictors all the
# same. Of a write that ends inside a page the kernel may make two.
writes_of() { # bytes of each, flags
    local before
    before=$(status_number writes_seen)
    dd if=/dev/zero of=mnt/shared bs="$1" count=100 conv="notrunc${2:-}" status=none
    echo $(($(status_number writes_seen) - before))
}
for each in "4096 " "5001 ,fsync" "300000 " "300000 ,fsync"; do
    head -c 40M /dev/zero >mnt/shared
    # shellcheck disable=SC2086
    direct=$(writes_of $each)
    exec 7<mnt/shared
    head -c 1M <&7 >/dev/null
    # shellcheck disable=SC2086
    cached=$(writes_of $each)
    exec 7<&-
    [ "$direct" -ge 100 ] && [ "$cached" -ge "$direct" ] && [ "$cached" -le $((2 * direct)) ] || fail "$direct writes seen of a writer, $cached beside a reader: $each"
done
rm mnt/shared

step "extended attributes"
touch mnt/attributes
setfattr -n user.text -v "some text" mnt/attributes
setfattr -n user.binary -v 0x00ff10 mnt/attributes
setfattr -n user.large -v "$(head -c 1500 /dev/zero | tr '\0' x)" mnt/attributes
setfattr -n user.gone -v x mnt/attributes && setfattr -x user.gone mnt/attributes
attributes() { getfattr -d -e hex mnt/attributes | sort; }
attributes >attributes.before
[ "$(grep -c '^user' attributes.before)" = 3 ] || fail "xattrs: $(cat attributes.before)"
! getfattr -n user.gone mnt/attributes 2>/dev/null || fail "a removed xattr is still there"

step "file capabilities"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    # Of cap_net_raw; who writes or truncates without privilege takes them away, and nothing else.
    capability=0x0100000200200000000000000000000000000000
    for change in "printf x | dd of=mnt/capable conv=notrunc status=none" \
        "head -c 4096 /dev/zero | dd of=mnt/capable bs=4096 conv=notrunc status=none" \
        "truncate -s 10 mnt/capable" "fallocate -l 16384 mnt/capable" "fallocate -p -l 4096 mnt/capable"; do
        head -c 8192 /dev/zero >mnt/capable
        chmod 666 mnt/capable
        setfattr -n user.stays -v x mnt/capable
        setfattr -n security.capability -v "$capability" mnt/capable || fail "cannot set a file's capabilities"
        getfattr -n security.capability mnt/capable >/dev/null 2>&1 || fail "capabilities are not there"
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c "$change" || fail "as another user: $change"
        ! getfattr -n security.capability mnt/capable >/dev/null 2>&1 || fail "capabilities survive: $change"
        getfattr -n user.stays mnt/capable >/dev/null 2>&1 || fail "another attribute is gone: $change"
    done
    rm mnt/capable
fi

step "set-id bits"
# An unprivileged user wrote to a set-id program while it was being started, and what was written had the rights of its owner
# (34 of 60 attempts). fallocate took no bits away; and user ids decided, not CAP_FSETID.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    mkdir -m 755 mnt/set-id
    "$helper" set-id mnt/set-id || fail "set-id programs: see above"
    rm -r mnt/set-id
    nobody="setpriv --reuid 65534 --regid 65534 --clear-groups"
    # Mode before, mode after, who, as ext4 has it on Linux 6.2 and later.
    while read -r before after who; do
        for change in "fallocate -l 8192" "fallocate -p -l 8192" "fallocate -n -l 131072" "truncate -s 10"; do
            # A file's group is left out of account by a truncation: the kernel does not tell it.
            case "$change $before" in truncate*66 | truncate*766) continue ;; esac
            rm -f mnt/set-id
            head -c 65536 /dev/zero >mnt/set-id
            chmod "$before" mnt/set-id
            $who $change mnt/set-id || fail "$who $change"
            [ "$(stat -c %a mnt/set-id)" = "$after" ] || fail "$before is $(stat -c %a mnt/set-id): $who $change"
        done
    done <<TABLE
6777 777 $nobody
6676 676 $nobody
6666 666 $nobody
6777 777 setpriv --reuid 65534 --regid 65534 --groups 0
6766 2766 setpriv --reuid 65534 --regid 65534 --groups 0
6777 777 setpriv --bounding-set -fsetid --inh-caps -fsetid
6766 2766 setpriv --bounding-set -fsetid --inh-caps -fsetid
6777 6777
6777 6777 $nobody --inh-caps +fsetid --ambient-caps +fsetid
TABLE
    rm mnt/set-id
fi

step "sparse copies"
truncate -s 64M sparse
head -c 1M /dev/urandom | dd of=sparse bs=1M seek=20 conv=notrunc status=none
cp --sparse=always sparse mnt/sparse
cp --sparse=auto mnt/sparse mnt/sparse.2
cp --reflink=auto mnt/sparse sparse.back
cmp sparse mnt/sparse && cmp sparse mnt/sparse.2 && cmp sparse sparse.back || fail "sparse copies differ"
[ "$(stat -c %b mnt/sparse.2)" -le 2064 ] || fail "a copy of a sparse file takes $(stat -c %b mnt/sparse.2) blocks"

step "git clone and fsck"
# Of the present commit; a bundle, so that it works in a shallow or linked checkout too.
git -C "$root" bundle create -q "$WORK/project.bundle" HEAD 2>/dev/null || fail "cannot bundle the project"
git clone -q -c advice.detachedHead=false project.bundle mnt/project
git -C mnt/project fsck --full --strict >git.out 2>&1 || fail "git fsck: $(tail -n 3 git.out)"
[ -z "$(git -C mnt/project status --porcelain)" ] || fail "git status: not clean after the clone"
git -C mnt/project gc -q
git -C mnt/project fsck --full >git.out 2>&1 || fail "git fsck after gc: $(tail -n 3 git.out)"

step "cargo build, and what it built"
mkdir -p mnt/crate/src
cat >mnt/crate/Cargo.toml <<'TOML'
[package]
name = "hello"
version = "0.1.0"
edition = "2024"
[workspace]
TOML
cat >mnt/crate/src/main.rs <<'RUST'
fn main() {
    let squares: std::collections::BTreeMap<u64, u64> = (0..1000).map(|n| (n, n * n)).collect();
    println!("{}", squares.values().sum::<u64>());
}
RUST
(cd mnt/crate && env -u CARGO_TARGET_DIR cargo build --quiet --offline --release) || fail "cargo build"
[ "$(mnt/crate/target/release/hello)" = 332833500 ] || fail "the program built on the mount gives a wrong answer"
(cd mnt/crate && touch src/main.rs && env -u CARGO_TARGET_DIR cargo build --quiet --offline) || fail "cargo build again"
[ "$(mnt/crate/target/debug/hello)" = 332833500 ] || fail "the second program gives a wrong answer"

step "a tree of 10,000 files"
mkdir tree
for a in $(seq -w 100); do
    mkdir -p "tree/d$a/sub"
    head -c 1200000 /dev/urandom | split -a 2 -b 12000 - "tree/d$a/sub/f"
done
[ "$(find tree -type f | wc -l)" = 10000 ] || fail "the tree has $(find tree -type f | wc -l) files"
ln -s ../d001/sub/faa tree/d002/link
chmod 640 tree/d003/sub/faa
cp -a tree mnt/tree
diff -r --no-dereference tree mnt/tree || fail "the copied tree differs"
expect_demotion
moved=$(($(demoted_bytes) >> 20))
[ "$(du -s --block-size=1 mnt/tree | cut -f1)" -ge $((10000 * 12288)) ] || fail "du counts too little"

step "after a remount"
umount_pool
check_pool --data
mount_pool -o noatime
list() { # every entry: type, mode, owner, size (but of directories), times, target
    find "$1" -mindepth 1 -printf '%P %y %m %U %G %s %T@ %l\n' | awk '$2 == "d" { $6 = "" } { print }' | sort
}
diff <(list tree) <(list mnt/tree) >&2 || fail "attributes of the tree differ after a remount"
diff -r --no-dereference tree mnt/tree || fail "the tree differs after a remount"
attributes >attributes.after
cmp attributes.before attributes.after || fail "xattrs differ after a remount"
cmp sparse mnt/sparse.2 || fail "the sparse copy differs after a remount"
git -C mnt/project fsck --full >git.out 2>&1 || fail "git fsck after a remount: $(tail -n 3 git.out)"
[ "$(mnt/crate/target/release/hello)" = 332833500 ] || fail "the program differs after a remount"

step "access times"
atime() { stat -c %x "$1"; }
cat mnt/tree/d004/sub/faa >/dev/null
before=$(atime mnt/tree/d004/sub/faa)
touch -m mnt/tree/d004/sub/faa
cat mnt/tree/d004/sub/faa >/dev/null
[ "$(atime mnt/tree/d004/sub/faa)" = "$before" ] || fail "noatime: a read changed the access time"
umount_pool
mount_pool
# A file of its own: what the kernel has cached by this read it reads without asking.
touch -a -d 2001-01-01 mnt/tree/d004/sub/fab mnt/tree/d004/sub/fad
dd if=mnt/tree/d004/sub/fad of=/dev/null iflag=noatime status=none
first=$(atime mnt/tree/d004/sub/fad)
[ "${first%%-*}" = 2001 ] || fail "O_NOATIME: a read changed the access time"
! touch -d 2300-01-01 mnt/tree/d004/sub/fac 2>/dev/null || fail "a time that cannot be kept is not refused"
cat mnt/tree/d004/sub/fab >/dev/null
first=$(atime mnt/tree/d004/sub/fab)
[ "${first%%-*}" -gt 2001 ] || fail "relatime: an old access time was not renewed"
sleep 0.02
cat mnt/tree/d004/sub/fab >/dev/null
[ "$(atime mnt/tree/d004/sub/fab)" = "$first" ] || fail "relatime: a new access time was renewed"

step "removal gives everything back"
rm -rf mnt/* || fail "rm -rf"
for _ in $(seq 100); do
    left=$(status_number used_bytes tiers)
    [ "$(df --output=used -B1M mnt | tail -n 1)" -le 2 ] && break
    sleep 0.1
done
[ "$(df --output=used -B1M mnt | tail -n 1)" -le 2 ] || fail "$(df --output=used -B1M mnt | tail -n 1) MiB used after rm -rf"
umount_pool
check_pool --data
pass "git, cargo, 10,000 files, $moved MiB demoted"
