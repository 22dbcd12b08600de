#!/usr/bin/env bash
# What `make install` installs: the program and its other names, man pages that man(1) can show, completions that answer.
. "$(dirname "$0")/lib.sh"
t=$TERRACE
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
dest=$WORK/dest
check "make install" env TERRACE="$t" make -s -C "$root" install DESTDIR="$dest" PREFIX=/usr >out
usr=$dest/usr
check "the program" test "$("$usr/bin/terrace" version)" = "$("$t" version)"
for name in mkfs.terrace mount.terrace mount.fuse.terrace fsck.terrace; do
    check "$name" grep -q "^Usage: $name" <("$usr/sbin/$name" --help)
    check "$name is a link" test "$(readlink "$usr/sbin/$name")" = ../bin/terrace
done
for page in terrace terrace-mount terrace-status mount.terrace mkfs.terrace fsck.terrace; do
    file=$usr/share/man/man8/$page.8
    check "page $page" grep -q "^.SH SYNOPSIS" "$file"
    if command -v groff >/dev/null; then
        check "page $page has no errors" test -z "$(groff -man -Tutf8 -wall "$file" 2>&1 >/dev/null | grep -v 'cannot break\|cannot adjust')"
    fi
done
check "mount options in mount.terrace(8)" grep -q '^  threshold_even=PERCENT' "$usr/share/man/man8/mount.terrace.8"
check "commands in terrace(8)" grep -q 'terrace\\-mount(8)' "$usr/share/man/man8/terrace.8"
check "again" env TERRACE="$t" make -s -C "$root" install DESTDIR="$dest" PREFIX=/usr >out
check "uninstall" env TERRACE="$t" make -s -C "$root" uninstall DESTDIR="$dest" PREFIX=/usr >out
check "nothing is left" test -z "$(find "$dest" ! -type d)"

## completions: as a shell asks for them, its word last
env TERRACE="$t" make -s -C "$root" install DESTDIR="$dest" PREFIX=/usr >out
words() { COMPLETE=fish "$t" -- terrace "$@" | cut -f1; }
pm=$SHM-i.pm
mkdir mnt
"$t" mkfs --pm "$pm" --pm-size 16M --tier "$WORK/tier.img,size=64M,class=hdd" >/dev/null 2>&1
check "mount" "$t" mount "$pm" mnt
check "commands" grep -qx status <(words st)
check "mounts" grep -qx "$WORK/mnt" <(words umount "")
check "pools" grep -qx "$pm" <(words umount "")
check "mounts for sync" grep -qx "$WORK/mnt" <(words sync "$WORK/m")
check "tiers" test "$(words pin mnt/x --tier "" | tr '\n' ' ')" = "0 1 hdd ram "
check "tiers that begin so" test "$(words sync mnt --to h)" = hdd
check "completions do not name what is hidden" eval '! words "" | grep -q inspect'
check "umount" "$t" umount mnt
check "no tiers without mounts" test -z "$(words pin mnt/x --tier "")"
PATH=$usr/bin:$PATH
check "bash" bash -c '. "$1" && complete -p terrace' _ "$usr/share/bash-completion/completions/terrace" >out
check "the script of zsh" grep -q compdef "$usr/share/zsh/site-functions/_terrace"
check "the script of fish" grep -q "terrace completions fish" "$usr/share/fish/vendor_completions.d/terrace.fish"
for shell in bash zsh fish; do check "completions $shell" grep -q terrace <("$t" completions $shell); done
finish
