#!/bin/sh
# make_venv.sh PYTHON FOLDER: a virtual environment with a pip that knows dependency groups.
set -eu
python=$1
folder=$2

"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 10):
    found = "%d.%d" % sys.version_info[:2]
    sys.exit("memwatchd needs Python 3.10 or newer; %s is %s. Try: make PYTHON=python3.11" % (sys.executable, found))
PY

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package"
    else
        echo "$python cannot make virtual environments here. Run: sudo apt install $package" >&2
        exit 1
    fi
fi

"$python" -m venv "$folder"
# --group came with pip 25.1.
"$folder/bin/python" -m pip --quiet --disable-pip-version-check install --upgrade 'pip>=25.1'
