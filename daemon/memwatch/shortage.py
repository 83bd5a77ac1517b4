"""Errors that say nothing of the file that was opened."""

from __future__ import annotations

import errno

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: OSError) -> bool:
    """Whether the system, or this process, has no room for one more file just now. That passes."""
    return error.errno in _SHORTAGES
