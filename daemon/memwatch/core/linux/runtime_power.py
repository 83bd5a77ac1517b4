"""Runtime power management of devices, from files of the kernel that wake no device.

A device may be suspended while `power/control` is `auto`. `power/runtime_status` is `active`, `suspended`, or one
of the two ways between them (https://docs.kernel.org/power/runtime_pm.html).
"""

from __future__ import annotations

import os
from pathlib import Path

from memwatch.core.linux.files import read_once

_AWAKE = ("active", "unsupported")


def read_status(device: Path) -> str:
    """Return the runtime status. A kernel without power management has no such file: its devices are `unsupported`.

    An unreadable file is no evidence that a device is awake: the status is empty then.
    """
    file = device / "power/runtime_status"
    data = read_once(file)
    if data is None:
        return "" if os.path.exists(file) else "unsupported"
    return data.decode("ascii", "replace").strip()


def is_awake_status(status: object) -> bool:
    return status in _AWAKE


def is_awake(device: Path) -> bool:
    """Return True if no call can wake the device, as it is awake. A device that is just resuming is not, yet."""
    return is_awake_status(read_status(device))


def may_suspend(device: Path) -> bool:
    """Return False only for `on`, which keeps a device awake."""
    return (read_once(device / "power/control") or b"").strip() != b"on"
