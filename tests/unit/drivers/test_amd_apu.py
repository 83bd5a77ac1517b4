"""The one ioctl: asked of a GPU that is awake, with the layout the kernel has, and refused without harm."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest

from memwatch.drivers.amd.apu import DEVICE_QUERY, INFO_IOCTL, Ioctl, is_fused, parse_device
from memwatch.model import Absent


def driver(flags: int) -> tuple[list[tuple[int, int, int]], Ioctl]:
    """A driver that answers with these flags where `struct drm_amdgpu_info_device` has them; what it was asked."""
    asked: list[tuple[int, int, int]] = []

    def ioctl(_: int, request: int, argument: bytes) -> int:
        address, size, query = struct.unpack_from("=QII", argument)
        asked.append((request, query, len(argument)))
        reply = bytes(136) + struct.pack("=Q", flags) + bytes(24) + struct.pack("=I", 12)
        ctypes.memmove(address, reply, min(size, len(reply)))
        return 0

    return asked, ioctl


@pytest.mark.parametrize(("flags", "fused"), [(1, True), (0, False), (3, True), (2, False)])
def test_the_flag(flags: int, fused: bool, tmp_path: Path) -> None:
    """Bit 0 of the flags says that a GPU is part of a processor; the others say other things."""
    node = tmp_path / "renderD128"
    node.touch()
    asked, ioctl = driver(flags)

    assert is_fused(node, "active", ioctl=ioctl) is fused
    assert asked == [(INFO_IOCTL, DEVICE_QUERY, 32)]


@pytest.mark.parametrize("status", ["suspended", "suspending", "resuming", "error", Absent.NOT_SUPPORTED])
def test_a_sleeping_gpu_is_not_opened(status: str | Absent) -> None:
    """Opening would wake it: unless it is certainly awake, nobody opens anything."""

    def opener(path: Path) -> int:
        raise AssertionError(f"{path} was opened")

    assert is_fused(Path("renderD128"), status, opener) is Absent.NOT_AVAILABLE


def test_the_node_is_closed_again(tmp_path: Path) -> None:
    """A GPU that is held open cannot fall asleep."""
    node = tmp_path / "renderD128"
    node.touch()
    before = os.listdir("/proc/self/fd")

    is_fused(node, "active", ioctl=driver(1)[1])

    assert os.listdir("/proc/self/fd") == before


def test_refusals() -> None:
    """No node is no answer, and neither is a device that is another driver's."""
    assert is_fused(Path("/nonexistent/renderD128"), "active") is Absent.NOT_SUPPORTED
    assert is_fused(Path("/dev/null"), "unsupported") is Absent.NOT_AVAILABLE


def test_short_replies() -> None:
    """A reply without flags says nothing about them."""
    assert parse_device(bytes(100)) is Absent.INCONSISTENT
