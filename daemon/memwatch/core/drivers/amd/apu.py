"""The driver's FUSION flag, which marks an APU: one ioctl, called once, on a GPU that is awake.

Opening a render node wakes a suspended GPU (Linux 6.12 and 7.2: pm_runtime_get_sync in amdgpu_driver_open_kms).
The flag is therefore read only at startup, if the files in sysfs are inconclusive, and never while polling.
"""

from __future__ import annotations

import array
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from memwatch.core.drivers.amd.sysfs import absent_reason
from memwatch.core.linux.runtime_power import is_awake_status
from memwatch.core.model import Absent

# include/uapi/drm/amdgpu_drm.h of Linux 7.2: DRM_IOCTL_AMDGPU_INFO and AMDGPU_INFO_DEV_INFO.
INFO_IOCTL = 0x40206445
DEVICE_QUERY = 0x16
# Offset of ids_flags in struct drm_amdgpu_info_device, and AMDGPU_IDS_FLAGS_FUSION.
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
    """Return the FUSION flag of a GPU that is certainly awake. Any other GPU is not opened."""
    if not is_awake_status(runtime_status):
        return Absent.NOT_AVAILABLE
    try:
        file = opener(render_node)
    except OSError as error:
        return absent_reason(error)
    try:
        return parse_device(_device_info(file, ioctl))
    except OSError as error:
        return absent_reason(error)
    finally:
        with suppress(OSError):
            os.close(file)


def parse_device(reply: bytes) -> bool | Absent:
    if len(reply) < FLAGS_OFFSET + 8:
        return Absent.INCONSISTENT
    return bool(struct.unpack_from("=Q", reply, FLAGS_OFFSET)[0] & FUSION_FLAG)


def _device_info(file: int, ioctl: Ioctl) -> bytes:
    """Return the ioctl's reply. The argument holds the address of the buffer and its size."""
    reply = array.array("B", bytes(_REPLY_BYTES))
    address, _ = reply.buffer_info()
    ioctl(file, INFO_IOCTL, struct.pack("=QII16x", address, _REPLY_BYTES, DEVICE_QUERY))
    return reply.tobytes()
