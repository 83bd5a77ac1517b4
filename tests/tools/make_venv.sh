#!/bin/sh
# make_venv.sh PYTHON FOLDER: create a virtual environment whose pip supports dependency groups.
set -eu
python=$1
folder=$2

if ! command -v "$python" >/dev/null; then
    echo "$python not found. Name a Python 3.10 or newer: make PYTHON=/usr/bin/python3.11" >&2
    exit 1
fi

"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 10):
    found = "%d.%d" % sys.version_info[:2]
    sys.exit("memwatchd needs Python 3.10 or newer; %s is %s. Try: make PYTHON=python3.11" % (sys.executable, found))
PY

can_make() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null
}

if ! can_make; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing the Debian package $package, which creates virtual environments"
        sh tests/tools/apt_install.sh "$package" || true
    fi
    if ! can_make; then
        echo "$python cannot create virtual environments: ensurepip is missing." \
            "Run: sudo apt install $package (Debian, Ubuntu), or name another Python: make PYTHON=python3.11" >&2
        exit 1
    fi
fi

"$python" -m venv "$folder"
# --group came with pip 25.1, --build-constraint with 25.3.
"$folder/bin/python" -m pip --quiet --disable-pip-version-check install --upgrade 'pip>=25.3'
