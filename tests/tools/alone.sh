#!/bin/sh
# A command whose /proc shows nothing but itself and what it starts, where that is allowed; else the command as it is.
# A shell stays above it, for the first process of such a namespace has to take in those whose parents ended.
set -eu
if unshare --pid --fork --mount-proc true 2>/dev/null; then
    exec unshare --pid --fork --mount-proc --kill-child sh -c '"$@"; exit $?' sh "$@"
fi
echo "unshare --pid is not allowed here: all processes of this machine are watched" >&2
exec "$@"
