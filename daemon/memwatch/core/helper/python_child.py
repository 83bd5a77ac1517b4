"""Command of a child process that runs a module of this package in an isolated interpreter.

`python -m` puts the working directory first on the import path, where any user may have left an argparse.py. With
`-I`, Python uses neither that directory nor PYTHON* variables nor the user's packages, so the parent passes its own
import path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

# Arguments: the module, the number of folders, the folders, and the module's own arguments. The module is thus
# visible in /proc/PID/cmdline. Its `main` is called as if by `python -m`.
_BOOT = (
    "import sys; from importlib import import_module; module, end = sys.argv[1], 3 + int(sys.argv[2]); "
    "sys.path[:] = sys.argv[3:end]; sys.argv[:end] = [module]; sys.exit(import_module(module).main())"
)
# The folder of the package memwatch.
_PACKAGES = str(Path(__file__).parents[3])


def python_child(module: str, path: Iterable[str] | None = None) -> list[str]:
    """Return the command that calls `main` of a module. `path` is its import path, that of this process by default.

    Start it with `/` as the working directory: libraries may also be found relative to it.
    """
    folders = list(import_path() if path is None else path)
    return [sys.executable, "-I", *_flags(), "-c", _BOOT, module, str(len(folders)), *folders]


def import_path() -> list[str]:
    """Return the import path of this process without the working directory and folders relative to it.

    Python puts the working directory there for `python -m` and `python -c`, and makes relative and empty entries of
    PYTHONPATH absolute. Folders that PYTHONPATH names by an absolute path count.
    """
    text = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    named = {_PACKAGES, *filter(os.path.isabs, text.split(os.pathsep))}
    relative = {_real_path(one) for one in (".", *text.split(os.pathsep)) if not os.path.isabs(one)}
    kept = [one for one in sys.path if os.path.isabs(one) and (one in named or _real_path(one) not in relative)]
    return list(dict.fromkeys([*kept, _PACKAGES]))


def _real_path(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # the working directory was removed
        return path


def _flags() -> list[str]:
    """Return options for the place of compiled modules: `-I` ignores their environment variables."""
    flags = ["-B"] if sys.dont_write_bytecode else []
    return [*flags, "-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else flags
