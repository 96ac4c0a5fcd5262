#!/usr/bin/env bash
# Run `make test` as on a machine that is not the developer's: another user without a home, a
# checkout that cannot be written, 1,024 open files, no tracefs, no fio, no compiler, no browser.
# Needs root, for a mount namespace of its own; nothing outside it changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${IS_INSIDE:-}" ]; then
    IS_INSIDE=1 exec unshare --mount bash "$0"
fi

as_other_user() {
    env --unset=HOME setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

# The other user has to reach the checkout and Python's installation. Where a folder above them,
# such as root's home, lets nobody in, an empty one takes its place and holds only the two.
python_home=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
stash=$(mktemp -d)
trap 'umount --lazy "$stash"/*; rmdir "$stash"/* "$stash"' EXIT
chmod 755 "$stash"
kept=("$PWD" "$python_home")
for index in "${!kept[@]}"; do
    mkdir "$stash/$index"
    mount --bind "${kept[index]}" "$stash/$index"
done
for folder in "${kept[@]}"; do
    above=/
    IFS=/ read -r -a names <<< "${folder#/}"
    for name in "${names[@]}"; do
        above=${above%/}/$name
        if ! as_other_user test -x "$above"; then
            mount -t tmpfs -o mode=755 tmpfs "$above"
            break
        fi
    done
done
for index in "${!kept[@]}"; do
    mkdir -p "${kept[index]}"
    mount --bind "$stash/$index" "${kept[index]}"
done

for place in /sys/kernel/tracing /sys/kernel/debug; do
    if mountpoint -q "$place"; then umount "$place"; fi
done
for program in fio cc gcc clang chromium bpftrace; do
    if path=$(command -v "$program"); then mount --bind /dev/null "$(readlink -f "$path")"; fi
done
mount -o remount,bind,ro "$PWD"
cd "$PWD"
ulimit -n 1024
as_other_user make test
