"""NVIDIA GPUs through NVML in a helper process: a call that hangs in the driver blocks only that process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from memwatch.core.collectors.base import NOT_HERE, BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.drivers.nvml.records import NvmlFailure, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError, from_line
from memwatch.core.helper.process import python_child
from memwatch.core.helper.supervisor import Helper, HelperError
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable, inode_of, read_once
from memwatch.core.linux.gpu_presence import is_nvidia_here, nvidia_driver_files
from memwatch.core.linux.pci import NVIDIA, GpuPids, pci_vendors
from memwatch.core.model import Absent
from memwatch.core.options import Bounds, Duration, SwitchableOptions, seconds

CHILD = "memwatch.core.drivers.nvml.child"
UNBOUND = "no NVIDIA GPU is bound to NVIDIA's kernel driver, but to another, such as vfio-pci, or to none"
# `reopen` is `read` without waiting for the next attempt to open a driver that failed.
READ, REOPEN = b"read", b"reopen"
# Interval at which the files of a failing driver are checked.
SIGNS_SECONDS = 2.0
# Written by ldconfig after a library was installed.
LIBRARY, LIBRARY_CACHE = "libnvidia-ml.so.1", "etc/ld.so.cache"
DEADLINE_SECONDS = 5.0
PAUSE_SECONDS = 60.0
PERIOD_SECONDS, STILL_PERIOD_SECONDS, STILL_ANSWERS = 1.0, 2.0, 10


def driver_signs(roots: Roots, library_path: str) -> tuple[int, ...]:
    """Return the state of the driver's files and of its library, which are not installed in a fixed order."""
    folders = [Path(folder) for folder in library_path.split(os.pathsep) if folder]
    libraries = (roots.rootfs / LIBRARY_CACHE, *(folder / LIBRARY for folder in folders))
    return tuple(map(inode_of, (*nvidia_driver_files(roots), roots.rootfs / "dev/nvidia0", *libraries)))


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


class Pace:
    """Period of the questions. GPUs whose memory is system RAM are asked half as often while nothing changes there.

    What a process takes on them is missing from available memory, which is read at least once a second: movement
    there ends the longer period, as do other processes or bytes in an answer. GPUs with dedicated memory, sleeping
    and failed ones are asked once a second.
    """

    def __init__(self) -> None:
        self._held: tuple[object, ...] = ()
        self._still_answers = 0

    def period_after(self, reading: NvmlReading) -> float:
        """Return the seconds from this answer's question to the next one."""
        before, self._held = self._held, held_of_system_ram(reading)
        self._still_answers = self._still_answers + 1 if self._held and self._held == before else 0
        return STILL_PERIOD_SECONDS if self._still_answers >= STILL_ANSWERS else PERIOD_SECONDS


def held_of_system_ram(reading: NvmlReading) -> tuple[object, ...]:
    """Return the processes of each GPU. Empty unless all GPUs are awake and use system RAM as their memory."""
    if any(gpu.memory is not Absent.NOT_SUPPORTED or gpu.asleep or gpu.state != "ok" for gpu in reading.gpus):
        return ()
    return tuple(gpu.processes for gpu in reading.gpus)


def helper_options(roots: Roots) -> list[str]:
    """Return facts of the host with which the helper validates the driver's answers."""
    options = ["--procfs", str(roots.procfs), "--sysfs", str(roots.sysfs)]
    total = re.search(rb"^MemTotal: +(\d{1,15}) kB$", read_once(roots.procfs / "meminfo") or b"", re.MULTILINE)
    return [*options, "--system-memory", str(int(total[1]) << 10)] if total else options


class Options(SwitchableOptions, frozen=True, kw_only=True):
    restart_after: Annotated[
        Duration,
        Bounds(seconds(1), seconds(3600)),
        Doc(
            "A helper process calls the NVIDIA driver. If it hangs or crashes, it is killed and restarted: at once "
            "the first time, then after a pause that doubles up to this one, 1s to 1h."
        ),
    ] = seconds(PAUSE_SECONDS)


class Collector(BaseCollector):
    """Queries the helper once per period. `release` stops it for a while, so that an admin can reset a GPU."""

    name = "nvml"
    signs: tuple[str, ...] = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
    fast_seconds: float = PERIOD_SECONDS
    may_block = True
    options: type[Options] = Options

    def __init__(
        self,
        roots: Roots,
        pids: GpuPids,
        pause_seconds: float = PAUSE_SECONDS,
        argv: Sequence[str] | None = None,
    ) -> None:
        """`argv`: command of the helper, instead of `CHILD`."""
        if not is_nvidia_here(roots):
            is_present = NVIDIA in pci_vendors(roots)
            raise SourceUnavailable(UNBOUND if is_present else "no NVIDIA GPU and no NVIDIA driver found")
        if find_spec("pynvml") is None:
            raise SourceUnavailable("nvidia-ml-py is not installed: pip install nvidia-ml-py")
        command = [*(argv or python_child(CHILD)), *helper_options(roots)]
        self._helper = Helper(command, DEADLINE_SECONDS, pause_seconds, dict(os.environ))
        self._pids = pids
        self._roots = roots
        self._signs, self._signs_at = self._driver_signs(), time.monotonic()
        self._is_failing = False
        self._released_until = 0.0
        self._asked = False
        self._last: tuple[bytes, NvmlReading] | None = None
        self.period_seconds: float = PERIOD_SECONDS
        self._pace = Pace()

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
        self._is_failing, was_failing = True, self._is_failing
        try:
            if not requested:
                self._helper.send(self._reopen_command() if was_failing else READ)
            answer = self._helper.answer()
        except HelperError as error:
            raise ParseError(str(error)) from None
        reading = self._parse_cached(answer)
        self._is_failing = False
        self.period_seconds = self._pace.period_after(reading)
        return Findings(nvml=reading, rejected=sum(reading.rejected.values()))

    def _reopen_command(self) -> bytes:
        """Return REOPEN, and let a new helper start, if the driver's files changed since they were last checked."""
        now = time.monotonic()
        if now - self._signs_at < SIGNS_SECONDS:
            return READ
        self._signs_at, before, self._signs = now, self._signs, self._driver_signs()
        if before == self._signs:
            return READ
        self._helper.end_pause()
        return REOPEN

    def _driver_signs(self) -> tuple[int, ...]:
        return driver_signs(self._roots, os.environ.get("LD_LIBRARY_PATH", ""))

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
