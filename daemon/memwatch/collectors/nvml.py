"""NVIDIA GPUs through NVML in a helper process: a call that hangs in the driver blocks only that process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Annotated

from memwatch.collectors.base import BaseCollector, Host
from memwatch.drivers.nvml.records import NvmlFailure, NvmlReading
from memwatch.findings import Findings
from memwatch.helper.codec import DecodeError, from_line
from memwatch.helper.python_child import python_child
from memwatch.helper.supervisor import Helper, HelperError
from memwatch.linux.device_tree import device_tree
from memwatch.linux.files import ParseError, Roots, SourceUnavailable, read_once
from memwatch.linux.pci import NVIDIA, GpuPids, pci_vendors
from memwatch.model import Absent
from memwatch.options import Bounds, Doc, Duration, SwitchableOptions, seconds

CHILD = "memwatch.drivers.nvml.child"
READ = b"read"
DEADLINE_SECONDS = 5.0
PAUSE_SECONDS = 60.0
# Not errors: the driver may be loaded later, so the library is tried again.
NOT_HERE = frozenset({"no_library", "no_driver"})


def is_nvidia_here(roots: Roots) -> bool:
    """Check for anything that NVML could report: a PCI device, a loaded driver, a Tegra, or WSL's GPU."""
    compatible = device_tree(roots, "compatible")
    places = (roots.procfs / "driver/nvidia", roots.rootfs / "dev/nvidiactl", roots.rootfs / "dev/dxg")
    return NVIDIA in pci_vendors(roots) or b",tegra" in compatible or any(place.exists() for place in places)


def parse_reading(answer: bytes) -> NvmlReading:
    """Parse the helper's answer. Raises `SourceUnavailable` without a driver, `ParseError` if it failed."""
    kind, _, line = answer.partition(b" ")
    try:
        if kind == b"reading":
            return from_line(NvmlReading, line)
        failure = from_line(NvmlFailure, line)
    except DecodeError as error:
        raise ParseError(f"the helper process sent an invalid answer: {error}") from None
    if failure.reason in NOT_HERE:
        raise SourceUnavailable(failure.text)
    raise ParseError(failure.text)


def pids_with_memory(reading: NvmlReading) -> frozenset[int]:
    lists = [gpu.processes for gpu in reading.gpus]
    return frozenset(process.pid for one in lists if not isinstance(one, Absent) for process in one)


def _host_options(roots: Roots) -> list[str]:
    """Facts of the host with which the helper validates the driver's answers."""
    options = ["--procfs", str(roots.procfs), "--sysfs", str(roots.sysfs)]
    total = re.search(rb"^MemTotal: +(\d{1,15}) kB$", read_once(roots.procfs / "meminfo") or b"", re.MULTILINE)
    return [*options, "--system-memory", str(int(total[1]) << 10)] if total else options


class Options(SwitchableOptions, frozen=True, kw_only=True):
    restart_after: Annotated[
        Duration,
        Bounds(seconds(1), seconds(3600)),
        Doc(
            "A helper process calls the NVIDIA driver. If it hangs or crashes, it is killed and restarted. Minimum "
            "time between two starts, 1s to 1h."
        ),
    ] = seconds(PAUSE_SECONDS)


class Collector(BaseCollector):
    """Queries the helper once per period. `release` stops it for a while, so that an admin can reset a GPU."""

    name = "nvml"
    period_seconds = 1.0
    may_block = True
    options = Options

    def __init__(
        self,
        roots: Roots,
        pids: GpuPids,
        pause_seconds: float = PAUSE_SECONDS,
        argv: Sequence[str] | None = None,
    ) -> None:
        """`argv`: command of the helper, instead of `CHILD`."""
        if not is_nvidia_here(roots):
            raise SourceUnavailable("no NVIDIA GPU and no NVIDIA driver found")
        command = [*(argv or python_child(CHILD)), *_host_options(roots)]
        self._helper = Helper(command, DEADLINE_SECONDS, pause_seconds, dict(os.environ))
        self._pids = pids
        self._released_until = 0.0
        self._asked = False
        self._last: tuple[bytes, NvmlReading] | None = None

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.gpu_pids, host.options_for(Options).restart_after.total_seconds())

    def send_request(self) -> bool:
        """Send the request if the helper is running, which does not block."""
        if self._helper.pid is None or self._released_until > time.monotonic():
            return False
        if not self._asked:
            self._helper.send(READ)
            self._asked = True
        return True

    def has_answer(self, seconds: float) -> bool:
        return self._helper.has_answer(seconds)

    def collect(self) -> Findings:
        requested, self._asked = self._asked, False
        if self._released_until > time.monotonic():
            self._helper.stop()
            raise SourceUnavailable("the driver is released on request and will be reopened automatically")
        try:
            if not requested:
                self._helper.send(READ)
            answer = self._helper.answer()
        except HelperError as error:
            raise ParseError(str(error)) from None
        reading = self._parse_cached(answer)
        return Findings(nvml=reading, rejected=sum(reading.rejected.values()))

    def release(self, seconds: float) -> None:
        """Release the driver for that many seconds, starting with the next run. Thread-safe."""
        self._released_until = time.monotonic() + seconds

    def close(self) -> None:
        self._helper.stop()

    def _parse_cached(self, answer: bytes) -> NvmlReading:
        """Parse an answer. On an idle machine answers repeat: an identical one is parsed only once."""
        if self._last is None or self._last[0] != answer:
            self._last = (answer, parse_reading(answer))
            self._pids.update(self.name, pids_with_memory(self._last[1]))
        return self._last[1]
