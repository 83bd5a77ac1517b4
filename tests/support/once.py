"""Builds that tests of several files need: made once in a run, by the first worker that needs them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.lanes import stopped_clock


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the run, which all its workers share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` has filled. Other workers wait for it; after a failure they try again.

    The clock of their test is stopped meanwhile, as another one causes this wait.
    """
    folder = shared_folder(factory) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        with stopped_clock():
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder / "content", ignore_errors=True)  # what failed has left
            (folder / "content").mkdir()
            make(folder / "content")
            (folder / "made").touch()
    return folder / "content"
