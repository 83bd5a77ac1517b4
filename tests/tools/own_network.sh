#!/bin/sh
# Run a command in a network namespace that has the loopback interface only.
set -eu
user=
[ "$(id -u)" = 0 ] || user=--map-root-user
exec unshare --net $user sh -c 'ip link set lo up && exec "$@"' sh "$@"
