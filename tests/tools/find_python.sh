#!/bin/sh
# find_python.sh VERSION: the path of a Python of that version (such as 3.10) that runs, from pyenv or the PATH.
set -eu
for python in "$HOME"/.pyenv/versions/"$1".*/bin/python "$(command -v "python$1" || true)"; do
    # A shim of pyenv is on the PATH for every version it ever knew, and fails when it is run.
    if "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
exit 1
