#!/bin/sh
# apt_install.sh PACKAGE...: install Debian packages as root, who is asked first where a terminal is there. The output
# of apt is shown only if it fails.
set -eu
if [ -t 0 ] && [ -t 1 ]; then
    printf 'Install by apt: %s? [Y/n] ' "$*"
    read -r answer || answer=n
    case $answer in
    '' | [yY] | [yY]es) ;;
    *)
        echo "nothing was installed" >&2
        exit 1
        ;;
    esac
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "apt cannot install: $*" >&2
    exit 1
fi
