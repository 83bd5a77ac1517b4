"""Ends of processes: kills that services logged, and ends that the kernel reported."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Literal

from msgspec import Struct

# `oomd_prekill`: systemd-oomd reports a kill that follows at once. `oom_report`: systemd reports that the kernel's
# OOM killer killed a process of a unit. `unit_end`: systemd reports that a unit's main process ended by a signal,
# without a cause.
KillSource = Literal[
    "systemd_oomd",
    "oomd_prekill",
    "earlyoom",
    "nohang",
    "kubelet",
    "runtime",
    "runtime_oom",
    "oom_report",
    "unit_end",
]


class ServiceKill(Struct, frozen=True):
    """A kill in the log of a service. `number` counts since memwatchd started.

    `place`: the cgroup, unit, pod or container that was killed; empty if the line names a process. `text` is the
    line.
    """

    number: int
    unix: float
    source: KillSource
    text: str
    pid: int | None = None
    name: str = ""
    place: str = ""


class ProcessEnd(Struct, frozen=True):
    """End of a process that was watched. `status` is its wait status, None if the kernel does not report it."""

    pid: int
    unix: float
    status: int | None = None

    @property
    def signal_name(self) -> str | None:
        """Return the signal that ended it: "SIGKILL". None if it exited, or if that is not known."""
        number = 0 if self.status is None else self.status & 0x7F
        if not number:
            return None
        with suppress(ValueError):
            return signal.Signals(number).name
        return f"signal {number}"

    @property
    def was_killed(self) -> bool:
        return self.status is not None and self.status & 0x7F == signal.SIGKILL
