"""Reasons why a panel may be empty. A test compares each with simulated machines.

A panel with a condition shows data on every machine that meets it, and on no other.
"""

from __future__ import annotations

from typing import NamedTuple


class Condition(NamedTuple):
    """Condition for data in a panel. `sentence` ends its description, `short` is shown in the empty panel."""

    sentence: str
    short: str


# Of a machine.
GPU = Condition("Only on machines with a GPU or an NPU.", "no GPU")
SHARES = Condition("Only if a device, a driver or a cgroup has a part of a pool.", "no share here")
CONTENTS = Condition("Only where the kernel reports contents (Linux).", "not reported by this system")
UNATTRIBUTED = Condition("Only where holders of memory are known (Linux).", "not reported by this system")
OOM_COUNTER = Condition("Only where the kernel counts OOM kills (Linux).", "not counted by this system")
PSI = Condition("Only if the kernel has pressure stall information.", "not supported by the kernel")
BLOCKS = Condition("Only where the kernel reports free blocks (Linux).", "not reported by this system")
SWAP = Condition("Only if the system reports swap.", "no swap reported")
BUSY = Condition("Only if a driver reports it.", "not reported by a driver")
COUNTED_ERRORS = Condition("Only if a driver or the kernel's log has counted an error.", "no error counted")
LISTED_PROCESSES = Condition("Only if a driver lists the processes of a GPU.", "no list of processes")
UNITS = Condition("Only if processes run in units of systemd.", "no units")
CONTAINERS = Condition("Only if processes run in containers or pods.", "no containers")
USERS = Condition("Only where memwatchd adds up all processes (Linux).", "processes are not added up")
HELD = Condition("Only if a driver reports the memory of processes.", "not reported by a driver")
OWN_USAGE = Condition("Only if memwatchd runs on Linux.", "not measured on this system")
ENGINES = Condition("Only if a model server reports its memory.", "no model server")
CACHE_USE = Condition("Only if a model server reports the use of its cache.", "not reported by a model server")
# Of the settings.
EXPORTED_PROCESSES = Condition("Needs `metrics = true` under `[processes]`.", "processes are not exported")
RECEIVERS = Condition("Needs a receiver under `[alerts]`.", "no receiver configured")
# Of the time.
TREND = Condition("Empty while nothing fills up.", "no trend")
SIGNALS = Condition("Empty while no signal raises a level.", "no signals")
FIRING = Condition("Empty while no alert fires.", "no firing alerts")
FITS = Condition("Empty while no device can allocate that much.", "no device")
LOST = Condition("Empty while all GPUs respond.", "none")
FAILING = Condition("Empty while all collectors work.", "none")
