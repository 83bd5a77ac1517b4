#!/bin/sh
# need.sh NAME...: check that programs used by the tests are installed; install them where that is possible.
set -eu

program_of() {
    case $1 in
    chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
    procps) command -v free ;;
    kubernetes-client) command -v kubectl ;;
    tinyproxy-bin) command -v tinyproxy ;;
    systemd) command -v systemd-analyze ;;
    user-mode-linux) command -v linux.uml ;;
    collectd-core) command -v collectd ;;
    netdata-core) command -v netdata ;;
    libmicrohttpd12) ls /usr/lib/*/libmicrohttpd.so.12 ;;
    libprotobuf-c1) ls /usr/lib/*/libprotobuf-c.so.1 ;;
    python3-bottle) ls /usr/lib/python3/dist-packages/bottle.py ;;
    qemu-user) command -v qemu-aarch64 ;;
    systemd-container) command -v systemd-nspawn ;;
    libc6-dev) [ -e /usr/include/stdio.h ] && echo here ;;
    pocl-opencl-icd) ls /etc/OpenCL/vendors/pocl*.icd ;;
    *) command -v "$1" ;;
    esac 2>/dev/null
}

missing=
for what in "$@"; do
    program_of "$what" >/dev/null || missing="$missing $what"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing fonts-dejavu-core >/dev/null
else
    echo "missing programs:$missing. On Debian and Ubuntu: sudo apt install$missing" >&2
    exit 1
fi
