#!/bin/sh
# need.sh NAME...: check that programs used by the tests are installed; install them where that is possible.
set -eu

program_of() {
    case $1 in
    chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
    iproute2) command -v ip ;;
    procps) command -v free ;;
    kubernetes-client) command -v kubectl ;;
    tinyproxy-bin) command -v tinyproxy ;;
    systemd) command -v systemd-analyze ;;
    openssh-client) command -v ssh-keygen ;;
    gnupg) command -v gpg ;;
    user-mode-linux) command -v linux.uml ;;
    collectd-core) command -v collectd ;;
    netdata-core) command -v netdata ;;
    libmicrohttpd12) ls /usr/lib/*/libmicrohttpd.so.12 ;;
    libprotobuf-c1) ls /usr/lib/*/libprotobuf-c.so.1 ;;
    python3-bottle) ls /usr/lib/python3/dist-packages/bottle.py ;;
    netavark | aardvark-dns) ls "/usr/lib/podman/$1" ;;
    qemu-system-x86) command -v qemu-system-x86_64 ;;
    qemu-utils) command -v qemu-img ;;
    qemu-user) command -v qemu-aarch64 ;;
    systemd-container) command -v systemd-nspawn ;;
    libc6-dev) [ -e /usr/include/stdio.h ] && echo here ;;
    pocl-opencl-icd) ls /etc/OpenCL/vendors/pocl*.icd ;;
    *) command -v "$1" ;;
    esac 2>/dev/null
}

# Programs that tests can do without: Chromium without windows takes a third of the CPU time of the other one.
is_optional() {
    [ "$1" = chromium-headless-shell ]
}

has_candidate() {
    apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}

may_install=
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    may_install=yes
fi

missing=
wanted=
for what in "$@"; do
    if program_of "$what" >/dev/null; then
        continue
    elif ! is_optional "$what"; then
        missing="$missing $what"
    elif [ -n "$may_install" ] && has_candidate "$what"; then
        wanted="$wanted $what"
    fi
done
[ -n "$missing$wanted" ] || exit 0

if [ -n "$may_install" ]; then
    echo "missing programs, which apt installs, as this is root:$missing$wanted fonts-dejavu-core"
    echo "(TOOLS=none make test installs nothing, and leaves out the tests that need a missing program)"
    # shellcheck disable=SC2086
    if ! sh tests/tools/apt_install.sh $missing $wanted fonts-dejavu-core; then
        [ -z "$missing" ] || exit 1
        echo "going on without$wanted"
    fi
else
    echo "missing programs:$missing. On Debian and Ubuntu: sudo apt install$missing" >&2
    echo "To leave out the tests that need them: TOOLS=none make test" >&2
    exit 1
fi
