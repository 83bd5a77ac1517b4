#!/bin/sh
# Run the pure tests on Python 3.10, the oldest: that of JetPack 6. They need no browser and no other program.
set -eu
if ! python=$(sh tests/tools/find_python.sh 3.10); then
    echo "Python 3.10 was not found. Try: pyenv install 3.10" >&2
    exit 1
fi
venv=.venv-3.10
make --no-print-directory PYTHON="$python" VENV="$venv" "$venv/.test"
exec "$venv/bin/python" -m pytest -n auto -m pure tests/unit tests/incidents "$@"
