"""Share the compilation of test files among the workers of a run.

In a clean clone the assertions of 550 files are rewritten: 9 s of CPU time for those of a lane, in each worker. So
each worker imports its share of the files first. It finds the others compiled when it collects them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.lanes import find_test_files


def import_share(config: pytest.Config) -> None:
    """Import every n-th file of the run. A file that fails is left to the collection, which reports it."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    for path in share_of(config.args, number, count):
        _import(path)


def share_of(arguments: Sequence[str], number: int, count: int) -> list[Path]:
    return sorted(find_test_files(arguments))[number::count]


def _import(path: Path) -> None:
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as the collection does
    try:
        importlib.import_module(path.stem)
    except (Exception, pytest.skip.Exception):
        sys.modules.pop(path.stem, None)
