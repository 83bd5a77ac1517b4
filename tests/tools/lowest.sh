#!/bin/sh
# Run the tests with the oldest dependencies that pyproject.toml allows, on the oldest Python found here.
set -eu
for version in 3.10 3.11 3.12 3.13; do
    python=$(sh tests/tools/find_python.sh "$version") || continue
    echo "== the oldest dependencies, Python $version"
    exec make --no-print-directory test PYTHON="$python" VENV=.venv-lowest CONSTRAINTS=tests/constraints-lowest.txt
done
echo "no Python from 3.10 to 3.13 found: old releases of the dependencies have no wheels for newer ones. Try: pyenv install 3.10" >&2
exit 1
