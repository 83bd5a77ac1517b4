#!/bin/sh
# Run the tests on every supported Python found here, each in its own environment.
set -eu
found=
for version in 3.10 3.11 3.12 3.13 3.14; do
    python=$(sh tests/tools/find_python.sh "$version") || continue
    found="$found $version"
    echo "== Python $version"
    make --no-print-directory test PYTHON="$python" VENV=".venv-$version"
done
if [ -z "$found" ]; then
    echo "no Python from 3.10 to 3.14 found. Try: pyenv install 3.11" >&2
    exit 1
fi
echo "passed on:$found"
