#!/bin/sh
# Run the tests that need no browser and no other program on Python 3.10, the oldest: that of JetPack 6. Measurements
# are left out: their limits are those of Python 3.11.
set -eu
if ! python=$(sh tests/tools/find_python.sh 3.10); then
    echo "Python 3.10 was not found. Try: pyenv install 3.10" >&2
    exit 1
fi
venv=.venv-3.10
make --no-print-directory PYTHON="$python" VENV="$venv" "$venv/.test"
exec "$venv/bin/python" -m pytest -n 8 --max-worker-restart=0 -m "not long and not alone" \
    tests/unit tests/incidents tests/integration/test_a*.py tests/integration/test_plain_routes.py \
    tests/integration/test_ingest.py tests/integration/test_leases.py "$@"
