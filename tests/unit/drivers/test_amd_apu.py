"""Test the one ioctl: sent only to a GPU that is awake, with the kernel's layout, and harmless if it fails."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest

from memwatch.core.drivers.amd.amdgpu_cards import DEVICE_QUERY, INFO_IOCTL, Ioctl, is_fused, parse_device
from memwatch.core.model import Absent


def driver(flags: int) -> tuple[list[tuple[int, int, int]], Ioctl]:
    """Return requests and ioctl of a fake driver with these flags in its `struct drm_amdgpu_info_device`."""
    requests: list[tuple[int, int, int]] = []

    def ioctl(_: int, request: int, argument: bytes) -> int:
        address, size, query = struct.unpack_from("=QII", argument)
        requests.append((request, query, len(argument)))
        reply = bytes(136) + struct.pack("=Q", flags) + bytes(24) + struct.pack("=I", 12)
        ctypes.memmove(address, reply, min(size, len(reply)))
        return 0

    return requests, ioctl


@pytest.mark.parametrize(("flags", "fused"), [(1, True), (0, False), (3, True), (2, False)])
def test_flag_fusion_marks_an_apu(flags: int, fused: bool, tmp_path: Path) -> None:
    """Bit 0 of the flags marks a GPU inside a processor; other bits are ignored."""
    node = tmp_path / "renderD128"
    node.touch()
    requests, ioctl = driver(flags)

    assert is_fused(node, "active", ioctl=ioctl) is fused
    assert requests == [(INFO_IOCTL, DEVICE_QUERY, 32)]


@pytest.mark.parametrize("status", ["suspended", "suspending", "resuming", "error", Absent.NOT_SUPPORTED])
def test_sleeping_gpu_is_not_opened(status: str | Absent) -> None:
    """Opening the device would wake it, so it is opened only if it is certainly awake."""

    def opener(path: Path) -> int:
        raise AssertionError(f"{path} was opened")

    assert is_fused(Path("renderD128"), status, opener) is Absent.NOT_AVAILABLE


def test_node_is_closed_again(tmp_path: Path) -> None:
    """An open GPU cannot suspend."""
    node = tmp_path / "renderD128"
    node.touch()
    before = os.listdir("/proc/self/fd")

    is_fused(node, "active", ioctl=driver(1)[1])

    assert os.listdir("/proc/self/fd") == before


def test_missing_node_and_other_devices_are_unknown() -> None:
    """A missing node has no flags, and neither has the device of another driver."""
    assert is_fused(Path("/nonexistent/renderD128"), "active") is Absent.NOT_SUPPORTED
    assert is_fused(Path("/dev/null"), "unsupported") is Absent.NOT_AVAILABLE


def test_short_reply_is_inconsistent() -> None:
    """A reply too short for the flags does not contain them."""
    assert parse_device(bytes(100)) is Absent.INCONSISTENT
