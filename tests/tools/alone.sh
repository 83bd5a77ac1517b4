#!/bin/sh
# Run a command whose /proc shows only itself and its children, where that is allowed; otherwise run it unchanged.
# A shell stays as its parent, since the first process of a PID namespace must reap orphans.
set -eu
if unshare --pid --fork --mount-proc true 2>/dev/null; then
    exec unshare --pid --fork --mount-proc --kill-child sh -c '"$@"; exit $?' sh "$@"
fi
echo "unshare --pid is not permitted: all processes of this machine are visible" >&2
exec "$@"
