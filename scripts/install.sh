#!/usr/bin/env bash
# Installs target/release/terrace, its other names, man pages and completions below DESTDIR and PREFIX (/usr/local).
# `install.sh remove` removes them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prefix=${PREFIX:-/usr/local}
base=${DESTDIR:-}$prefix
# mount(8), mkfs(8) and fsck(8) look in /sbin and /usr/sbin alone.
case $prefix in /usr | /usr/local) names=${DESTDIR:-}/usr/sbin ;; *) names=$base/sbin ;; esac
man=$base/share/man/man8
bash_dir=$base/share/bash-completion/completions
zsh_dir=$base/share/zsh/site-functions
fish_dir=$base/share/fish/vendor_completions.d

if [ "${1:-}" = remove ]; then
    rm -f "$base/bin"/{terrace,terrace-lab} "$names"/{mkfs,mount,mount.fuse,fsck}.terrace "$man"/{terrace,terrace-*,mkfs.terrace,mount.terrace,fsck.terrace}.8
    rm -f "$bash_dir/terrace" "$zsh_dir/_terrace" "$fish_dir/terrace.fish"
    exit
fi
[ -x "$terrace" ] || die "$terrace is not there; run 'make build' first"
mkdir -p "$base/bin" "$names" "$man" "$bash_dir" "$zsh_dir" "$fish_dir"
install -m 755 "$terrace" "$base/bin/terrace"
# The laboratory is no part of the product: it comes along where it was built.
laboratory=$(dirname "$terrace")/terrace-lab
[ ! -x "$laboratory" ] || install -m 755 "$laboratory" "$base/bin/terrace-lab"
for name in mkfs mount mount.fuse fsck; do
    target=$prefix/bin/terrace
    [ "$names" = "$base/sbin" ] && target=../bin/terrace
    ln -sfn "$target" "$names/$name.terrace"
done
"$terrace" man-pages "$man"
chmod 644 "$man"/terrace*.8 "$man"/{mkfs,mount,fsck}.terrace.8
# Each asks the program, so that the script is that of the version that is installed.
echo 'eval "$(terrace completions bash)"' >"$bash_dir/terrace"
printf '%s\n' '#compdef terrace' 'source <(terrace completions zsh)' >"$zsh_dir/_terrace"
echo 'terrace completions fish | source' >"$fish_dir/terrace.fish"
chmod 644 "$bash_dir/terrace" "$zsh_dir/_terrace" "$fish_dir/terrace.fish"
say "installed $base/bin/terrace; mount.terrace, mkfs.terrace and fsck.terrace in $names"
