"""The driver's own word on whether a GPU is part of a processor: one ioctl, asked once, of a GPU that is awake.

Opening a render node wakes a GPU that sleeps (Linux 6.12 and 7.2: pm_runtime_get_sync in amdgpu_driver_open_kms),
so this is asked at the start only, when the files in sysfs have not decided, and never while polling.
"""

from __future__ import annotations

import array
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from memwatch.drivers.amd.sysfs import reason_of
from memwatch.model import Absent

# include/uapi/drm/amdgpu_drm.h of Linux 7.2: DRM_IOCTL_AMDGPU_INFO, and its query for the device.
INFO_IOCTL = 0x40206445
DEVICE_QUERY = 0x16
# Where struct drm_amdgpu_info_device has its flags, and the one that says "part of a processor".
FLAGS_OFFSET, FUSION_FLAG = 136, 1
_REPLY_BYTES = 512

Open = Callable[[Path], int]
Ioctl = Callable[[int, int, bytes], object]


def open_node(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def call(file: int, request: int, argument: bytes) -> object:
    return fcntl.ioctl(file, request, argument)


def is_fused(
    render_node: Path, runtime_status: str | Absent, opener: Open = open_node, ioctl: Ioctl = call
) -> bool | Absent:
    """Ask a GPU that is certainly awake; anything else is not asked."""
    if runtime_status not in ("active", "unsupported"):
        return Absent.NOT_AVAILABLE
    try:
        file = opener(render_node)
    except OSError as error:
        return reason_of(error)
    try:
        return parse_device(_device_info(file, ioctl))
    except OSError as error:
        return reason_of(error)
    finally:
        with suppress(OSError):
            os.close(file)


def parse_device(reply: bytes) -> bool | Absent:
    if len(reply) < FLAGS_OFFSET + 8:
        return Absent.INCONSISTENT
    return bool(struct.unpack_from("=Q", reply, FLAGS_OFFSET)[0] & FUSION_FLAG)


def _device_info(file: int, ioctl: Ioctl) -> bytes:
    """The kernel writes its reply where the argument points to, and no more than the argument says."""
    reply = array.array("B", bytes(_REPLY_BYTES))
    address, _ = reply.buffer_info()
    ioctl(file, INFO_IOCTL, struct.pack("=QII16x", address, _REPLY_BYTES, DEVICE_QUERY))
    return reply.tobytes()
