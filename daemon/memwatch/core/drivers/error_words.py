"""Kinds of driver errors in words."""

from __future__ import annotations

from memwatch.core import kernel_log
from memwatch.core.drivers.nvml.xids import XIDS


def describe_kind(kind: str) -> str:
    """Describe a kind of driver error: "XID 79: GPU has fallen off the bus", "a page fault of a GPU program"."""
    prefix, _, number = kind.partition("_")
    if prefix != "xid" or not number.isdecimal():
        return kernel_log.describe_kind(kind)
    meaning = XIDS.get(int(number))
    return f"XID {number}: {meaning}" if meaning else f"XID {number}"
