"""Descriptors 0 to 2, which every program expects to be open."""

from __future__ import annotations

import os
import sys
from typing import IO

STANDARD = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY))


def open_standard_files() -> None:
    """Open descriptors 0 to 2 on /dev/null if they are closed. Call before any other file is opened.

    open(2) returns the lowest free number. With descriptor 2 closed, a socket or a state file would get it, and log
    lines would be written there. Python sets the stream of a closed descriptor to None, and `print` to None writes
    to stdout.
    """
    for descriptor, name, flags in STANDARD:
        if not _is_open(descriptor):
            _open_null(descriptor, flags)
        if getattr(sys, name) is None:
            setattr(sys, name, _stream(descriptor, flags))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _open_null(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    os.set_inheritable(descriptor, True)


def _stream(descriptor: int, flags: int) -> IO[str]:
    mode = "r" if flags == os.O_RDONLY else "w"
    return open(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
