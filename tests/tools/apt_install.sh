#!/bin/sh
# apt_install.sh PACKAGE...: install Debian packages as root. The output of apt is shown only if it fails.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "apt cannot install: $*" >&2
    exit 1
fi
