#!/bin/sh
# Build the stages of deploy/Dockerfile in fresh root folders, as root and with debootstrap; then start a guard as
# deploy/compose.yaml does, without a network and on read-only files, and ask it from the node's folder.
# sh scripts/check-images.sh WORK [--bind PATH]…
set -eu
work=$(realpath "$1")
shift
[ -d "$work/debian" ] || debootstrap --variant=minbase bookworm "$work/debian"
python3 scripts/images.py "$work" "$@"
for image in server guard node; do
    echo "$image: $(du -sm "$work/$image" | cut -f1) MB, of which Debian and Python: $(du -sm "$work/base" | cut -f1) MB"
done

# Run a program in an image's folder: ROOT USER GROUPS PROGRAM…
in='mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp" && mount --bind "$door" "$1/run/discretion"
[ ! -d "$1/var/lib/discretion" ] || mount --bind "$state" "$1/var/lib/discretion"
root=$1 user=$2 groups=$3
shift 3
quiet="PYTHONDONTWRITEBYTECODE=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1"
exec env -i PATH=/opt/discretion/bin:/usr/bin:/bin:/usr/sbin $quiet chroot --userspec="$user:$user" --groups="$groups" "$root" "$@"'
door=$work/door state=$work/state
export door state
rm -rf "$door" "$state"
install -d -m 0750 -o 1001 -g 1002 "$door"
install -d -m 0700 -o 1001 -g 1001 "$state"
mkdir -p "$work/guard/etc/discretion"
for image in server guard node; do mkdir -p "$work/$image/run/discretion"; done
seq 0 39 >"$work/guard/etc/discretion/records.txt"
cat >"$work/guard/etc/discretion/GUARD.toml" <<'END'
client = "c0"
epsilon = 4.0
delta = 1e-6
folder = "/var/lib/discretion/guard"
socket = "/run/discretion/guard.sock"
group = "relay"
[operators]
[models]
linear = ""
[data]
name = "digits"
records = "records.txt"
END

unshare --mount sh -euc "$in" in "$work/server" 1003 1003 discretion --version
unshare --mount sh -euc "$in" in "$work/server" 1003 1003 flower-superlink --version
unshare --mount sh -euc "$in" in "$work/node" 1002 1002 flower-supernode --version
unshare --mount sh -euc "$in" in "$work/guard" 1001 1002 discretion --version
unshare --mount --net sh -euc "$in" in "$work/guard" 1001 1002 discretion guard /etc/discretion/GUARD.toml &
guard=$!
trap 'kill $guard' EXIT
tries=0
until [ -S "$door/guard.sock" ]; do
    tries=$((tries + 1))
    [ $tries -lt 120 ] || { echo "the guard does not start" >&2; exit 1; }
    sleep 1
done
unshare --mount --net sh -euc "$in" in "$work/node" 1002 1002 python3 -c '
import socket
door = socket.socket(socket.AF_UNIX)
door.connect("/run/discretion/guard.sock")
door.sendall((5).to_bytes(8, "big") + b"hello")
answer = door.makefile("rb").read()
assert b"refused" in answer, answer
print("the guard answers the node:", answer[12:].decode())'
