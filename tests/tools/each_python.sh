#!/bin/sh
# The tests on every supported Python that is installed here; each has an environment of its own.
set -eu
found=
for version in 3.10 3.11 3.12 3.13 3.14; do
    python=$(ls "$HOME"/.pyenv/versions/"$version".*/bin/python 2>/dev/null | tail -1)
    [ -n "$python" ] || python=$(command -v "python$version" || true)
    [ -n "$python" ] || continue
    found="$found $version"
    echo "== Python $version"
    make --no-print-directory test PYTHON="$python" VENV=".venv-$version" TEST_ARGS="${TEST_ARGS:-}"
done
echo "passed on:$found"
